"""torchvision's ImageFolder in a shuffled DataLoader; whole images are decoded by Pillow.

Usage: decode_imagefolder.py TREE
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tests.support.torchvision_ops  # noqa: F401, I001
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from turn import BATCH, SIZE, WORKERS, take_turns

augment = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIZE, antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
)
dataset = ImageFolder(sys.argv[1], augment)
loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)

take_turns(lambda: (images for images, _ in loader))
