"""webdataset and torchvision, as their documentation puts them together; whole images are decoded by Pillow.

Batches are put together in the workers, which stay alive between passes. Usage: decode_webdataset.py SHARDS…
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tests.support.torchvision_ops  # noqa: F401, I001
import webdataset
from torchvision import transforms
from turn import BATCH, SIZE, WORKERS, take_turns

warnings.simplefilter("ignore")
augment = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIZE, antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
)
dataset = (
    webdataset.WebDataset(sys.argv[1:], shardshuffle=100)
    .shuffle(1000)
    .decode("pil")
    .to_tuple("jpg;png", "cls")
    .map_tuple(augment, lambda label: label)
    .batched(BATCH, partial=True)
)
loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True)

take_turns(lambda: (images for images, _ in loader))
