# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stream and augment
#
# Shards are files to read from, wherever they lie. This notebook streams the demo shards from the disk and over HTTP,
# looks at what augmentation does to one image, and measures how fast all of it is. `make shards` makes what it reads; the
# server needs `pip install 'wds_tools[explore]'`.
#
# All times are of the machine where the notebook ran last, the best of a few passes where passes are compared. On yours
# they will be others, and other programs that run beside make them longer.

# %%
import contextlib
import io
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib_inline.backend_inline import set_matplotlib_formats
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from wds_tools import ConvertOptions, ShardDataset, ShardLoader, convert_tree, transforms
from wds_tools.draws import sample_rng_seed
from wds_tools.tools.bench import BenchOptions, bench_dataset
from wds_tools.tools.cores import usable_cores
from wds_tools.tools.demo import make_demo
from wds_tools.tools.serve import ServeOptions, serving

plt.rcParams.update(
    {
        "figure.dpi": 100,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "font.size": 10,
    }
)
BLUE, ORANGE, GREEN, GREY = "#3b6ea5", "#d9822b", "#5f9e6e", "#c9c9c9"
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores are tried on purpose

set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85})  # for pictures; plots are PNG

torch.set_num_threads(1)  # as in a worker, so that no side of a comparison has more

SHARDS = Path("../build/shards")
scratch = tempfile.TemporaryDirectory()

# %% [markdown]
# ## From the disk
#
# A dataset says what and in which order, a loader says in what portions. Images arrive as one uint8 tensor: a quarter of
# the bytes of float32, and normalising is better done on the device.

# %%
crop = transforms.RandomResizedCrop(96, scale=(0.25, 1.0))
dataset = ShardDataset(SHARDS, split="train", shuffle=True, seed=0, transform=crop)
loader = ShardLoader(dataset, batch_size=32, num_workers=2)

images, labels = next(iter(loader))
print(
    f"{len(dataset)} samples, {len(loader)} batches; the first: {images.dtype} {tuple(images.shape)}, labels {labels.dtype}"
)


# %%
def show(axis, image, title=""):
    axis.imshow(image.permute(1, 2, 0) if isinstance(image, torch.Tensor) else image)
    axis.set_title(title, fontsize=9)
    axis.set_axis_off()


figure, axes = plt.subplots(2, 8, figsize=(9, 2.7), layout="constrained")
for axis, image, label in zip(axes.flat, images, labels, strict=False):
    show(axis, image, dataset.classes[label])
plt.show()

# %% [markdown]
# ## Over HTTP
#
# Any server that answers ranged requests will do: nginx, a bucket, or `wds-tools serve build/shards` to try things out.
# From Python the same server is `serving`, for as long as a block lasts; here it adds 20 ms to each request, as a network
# would.
#
# Only the address changes. The order and the crops follow from the seed and the epoch, so every batch is the same, to the
# bit.

# %%
started = time.perf_counter()
with serving(SHARDS, ServeOptions(latency=0.02)) as url:
    remote = ShardDataset(url, split="train", shuffle=True, seed=0, transform=crop)
    from_server = [(images.clone(), labels) for images, labels in ShardLoader(remote, batch_size=32, num_workers=2)]
seconds = time.perf_counter() - started

loader.set_epoch(0)
from_disk = list(loader)
same = sum(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(from_server, from_disk, strict=True))
print(f"{same} of {len(from_disk)} batches are the same; the epoch took {seconds:.1f} s, starting the server included")

# %% [markdown]
# ## One image, six epochs
#
# `RandomResizedCrop` draws a box of random area and shape, resizes it, and mirrors half of them. The draw comes from a
# seed of the sample's own, a function of (seed, epoch, sample). So we can say now what the loader will deliver in an
# epoch that nobody has begun, and before anything is decoded: that is also why it is fast, as only the box need be.

# %%
NUMBER = 584  # of the sample; any will do
KEY = dataset[NUMBER]["__key__"]
whole = Image.open(io.BytesIO(dataset[NUMBER]["jpg"]))
wide_crop = transforms.RandomResizedCrop(96, scale=(0.1, 1.0))
keyed = ShardDataset(SHARDS, split="train", shuffle=True, seed=0, transform=wide_crop, fields=("jpg", "__key__"))


def deliver(epoch, workers=0, batch_size=32):
    """The image as a loader delivers it, and the number of the batch that it came in."""
    loader = ShardLoader(keyed, batch_size, workers)
    loader.set_epoch(epoch)
    for number, (images, keys) in enumerate(loader, 1):
        if KEY in keys:
            return images[keys.index(KEY)].clone(), number
    raise LookupError(KEY)


colours = plt.get_cmap("plasma")([0.05, 0.23, 0.41, 0.59, 0.75, 0.9])
figure, axes = plt.subplot_mosaic(
    [["whole", 0, 1, 2], ["whole", 3, 4, 5]], figsize=(9, 4.2), width_ratios=[2, 1, 1, 1], layout="constrained"
)
show(axes["whole"], whole, f"{KEY}, {whole.width} x {whole.height}")
for epoch, colour in enumerate(colours):
    seed = int(sample_rng_seed(0, epoch, NUMBER))
    box, _, mirrored = wide_crop.cut(whole.width, whole.height, random.Random(seed))
    size = box.right - box.left, box.bottom - box.top
    for width, edge in ((4, "white"), (2, colour)):
        axes["whole"].add_patch(plt.Rectangle((box.left - 0.5, box.top - 0.5), *size, fill=False, lw=width, ec=edge))
    image, _ = deliver(epoch)
    assert torch.equal(image, torch.from_numpy(wide_crop(dataset[NUMBER]["jpg"], seed)))  # as foreseen
    show(axes[epoch], image, f"epoch {epoch}" + (", mirrored" if mirrored else ""))
    axes[epoch].title.set(color=colour, fontweight="bold")
plt.show()

# %% [markdown]
# ## Same epoch, same crop
#
# Who delivers a sample has no part in it. With other numbers of workers and other batch sizes the sample comes in another
# batch, and it is augmented alike. So a run can be repeated, or resumed, on other machines.

# %%
ways = [(0, 32), (1, 32), (2, 50), (3, 8)]
figure, axes = plt.subplots(2, len(ways), figsize=(7.5, 4.3), layout="constrained")
for row, epoch in enumerate((0, 1)):
    expected, _ = deliver(epoch)
    for axis, (workers, batch_size) in zip(axes[row], ways, strict=True):
        image, number = deliver(epoch, workers, batch_size)
        assert torch.equal(image, expected)
        show(axis, image, f"epoch {epoch}, {workers} workers,\nbatches of {batch_size}: in batch {number}")
plt.show()

# %% [markdown]
# ## Against a folder
#
# Now larger pictures, about 450 pixels a side as ImageNet's mostly are, drawn into a temporary folder. Three ways to the
# same kind of batch, uint8 crops of 224 pixels:
#
# * **ImageFolder**: torchvision's, with its `RandomResizedCrop`, in a plain `DataLoader`. Without torchvision a dataset
#   of a few lines does with Pillow what it does; the output below says which of the two was measured.
# * **shards** as `wds-tools convert` makes them,
# * **tiled shards**, made with `--tile`: the same pixels, but a decoder can begin in the middle of them.

# %%
tree, plain, tiled = (Path(scratch.name) / name for name in ("tree", "plain", "tiled"))
make_demo(tree, per_class=40, size=400)
convert_tree(tree, plain, options=ConvertOptions(max_count=60))
convert_tree(tree, tiled, options=ConvertOptions(max_count=60, tile=True))
for name, folder in {"files": tree, "shards": plain, "tiled shards": tiled}.items():
    sizes = [file.stat().st_size for suffix in ("jpg", "tar") for file in folder.rglob(f"*.{suffix}")]
    print(f"{name}: {len(sizes)}, {sum(sizes) / 1e6:.1f} MB")

# %%
sys.path.append("../tests/support")
try:
    with contextlib.suppress(ModuleNotFoundError):
        import torchvision_ops  # noqa: F401  # torchvision that was built for a GPU then imports without one
    from torchvision import datasets
    from torchvision import transforms as vision

    steps = [vision.RandomResizedCrop(224), vision.RandomHorizontalFlip(), vision.PILToTensor()]
    files = datasets.ImageFolder(tree, vision.Compose(steps))
    FOLDER = "torchvision ImageFolder"
except (ImportError, RuntimeError):

    class Files(Dataset):
        """What ImageFolder does: list the files, open one with Pillow when it is asked for."""

        def __init__(self, root):
            self.classes = sorted(folder.name for folder in root.iterdir())
            self.paths = sorted(root.glob("*/*.jpg"))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, number):
            path = self.paths[number]
            image = Image.open(path).convert("RGB")
            return torch.from_numpy(vision_crop(image)), self.classes.index(path.parent.name)

    def vision_crop(image):
        """The box as the preset draws it; cut and resized by Pillow from the whole picture."""
        box, _, mirrored = transforms.RandomResizedCrop(224).cut(*image.size, random)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=box)
        if mirrored:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image).transpose(2, 0, 1)

    files, FOLDER = Files(tree), "a folder read with Pillow, as ImageFolder does"

print(f"measured against: {FOLDER}")


# %%
def make_loaders(workers):
    yield FOLDER, DataLoader(files, 16, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for name, place in (("shards", plain), ("tiled shards", tiled)):
        source = ShardDataset(place, split="train", shuffle=True, transform=transforms.RandomResizedCrop(224))
        yield name, ShardLoader(source, 16, workers)


def rate(loader):
    """Images per second of one epoch."""
    started = time.perf_counter()
    count = sum(len(labels) for _, labels in loader)
    return count / (time.perf_counter() - started)


rates = {}
for workers in (0, 2):
    loaders = dict(make_loaders(workers))
    for loader in loaders.values():
        rate(loader)  # starts the workers, and brings the files into memory
    turns = [{name: rate(loader) for name, loader in loaders.items()} for _ in range(3)]  # they take turns
    for name in loaders:
        rates[name, workers] = max(turn[name] for turn in turns)

set_matplotlib_formats("png")
figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
for place, (name, colour) in enumerate({FOLDER: GREY, "shards": BLUE, "tiled shards": ORANGE}.items()):
    ys = [group + 0.27 * (place - 1) for group in (0, 1)]
    bars = axis.barh(ys, [rates[name, workers] for workers in (0, 2)], 0.25, color=colour, label=name)
    axis.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=3)
axis.set(xlabel="images/s", yticks=(0, 1), yticklabels=("no workers", "2 workers"))
axis.margins(x=0.12)
axis.invert_yaxis()
axis.set_title(f"RandomResizedCrop(224) of {len(files)} images, about 450 x 450; {usable_cores()} cores", fontsize=10)
axis.grid(visible=False, axis="y")
figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# The folder decodes every picture whole and shows a part of it. The folder here is small and lies in memory, so nothing
# was gained by reading large files in a row; on a cold disk, or a network's, that comes on top. The drawn pictures
# compress better than photographs; the README has the numbers for those, for more peers, and how they were measured.
#
# ## How many workers, and what limits them
#
# `wds-tools bench DIR` measures each step by itself, says which is the bottleneck, and what to change. `bench_dataset` is
# the same from Python. Here it looks at the shards of larger pictures.

# %%
report = bench_dataset(plain, BenchOptions(workers=(0, 1, 2, 4), batch_size=16, seconds=0.8))
measured, verdict = report.measured, report.verdict
print(f"{verdict.bound}-bound; the bottleneck: {verdict.bottleneck}. {verdict.reason}.")
for advice in verdict.advice:
    print(f"- {advice}.")

# %% [markdown]
# That was a disk. A network makes readers wait, so here are the demo's small images once more, from the disk and from a
# server that is slow on purpose: 20 ms to each request and 1 MB/s to each connection.

# %%
small = transforms.RandomResizedCrop(96)
numbers = (0, 2, 4, 8)
streamed = {}
with serving(SHARDS, ServeOptions(latency=0.02, rate=1e6)) as url:
    for where, place in {"disk": SHARDS, "slow server": url}.items():
        for workers in numbers:
            loader = ShardLoader(ShardDataset(place, split="train", shuffle=True, transform=small), 16, workers)
            rate(loader)
            streamed[where, workers] = max(rate(loader), rate(loader))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
bars = left.bar([str(load.workers) for load in measured.loads], [load.rate for load in measured.loads], 0.6, color=BLUE)
left.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
limit = measured.decode.rate * measured.cores
left.axhline(limit, color=ORANGE, ls="--", label=f"one process decodes, times {measured.cores} cores: {limit:,.0f}")
left.plot([], [], " ", label=f"one process reads, decoding nothing: {measured.read.rate:,.0f}")
left.set_ylim(0, 1.4 * max(limit, *(load.rate for load in measured.loads)))
left.set_title(f"larger pictures from the disk; bench says: {verdict.bottleneck}", fontsize=10)
for place, (where, colour) in enumerate({"disk": BLUE, "slow server": GREEN}.items()):
    xs = [number + 0.4 * (place - 0.5) for number in range(len(numbers))]
    bars = right.bar(xs, [streamed[where, workers] for workers in numbers], 0.37, color=colour, label=where)
    right.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
right.set_xticks(range(len(numbers)), numbers)
right.margins(y=0.25)
right.set_title("small pictures", fontsize=10)
for axis in (left, right):
    axis.set(xlabel="workers", ylabel="images/s")
    axis.grid(visible=False, axis="x")
    axis.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# Where decoding limits, workers compute, and more of them than cores gain little; where other programs hold the cores, they
# gain nothing, and `bench` says that too. Where a network limits, workers wait, each on connections of its own, and a few
# more of them than cores pay, as long as a core is free. Two more ways out of the wait: `cache=` keeps the shards on the
# local disk, so that only the first epoch waits (see [docs/remote.md](../docs/remote.md)), and `convert --image-size`
# makes smaller files.

# %%
scratch.cleanup()
