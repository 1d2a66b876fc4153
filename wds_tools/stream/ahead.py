"""Reading ahead: a stream's order is computed, so what it will need of remote shards is fetched before it is due.

Three places move along a stream. What is *taken* has been read. What is *planned* is fetched or under way, a short distance
ahead. What is *known* reaches further: the ids are computed, and the shards are being opened. A sample that is planned
and not there yet starts a request, which brings its known neighbours in the shard as well, up to `chunk` bytes. All of
them are going to be read, so each byte is asked for once, and a part is let go of with its last sample.

All plans are made in the thread that reads. Threads do nothing but wait for the network (`crew`); what becomes of
a request, also an error, is told where a sample of it is due.

Memory. The shuffle spreads neighbours in a shard over a window, and parts of ``interleave`` shards are open at a time, so parts
hold about ``window`` samples and ``interleave`` times ``chunk`` together. Where that is more than three quarters of
`MEMORY`, chunks become smaller; where the window alone is, less is known ahead, and requests become as small as samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from wds_tools.errors import WdsToolsError
from wds_tools.stream.crew import Crew
from wds_tools.stream.line import Ids
from wds_tools.stream.opened import LocalShard, Part, RemoteShard
from wds_tools.stream.order import Order

MEMORY = 512 << 20  # of parts, in each process that reads
DISTANCE = 32 << 20  # bytes planned ahead of what is taken
FIRST = 256 << 10  # of a stream's first requests: the first batch needs a little of many shards
SMALLEST = 1 << 20
GAP = 128 << 10  # bytes that nobody wants between two samples cost less than a request
MAX_KNOWN = 1 << 17
STEP = 1 << 14  # known at the start; more as samples are taken, or the first batch would wait for arithmetic
GUESS = 1 << 16  # bytes of a sample where no manifest tells
BEFORE_COPY = 1 << 20  # read of a shard by ranges while its copy is fetched
COPIES = 2  # fetched at a time


@dataclass(frozen=True)
class Plan:
    """How far ahead: ``known`` and ``distance`` in samples, ``chunk`` in bytes of a request."""

    known: int
    distance: int
    chunk: int

    @classmethod
    def of(cls, order: Order, sizes: Iterable[int | None], chunk: int, cached: bool) -> Plan:
        """For streams of ``order`` over shards of these sizes in bytes, None where that is not known."""
        told = [size for size in sizes if size is not None]
        samples = max(order.num_samples, 1)
        mean = max(sum(told) // samples, 1) if len(told) == len(order.shard_sizes) else GUESS
        interleave, window = order.spread
        group = interleave * -(-samples // max(len(order.shard_sizes), 1))
        room = MEMORY * 3 // 4 - window * mean
        distance = max(DISTANCE // mean, 16)
        if room < interleave * SMALLEST:
            return cls(min(MEMORY // 2 // mean + 16, MAX_KNOWN), distance, chunk)
        chunk = min(chunk, room // interleave)
        known = window + distance + min(interleave * chunk // mean, group)
        if cached:  # copies of the next group's shards are fetched while this one is read
            known = max(known, window + 2 * group)
        return cls(min(known, MAX_KNOWN), distance, chunk)


@dataclass
class _Need:
    """What is known to be needed of one shard. ``wanted`` is how often each sample will come, ``parts`` what brings it."""

    opening: Future[LocalShard | RemoteShard]
    wanted: bytearray
    parts: list[Part | None] = field(repr=False)
    copying: Future[LocalShard | None] | None = None
    left: int = 0
    asked: int = 0
    _file: LocalShard | None = None

    @property
    def local(self) -> LocalShard | None:
        """The shard as a file, once it is one."""
        if self._file is None and self.copying is not None:
            for future in (self.opening, self.copying):
                if future.done() and not future.exception() and isinstance(found := future.result(), LocalShard):
                    self._file = found
        return self._file

    @property
    def waits_for_copy(self) -> bool:
        """Whether enough was read by ranges."""
        return self.copying is not None and not self.copying.done() and self.asked >= BEFORE_COPY


class Ahead:
    """Fetches what a stream needs. ``batches`` are its ids; ``open_shard`` opens a shard by number, in any thread.

    With ``cached``, a copy of every remote shard is asked for as well; the rest of a shard waits for it. Shards that are
    ``local`` are only counted.
    """

    def __init__(
        self,
        batches: Iterator[Ids],
        order: Order,
        open_shard: Callable[[int], LocalShard | RemoteShard],
        plan: Plan,
        threads: int,
        cached: bool,
        local: Sequence[bool] = (),
    ) -> None:
        self._local = frozenset(number for number, is_local in enumerate(local) if is_local)
        self._batches = batches
        self._order = order
        self._open = open_shard
        self._plan = plan
        self._crew = Crew(threads, "wds_tools-fetch")
        self._copiers = Crew(COPIES, "wds_tools-copy") if cached else None
        self._needs: dict[int, _Need] = {}
        self._queue: deque[Ids] = deque()  # known, and not handed out
        self._unplanned: deque[tuple[int, int]] = deque()
        self._known = self._planned = self._taken = 0
        self._held = self._asked = 0

    def batches(self) -> Iterator[Ids]:
        """The stream. Its samples are to be `take`-n in its order, each batch before the next is asked for."""
        try:
            while True:
                self._learn()
                self._look_ahead()
                if not self._queue:
                    return
                yield self._queue.popleft()
        finally:
            self.close()

    def take(self, shard: int, number: int) -> LocalShard | Part | None:
        """Where to read this sample, waited for; None for one that is not of this stream.

        Raises what became of its request. It is asked for anew when the sample is taken again.
        """
        need = self._needs.get(shard)
        if need is None or not need.wanted[number]:
            if shard in self._local:
                self._taken += 1
                self._look_ahead()
            return None
        part = need.parts[number] or need.local or self._wait(shard, need, number)
        if isinstance(part, Part):
            self._arrive(need, part)
            if need.wanted[number] == 1:
                need.parts[number] = None
                part.left -= 1
                if not part.left:
                    self._held -= part.size
        need.wanted[number] -= 1
        need.left -= 1
        self._taken += 1
        if not need.left:
            del self._needs[shard]
        self._look_ahead()
        return part

    def close(self) -> None:
        """Ask for nothing more. Requests that are under way end by themselves."""
        self._crew.close()
        if self._copiers is not None:
            self._copiers.close()

    def _learn(self) -> None:
        while self._known - self._taken < min(self._plan.known, STEP + 4 * self._taken) or not self._queue:
            ids = next(self._batches, None)
            if ids is None:
                return
            self._queue.append(ids)
            shards, numbers = (part.tolist() for part in self._order.locate(ids))
            for place in zip(shards, numbers, strict=True):
                shard, number = place
                if shard in self._local:
                    self._known += 1
                    self._unplanned.append(place)
                    continue
                need = self._needs.get(shard) or self._begin(shard)
                if need.wanted[number] < 255:  # what fits; a sample that comes so often is read when it is due
                    need.wanted[number] += 1
                    need.left += 1
                    self._known += 1
                    self._unplanned.append(place)

    def _begin(self, shard: int) -> _Need:
        count = self._order.shard_sizes[shard]
        opening = self._crew.do(lambda: self._open(shard))
        need = self._needs[shard] = _Need(opening, bytearray(count), [None] * count)
        if self._copiers is not None:
            need.copying = self._copiers.do(lambda: _copy(opening))
        return need

    def _look_ahead(self) -> None:
        unplanned, most = self._unplanned, self._taken + self._plan.distance
        while unplanned and self._planned < most:
            shard, number = unplanned[0]
            need = self._needs.get(shard)
            if need is not None and need.wanted[number] and need.parts[number] is None and need.local is None:
                if self._blocker(need) is not None or self._held >= MEMORY:
                    return
                # Only now it is sure that the shard is open, and whether as a file.
                if need.opening.exception() is None and need.local is None:
                    self._ask(need, number)
            unplanned.popleft()
            self._planned += 1

    def _blocker(self, need: _Need) -> Future[Any] | None:
        """What must be done before a part of this shard can be asked for."""
        if not need.opening.done():
            return need.opening
        return need.copying if need.waits_for_copy else None

    def _wait(self, shard: int, need: _Need, number: int) -> LocalShard | Part:
        """A sample is due and nothing is under way: its shard is not open yet, memory is full, or a request failed."""
        try:
            need.opening.result()
        except WdsToolsError:
            del self._needs[shard]  # the next who asks tries anew
            raise
        if need.waits_for_copy:
            assert need.copying is not None
            wait([need.copying])
        self._look_ahead()
        return need.parts[number] or need.local or self._ask(need, number)

    def _ask(self, need: _Need, number: int) -> Part:
        """Ask for this sample, and for those beside it that are known to be needed."""
        opened = need.opening.result()
        assert isinstance(opened, RemoteShard)
        part = Part(opened, self._neighbours(need, opened, number))
        for each in part.numbers:
            need.parts[each] = part
        self._held += part.size
        self._asked += part.size
        need.asked += part.size
        self._crew.do(part.fetch, part.coming)
        return part

    def _neighbours(self, need: _Need, opened: RemoteShard, number: int) -> list[int]:
        extent = opened.table.extent
        begin, end = extent(number)
        most = min(max(FIRST, self._asked // 8), self._plan.chunk)
        if need.copying is not None and not need.copying.done():
            most = min(most, BEFORE_COPY)
        found = deque([number])

        for step in (-1, 1):  # back first: those behind come along with later ones
            each = number + step
            while 0 <= each < len(need.wanted):
                start, stop = extent(each)
                if max(begin - stop, start - end) > GAP or max(stop, end) - min(start, begin) > most:
                    break
                if need.wanted[each] and need.parts[each] is None and stop > start:
                    begin, end = min(start, begin), max(stop, end)
                    found.append(each) if step > 0 else found.appendleft(each)
                each += step
        return list(found)

    def _arrive(self, need: _Need, part: Part) -> None:
        while not part.coming.done():  # meanwhile more can be asked for whenever another shard is open
            need_of_next = self._needs.get(self._unplanned[0][0]) if self._unplanned else None
            blocker = None if need_of_next is None else self._blocker(need_of_next)
            wait({part.coming, blocker or part.coming}, return_when=FIRST_COMPLETED)
            self._look_ahead()
        try:
            part.data()
        except WdsToolsError:
            for each in part.numbers:
                if need.parts[each] is part:
                    need.parts[each] = None
            self._held -= part.size
            raise


def _copy(opening: Future[LocalShard | RemoteShard]) -> LocalShard | None:
    opened = opening.result()
    return opened.made_copy() if isinstance(opened, RemoteShard) else None
