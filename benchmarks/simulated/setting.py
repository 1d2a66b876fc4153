"""What is simulated: how many shards, how uneven, who reads them, and how fast."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from wds_tools.draws import draws, make_key
from wds_tools.format import tar
from wds_tools.format.manifest import Manifest
from wds_tools.format.manifest import dump as dump_manifest
from wds_tools.records import ShardInfo, SplitInfo
from wds_tools.stream.order import Order, Topology

SEED = 1


@dataclass(frozen=True)
class Setting:
    """``shards`` of ``mean`` samples on average, half as many to one and a half times; a ``rate`` in samples/s per rank."""

    shards: int = 100_000
    mean: int = 1280
    world: int = 1024
    workers: int = 8
    batch_size: int = 256
    rate: float = 2500.0

    @property
    def topology(self) -> Topology:
        return Topology(self.world, self.workers, self.batch_size)

    @property
    def streams(self) -> int:
        return self.topology.world * self.topology.streams

    def sizes(self) -> list[int]:
        """Samples of each shard, the same ones every time."""
        low = self.mean - self.mean // 2
        spread = 2 * (self.mean // 2) + 1
        return [low + drawn % spread for drawn in draws(make_key(SEED), range(self.shards)).tolist()]

    def order(self) -> Order:
        return Order(self.sizes())

    def seconds(self, samples: int) -> float:
        """How long an epoch takes when every rank trains at its rate."""
        return samples / (self.world * self.rate)

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Samples:
    """Samples of one size: ``payload`` bytes of a picture, a label of one byte, and a key as ImageNet's are."""

    payload: int

    @property
    def stride(self) -> int:
        """Bytes of a sample in its shard."""
        return self.cls_header + tar.member_bytes(1)

    @property
    def cls_header(self) -> int:
        """Where the label's header is, from the sample's start."""
        return tar.member_bytes(self.payload)

    def names(self, shard: int, number: int) -> tuple[str, str]:
        """The members of a sample."""
        key = f"n{shard:08d}/n{shard:08d}_{number:07d}"
        return f"{key}.jpg", f"{key}.cls"

    def size(self, count: int) -> int:
        """Bytes of a shard."""
        return count * self.stride + len(tar.END)

    def index(self, shard: int, count: int) -> bytes:
        """The index of a shard."""
        lines = [f"v1.2 {count}"]
        for number in range(count):
            jpg, cls = self.names(shard, number)
            at = number * self.stride
            label = at + self.cls_header + tar.BLOCK
            lines.append(f"jpg {at + tar.BLOCK} {self.payload} {jpg} cls {label} 1 {cls}")
        return "\n".join([*lines, ""]).encode("ascii")


def name(shard: int) -> str:
    return f"train-{shard:06d}.tar"


def infos(sizes: list[int], samples: Samples) -> tuple[ShardInfo, ...]:
    """The shards as a manifest lists them; the digests are made up."""
    return tuple(
        ShardInfo(name(shard), count, samples.size(count), f"{shard:064x}") for shard, count in enumerate(sizes)
    )


def manifest(sizes: list[int], samples: Samples) -> bytes:
    """``info.json`` of such a dataset."""
    shards, total = infos(sizes, samples), sum(sizes)
    return dump_manifest(Manifest({"train": SplitInfo("train", shards, {"jpg": total, "cls": total})}))
