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
# # Train, be killed, and resume
#
# Long trainings do not end as planned: a node goes down, a job's time is up, someone needs the machine. Resuming at the
# last epoch repeats hours; resuming in the middle of one, with most loaders, repeats some samples and never shows others.
#
# Here a small network learns the demo's shapes. Its process is killed in the middle of an epoch, goes on from its
# checkpoint, and ends with the same weights, to the bit, as one that was left alone. A ledger of keys shows that every
# sample was seen once in each epoch. `make shards` makes what this notebook reads.

# %%
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch import nn
from torch.nn import functional

from wds_tools import ShardDataset, ShardLoader, WdsToolsError, convert_tree, transforms
from wds_tools.tools.demo import make_demo

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
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores, on purpose
torch.set_num_threads(1)  # sums in one order, whatever the machine does besides; and processes that fork safely

scratch = tempfile.TemporaryDirectory()
SHARDS = Path(scratch.name, "shards")

# %% [markdown]
# ## Pictures to train on, and others to be judged by
#
# The demo's 600 images are all in one split. To judge the network by images that it never saw, 300 more are drawn with
# another seed and become a second split of the same dataset, with the same classes and indexes. It goes into a copy, so
# that `build/shards` stays as it is.

# %%
shutil.copytree("../build/shards", SHARDS)
make_demo(Path(scratch.name, "held-out"), per_class=50, seed=1)
convert_tree(Path(scratch.name, "held-out"), SHARDS, split="val", shuffle=False)

held_out = ShardDataset(SHARDS, split="val", transform=transforms.ResizeCenterCrop(48, 48))
CLASSES = held_out.classes
print(f"{len(ShardDataset(SHARDS, split='train'))} images to train on, {len(held_out)} held out; {', '.join(CLASSES)}")

# %% [markdown]
# ## The training
#
# An ordinary loop. Two things make it resumable to the sample: the loader's state goes into the checkpoint beside those
# of model, optimiser and schedule, so that all are of one moment, and it comes out with them. The checkpoint is written
# under another name first: whoever is killed while writing leaves the last one whole.
#
# The log, a line a step, is for the pictures below: the loss, and the keys of the samples behind it.

# %%
EPOCHS, EVERY, SIZE = 8, 12, 48  # EVERY: steps between checkpoints


def make_model():
    layers = []
    for inputs, outputs in ((3, 24), (24, 48), (48, 96)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(96, len(CLASSES)))


def train(checkpoint, log, kill_at=None):
    dataset = ShardDataset(
        SHARDS,
        split="train",
        shuffle=True,
        seed=0,
        fields=("jpg", "cls", "__key__"),
        transform=transforms.RandomResizedCrop(SIZE, scale=(0.7, 1.0)),
    )
    loader = ShardLoader(dataset, batch_size=32, num_workers=2)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=EPOCHS * len(loader))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    step = 0

    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        step = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)

    with open(log, "w") as lines:
        while loader.epoch < EPOCHS:
            for images, labels, keys in loader:
                loss = functional.cross_entropy(model(transforms.normalize(images)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                step += 1
                entry = {"step": step, "epoch": loader.epoch, "loss": loss.item(), "keys": keys}
                print(json.dumps(entry), file=lines, flush=True)
                if step % EVERY == 0:
                    save(parts, step, checkpoint)
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    save(parts, step, checkpoint)


def save(parts, step, checkpoint):
    states = {name: part.state_dict() for name, part in parts.items()}
    part = checkpoint.with_suffix(".part")
    torch.save(states | {"step": step}, part)
    part.replace(checkpoint)


def run(name, log, **options):
    """Train in a process of its own: how it ended, and its log."""
    folder = Path(scratch.name, name)
    folder.mkdir(exist_ok=True)
    options |= {"checkpoint": folder / "checkpoint.pt", "log": folder / log}
    process = multiprocessing.get_context("fork").Process(target=train, kwargs=options)
    process.start()
    process.join()
    return process.exitcode, [json.loads(line) for line in options["log"].read_text().splitlines()]


# %% [markdown]
# ## Once without trouble
#
# The run to compare with.

# %%
code, calm = run("calm", "log.jsonl")
assert code == 0
print(f"{calm[-1]['step']} steps in {EPOCHS} epochs")


def judge(name):
    """The trained weights, and what they make of the images held out."""
    model = make_model()
    weights = torch.load(Path(scratch.name, name, "checkpoint.pt"), weights_only=True)["model"]
    model.load_state_dict(weights)
    images, labels = next(iter(ShardLoader(held_out, batch_size=len(held_out))))
    with torch.no_grad():
        return weights, images, labels, model(transforms.normalize(images)).argmax(1)


weights, images, labels, guesses = judge("calm")
accuracy = (guesses == labels).double().mean().item()
assert accuracy > 0.9
print(f"{accuracy:.1%} of the {len(labels)} images held out are named rightly")

# %%
set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85})  # for pictures; plots are PNG
wrong = (guesses != labels).nonzero().flatten().tolist()[:4]
shown = wrong + [number for number in range(9, len(labels), 25) if number not in wrong]
figure, axes = plt.subplots(2, 6, figsize=(7.5, 2.9), layout="constrained")
for axis, number in zip(axes.flat, shown, strict=False):
    right = guesses[number] == labels[number]
    title = CLASSES[guesses[number]] if right else f"{CLASSES[guesses[number]]}?"
    axis.imshow(images[number].permute(1, 2, 0))
    axis.set_title(title, fontsize=9, color="black" if right else ORANGE, fontweight="normal" if right else "bold")
    axis.set_axis_off()
plt.show()

# %% [markdown]
# ## Once with a crash
#
# The same training, from the beginning. After step 90 it kills itself with a signal that no process can answer: nothing
# is tidied up, what workers had prefetched is gone, and so are the six steps since the checkpoint. Then the same call
# again.

# %%
code, killed = run("crashed", "log-1.jsonl", kill_at=90)
print(f"ended by {signal.Signals(-code).name} after step {killed[-1]['step']}, in epoch {killed[-1]['epoch']}")

saved = torch.load(Path(scratch.name, "crashed", "checkpoint.pt"), weights_only=True)
SAVED = saved["step"]
print(f"the checkpoint is of step {SAVED}; the loader's part of it: {json.dumps(saved['loader'])}")

code, resumed = run("crashed", "log-2.jsonl")
print(f"exit code {code}: steps {resumed[0]['step']} to {resumed[-1]['step']}")

# %% [markdown]
# The two runs on top of each other. The resumed one goes on where the checkpoint was, with the same batches in the same
# order, each image cropped as it would have been: the losses are not similar, they are equal.

# %%
losses = {entry["step"]: entry["loss"] for entry in calm}
equal = sum(entry["loss"] == losses[entry["step"]] for entry in resumed)
same = all(torch.equal(weights[name], other) for name, other in judge("crashed")[0].items())
print(f"{equal} of {len(resumed)} losses after resuming are equal; final weights equal: {same}")
assert equal == len(resumed)
assert same

set_matplotlib_formats("png")
figure, (wide, near) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=[3, 2], layout="constrained")
for axis in (wide, near):
    for entries, style, name in (
        (calm, {"color": GREY, "lw": 7}, "never interrupted"),
        (killed, {"color": BLUE, "lw": 3.5}, "until it was killed"),
        (resumed, {"color": ORANGE, "lw": 1.5}, "resumed"),
    ):
        axis.plot([entry["step"] for entry in entries], [entry["loss"] for entry in entries], label=name, **style)
    axis.axvline(SAVED, color="black", lw=1, ls=":", label="checkpoint")
    axis.axvspan(SAVED, killed[-1]["step"], color=BLUE, alpha=0.12, lw=0, label="lost, and done again")
    axis.set(xlabel="step", ylabel="loss")
near.set(xlim=(SAVED - 20, SAVED + 25), ylim=(0, 1.1 * max(losses[step] for step in range(SAVED - 20, SAVED + 25))))
near.set_title("near the crash", fontsize=10)
wide.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# ## The ledger
#
# What counts is what the surviving weights have seen: the first process up to the checkpoint, the second from there. The
# six lost steps taught a model that is gone, so their samples come again.

# %%
lived = [entry for entry in killed if entry["step"] <= SAVED] + resumed
seen = Counter((entry["epoch"], key) for entry in lived for key in entry["keys"])
per_epoch = Counter(epoch for epoch, _ in seen)
print(f"times a sample was seen in an epoch, and how often that happened: {dict(Counter(seen.values()))}")
print(f"different samples by epoch: {sorted(per_epoch.items())}")
assert set(seen.values()) == {1}
assert set(per_epoch.values()) == {600}

# %% [markdown]
# The epoch of the crash, sample by sample: a square for each, in the order of the shard. The shuffle spreads all three
# kinds over it, and there is no white square.

# %%
EPOCH = killed[-1]["epoch"]
train_set = ShardDataset(SHARDS, split="train")
places = {train_set[number]["__key__"]: number for number in range(len(train_set))}
kinds = torch.zeros(len(places), dtype=torch.long)
for kind, entries in (
    (1, [entry for entry in killed if entry["step"] <= SAVED]),
    (2, resumed),
    (3, [entry for entry in killed if entry["step"] > SAVED]),  # these came again: not counted, shown
):
    for entry in entries:
        if entry["epoch"] == EPOCH:
            kinds[[places[key] for key in entry["keys"]]] = kind
assert kinds.all()

names = {
    "before the checkpoint": BLUE,
    "after resuming": ORANGE,
    "after resuming, for the second time: the first was lost": "#f2cf9f",
}
figure, axis = plt.subplots(figsize=(9, 2.6), layout="constrained")
axis.pcolormesh(
    kinds.view(12, 50), cmap=ListedColormap(["white", *names.values()]), vmin=-0.5, vmax=3.5, ec="white", lw=1
)
axis.set(aspect="equal")
axis.set_axis_off()
axis.set_title(f"epoch {EPOCH}: who showed which sample", fontsize=10)
counts = [int((kinds == kind).sum()) for kind in (1, 2, 3)]
handles = [Patch(color=colour, label=f"{name} ({n})") for (name, colour), n in zip(names.items(), counts, strict=True)]
figure.legend(handles=handles, frameon=False, fontsize=9, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## Resumed by others
#
# After a crash there may be fewer machines, or more. The state says how many batches of which size every rank was given
# under which numbers; what is left follows from that by arithmetic, and is dealt to whoever is there. Four ways to end
# one epoch, each from the same state:

# %%
keys_only = ShardDataset(SHARDS, split="train", shuffle=True, seed=0, fields=("__key__",))
loader = ShardLoader(keys_only, batch_size=32, num_workers=2)
batches = iter(loader)
before = [next(batches)[0] for _ in range(7)]
state = json.loads(json.dumps(loader.state_dict()))  # it may go through any file
del batches

ways = {
    "2 workers, batches of 32": {"batch_size": 32, "num_workers": 2},
    "no workers, batches of 50": {"batch_size": 50, "num_workers": 0},
    "3 workers, batches of 16": {"batch_size": 16, "num_workers": 3},
    "2 ranks of 2 workers, batches of 24": {"batch_size": 24, "num_workers": 2, "world_size": 2},
}
rests = {}
for way, numbers in ways.items():
    rests[way] = []
    for rank in range(numbers.get("world_size", 1)):
        loader = ShardLoader(keys_only, **({"world_size": 1} | numbers), rank=rank)
        loader.load_state_dict(state)
        rests[way].append([keys for (keys,) in loader])
    rest = [key for rank in rests[way] for keys in rank for key in keys]
    assert len(rest) == len(set(rest))
    assert set(rest) == set(places) - {key for keys in before for key in keys}
    print(
        f"{way}: {len(rest)} samples, exactly those not seen, each once, in {[len(rank) for rank in rests[way]]} batches"
    )

# %%
figure, axis = plt.subplots(figsize=(9, 2.6), layout="constrained")
for row, way in enumerate(ways):
    height = 0.7 / len(rests[way])
    bars = [(0.35, 0.7, before, 0, GREY)]
    start = sum(map(len, before))
    for rank, keys in enumerate(rests[way]):
        bars.append((0.35 - rank * height, height, keys, start, (ORANGE, GREEN)[rank]))
    for top, tall, batches, start, colour in bars:
        for keys in batches:
            axis.broken_barh([(start, len(keys))], (row - top, tall), color=colour, ec="white", lw=0.8)
            start += len(keys)
axis.set_yticks(range(len(ways)), ways)
axis.set(xlabel="samples, a box for each batch", xlim=(0, len(places)))
axis.invert_yaxis()
axis.grid(visible=False)
handles = [
    Patch(color=GREY, label="before the state"),
    Patch(color=ORANGE, label="after it"),
    Patch(color=GREEN, label="after it, rank 1"),
]
figure.legend(handles=handles, frameon=False, fontsize=9, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# Two ranks have half of the rest each, and as many batches. With other numbers the remaining samples come in another
# order, so the losses differ from here on; which samples come does not.
#
# What a state cannot mean is refused. With another seed the same counts would be other samples:

# %%
other = ShardLoader(ShardDataset(SHARDS, split="train", shuffle=True, seed=1), batch_size=32)
try:
    other.load_state_dict(state)
except WdsToolsError as error:
    print(error)

# %% [markdown]
# [examples/train.py](../examples/train.py) is the same as a script, for one process or many with torchrun, and
# [docs/shuffling.md](../docs/shuffling.md) tells how the order is made and what it promises.

# %%
scratch.cleanup()
