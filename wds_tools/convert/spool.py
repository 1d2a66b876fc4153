"""Entries in their order, in memory while they are few and on the disk past that.

A plan of a million entries fits in memory, one of a hundred million does not. A spool takes both: the lines are
handed over in blocks, in the order in which they came. What goes to the disk goes into one file without a name, which is
gone with the process, however that ends.
"""

from __future__ import annotations

import itertools
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

KEEP = 1 << 20  # entries that are kept in memory
BLOCK = 1 << 17  # entries of one block on the disk


class Frames:
    """Runs of lines with numbers beside them, written one after the other to a file that has no name.

    ``folder`` says on which disk; the system's folder for temporary files by default.
    """

    def __init__(self, folder: str | None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as this does)
        self._end = 0

    def write(self, lines: Sequence[str], numbers: bytes) -> tuple[int, int, int]:
        """Write a frame: answers with its place, which is all there is to be kept of it."""
        text = "\n".join(lines).encode("utf-8", "surrogateescape")
        self._file.write(numbers)
        self._file.write(text)
        place = self._end, len(numbers), len(text)
        self._end += len(numbers) + len(text)
        return place

    def read(self, place: Sequence[int]) -> tuple[list[str], bytes]:
        """The lines and numbers of the frame at ``place``."""
        start, size, length = place
        self._file.seek(start)
        numbers = self._file.read(size)
        return self._file.read(length).decode("utf-8", "surrogateescape").split("\n"), numbers

    def close(self) -> None:
        self._file.close()


class Spool:
    """The lines of entries and, beside each, the bytes that its source takes.

    Past ``keep`` entries all of them lie in a file in ``folder``, ``block`` of them together.
    """

    def __init__(self, folder: str | None = None, keep: int = KEEP, block: int = BLOCK) -> None:
        self.folder = folder
        self.block = block
        self.total = 0  # the sum of all sizes
        self._keep = keep
        self._lines: list[str] = []
        self._sizes = array("q")
        self._frames: Frames | None = None
        self._places = array("q")
        self._written = 0

    def __len__(self) -> int:
        return self._written + len(self._lines)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(lines for lines, _ in self.blocks())

    @property
    def in_memory(self) -> bool:
        """Whether nothing of it lies on the disk: then there is one block, or none."""
        return self._frames is None

    def append(self, line: str, size: int) -> None:
        self._lines.append(line)
        self._sizes.append(size)
        self.total += size
        self._settle()

    def extend(self, lines: Iterable[str], sizes: array[int]) -> None:
        """Append many lines, and as many sizes."""
        self._lines += lines
        self._sizes += sizes
        self.total += sum(sizes)
        self._settle()

    def blocks(self) -> Iterator[tuple[list[str], array[int]]]:
        """Everything, many entries at a time: the lines, and their sizes."""
        if self._frames is not None:
            for number in range(0, len(self._places), 3):
                lines, numbers = self._frames.read(self._places[number : number + 3])
                sizes = array("q")
                sizes.frombytes(numbers)
                yield lines, sizes
        if self._lines:
            yield self._lines, self._sizes

    def pick(self, count: int) -> list[str]:
        """``count`` lines at equal distances, fewer if there are fewer."""
        count = min(count, len(self))
        wanted = [number * len(self) // count for number in range(count)]
        picked: list[str] = []
        before = 0
        for lines, _ in self.blocks():
            while len(picked) < count and wanted[len(picked)] < before + len(lines):
                picked.append(lines[wanted[len(picked)] - before])
            before += len(lines)
        return picked

    def clear(self) -> None:
        """Let go of everything."""
        if self._frames is not None:
            self._frames.close()
        self.__init__(self.folder, self._keep, self.block)  # type: ignore[misc]

    def _settle(self) -> None:
        """Take to the disk what is too much for the memory."""
        if self._frames is None:
            if len(self._lines) <= self._keep:
                return
            self._frames = Frames(self.folder)
        whole = len(self._lines) // self.block * self.block if self._written else len(self._lines)
        for start in range(0, whole, self.block):
            lines, sizes = self._lines[start : start + self.block], self._sizes[start : start + self.block]
            self._places.extend(self._frames.write(lines, sizes.tobytes()))
            self._written += len(lines)
        del self._lines[:whole], self._sizes[:whole]
