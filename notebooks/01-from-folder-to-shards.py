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
# # From a folder to shards
#
# An image dataset usually begins its life as a folder of small files, one folder a class. That is a fine way to keep
# a thousand images. With a million of them, finding and opening files becomes the work, and the accelerator waits.
#
# This notebook measures that on a tree small enough to play with, turns the tree into shards, and then takes a shard
# apart, byte by byte, until nothing about it is a secret. It runs in less than a minute. The tree is `make shards`'
# demo: coloured shapes on noise.

# %%
import json
import os
import random
import re
import shutil
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image as Show
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from PIL import Image

from wds_tools import ShardDataset

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

tree = Path("../build/demo")
scratch = tempfile.TemporaryDirectory()  # everything that this notebook writes; removed at its end
shards = Path(scratch.name, "shards")

files = sorted(tree.glob("*/*.jpg"))
print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB, for example {files[0]}")

# %%
figure, axes = plt.subplots(1, 6, figsize=(9, 1.9))
for axis, folder in zip(axes, sorted(tree.iterdir()), strict=True):
    axis.imshow(Image.open(min(folder.iterdir())))
    axis.set_title(folder.name)
    axis.axis("off")

# %% [markdown]
# ## One command
#
# `wds-tools convert` plans first: it scans the tree, shuffles the samples, cuts them into shards. Then it makes the
# shards, each flushed to the disk, read back and hashed. Shards are 256 MB by default, more than this tree has.
# `--max-count` makes them small, so that there are several to look at.

# %%
# !wds-tools convert {tree} {shards} --max-count 100

# %%
for path in sorted(shards.iterdir()):
    print(f"{path.stat().st_size:>9,}  {path.name}")

# %% [markdown]
# ## What reading costs
#
# Now the same 600 images are read three ways, bytes only, nothing decoded:
#
# * **files**: every file once, in random order, as a training loop over a folder does;
# * **shards, shuffled**: `ShardDataset` with its default shuffle, through the index;
# * **shards, straight through**: whole shards, one after the other, which is what copying or hashing a dataset does.
#
# Three things are counted. *Opens* are what Python reports to an audit hook. *Read calls* are what Linux counts for
# this process, in `/proc/self/io`, whatever code makes them. *Time* is the best of three passes, "cold" after asking
# the kernel to forget the files, "warm" right after. Where the system has no such counter or no such request the
# value is missing.


# %%
class Opens:
    """How many files this process has opened since the hook is there."""

    count = 0


def count_opens(event, arguments):
    if event == "open":
        Opens.count += 1


sys.addaudithook(count_opens)


def read_calls():
    try:
        return int(re.search(r"syscr: (\d+)", Path("/proc/self/io").read_text())[1])
    except OSError:
        return float("nan")


def forget(paths):
    """Ask the kernel to drop these files from its cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(read, paths):
    own = read_calls() - read_calls()  # asking is reading, too
    calls, opens = read_calls(), Opens.count
    read()
    counted = Opens.count - opens, read_calls() - calls + own
    times = {"cold": [], "warm": []}
    for _ in range(3):
        for state in times:
            if state == "cold" and hasattr(os, "posix_fadvise"):
                forget(paths)
            started = time.perf_counter()
            read()
            times[state].append((time.perf_counter() - started) / len(files) * 1e6)
    cold = min(times["cold"]) if hasattr(os, "posix_fadvise") else float("nan")
    return *counted, cold, min(times["warm"])


shuffled = random.Random(0).sample(files, len(files))
dataset = ShardDataset(shards, shuffle=True)
inside = sorted(shards.iterdir())
tars = sorted(shards.glob("*.tar"))
ways = {
    "files": measure(lambda: [file.read_bytes() for file in shuffled], files),
    "shards, shuffled": measure(lambda: [sample["jpg"] for sample in dataset], inside),
    "shards, straight through": measure(lambda: [tar.read_bytes() for tar in tars], inside),
}
print(f"{'600 images':<26}{'opens':>8}{'read calls':>12}{'cold':>16}{'warm':>16}")
for name, (opens, calls, cold, warm) in ways.items():
    print(f"{name:<26}{opens:>8}{calls:>12}{cold:>10.0f} µs/img{warm:>9.0f} µs/img")

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.1), sharey=True, constrained_layout=True)
names = list(ways)[::-1]
for axis, column, title in zip(axes, (0, 1, 2), ("files opened", "read calls", "cold, µs an image"), strict=True):
    values = [ways[name][column] for name in names]
    bars = axis.barh(names, values, color=[GREEN, BLUE, ORANGE], height=0.6)
    axis.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3)
    axis.set(title=title, xlim=(0, max(values) * 1.2), xticks=[])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(left=False)

# %% [markdown]
# Warm, with everything in memory, less of the difference is left: what costs is going to the disk for each file. And
# this is a local disk. On a network file system every open is at least one round trip to a server that many others
# ask too, and from a bucket every file is a request. The counts stay what they are there; only the price of each
# rises. That is why the number of opens is worth more attention than the microseconds of this machine.
#
# ## What is in a shard
#
# A shard is a plain tar file, so every tool that knows tar can read it. The files of a sample lie next to each other
# and share a name up to the first dot, the *key*. What follows the dot names the *field*: `jpg` is the image,
# untouched, and `cls` the class index as text.

# %%
with tarfile.open(shards / "train-000000.tar") as archive:
    members = archive.getmembers()
for member in members[:6]:
    print(f"{member.offset_data:>8} {member.size:>6}  {member.name}")
print(f"… {len(members)} members")

# %% [markdown]
# Tar counts in blocks of 512 bytes: one for a member's header, as many as it takes for its payload, the last one
# filled up with zeros. Here are the first 512 blocks of the shard, 64 in a row, read from left to right.

# %%
KINDS = ("header", "jpg", "cls")
blocks = np.full(members[-1].offset_data // 512 + 3, 0)
for member in members:
    blocks[member.offset // 512] = 0
    first = member.offset_data // 512
    blocks[first : first + -(-member.size // 512)] = 1 if member.name.endswith(".jpg") else 2
colors = (INK, BLUE, ORANGE)
figure, axis = plt.subplots(figsize=(9, 1.7))
axis.pcolormesh(blocks[:512].reshape(8, 64), cmap=ListedColormap(colors), edgecolors="white", linewidth=1.5)
axis.invert_yaxis()
axis.axis("off")
patches = [Patch(color=color, label=kind) for color, kind in zip(colors, KINDS, strict=True)]
axis.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncol=3, frameon=False, borderaxespad=0)

payload = sum(member.size for member in members)
share = payload / (shards / "train-000000.tar").stat().st_size
print(f"{share:.0%} of the shard is payload")

# %% [markdown]
# These images are tiny. A sample needs three blocks beside its image, and a photograph of 110 kB fills 215, so there
# the share is 98 %.
#
# ## The index
#
# A tar file alone can only be read from the front: where a sample lies is known when all before it have been passed.
# The `.idx` file beside each shard removes that. One line a sample, and for each field: its name, where its bytes
# begin, how many they are, and the member's name. It is NVIDIA DALI's format, so DALI reads it as well.

# %%
index = (shards / "train-000000.idx").read_text().splitlines()
print(*index[:4], sep="\n")

# %% [markdown]
# With it any image is one read at a known place. No library is needed for that, which is rather the point of an open
# format:

# %%
line = index[42].split()
extension, offset, size, name = line[0], int(line[1]), int(line[2]), line[3]
with open(shards / "train-000000.tar", "rb") as file:
    file.seek(offset)
    data = file.read(size)
print(f"{name}: {size} bytes at {offset}; the same as the file's: {data == (tree / name).read_bytes()}")
Show(data)

# %% [markdown]
# `ShardDataset` does that for every sample, and gives what WebDataset gives: a dict of the key and the fields as
# bytes.

# %%
sample = ShardDataset(shards)[41]
{name: value if len(value) < 40 else f"{len(value)} bytes" for name, value in sample.items() if name != "__url__"}

# %% [markdown]
# ## The manifest
#
# `info.json` is written last, so a folder without it is not finished. It lists classes, splits and shards with
# counts, sizes and digests, and the settings that made them. timm and wids find what they look for in it. There is no
# date in it, nor anywhere else: the same images and options give the same bytes, on any machine, with any number of
# workers.

# %%
manifest = json.loads((shards / "info.json").read_text())
print("classes: ", manifest["classes"])
print("split:   ", {name: value for name, value in manifest["splits"]["train"].items() if name != "filenames"})
print("shard 0: ", manifest["shardlist"][0])

# %% [markdown]
# ## Is it all there, and right?
#
# `verify` reads every byte: tar structure, keys, labels, sizes, digests, indexes, and with `--decode` every image.

# %%
# !wds-tools verify {shards} --decode

# %% [markdown]
# Disks, memory and networks flip a bit now and then. So: a copy of the dataset, and in it one byte of one image
# turned around.

# %%
broken = Path(scratch.name, "broken")
shutil.copytree(shards, broken)
victim = broken / "train-000000.tar"
victim.chmod(0o644)
with open(victim, "r+b") as file:
    file.seek(offset + size // 3)
    byte = file.read(1)[0]
    file.seek(offset + size // 3)
    file.write(bytes([byte ^ 0xFF]))

# %%
# !wds-tools verify {broken} --decode || echo "exit code $?"

# %% [markdown]
# The digest tells. Note who does not: the JPEG decoder. The picture still decodes, without a word of complaint, and a
# model would have trained on it.

# %%
after = ShardDataset(broken)[41]["jpg"]
figure, axes = plt.subplots(1, 2, figsize=(4.6, 2.4))
for axis, bytes_of_image, title in zip(axes, (data, after), ("as converted", "one byte flipped"), strict=True):
    axis.imshow(Image.open(BytesIO(bytes_of_image)))
    axis.set_title(title)
    axis.axis("off")

# %% [markdown]
# ## And back
#
# Shards are no one-way street. `extract` gives the tree back, the files byte for byte.

# %%
again = Path(scratch.name, "again")
# !wds-tools extract {shards} {again}
same = [(again / file.relative_to(tree)).read_bytes() == file.read_bytes() for file in files]
print(f"{sum(same)} of {len(files)} files are the same")

# %%
scratch.cleanup()

# %% [markdown]
# Next: [02-explore-a-dataset](02-explore-a-dataset.ipynb) looks at what is in a dataset.
# [docs/format.md](../docs/format.md) specifies the format, precisely enough to write another reader.
