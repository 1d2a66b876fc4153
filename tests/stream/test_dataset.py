"""`ShardDataset` in the place of `wds.WebDataset`: the same pipelines, every sample once, and a length."""

from __future__ import annotations

import gzip
import multiprocessing
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from torch.utils.data import DataLoader

from tests.support import images, streams
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.stream import decoders
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader

EVERY = [f"k{number:04d}" for number in range(streams.SAMPLES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streams.numbered(tmp_path_factory.mktemp("numbered") / "data")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streams.convert(tmp_path_factory.mktemp("converted") / "data")


def urls(folder: Path) -> str:
    return f"{folder}/train-{{000000..000004}}.tar"


@pytest.fixture(autouse=True)
def _others_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", message=r".*WebDataset\(shardshuffle")
        yield


# ── every sample once ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (3, 0), (2, 3), (7, 1)])
def test_every_sample_comes_once_over_all_ranks_and_workers(
    folder: Path, world: int, workers: int, shuffle: bool
) -> None:
    got = []
    for rank in range(world):
        dataset = ShardDataset(folder, shuffle=shuffle, rank=rank, world_size=world)
        got += streams.keys(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert sorted(got) == EVERY


def test_more_workers_than_samples_are_fine(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "data", 3, 2)
    got = streams.keys(DataLoader(ShardDataset(tmp_path / "data"), batch_size=None, num_workers=5))
    assert sorted(got) == EVERY[:3]


def test_without_shuffle_the_order_is_the_shards(folder: Path) -> None:
    assert streams.keys(ShardDataset(folder)) == EVERY


def test_epochs_differ_move_on_by_themselves_and_can_be_chosen(folder: Path) -> None:
    dataset = ShardDataset(folder, shuffle=True, seed=4)
    first, second = streams.keys(dataset), streams.keys(dataset)
    assert first != second != EVERY
    assert sorted(first) == sorted(second) == EVERY
    dataset.set_epoch(0)
    assert dataset.epoch == 0
    assert streams.keys(dataset) == first
    other = ShardDataset(folder, shuffle=True, seed=4)
    other.set_epoch(1)
    assert streams.keys(other) == second
    assert streams.keys(ShardDataset(folder, shuffle=True, seed=5)) != first
    with pytest.raises(OptionError, match="epoch=-1"):
        dataset.set_epoch(-1)


def test_persistent_workers_move_on_too_and_hear_of_a_chosen_epoch(folder: Path) -> None:
    dataset = ShardDataset(folder, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    passes = [streams.keys(loader) for _ in range(3)]
    assert len({tuple(each) for each in passes}) == 3
    dataset.set_epoch(1)
    assert streams.keys(loader) == passes[1]
    assert streams.keys(loader) == passes[2]


def test_repeated_epochs_differ(folder: Path) -> None:
    got = streams.keys(ShardDataset(folder, shuffle=True).repeat(2))
    assert sorted(got[: len(EVERY)]) == sorted(got[len(EVERY) :]) == EVERY
    assert got[: len(EVERY)] != got[len(EVERY) :]


# ── as a sequence ─────────────────────────────────────────────────────────────────────────────────────────────


def test_any_sample_is_read_by_its_position(folder: Path) -> None:
    dataset = ShardDataset(folder, shuffle=True)
    assert len(dataset) == streams.SAMPLES
    assert [dataset[number]["__key__"] for number in range(len(dataset))] == EVERY
    assert [dataset[number]["__key__"] for number in (-1, -streams.SAMPLES)] == [EVERY[-1], EVERY[0]]
    assert dataset[np.int64(7)]["cls"] == b"7"  # type: ignore[index]
    for number in (streams.SAMPLES, -streams.SAMPLES - 1, 10**30):
        with pytest.raises(IndexError, match=f"of {streams.SAMPLES}"):
            dataset[number]


def test_classes_come_from_the_manifest(converted: Path, folder: Path) -> None:
    dataset = ShardDataset(converted)
    assert dataset.classes == ["c0", "c1", "c2"]
    assert ShardDataset(urls(converted)).classes == []
    by_class = {sample["__key__"][:2]: sample["cls"] for sample in dataset}
    assert by_class == {"c0": b"0", "c1": b"1", "c2": b"2"}


def test_conversion_and_dataset_agree_on_every_byte(converted: Path) -> None:
    for sample in ShardDataset(converted):
        assert sample["png"] == streams.picture(int(sample["__key__"][-4:]))


@pytest.mark.parametrize("indexed", [True, False])
def test_brace_notation_glob_list_and_folder_give_the_same(tmp_path: Path, indexed: bool) -> None:
    folder = streams.numbered(tmp_path / "data", indexed=indexed)
    listed = sorted(folder.glob("*.tar"))
    for places in (folder, str(folder), urls(folder), f"{folder}/train-*.tar", listed, [urls(folder)]):
        dataset = ShardDataset(places)  # type: ignore[arg-type]
        assert len(dataset) == streams.SAMPLES
        assert streams.keys(dataset) == EVERY


def test_shards_are_taken_in_the_order_in_which_they_are_given(folder: Path) -> None:
    given = [folder / "train-000003.tar", folder / "train-000001.tar"]
    assert streams.keys(ShardDataset(given)) == EVERY[15:20] + EVERY[5:10]


# ── webdataset's pipelines ────────────────────────────────────────────────────────────────────────────────────


def readme(dataset: Any, shuffle: bool) -> list[tuple[int, int]]:
    """The pipeline of webdataset's README, and what it gives: numbers by pixel and by label."""
    if shuffle:
        dataset = dataset.shuffle(1000)
    dataset = dataset.decode("pil").to_tuple("jpg;png", "cls").map_tuple(np.asarray, streams.same)
    loader = wds.WebLoader(dataset.batched(4), batch_size=None, num_workers=2)
    loader = loader.unbatched().shuffle(10) if shuffle else loader.unbatched()
    return [
        (int(image[0, 0, 0]), int(label))
        for images_, labels in loader.batched(5)
        for image, label in zip(images_, labels, strict=True)
    ]


def test_the_readmes_pipeline_gives_the_same_samples_with_either_class(folder: Path) -> None:
    theirs = readme(wds.WebDataset(urls(folder)), True)
    ours = readme(ShardDataset(urls(folder)), True)
    assert sorted(ours) == sorted(theirs) == [(number, number) for number in range(streams.SAMPLES)]
    assert ours != sorted(ours)


def test_without_shuffle_and_workers_the_order_is_the_same_too(folder: Path) -> None:
    def run(made: Any) -> list[Any]:
        made = made.decode("rgb8").rename(image="png").to_tuple("__key__", "image", "cls").batched(4)
        return [[part.tolist() if hasattr(part, "tolist") else part for part in batch] for batch in made]

    assert run(ShardDataset(urls(folder))) == run(wds.WebDataset(urls(folder), shardshuffle=False))


def test_samples_are_webdatasets_dicts(folder: Path) -> None:
    theirs = next(iter(wds.WebDataset(urls(folder), shardshuffle=False)))
    ours = next(iter(ShardDataset(urls(folder))))
    assert ours == {name: value for name, value in theirs.items() if name != "__local_path__"}


def test_fluent_methods_give_datasets_that_stay_themselves(folder: Path) -> None:
    bare = ShardDataset(folder, shuffle=True)
    made = bare.select(streams.same).map(streams.same).slice(5)
    assert isinstance(made, ShardDataset)
    assert len(list(made)) == 5
    assert len(bare.pipeline) == 1
    made.set_epoch(3)
    assert (made.epoch, bare.epoch) == (3, 0)
    assert streams.keys(bare.with_epoch(7)) != []
    assert len(list(ShardDataset(folder).with_epoch(30))) == 30


def test_shuffle_on_the_bare_dataset_is_computed_and_elsewhere_a_buffer(folder: Path) -> None:
    bare = ShardDataset(folder)
    assert bare.shuffle(0) is bare
    assert streams.keys(bare.shuffle(100)) == streams.keys(ShardDataset(folder).shuffle(100)) != EVERY
    assert len(bare.shuffle(100).pipeline) == 1
    assert len(bare.map(streams.same).shuffle(100).pipeline) == 3
    assert streams.keys(bare) == EVERY


@pytest.mark.parametrize(
    "options",
    [
        {"shardshuffle": 100, "detshuffle": True, "empty_check": False, "verbose": True},
        {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker, "seed": None},
        {"handler": wds.reraise_exception, "resampled": False, "mode": None, "cache_dir": None, "repeat": False},
        {"shardshuffle": False},
    ],
)
def test_webdatasets_options_are_accepted_where_they_ask_for_nothing_else(
    folder: Path, options: dict[str, Any]
) -> None:
    got = streams.keys(ShardDataset(urls(folder), **options))
    assert sorted(got) == EVERY
    assert (got != EVERY) == bool(options.get("shardshuffle"))


@pytest.mark.parametrize(
    ("options", "help_"),
    [
        ({"resampled": True}, "exactly once"),
        ({"mode": "resampled"}, "exactly once"),
        ({"handler": wds.warn_and_continue}, "on_error='skip'"),
        ({"repeat": True}, r"repeat\(\)"),
        ({"cache_dir": "/tmp"}, "cache"),
        ({"select_files": str}, r"select\(\)"),
        ({"shufle": True}, "shufle"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"max_errors": -1}, "-1"),
        ({"fields": "jpg"}, "tuple"),
        ({"fields": ("jpg;", "cls")}, "empty"),
        ({"seed": -1}, "seed"),
        ({"window": 0}, "window"),
        ({"rank": 2, "world_size": 2}, "rank is 2"),
        ({"rank": 0}, "give both"),
    ],
)
def test_what_cannot_be_is_refused_with_help(folder: Path, options: dict[str, Any], help_: str) -> None:
    with pytest.raises(OptionError, match=help_):
        ShardDataset(folder, **options)


# ── other processes ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_dataset_and_its_pipelines_pickle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ShardDataset(folder, shuffle=True, seed=3)
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset.to_tuple("__key__")))
    assert [key for (key,) in again] == streams.keys(dataset)
    # Pickled by a driver for a rank elsewhere, it must find that rank.
    again = pickle.loads(pickle.dumps(ShardDataset(folder)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert streams.keys(again) == EVERY[12:]


@pytest.mark.parametrize(
    ("method", "remote"), [("fork", False), ("fork", True), ("spawn", True), ("forkserver", False)]
)
def test_fault_46_a_dataset_that_was_used_works_in_another_process(folder: Path, method: str, remote: bool) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    with streams.served(folder) as server:
        dataset = ShardDataset(server.url if remote else folder, shuffle=True)
        assert [dataset[number]["__key__"] for number in (0, 20)] == [EVERY[0], EVERY[20]]
        half = iter(dataset)
        next(half)
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.apply(streams.read_all, [dataset]) == EVERY + EVERY
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
        assert sorted(streams.keys(loader)) == EVERY
        assert dataset[3]["__key__"] == EVERY[3]
        assert len(list(half)) == streams.SAMPLES - 1


def test_fault_46_a_process_that_is_forked_reads_on_with_what_was_open(folder: Path) -> None:
    dataset = ShardDataset(folder)
    dataset[0]
    process = multiprocessing.get_context("fork").Process(target=streams.read_all, args=(dataset,))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert dataset[1]["cls"] == b"1"


def test_a_spawned_worker_is_told_its_rank(folder: Path) -> None:
    """It has no torch.distributed to ask."""
    dataset = ShardDataset(folder, rank=1, world_size=2)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert streams.keys(loader) == EVERY[12:]


# ── nothing is executed ───────────────────────────────────────────────────────────────────────────────────────


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("ext", ["pyd", "pkl", "pickle", "pth", "pt", "PYD", "a.pyd", "pyd.gz", "npy", "npz"])
@pytest.mark.parametrize("method", ["decode", "xdecode"])
def test_fault_49_no_pickle_is_ever_loaded(tmp_path: Path, ext: str, method: str) -> None:
    bomb = pickle.dumps(Trap(tmp_path / "sprung"))
    if ext == "npy":
        array = np.empty(1, object)
        array[0] = Trap(tmp_path / "sprung")
        bomb = images.npy(array)
    data = gzip.compress(bomb) if ext.endswith(".gz") else bomb
    (tmp_path / "train-0.tar").write_bytes(streams.tarred([(f"a.{ext}", data), ("a.txt", b"hello")]))
    dataset = ShardDataset(tmp_path / "train-0.tar")
    assert dataset[0][ext.lower()] == data
    made = dataset.decode("pil") if method == "decode" else dataset.xdecode(must_decode=False)
    if ext in ("npy", "npz") and method == "decode":
        with pytest.raises(Exception, match=r"^$|allow_pickle|DecodingError"):
            list(made)
    else:
        (sample,) = made
        assert sample["txt"] == "hello"
        assert sample[ext.lower()] == (bomb if method == "decode" else data)
    loader = ShardLoader(ShardDataset(tmp_path / "train-0.tar", fields=(ext.lower(), "__key__")))
    assert list(loader) == [([data], ["a"])]
    assert not (tmp_path / "sprung").exists()


def test_decoding_is_webdatasets_for_all_else(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    fields = {"json": {"a": 1}, "txt": "é", "npy": array, "cls": 3, "png": streams.picture(5), "bin": b"\xff"}
    streams.pack(tmp_path, [{"__key__": "a", **fields, "text.gz": "packed"}])
    shard = str(tmp_path / "train-000000.tar")
    ours, theirs = (next(iter(made.decode("rgb8"))) for made in (ShardDataset(shard), wds.WebDataset(shard)))
    assert {name: repr(value) for name, value in ours.items()} == {
        name: repr(value) for name, value in theirs.items() if name != "__local_path__"
    }
    chosen = next(iter(ShardDataset(shard).decode(post=[wds.autodecode.basichandlers], only=["json"])))
    assert (chosen["json"], chosen["cls"]) == ({"a": 1}, b"3")


@pytest.mark.parametrize("data", [gzip.compress(bytes(5000)), gzip.compress(bytes(9))[:-9], b"no gzip"])
def test_fault_50_a_gzip_bomb_is_capped(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MAX_FIELD", 4096)
    (tmp_path / "train-0.tar").write_bytes(streams.tarred([("a.txt.gz", data)]))
    with pytest.raises(wds.autodecode.DecodingError) as caught:
        list(ShardDataset(tmp_path / "train-0.tar").decode())
    assert "txt.gz" in str(caught.value.__cause__)


# ── remote ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_over_http_samples_are_the_same_as_locally(folder: Path) -> None:
    with streams.served(folder) as server:
        for places in (
            server.url,
            f"{server.url}/",
            f"{server.url}/info.json",
            f"{server.url}/train-{{000000..000004}}.tar",
        ):
            dataset = ShardDataset(places, shuffle=True)
            local = ShardDataset(folder, shuffle=True)
            assert len(dataset) == streams.SAMPLES
            assert [{**sample, "__url__": ""} for sample in dataset] == [{**sample, "__url__": ""} for sample in local]
            assert dataset[-1]["__url__"] == f"{server.url}/train-000004.tar"


def test_remote_shards_without_indexes_are_streamed_and_it_is_said(tmp_path: Path) -> None:
    folder = streams.numbered(tmp_path / "data", indexed=False)
    with streams.served(folder) as server:
        places = f"{server.url}/train-{{000000..000004}}.tar"
        with pytest.warns(UserWarning, match=r"without length, random access or resume"):
            dataset = ShardDataset(places)
        assert [{**s, "__url__": ""} for s in dataset] == [{**s, "__url__": ""} for s in ShardDataset(folder)]
        for ask in (len, lambda made: made[0]):
            with pytest.raises(TypeError, match="no length"):
                ask(dataset)
        with pytest.raises(OptionError, match="wds-tools index"):
            ShardLoader(dataset)
        with pytest.warns(UserWarning, match="without length"):
            shuffled = [ShardDataset(places, shuffle=True, rank=rank, world_size=2) for rank in range(2)]
        got = [streams.keys(DataLoader(each, batch_size=None, num_workers=2)) for each in shuffled]
        assert sorted(got[0] + got[1]) == EVERY
        assert sorted(streams.keys(dataset.shuffle(100).decode("pil"))) == EVERY


def test_fault_20_a_cut_remote_shard_never_shortens_an_epoch(tmp_path: Path) -> None:
    folder = streams.numbered(tmp_path / "data", indexed=False)
    streams.rewrite(folder / "train-000002.tar", lambda data: data[: len(data) // 1024 * 512])
    with streams.served(folder) as server:
        with pytest.warns(UserWarning, match="without length"):
            dataset = ShardDataset(f"{server.url}/train-{{000000..000004}}.tar")
        with pytest.raises(Exception, match=r"train-000002\.tar: cut short"):
            list(dataset)


def test_fault_26_a_page_instead_of_a_remote_shard_is_said(folder: Path) -> None:
    with streams.served(folder) as server:
        dataset = ShardDataset(server.url)
        server.always = streams.page_in_ranges
        with pytest.raises(Exception, match=rf"{server.url}/train-00000\d\.idx: not an index"):
            list(dataset)
        with pytest.raises(Exception, match=rf"{server.url}/info\.json: not JSON"):
            ShardDataset(server.url)

        server.always = lambda handler, path: (streams.honest if path.suffix != ".tar" else streams.page_in_ranges)(
            handler, path
        )
        with pytest.raises(StoreError, match=rf"{server.url}/train-000000\.tar has 4096 bytes"):
            list(dataset)
        server.always = lambda handler, path: (
            streams.status(404) if path.suffix == ".idx" else streams.page_in_ranges
        )(handler, path)
        with pytest.warns(UserWarning, match="without length"):
            bare = ShardDataset(f"{server.url}/train-000000.tar")
        with pytest.raises(Exception, match=rf"{server.url}/train-000000\.tar: an HTML or XML page"):
            list(bare)


@pytest.mark.parametrize("longer", [0, 512])
def test_fault_28_a_remote_shard_replaced_under_its_index_is_refused(tmp_path: Path, longer: int) -> None:
    folder = streams.numbered(tmp_path / "data", 5)
    (folder / "info.json").unlink()
    other = streams.pack(tmp_path / "other", (streams.sample(n, txt="x" * (longer + n)) for n in range(5)))
    streams.rewrite(folder / "train-000000.tar", lambda data: (other / "train-000000.tar").read_bytes())
    with streams.served(folder) as server:
        dataset = ShardDataset(f"{server.url}/train-000000.tar")
        with pytest.raises(Exception, match=r"train-000000\.tar.*wds-tools index"):
            list(dataset)


def test_a_missing_remote_index_or_shard_is_named(tmp_path: Path) -> None:
    folder = streams.numbered(tmp_path / "data")
    with streams.served(folder) as server:
        dataset = ShardDataset(server.url)
        (folder / "train-000001.idx").unlink()
        with pytest.raises(NotFoundError, match=r"train-000001\.tar has no index.*wds-tools index"):
            list(dataset)
        streams.index(folder)
        (folder / "train-000003.tar").unlink()
        with pytest.raises(NotFoundError, match=r"train-000003\.tar does not exist"):
            list(dataset)
        with pytest.raises(StoreError, match=r"nowhere cannot be listed; give a folder with info.json"):
            ShardDataset(f"{server.url}/nowhere")


def test_pipe_urls_are_never_run(tmp_path: Path) -> None:
    for place in (f"pipe:touch {tmp_path}/ran", [f"pipe:touch {tmp_path}/ran"]):
        with pytest.raises(OptionError, match="never run"):
            ShardDataset(place)
    assert list(tmp_path.iterdir()) == []
