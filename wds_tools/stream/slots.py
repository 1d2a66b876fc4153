"""Memory for batches that workers share with their loop, used again and again.

Fresh memory costs a page fault for every 4 kB, once in the worker and once in the loop: for small pictures that is
more than reading them. So each worker has a few slots, mapped once on both sides. A worker fills a free slot and sends
its number; the loop makes a tensor over it, and when nothing refers to that tensor any more, nor to a view of it, the slot
is free again. A loop that keeps its batches runs the worker out of slots; it then gets fresh memory, as it would have
without any of this. A process that is forked from the loop's sees the memory as it changes: give it copies of batches.

A slot's state is one byte, and only ever one side may change it: the worker a free one, the loop any other.
The memory is a file without a name (``memfd``), which no small ``/dev/shm`` limits and which dies with its processes.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

FREE, SENT, TAKEN = 0, 1, 2
# Slots of a worker beyond what it prefetches: what the loop works on, what it is just given, and what frameworks fetch
# ahead of it. The first free one is taken, so those that are never needed are never there.
SPARE = 4
PAGE = mmap.ALLOCATIONGRANULARITY


class Parcel(NamedTuple):
    """What travels in the place of a tensor: the slot, the shape of its rows, and whether channels come last in memory."""

    slot: int
    shape: tuple[int, ...]
    channels_last: bool


class Slots:
    """``per_worker`` slots of ``size`` bytes for each worker."""

    def __init__(self, workers: int, per_worker: int, size: int) -> None:
        self._per_worker = per_worker
        self._size = -(-size // PAGE) * PAGE
        self._count = workers * per_worker
        self._map(os.memfd_create("wds_tools batches", os.MFD_CLOEXEC))
        os.ftruncate(self._fd, self._length)
        self._open()

    @staticmethod
    def possible() -> bool:
        """Whether this system has memory of this kind."""
        return hasattr(os, "memfd_create")

    @property
    def _length(self) -> int:
        return PAGE * -(-self._count // PAGE) + self._count * self._size

    def _map(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    def _open(self) -> None:
        memory = np.frombuffer(mmap.mmap(self._fd, self._length), np.uint8)
        self._states = memory[: self._count]
        self._memory = memory[len(memory) - self._count * self._size :].reshape(self._count, self._size)

    def __getstate__(self) -> dict[str, Any]:
        # For a worker that is spawned; one that is forked has all of this already.
        return {
            "_per_worker": self._per_worker,
            "_size": self._size,
            "_count": self._count,
            "_fd": reduction.DupFd(self._fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        fd = state.pop("_fd").detach()
        self.__dict__.update(state)
        self._map(fd)
        self._open()

    def reclaim(self, worker: int) -> None:
        """In a worker that begins a pass: what it sent in the last one and was never taken is free."""
        mine = self._states[worker * self._per_worker : (worker + 1) * self._per_worker]
        mine[mine == SENT] = FREE

    def claim(self, worker: int, shape: tuple[int, ...]) -> tuple[int, np.ndarray[Any, np.dtype[np.uint8]]] | None:
        """In a worker: a free slot and its memory in this shape; None if there is none, or it is too small."""
        size = math.prod(shape)
        if size > self._size:
            return None
        first = worker * self._per_worker
        free = np.flatnonzero(self._states[first : first + self._per_worker] == FREE)
        if not len(free):
            return None
        slot = first + int(free[0])
        self._states[slot] = SENT
        return slot, self._memory[slot, :size].reshape(shape)

    def give_back(self, slot: int) -> None:
        """In a worker: a slot that was claimed and will not be sent."""
        self._states[slot] = FREE

    def take(self, parcel: Parcel) -> torch.Tensor:
        """In the loop: the tensor in a slot, which is free again once nothing refers to its memory."""
        rows = self._memory[parcel.slot, : math.prod(parcel.shape)].reshape(parcel.shape)
        self._states[parcel.slot] = TAKEN
        # torch keeps the array for as long as any tensor has this memory.
        weakref.finalize(rows, _free, self._states, parcel.slot, os.getpid()).atexit = False
        tensor = torch.from_numpy(rows)
        return tensor.permute(0, 3, 1, 2) if parcel.channels_last else tensor


def _free(states: Any, slot: int, pid: int) -> None:
    # A process that was forked meanwhile has references of its own, and lets go of nobody else's.
    if os.getpid() == pid:
        states[slot] = FREE
