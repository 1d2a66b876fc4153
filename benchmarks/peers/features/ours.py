"""wds_tools."""

from pathlib import Path
from typing import Any

from common import SEED, Peer, answer

from wds_tools import ShardDataset, ShardLoader, transforms


class Ours(Peer):
    def loader(self) -> Any:
        self.dataset = ShardDataset(
            str(self.work / ("damaged-shards" if self.damaged else "shards")),
            split="train",
            shuffle=True,
            seed=SEED,
            fields=("jpg", "cls") if self.pictures else ("__key__", "cls"),
            transform=transforms.RandomResizedCrop(32) if self.pictures else None,
            on_error="skip" if self.skip else "raise",
        )
        self.ledger = self.work / "bad.jsonl"
        return ShardLoader(self.dataset, self.batch, self.workers, ledger=str(self.ledger) if self.skip else None)

    def item(self) -> int:
        self.loader()
        return int(self.dataset[5]["cls"])

    def extra(self) -> dict[str, Any]:
        """A byte of a picture differs: what reading says, and what verify says."""
        from wds_tools import verify_dataset

        report = verify_dataset(str(self.work / "damaged-shards"))
        ledger = Path(self.work / "bad.jsonl")
        return {
            "verify": [str(problem) for problem in report.problems][:2],
            "ledger": ledger.read_text()[:300] if ledger.exists() else None,
        }


if __name__ == "__main__":
    answer(Ours)
