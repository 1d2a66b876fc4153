"""The report in a real browser: nothing is asked of a network, nothing complains, keys and filter work, all of it is legible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser, images, needs, others, trees
from tests.support.browser import Browser
from wds_tools.convert.run import convert_tree
from wds_tools.tools.report import ReportOptions, write_report

HOSTILE = "<img src=x onerror=document.title='owned'></script><script>document.title='owned'</script>"
QUICK = ReportOptions(workers=0)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser.running(needs.chromium()) as found:
        yield found


@pytest.fixture(autouse=True)
def _desk(request: pytest.FixtureRequest) -> None:
    if "chrome" in request.fixturenames:
        request.getfixturevalue("chrome").window(1280)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes with names that would like to be markup, two splits, one broken image."""
    folder = tmp_path_factory.mktemp("small")
    for split, count in (("train", 6), ("val", 2)):
        for name in ("ant", "bee", "cat"):
            for number in range(count - (name == "cat")):
                trees.write(folder, f"{split}/{name}/{split}{number}.jpg", images.jpeg(120 + 9 * number, 90))
        convert_tree(folder / split, folder / "data", split=split, max_count=5, shuffle=False, workers=0)
    content = json.loads((folder / "data" / "info.json").read_bytes())
    content["classes"][1] = HOSTILE
    others.rewrite(folder / "data" / "info.json", json.dumps(content).encode())
    shard = folder / "data" / "train-000001.tar"
    data = shard.read_bytes()
    at = data.index(b"\xff\xd8\xff", data.index(b"bee/"))
    others.rewrite(shard, data[:at] + b"xxx" + data[at + 3 :])
    write_report(folder / "data", folder / "report.html", QUICK)
    return folder / "report.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand classes in 300 shards."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "data").mkdir()
    picture = trees.picture()
    for shard in range(300):
        files: dict[str, bytes] = {}
        for number in range(10):
            label = (shard * 10 + number) % 1000
            files |= {
                f"n{label:04d}/{shard}_{number}.jpg": picture,
                f"n{label:04d}/{shard}_{number}.cls": b"%d" % label,
            }
        others.tar(folder / "data" / f"x-{shard:06d}.tar", files)
    write_report(folder / "data", folder / "report.html", ReportOptions(workers=0, verify=False))
    return folder / "report.html"


def quiet(chrome: Browser, page: Path) -> None:
    """Nothing was asked for but the page itself and the pictures in it, and nothing complained."""
    assert [url for url in chrome.asked if not url.startswith("data:image/webp;base64,")] == [page.as_uri()]
    assert chrome.complaints == []


def shown(chrome: Browser) -> list[str]:
    """The names of the classes that are in the list."""
    found = chrome.evaluate("[...document.querySelectorAll('.class')].map((each) => each.getAttribute('aria-label'))")
    assert isinstance(found, list)
    return found


def write_filter(chrome: Browser, text: str) -> None:
    chrome.evaluate("document.getElementById('filter').focus(); document.getElementById('filter').select()")
    chrome.type(text)


FOCUSED = "(document.activeElement.id || document.activeElement.className || document.activeElement.textContent).trim()"


# -- without a network, without a complaint


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_quietly_and_fits(chrome: Browser, small: Path, width: int, scheme: str) -> None:
    chrome.window(width, 900, scheme)
    chrome.open(small)
    chrome.evaluate("document.getElementById('classes').scrollIntoView()")
    chrome.wait("[...document.querySelectorAll('.tile img')].some((each) => each.complete && each.naturalWidth)")
    assert chrome.evaluate("document.documentElement.scrollWidth") <= width
    assert chrome.evaluate("document.title") == "data · dataset report"
    quiet(chrome, small)


def test_the_browser_would_tell_of_requests_and_complaints(chrome: Browser, small: Path, tmp_path: Path) -> None:
    """What the other tests see nothing of is seen when it is there; and the page's policy stops it."""
    text = small.read_text()
    loose = text.replace("default-src 'none'; img-src data:; ", "img-src *; ").replace(
        "script-src 'sha256-", "x 'sha256-"
    )
    for name, page in (("kept", text), ("loose", loose)):
        page = page.replace("</main>", "<img src='http://127.0.0.1:9/x.png'><script>console.log('ran')</script></main>")
        (tmp_path / f"{name}.html").write_text(page)
    chrome.open(tmp_path / "loose.html")
    chrome.wait("document.images[document.images.length - 1].complete")
    assert any(url.startswith("http://127.0.0.1:9/") for url in chrome.asked)
    assert "['ran']" in chrome.complaints
    chrome.open(tmp_path / "kept.html")
    chrome.wait("document.images[document.images.length - 1].complete")
    assert "['ran']" not in chrome.complaints
    assert any("Content Security Policy" in each for each in chrome.complaints)


def test_names_are_text(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    assert HOSTILE in shown(chrome)
    assert chrome.evaluate("document.querySelectorAll('h3 img, h3 script').length") == 0
    assert chrome.evaluate("document.title") == "data · dataset report"


# -- what it shows


def test_pictures_are_there_and_a_broken_one_says_why(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    assert shown(chrome) == ["ant", HOSTILE, "cat"]
    tiles = chrome.evaluate("[...document.querySelectorAll('.tile')].map((each) => each.textContent)")
    assert len(tiles) == 22
    assert [text for text in tiles if text] == ["Brokennot an image of a known kind"]
    words = "[...each.childNodes].map((part) => part.textContent)"
    headings = chrome.evaluate(f"[...document.querySelectorAll('.class h3')].map((each) => {words})")
    assert headings[1] == [HOSTILE, "8 samples (train 6, val 2)", "1 broken"]
    assert headings[2] == ["cat", "6 samples (train 5, val 1)"]
    chrome.evaluate("document.getElementById('shards').scrollIntoView()")
    rows = chrome.evaluate("[...document.querySelectorAll('#shard-table tbody tr')].map((each) => each.innerText)")
    assert len(rows) == 5  # four of train, one of val
    assert rows[0].split()[:3] == ["train", "train-000000.tar", "5"]


def test_light_and_dark_are_legible(chrome: Browser, small: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        chrome.window(1280, 900, scheme)
        chrome.open(small)
        for name in ("body", ".quiet", "nav a", ".verdict", "#status", ".tile.broken b", ".class h3 .wrong"):
            contrast = chrome.evaluate(CONTRAST % json.dumps(name))
            assert contrast >= 4.5, (scheme, name, contrast)
        colours[scheme] = chrome.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours["light"] != colours["dark"]


# WCAG 2.1's contrast ratio of an element's colour and the first background behind it that is not transparent.
CONTRAST = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
      .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let element = document.querySelector(%s);
  const front = light(getComputedStyle(element).color);
  const clear = "rgba(0, 0, 0, 0)";
  while (getComputedStyle(element).backgroundColor === clear) element = element.parentElement;
  const back = light(getComputedStyle(element).backgroundColor);
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
})()"""


# -- filter and order


def test_the_filter_takes_part_of_a_name(chrome: Browser, large: Path) -> None:
    chrome.open(large)
    status = "document.getElementById('status').textContent"
    assert chrome.evaluate(status) == "1,000 classes"
    write_filter(chrome, "12")
    assert chrome.evaluate(status) == "20 of 1,000 classes"
    assert len(shown(chrome)) == 20
    assert all("12" in name for name in shown(chrome))
    write_filter(chrome, " N0123")
    assert chrome.evaluate(status) == "1 of 1,000 classes"
    assert shown(chrome) == ["n0123"]
    write_filter(chrome, "no such class")
    assert shown(chrome) == []
    assert chrome.evaluate("document.getElementById('list').innerText") == "No class has this in its name."
    quiet(chrome, large)


def test_the_order_can_be_chosen(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    for order, names in (
        ("fewest", ["cat", "ant", HOSTILE]),
        ("most", ["ant", HOSTILE, "cat"]),
        ("broken", [HOSTILE, "ant", "cat"]),
        ("index", ["ant", HOSTILE, "cat"]),
    ):
        chrome.evaluate(
            f"document.getElementById('order').value = '{order}';"
            "document.getElementById('order').dispatchEvent(new Event('change'))"
        )
        assert shown(chrome) == names


def test_a_thousand_classes_are_made_as_they_come_into_view(chrome: Browser, large: Path) -> None:
    chrome.open(large)
    first = len(shown(chrome))
    assert 24 <= first <= 100
    assert chrome.evaluate("document.querySelectorAll('#shard-table tbody tr').length") <= 200
    chrome.evaluate("document.getElementById('more').scrollIntoView()")
    chrome.wait(f"document.querySelectorAll('.class').length > {first}")
    chrome.evaluate(
        "document.getElementById('shard-details').open = true;"
        "const table = document.querySelector('.scroll.tall'); table.scrollTop = table.scrollHeight"
    )
    chrome.wait("document.querySelectorAll('#shard-table tbody tr').length === 300")
    quiet(chrome, large)


# -- keys


def test_tab_reaches_every_control_and_arrows_move_between_pictures(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    seen = []
    for _ in range(40):
        chrome.press("Tab")
        seen.append(chrome.evaluate(FOCUSED))
        if seen[-1].startswith("tile"):
            break
    assert seen[0] == "skip"
    for wanted in ("Summary", "Classes", "filter", "order"):
        assert wanted in seen
    assert chrome.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    at = "[...document.querySelectorAll('.tile')].indexOf(document.activeElement)"
    assert chrome.evaluate(at) == 0
    for key, place in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 7),
        ("ArrowRight", 7),
        ("Home", 0),
    ):
        chrome.press(key)
        assert chrome.evaluate(at) == place
    chrome.press("Tab")
    assert chrome.evaluate(at) == 8  # the next class


def test_enter_opens_a_sample_and_escape_leads_back(chrome: Browser, small: Path) -> None:
    chrome.open(small)
    chrome.evaluate("document.querySelector('.tile').focus()")
    name = chrome.evaluate("document.activeElement.title")
    chrome.press("Enter")
    assert chrome.evaluate("document.getElementById('detail').open") is True
    text = chrome.evaluate("document.getElementById('detail').innerText")
    assert name in text
    assert ["Split", name.split("/")[1].rstrip("0123456789")] in [text.split()[at : at + 2] for at in range(20)]
    chrome.press("Escape")
    assert chrome.evaluate("document.getElementById('detail').open") is False
    assert chrome.evaluate("document.activeElement.title") == name


def test_the_skip_link_leads_to_the_pictures(chrome: Browser, large: Path) -> None:
    chrome.open(large)
    chrome.press("Tab")
    chrome.press("Enter")
    chrome.wait("location.hash === '#classes' && scrollY > 200")
    assert chrome.evaluate("document.activeElement.id") == "classes"
