"""The part of a Hugging Face dataset card (``README.md``) that follows from the manifest.

It says which shards are which split and what the fields are, so that ``datasets`` need not guess, and how many samples there must
be, which ``datasets`` checks. License, language and all that only people know are left to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from glob import escape

from wds_tools.errors import FormatError
from wds_tools.format.blocks import block, scalar
from wds_tools.image.kinds import KINDS
from wds_tools.records import SplitInfo

NAME = "README.md"

# Splits that ``datasets`` finds by shards' names get another name there; a card must not change it.
_RENAMED = {"training": "train", "testing": "test", "eval": "test", "evaluation": "test"}
_RENAMED |= dict.fromkeys(("valid", "dev", "val"), "validation")
_AFTER = """
# Images in WebDataset shards

What do they show, where do they come from, and who may use them? Add `license:` and the like at the top, outside of the
marks: what stands between them is written anew by `wds-tools sidecars --for hf`.
"""


def new_card(own: bytes) -> bytes:
    """A card for a dataset that has none, around its block."""
    return b"---\n" + own + b"---\n" + _AFTER.encode()


def dump_block(splits: Mapping[str, SplitInfo], classes: tuple[str, ...], fields: Mapping[str, int]) -> bytes:
    """The block of the card's YAML; ``fields`` counts samples by field."""
    names = split_names(splits)
    all_shards = [shard.name for split in splits.values() for shard in split.shards]
    lines = ["configs:", "- config_name: default", "  data_files:"]
    for split in splits.values():
        lines.append(f"  - split: {scalar(names[split.name])}")
        lines += _paths(split, all_shards)
    lines += ["dataset_info:", *_features(fields, classes), "  splits:"]
    for split in splits.values():
        # The size is asked for; that of the shards, where it is known, is close to what the samples take.
        size = sum(shard.size or 0 for shard in split.shards)
        lines += [
            f"  - name: {scalar(names[split.name])}",
            f"    num_bytes: {size}",
            f"    num_examples: {split.samples}",
        ]
    lines += ["size_categories:", f"- {_size_category(sum(split.samples for split in splits.values()))}"]
    return block(lines)


def split_names(splits: Iterable[str]) -> dict[str, str]:
    """What ``datasets`` will call each split; `FormatError` if it would call two the same."""
    plain = {name: re.sub(r"\W", "_", name) for name in splits}
    renamed = {name: _RENAMED.get(new, new) for name, new in plain.items()}
    names = renamed if len(set(renamed.values())) == len(renamed) else plain
    if len(set(names.values())) < len(names) or "" in names.values():
        raise FormatError(f"the splits {sorted(names)} have no names in letters that tell them apart; rename one")
    return names


def _paths(split: SplitInfo, all_shards: list[str]) -> list[str]:
    """The split's shards by one pattern that no other's match, or else one by one."""
    shards = {shard.name for shard in split.shards}
    for pattern in (f"{escape(split.name)}-*.tar", f"{escape(split.name)}-{'[0-9]' * 6}.tar"):
        if {name for name in all_shards if fnmatchcase(name, pattern)} == shards:
            return [f"    path: {scalar(pattern)}"]
    return ["    path:", *(f"    - {scalar(escape(shard.name))}" for shard in split.shards)]


def _features(fields: Mapping[str, int], classes: tuple[str, ...]) -> list[str]:
    """The columns, images first as in the shards; none where a field's type is not known from its name."""
    lines = ["  features:"]
    for name in sorted(fields, key=lambda name: (name not in KINDS, name == "cls", name)):
        if name in KINDS and name != "npy":
            lines += [f"  - name: {scalar(name)}", "    dtype: image"]
        elif name == "cls" and classes:
            lines += ["  - name: cls", "    dtype:", "      class_label:", "        names:"]
            lines += [f"          '{number}': {scalar(label)}" for number, label in enumerate(classes)]
        elif name in ("cls", "txt"):
            lines += [f"  - name: {name}", f"    dtype: {'int64' if name == 'cls' else 'string'}"]
        else:
            return []
    return lines + [line for name in ("__key__", "__url__") for line in (f"  - name: {name}", "    dtype: string")]


def _size_category(samples: int) -> str:
    """``1K<n<10K``: the names that the Hub has for sizes."""
    marks = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    below = [mark for power, mark in enumerate(marks, 3) if samples >= 10**power]
    if not below:
        return f"n<{marks[0]}"
    return f"n>{marks[-1]}" if len(below) == len(marks) else f"{below[-1]}<n<{marks[len(below)]}"
