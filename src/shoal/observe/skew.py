"""Old and new side by side: which versions of Shoal and of a scraper's code work at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.model.run import Run
from shoal.model.worker import WorkerView

REMEDY = "Unless this is an upgrade under way, stop the old ones (`shoal workers stop`): each finishes first."


class Skew(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers have which version of Shoal, and which code. Workers that do not say are left out."""

    versions: dict[str, int]
    codes: dict[str, int]

    @property
    def lines(self) -> list[str]:
        """A sentence for each kind of difference; none when all are alike."""
        told = []
        if len(self.versions) > 1:
            told.append(f"Workers run different versions of Shoal: {counted_kinds(self.versions)}.")
        if len(self.codes) > 1:
            told.append(f"Workers run different code: {counted_kinds(self.codes)}.")
        return told


def skew(workers: Iterable[WorkerView]) -> Skew:
    known = list(workers)
    return Skew(
        versions=dict(Counter(worker.version for worker in known if worker.version).most_common()),
        codes=dict(Counter(worker.code for worker in known if worker.code).most_common()),
    )


def workers_of(workers: Sequence[WorkerView], run: Run) -> list[WorkerView]:
    """Those that are alive and take items of this run."""
    return [worker for worker in workers if worker.alive and worker.scope.takes_from(run.id, run.scraper)]


def counted_kinds(kinds: dict[str, int]) -> str:
    """`0.2 (3 workers), 0.1 (1 worker)`"""
    return ", ".join(f"{kind} ({count} {'worker' if count == 1 else 'workers'})" for kind, count in kinds.items())
