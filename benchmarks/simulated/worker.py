"""One process of the simulated run, measured in a process of its own: prints what it found as one line of JSON.

    order SETTING                       plans: from known sizes to the first batch, a whole stream, and resuming
    open FOLDER                         ShardDataset of a folder with nothing but info.json, and what a spawned worker is sent
    loader FOLDER SETTING RANK          ShardLoader of one rank, whose shards alone are in the folder
    requests SETTING BYTES CACHE STREAM…    what streams ask of a server, with samples of so many bytes; "-" for no cache

Times of ``order`` and ``open`` are seconds of processor time, since one thread does it all and others may use the machine;
those of ``loader`` are seconds on the clock. Memory is MB of resident memory above what the process had before: ``peak`` at
most, ``kept`` at the end.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.simulated.server import Server
from benchmarks.simulated.setting import Samples, Setting, infos
from wds_tools.store.cache import CacheStore
from wds_tools.store.options import StoreOptions
from wds_tools.stream.order import Order, Phase, Topology
from wds_tools.stream.reader import ShardReader, shards_at_once
from wds_tools.stream.shards import Shards

_T = TypeVar("_T")
CHANGES = 16


def resident(figure: str = "VmRSS", process: str = "self") -> float:
    """MB of a process: ``VmRSS`` now, ``VmHWM`` at most. (Not getrusage: a child's begins with its parent's.)"""
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(figure)) / 1000


def private(process: int) -> float:
    """MB that a process shares with no other."""
    with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Seconds of processor time, and the result."""
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def order(setting: Setting) -> dict[str, float]:
    """What planning costs one worker: the first of the rank in the middle."""
    sizes, topology, rank = setting.sizes(), setting.topology, setting.world // 2
    before = resident()
    found: dict[str, float] = {}

    def first_batch(topology: Topology, history: tuple[Phase, ...] = ()) -> float:
        return timed(lambda: plan.epoch(0, topology, history).stream(min(rank, topology.world - 1)).batch(0))[0]

    found["plan"], plan = timed(lambda: Order(sizes))
    found["first"] = found["plan"] + first_batch(topology)
    found["first_peak"] = resident("VmHWM") - before
    stream = plan.epoch(0, topology).stream(rank)
    found["whole"], blocks = timed(lambda: sum(len(batch) for batch in stream))
    found["samples"] = blocks
    found["whole_peak"] = resident("VmHWM") - before

    epoch = plan.epoch(0, topology)
    history = epoch.history(epoch.num_batches // 2)
    found["resume"] = first_batch(topology, history)
    found["resume_other"] = first_batch(other(topology), history)
    for change in range(CHANGES):
        smaller = Topology(max(topology.world - 1 - change, 1), topology.workers, topology.batch_size)
        epoch = plan.epoch(0, smaller, history)
        history = epoch.history(epoch.num_batches // (2 * CHANGES))
    found["resume_many"] = first_batch(topology, history)
    found["resume_peak"] = resident("VmHWM") - before
    return found


def other(topology: Topology) -> Topology:
    """A quarter of the machines fewer, and larger batches."""
    return Topology(max(topology.world * 3 // 4, 1), topology.workers, topology.batch_size * 5 // 4)


def open_dataset(folder: str) -> dict[str, float]:
    from wds_tools import ShardDataset

    before = resident()
    found: dict[str, float] = {}
    found["open"], dataset = timed(lambda: ShardDataset(folder, split="train", shuffle=True))
    found["peak"] = resident("VmHWM") - before
    gc.collect()
    found["kept"] = resident() - before
    found["shards"] = len(dataset.shards.shards)
    found["pickle"], sent = timed(lambda: pickle.dumps(dataset))
    found["unpickle"] = timed(lambda: pickle.loads(sent))[0]
    found["sent"] = len(sent) / 1e6
    return found


def loader(folder: str, setting: Setting, rank: int) -> dict[str, float]:
    import warnings

    from wds_tools import ShardDataset, ShardLoader

    warnings.simplefilter("ignore")  # DataLoader's, about more workers than processors

    def start() -> ShardLoader:
        dataset = ShardDataset(folder, split="train", shuffle=True, fields=("jpg",))
        return ShardLoader(dataset, setting.batch_size, setting.workers, rank=rank, world_size=setting.world)

    begun = time.perf_counter()
    made = start()
    found = {"made": time.perf_counter() - begun}
    batches = iter(made)
    count = len(next(batches)[0])
    found["first"] = time.perf_counter() - begun
    found["state"] = timed(made.state_dict)[0]
    workers = getattr(made._iterator, "_workers", [])
    found["private"] = max((private(worker.pid) for worker in workers), default=0.0)
    rest = [len(images) for (images,) in batches]
    found["whole"] = time.perf_counter() - begun
    found["samples"] = count + sum(rest)
    found["batches"] = 1 + len(rest)
    return found


def requests(setting: Setting, payload: int, cache: str, streams: list[int]) -> list[dict[str, Any]]:
    """For each stream (numbered over all ranks): what the server was asked for before the first batch, and in all."""
    sizes, samples = setting.sizes(), Samples(payload)
    plan, listed = Order(sizes), infos(sizes, samples)
    epoch = plan.epoch(0, setting.topology)
    found = []
    for number in streams:
        server = Server(sizes, samples)
        store = server if cache == "-" else CacheStore(server, cache, 1 << 40)
        reader = ShardReader(
            Shards(store, listed, (), options=StoreOptions()), {"jpg", "cls"}, keep=shards_at_once(plan)
        )
        rank, worker = divmod(number, setting.topology.streams)
        stream = epoch.stream(rank, worker)
        before, count, most = resident(), 0, 0.0
        first: dict[str, int] = {}
        with closing(reader.following(iter(stream), plan)) as batches:
            for ids in batches:
                shards, numbers = (part.tolist() for part in plan.locate(ids))
                count += sum(len(reader.read(*place)["jpg"]) == payload for place in zip(shards, numbers, strict=True))
                first = first or server.counts.to_dict()
                most = max(most, resident() - before)
        entry = {"samples": count, "shards": len(stream.shards()), "memory": most}
        found.append({**entry, "first": first, "all": server.counts.to_dict()})
    return found


def main() -> None:
    mode, *rest = sys.argv[1:]
    if mode == "order":
        found: Any = order(Setting(**json.loads(rest[0])))
    elif mode == "open":
        found = open_dataset(rest[0])
    elif mode == "loader":
        found = loader(rest[0], Setting(**json.loads(rest[1])), int(rest[2]))
    else:
        found = requests(Setting(**json.loads(rest[0])), int(rest[1]), rest[2], list(map(int, rest[3:])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
