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
# # Explore a dataset
#
# Before training on a dataset it pays to look at it: what the classes look like, how many samples each has, whether
# anything is odd, or broken. Shards do not hide any of this. Their index says where every image lies, so any question
# is answered by reading what it is about, and nothing else.
#
# The dataset here is `make shards`' demo. Most of it works as it is on JPEGs of your own.

# %%
import json
import random
import re
import shutil
import tempfile
import time
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image as Show
from matplotlib_inline.backend_inline import set_matplotlib_formats
from PIL import Image, ImageFile

from wds_tools import ShardDataset, ShardLoader, transforms
from wds_tools.errors import SampleError
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.quality import shuffle_quality

BLUE, ORANGE, GREEN, GREY, INK = "#3b6ea5", "#d9822b", "#5f9e6e", "#c9c9c9", "#333333"
plt.rcParams.update(
    {
        "figure.dpi": 100,
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)
set_matplotlib_formats("jpeg", pil_kwargs={"quality": 75})  # noise is most of these pictures, and PNG cannot afford it

shards = Path("../build/shards")
scratch = tempfile.TemporaryDirectory()  # everything that this notebook writes; removed at its end

# %%
# !wds-tools info {shards}

# %% [markdown]
# ## A sequence of samples
#
# `ShardDataset` is made for streaming, and it is a sequence too. `dataset[i]` is one read at a known place, wherever
# that is in however many shards, and the sample is WebDataset's dict: the key, and the fields as bytes.

# %%
dataset = ShardDataset(shards)
sample = dataset[123]
print(f"{len(dataset)} samples of {len(dataset.classes)} classes; number 123 is {sample['__key__']}")
Show(sample["jpg"])

# %% [markdown]
# Keys and sizes are in the index, a line a sample, so they are known without touching an image. One pass over the
# small `.idx` files makes a table to ask questions of: position, key, class, bytes.

# %%
keys, sizes = [], []
for shard in dataset.shards.shards:
    lines = (shards / shard.name).with_suffix(".idx").read_text().splitlines()[1:]
    for line in lines:
        extension, offset, size, name = line.split()[:4]
        keys.append(name.rpartition(".")[0])
        sizes.append(int(size))
position = {key: number for number, key in enumerate(keys)}
labels = np.array([int(sample["cls"]) for sample in dataset])
sizes = np.array(sizes)

# %% [markdown]
# So finding an image by its key is a look into a dictionary, and one read.

# %%
started = time.perf_counter()
found = dataset[position["ring/ring_0042"]]
print(f"{found['__key__']}, found and read in {(time.perf_counter() - started) * 1e6:.0f} µs")
Show(found["jpg"])

# %% [markdown]
# ## What the classes look like
#
# A contact sheet: ten images of each class, drawn at random, a class a row. It is the picture that finds wrong
# labels, near duplicates and surprising crops sooner than any statistic.


# %%
def picture(number, side=64):
    """The sample at a position as an RGB picture of one size, cropped in the middle."""
    image = Image.open(BytesIO(dataset[number]["jpg"])).convert("RGB")
    scale = side / min(image.size)
    image = image.resize([max(side, round(length * scale)) for length in image.size])
    left, top = ((length - side) // 2 for length in image.size)
    return np.asarray(image.crop((left, top, left + side, top + side)))


def sheet(rows, names, gap=4):
    """Pictures as one picture, a row each, named at the left."""
    side = rows[0][0].shape[0]
    canvas = np.full((len(rows) * (side + gap) - gap, len(rows[0]) * (side + gap) - gap, 3), 255, np.uint8)
    for y, row in enumerate(rows):
        for x, pixels in enumerate(row):
            canvas[y * (side + gap) :, x * (side + gap) :][:side, :side] = pixels
    axis = plt.figure(figsize=(9, 9 * canvas.shape[0] / canvas.shape[1])).subplots()
    axis.imshow(canvas, interpolation="none")
    axis.set_yticks([side / 2 + y * (side + gap) for y in range(len(rows))], names)
    axis.set_xticks([])
    axis.tick_params(left=False)
    axis.spines[:].set_visible(False)


draw = random.Random(0)
rows = [
    [picture(number) for number in draw.sample(np.flatnonzero(labels == label).tolist(), 10)]
    for label in range(len(dataset.classes))
]
sheet(rows, dataset.classes)

# %% [markdown]
# `wds-tools report` makes such sheets, and most of what follows, as a page of its own; see [the
# README](../README.md).
#
# ## How many, how large
#
# The balance of classes and the bytes come from the index. For width and height Pillow reads each image's header and
# stops there: no pixel is decoded.

# %%
shapes = np.array([Image.open(BytesIO(dataset[number]["jpg"])).size for number in range(len(dataset))])

figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), constrained_layout=True, width_ratios=(1, 1.1, 1.1))
counts = np.bincount(labels, minlength=len(dataset.classes))
bars = axes[0].barh(dataset.classes, counts, color=BLUE, height=0.65)
axes[0].bar_label(bars, padding=3)
axes[0].set(title="samples", xlim=(0, counts.max() * 1.25), xticks=[])
axes[0].invert_yaxis()
axes[0].tick_params(left=False)
axes[0].spines["bottom"].set_visible(False)

axes[1].scatter(*shapes.T, s=8, color=BLUE, alpha=0.35, linewidths=0)
low, high = shapes.min() - 3, shapes.max() + 3
axes[1].plot((low, high), (low, high), color=GREY, linewidth=1, zorder=0)
axes[1].set(title="width and height, pixels", xlim=(low, high), ylim=(low, high), aspect="equal")

axes[2].hist(sizes / 1000, bins=30, color=BLUE)
axes[2].axvline(np.median(sizes) / 1000, color=ORANGE, linewidth=1.5)
axes[2].set(title=f"kB an image (median {np.median(sizes) / 1000:.1f})", yticks=[])
axes[2].spines["left"].set_visible(False)

# %% [markdown]
# The ends of a distribution are worth a look, as the odd ones live there. What makes one JPEG larger than another of
# the same size? Above the ten images with the fewest bits a pixel, below those with the most.

# %%
by_bits = np.argsort(sizes / shapes.prod(axis=1))
sheet(
    [[picture(n) for n in by_bits[:10]], [picture(n) for n in by_bits[-10:]]],
    ["fewest bits\na pixel", "most bits\na pixel"],
)

# %% [markdown]
# In the demo it is flat squares against thin rings: a large shape hides much noise, and an outline is all edge.
#
# ## Broken samples
#
# Sooner or later some sample is broken. To see what happens then, here is a copy of the dataset with damage of four
# kinds, each in the bytes of another image.

# %%
broken = Path(scratch.name, "broken")
shutil.copytree(shards, broken)
shard = dataset.shards.shards[0].name
lines = (broken / shard).with_suffix(".idx").read_text().splitlines()[1:]


def cut_short(data):
    return data[: len(data) // 3] + bytes(len(data) - len(data) // 3)


def without_header(data):
    return bytes(200) + data[200:]


def another_file(data):
    return b"<html>404 Not Found</html>".ljust(len(data))


def one_bit(data):
    place = len(data) // 4
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


damage = {7: cut_short, 101: without_header, 202: another_file, 404: one_bit}
(broken / shard).chmod(0o644)
with open(broken / shard, "r+b") as file:
    for number, damaged in damage.items():
        _, offset, size, _ = lines[number].split()[:4]
        file.seek(int(offset))
        data = file.read(int(size))
        file.seek(int(offset))
        file.write(damaged(data))
        print(f"{keys[number]:<28}{damaged.__name__}")

# %% [markdown]
# `verify --decode` looks at every byte and every image, and lists what is wrong, with key and place.

# %%
# !wds-tools verify {broken} --decode || echo "exit code $?"

# %% [markdown]
# Three were found by decoding. One flipped bit is a valid JPEG of another picture; only the shard's digest knows.
#
# Training meets the same samples. By default it stops at the first one and says which:

# %%
crop = transforms.RandomResizedCrop(64)
try:
    for _ in ShardLoader(ShardDataset(broken, shuffle=True, transform=crop), batch_size=50):
        pass
except SampleError as error:
    print(re.sub(r"\S*/(?=broken/)", "", str(error)))

# %% [markdown]
# A night's run should survive a few of them. `on_error="skip"` leaves a bad sample out of its batch, `max_errors` is
# how many the run may lose before it ends after all, and the ledger keeps a line of each. Nothing is dropped in
# silence.

# %%
ledger = Path(scratch.name, "bad.jsonl")
survivor = ShardDataset(broken, shuffle=True, transform=crop, on_error="skip", max_errors=100)
loader = ShardLoader(survivor, batch_size=50, ledger=ledger)
delivered = [len(batch_labels) for _, batch_labels in loader]
print("samples a batch:", *delivered, "- in all", sum(delivered))
for line in ledger.read_text().splitlines():
    entry = json.loads(line)
    print(f"{Path(entry['shard']).name}  {entry['key']:<22}{entry['offset']:>9}  {entry['reason']}")

# %% [markdown]
# The fourth one was trained on. Here it is beside the original: most single bits of a JPEG hardly show, and some
# shift all that follows. Beside it the first one, as a viewer that forgives everything shows it.

# %%
damaged_dataset = ShardDataset(broken)
ImageFile.LOAD_TRUNCATED_IMAGES = True
figure, axes = plt.subplots(1, 4, figsize=(9, 2.3))
for pair, number in zip((axes[:2], axes[2:]), (404, 7), strict=True):
    for axis, source, name in zip(pair, (dataset, damaged_dataset), ("original", damage[number].__name__), strict=True):
        axis.imshow(Image.open(BytesIO(source[number]["jpg"])).convert("RGB"))
        axis.set_title(name)
        axis.axis("off")
ImageFile.LOAD_TRUNCATED_IMAGES = False

# %% [markdown]
# ## How well is it shuffled?
#
# A training run wants every batch to look like the dataset. `wds-tools convert` shuffles samples before it cuts them
# into shards, so its shards are mixed already. Shards made by others are often sorted by class, and then all depends
# on the reader. That is the case to look at: 20,000 samples in 100 shards, every shard of one class.
#
# The order of an epoch is computed from counts alone, so no such dataset is needed to see it. Each panel has the
# 20,000 samples of an epoch: from left to right when they are delivered, from bottom to top where they lie in the
# dataset. No shuffle is a diagonal, a perfect one is even grey. The strip below shows the classes of the first 200
# samples, two batches.

# %%
SHARDS, EACH = 100, 200
classes = np.repeat(np.arange(SHARDS), EACH)


def epoch(**options):
    """The positions of all samples as a loader without workers delivers them, 100 a batch."""
    order = Order([EACH] * SHARDS, **options).epoch(0, Topology(world=1, workers=0, batch_size=100))
    return np.concatenate(list(order.batches()))


orders = {
    "not shuffled": epoch(shuffle=False),
    "shards permuted": epoch(window=1, interleave=1),
    "and a window\nof 2048": epoch(interleave=1),
    "and 16 shards\nmerged (default)": epoch(),
    "a true\npermutation": np.random.default_rng(0).permutation(SHARDS * EACH),
}

figure, axes = plt.subplots(
    2, 5, figsize=(9, 2.6), height_ratios=(9, 1), constrained_layout=True, gridspec_kw={"hspace": 0.02}
)
axes[0, 0].set_ylabel("place in the dataset")
axes[1, 0].set_ylabel("classes", rotation=0, ha="right", va="center")
for (name, ids), (above, below) in zip(orders.items(), axes.T, strict=True):
    above.scatter(np.arange(len(ids)), ids, s=0.25, color=INK, alpha=0.5, linewidths=0)
    above.set_title(name)
    above.margins(0.01)
    below.imshow(classes[ids][None, :200], aspect="auto", cmap="viridis", vmin=0, vmax=SHARDS, interpolation="none")
    for axis in (above, below):
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)

# %% [markdown]
# Two numbers say the same. *Neighbours* is how much likelier than by chance two samples within 32 places of each
# other are of one class; it tells what a batch is made of, and 0 is perfect. *Displacement* is how far samples moved,
# as a share of what a true permutation moves them; it tells whether an epoch begins elsewhere than the last, and 1 is
# perfect.

# %%
quality = {name.replace("\n", " "): shuffle_quality(ids, classes) for name, ids in orders.items()}
figure, axes = plt.subplots(1, 2, figsize=(9, 2.1), sharey=True, constrained_layout=True)
for axis, value in zip(axes, ("neighbours", "displacement"), strict=True):
    values = [getattr(one, value) for one in quality.values()]
    bars = axis.barh(list(quality), values, color=[*[BLUE] * 4, GREEN], height=0.65)
    axis.bar_label(bars, [f"{number:.3f}" for number in np.round(values, 3) + 0.0], padding=3)
    axis.set(title=value, xlim=(0, 1.2 * max(values)), xticks=[])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(left=False)
axes[0].invert_yaxis()

# %% [markdown]
# Permuting shards is enough for displacement and does nothing for batches, which stay of one class. The window is
# most of the cure, and merging 16 shards halves what is left. For badly sorted shards raise `interleave`: it takes
# one more open file a shard, and no more memory. [docs/shuffling.md](../docs/shuffling.md) has the whole table, with
# `interleave=64` and WebDataset's buffer in it.
#
# What a model gets to see is the batch, so here is one, from the shards on the disk, cropped and flipped as in
# training.

# %%
images, batch_labels = next(iter(ShardLoader(ShardDataset(shards, shuffle=True, transform=crop), batch_size=30)))
pictures = images.permute(0, 2, 3, 1).numpy()
sheet([pictures[:10], pictures[10:20], pictures[20:]], ["", "", ""])

# %%
scratch.cleanup()
