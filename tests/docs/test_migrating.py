"""docs/migrating.md: what is shown before and after trains on the same samples with the same labels.

The blocks run as they stand but for their numbers (`SMALLER`), on data that is made here under the names they use. Crops
are random, so images for them are of one colour each: any crop of one is the sample itself.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support import commands, needs, shards, trees

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
EPOCHS, BATCH, CLASSES, PER_CLASS = 2, 4, 3, 4
SAMPLES = [(label, number) for label in range(CLASSES) for number in range(PER_CLASS)]
SMALLER = {
    "batch_size=256": f"batch_size={BATCH}",
    "batched(256)": f"batched({BATCH})",
    "num_workers=8": "num_workers=1",
    "range(90)": f"range({EPOCHS})",
    "maxcount=10_000": "maxcount=5",
    "{000000..000146}": "{000000..000002}",
}


@dataclass(frozen=True)
class Block:
    """Code of a section, and how the sentence before it begins."""

    caption: str
    language: str
    code: str


def sections() -> dict[str, list[Block]]:
    found = {}
    for section in TEXT.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        blocks = re.findall(r"^(\w+)[^\n]*:\n\n```(\w+)\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
        assert len(blocks) == body.count("\n```") // 2, f"{title}: a block without a sentence that ends in a colon"
        if blocks:
            found[title] = [Block(*block) for block in blocks]
    return found


# -- the data that the page speaks of


def flat_jpeg(label: int, number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (20 + 60 * label, 40 + 40 * number, 90)).save(file, "JPEG", quality=95)
    return file.getvalue()


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    images = [rng.integers(40 * number, 40 * number + 40, (16, 12, 3), np.uint8) for _, number in SAMPLES]
    return np.stack(images), np.array([label for label, _ in SAMPLES])


def image_folder() -> None:
    needs.kernel()  # --tile
    trees.make(
        Path("imagenet/train"),
        {f"n{9 - label}/{number}.jpg": flat_jpeg(2 - label, number) for label, number in SAMPLES},
    )


def webdataset_shards() -> None:
    Path("shards").mkdir()
    samples = [{"__key__": f"{a}-{b}", "jpg": flat_jpeg(a, b), "cls": a} for a, b in SAMPLES]
    assert len(shards.webdataset_shards(Path("shards"), samples, 5)) == 3
    for path in Path("shards").glob("*.tar"):
        path.rename(path.with_name(f"train-{int(re.findall(r'[0-9]+', path.stem)[-1]):06d}.tar"))


def hdf5() -> None:
    h5py: Any = needs.package("h5py")
    with h5py.File("images.h5", "w") as file:
        file["images"], file["labels"] = arrays()


def npy() -> None:
    for name, array in zip(("images", "labels"), arrays(), strict=True):
        np.save(f"{name}.npy", array)


def tfrecord() -> None:
    needs.package("tfrecord")
    from tfrecord.tools import tfrecord2idx
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter("train.tfrecord")
    for label, number in SAMPLES:
        writer.write({"image/encoded": (flat_jpeg(label, number), "byte"), "image/class/label": (label, "int")})
    writer.close()
    tfrecord2idx.create_index("train.tfrecord", "train.index")


def parquet() -> None:
    pa: Any = needs.package("pyarrow")
    needs.package("pyarrow.parquet")
    datasets: Any = needs.package("datasets")
    datasets.config.HF_DATASETS_CACHE = Path("cache").absolute()  # not the user's
    names = [f"class {label}" for label in range(CLASSES)]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    Path("food/data").mkdir(parents=True)
    Path("food/README.md").write_text("# Food\n")
    for file in range(2):
        mine = SAMPLES[file::2]
        images = [{"bytes": flat_jpeg(*sample), "path": f"{sample[0]}_{sample[1]}.jpg"} for sample in mine]
        table = pa.table({"image": images, "label": [label for label, _ in mine]}).replace_schema_metadata(metadata)
        pa.parquet.write_table(table, f"food/data/train-{file:05d}-of-00002.parquet", row_group_size=4)


DATA: dict[str, Callable[[], None]] = {
    "From torchvision's ImageFolder": image_folder,
    "From webdataset": webdataset_shards,
    "From HDF5": hdf5,
    "From .npy and memmap": npy,
    "From TFRecord": tfrecord,
    "From Hugging Face datasets and parquet": parquet,
}


# -- running it


@dataclass
class Trained:
    """What a block's ``train_step`` was given."""

    samples: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        assert images.dtype == torch.float32
        assert len(images) == len(labels) == BATCH
        self.samples += zip(labels.tolist(), images, strict=True)

    def sorted(self) -> tuple[list[int], torch.Tensor]:
        """Labels and images by label and by the green that tells samples of a class apart."""
        ordered = sorted(self.samples, key=lambda sample: (sample[0], float(sample[1][1].mean())))
        return [label for label, _ in ordered], torch.stack([image for _, image in ordered])


def run(block: Block) -> Trained:
    trained = Trained()
    code = block.code
    for what, instead in SMALLER.items():
        code = code.replace(what, instead)
    if block.language == "sh":
        for line in code.splitlines():
            program, *words = shlex.split(line)
            assert program == "wds-tools"
            said = commands.call(*words)
            assert said.code == 0, said.err
    else:
        space = {"__name__": "__main__", "train_step": trained.step, "device": "cpu"}
        exec(compile(code, f"<migrating: {block.caption}>", "exec"), space)
        if "loader" in space:
            assert code != block.code
    return trained


def needs_of(blocks: list[Block]) -> None:
    """torchvision's operators may have to be defined before it is imported."""
    if any("torchvision" in block.code for block in blocks):
        needs.package("tests.support.torchvision_ops")
        needs.package("torchvision")


def test_every_section_with_code_is_tried() -> None:
    assert sections().keys() == DATA.keys()
    for title, blocks in sections().items():
        captions = [block.caption for block in blocks]
        assert captions[0] == "Before", title
        assert captions.count("After") == len(captions) - 2, title


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the peers, about themselves
@pytest.mark.parametrize("title", DATA)
def test_before_and_after_train_on_the_same(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, convert, *afters = sections()[title]
    needs_of([before, *afters])
    monkeypatch.chdir(tmp_path)
    DATA[title]()
    labels, images = run(before).sorted()
    assert labels == [label for label, _ in SAMPLES for _ in range(EPOCHS)]
    run(convert)
    for after in afters:
        found, pixels = run(after).sorted()
        assert found == labels, after.code
        # One grey level, as torchvision normalises it: decoders and resizing round.
        torch.testing.assert_close(
            pixels, images, atol=0.018, rtol=0, msg=lambda text, after=after: f"{text}\n{after.code}"
        )
    assert commands.call("verify", "shards", "--decode").code == 0
