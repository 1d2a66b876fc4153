"""Small image trees, written fast, and what a conversion made of them, read back with nothing of ours.

A picture is one tiny JPEG with its number in a comment, so that thousands of distinct files cost no encoding.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import images

NOBODY = 65_534


@functools.cache
def _plain() -> bytes:
    return images.jpeg(8, 8)


def picture(seed: object = 0, padding: int = 0) -> bytes:
    """A JPEG like no other with another ``seed``; ``padding`` makes it longer."""
    return images.with_segments(_plain(), repr(seed).encode() + bytes(padding), marker=0xFE)


def write(root: Path, path: str | bytes, data: bytes | None = None) -> Path:
    """One file below ``root``; without data, a picture of its own."""
    full = root / os.fsdecode(path)
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(picture(path) if data is None else data)
    return full


def make(root: Path, files: Mapping[str, bytes | None] | Iterable[str | bytes]) -> Path:
    """A tree of ``files``: paths, or paths with their bytes."""
    root.mkdir(parents=True, exist_ok=True)
    for path in files:
        write(root, path, files[path] if isinstance(files, Mapping) else None)
    return root


def classes(root: Path, names: Iterable[str] = ("ant", "bee", "cat"), count: int = 5, padding: int = 0) -> Path:
    """A folder a class, with ``count`` pictures each, of somewhat different lengths."""
    for name in names:
        for number in range(count):
            path = f"{name}/{name}_{number:03d}.jpg"
            write(root, path, picture(path, padding + 37 * number))
    return root


def copy(source: Path, target: Path, mtime: int | None = None) -> Path:
    """The same files elsewhere, of another time if one is given."""
    shutil.copytree(source, target, symlinks=True)
    if mtime is not None:
        for folder, _, names in os.walk(target):
            for name in names:
                os.utime(os.path.join(folder, name), (mtime, mtime))
    return target


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones too, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def members(shard: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(shard, "r:") as tar:
        return tar.getmembers()


def read_shard(shard: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Key and fields of every sample, in the shard's order, by Python's tarfile."""
    samples: list[tuple[str, dict[str, bytes]]] = []
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            stem, _, ext = base.partition(".")
            key = folder + slash + stem
            if not samples or samples[-1][0] != key:
                samples.append((key, {}))
            file = tar.extractfile(member)
            assert file is not None
            assert ext not in samples[-1][1], f"{member.name} twice"
            samples[-1][1][ext] = file.read()
    return samples


def read(dataset: Path, split: str = "train") -> list[tuple[str, dict[str, bytes]]]:
    """Key and fields of every sample of a split."""
    return [sample for shard in sorted(dataset.glob(f"{split}-*.tar")) for sample in read_shard(shard)]


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A temporary folder that every user can enter and write to; the ones pytest makes are ours alone."""
    folder = tempfile.mkdtemp()
    try:
        os.chmod(folder, 0o777)
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def unprivileged(function: Callable[[], Any]) -> Any:
    """What ``function`` returns, or raises, as a user whom file modes stop: in a child process where we are root."""
    if os.geteuid() != 0:
        return function()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = pickle.dumps((function(), None))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent raises it
            answer = pickle.dumps((None, error))
        with open(writer, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result, error = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if error is not None:
        raise error
    return result
