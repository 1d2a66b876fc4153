"""What one worker makes of samples that are in memory: the processor's part of loading, without any reading.

It goes through `Batcher`, as a loader's workers do: decode, crop, label, batch. Decoding whole images alone is measured
beside it, so that it can be seen what the transform adds, or what a decoder that skips what a crop does not show saves.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wds_tools.errors import FormatError, SampleError
from wds_tools.image import codec
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.image.presets import RandomResizedCrop
from wds_tools.stream.batch import LABEL, Batcher, Fields, kept_randomness
from wds_tools.stream.reader import SampleDict
from wds_tools.tools.reading import Note
from wds_tools.tools.verdict import Decode

TRIED = 8  # arrays by which a field is told to be of images
CHECKED = 256  # samples that are looked at before the clock starts


@dataclass(frozen=True)
class Content:
    """What a batch is made of: ``fields`` as `ShardDataset` takes them, and which names of them are of images."""

    fields: tuple[str, ...]
    images: tuple[str, ...]

    def image(self, sample: SampleDict) -> bytes | None:
        """The bytes of the sample's image, None if it has none."""
        return next((sample[name] for name in self.images if name in sample), None)


def make_transform(image_size: int) -> RandomResizedCrop:
    """What images go through on their way into a batch."""
    return RandomResizedCrop(image_size)


def find_content(samples: Sequence[SampleDict]) -> Content:
    """Images and labels, as far as these samples have them; without images every field that all of them have."""
    found = Counter(name for sample in samples for name in sample if not name.startswith("__"))
    images = tuple(name for name, _ in found.most_common() if name in EXTENSIONS and _is_image(samples, name))
    labels = (LABEL,) if found[LABEL] == len(samples) else ()
    if images:
        return Content((";".join(images), *labels), images)
    everywhere = tuple(name for name, count in found.items() if count == len(samples) and name != LABEL)
    return Content(everywhere + labels or ("__key__",), ())


def _is_image(samples: Sequence[SampleDict], name: str) -> bool:
    """Whether a field is of images: an array may be anything."""
    if EXTENSIONS[name] != "npy":
        return True
    for sample in [sample for sample in samples if name in sample][:TRIED]:
        with contextlib.suppress(SampleError):
            codec.decode(sample[name])
            return True
    return False


def measure_decoding(
    samples: Sequence[SampleDict], content: Content, image_size: int, batch_size: int, seconds: float, note: Note
) -> tuple[Decode, int, int]:
    """Rates of one process, and how many samples were bad and good. `FormatError` where none can be used."""
    batcher = Batcher(Fields(content.fields), make_transform(image_size))
    good: list[SampleDict] = []
    bad: list[SampleError] = []
    with kept_randomness():
        end = time.perf_counter() + seconds
        for sample in samples[:CHECKED]:  # warms up, too
            try:
                batcher.begin(1).add(sample, 0)
                good.append(sample)
            except SampleError as error:
                bad.append(error.at(f"{sample['__url__']}, key {sample['__key__']!r}"))
            if good and time.perf_counter() > end:
                break
        if not good:
            raise FormatError(
                f"none of the {len(bad)} samples that were tried can be used; {bad[0]}; "
                "'wds-tools verify --decode' lists them all"
            )
        rate, cpu = _batches(batcher, good, batch_size, seconds, note)
    return Decode(rate, _whole_images(good, content, seconds / 2, note), cpu), len(bad), len(good)


def _batches(
    batcher: Batcher, samples: Sequence[SampleDict], batch_size: int, seconds: float, note: Note
) -> tuple[float, float]:
    """Samples per second through all that a worker does, and the part of the time that it had a core."""
    count = 0
    started, cpu = time.perf_counter(), time.process_time()
    end = started + seconds
    while time.perf_counter() < end:
        batch, before = batcher.begin(batch_size), count
        while count - before < batch_size and (count == before or time.perf_counter() < end):
            batch.add(samples[count % len(samples)], count)
            count += 1
        batch.done()
        note(count - before, 0)
    elapsed = time.perf_counter() - started
    return count / elapsed, min((time.process_time() - cpu) / elapsed, 1.0)


def _whole_images(samples: Sequence[SampleDict], content: Content, seconds: float, note: Note) -> float:
    """Images per second that are decoded, and nothing else."""
    images = [data for data in map(content.image, samples) if data is not None]
    count = 0
    started = time.perf_counter()
    end = started + seconds
    while not count or time.perf_counter() < end:
        codec.decode_pil(images[count % len(images)])
        count += 1
    note(count, 0)
    return count / (time.perf_counter() - started)
