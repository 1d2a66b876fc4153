"""FFCV: compiled pipelines in threads; whole images are decoded by libjpeg-turbo.

Its dataset holds the very bytes of the photographs: its writer would encode them anew, so it is handed them ready made.
Reading takes them for its own write_mode="jpg". Usage: decode_ffcv.py TREE DATASET.beton; the dataset is made if it is
not there.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tests.support.torchvision_ops  # noqa: F401, I001
import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image
from turn import BATCH, SIZE, WORKERS, take_turns

tree, dataset = sys.argv[1:]


def keep_bytes(destination, path, malloc) -> None:  # type: ignore[no-untyped-def]
    """What RGBImageField.encode does, for a file that is a JPEG already."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    with Image.open(path) as image:
        destination["width"], destination["height"] = image.size
    destination["mode"] = IMAGE_MODES["jpg"]
    destination["data_ptr"], storage = malloc(data.nbytes)
    storage[:] = data


def write() -> None:
    labels = {name: number for number, name in enumerate(sorted(os.listdir(tree)))}
    samples = [(path, labels[path.parent.name]) for path in sorted(Path(tree).glob("*/*.jpg"))]
    field = RGBImageField()
    field.encode = keep_bytes
    writer = DatasetWriter(dataset + ".part", {"image": field, "label": IntField()}, num_workers=WORKERS)
    writer.from_indexed_dataset(samples)
    os.replace(dataset + ".part", dataset)


if not os.path.exists(dataset):
    write()
loader = Loader(
    dataset,
    batch_size=BATCH,
    num_workers=WORKERS,
    order=OrderOption.RANDOM,
    os_cache=True,
    drop_last=False,
    pipelines={
        "image": [
            RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
            RandomHorizontalFlip(),
            ToTensor(),
            ToTorchImage(),
        ],
        "label": [IntDecoder(), ToTensor()],
    },
)

take_turns(lambda: (images for images, _ in loader))
