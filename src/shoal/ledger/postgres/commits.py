"""Commits on PostgreSQL: one server call for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.commits import BaseCommits, detail_text, prepare_follow_ups
from shoal.ledger.intake import QueuedItems
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.postgres.intake import as_columns, none_if_empty
from shoal.model.latency import latency_codes
from shoal.model.outcome import DONE, FinishedAttempt, RedirectReply, RedirectVisit, VisitDecision
from shoal.model.views import CommitReport


class PostgresCommits(BaseCommits):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _commit(self, worker_no: int, finished: Sequence[FinishedAttempt]) -> CommitReport:
        plain = all(end.decision is DONE or end.decision == DONE for end in finished) and not any(
            end.detail for end in finished
        )
        row = await self._db.row(
            self._sql["commit"],
            worker_no,
            [end.lease.item for end in finished],
            [end.lease.epoch for end in finished],
            list({end.lease.run_no for end in finished}),
            None if plain else [end.decision.kind.value for end in finished],
            None if plain else [end.decision.outcome.value for end in finished],
            None if plain else [end.decision.delay for end in finished],
            None if plain else none_if_empty([end.decision.error for end in finished]),
            [end.seconds for end in finished],
            None if plain else none_if_empty([detail_text(end) for end in finished]),
            *result_columns(finished),
            *await follow_up_columns(self._catalog, finished),
            *key_columns(finished),
            latency_codes([end.waited for end in finished], [end.seconds for end in finished]),
        )
        return CommitReport(
            committed=row["committed"],
            lost=tuple(row["lost"]),
            repeated=tuple(row["repeated"]),
            enqueued=row["enqueued"],
            duplicates=row["duplicates"],
            dropped_records=row["dropped_records"],
        )

    async def _visit_redirect(self, worker_no: int, visit: RedirectVisit, queued: QueuedItems) -> RedirectReply:
        target, lease = visit.target, visit.lease
        row = await self._db.row(
            self._sql["visit_redirect"],
            worker_no,
            lease.run_no,
            lease.item,
            lease.epoch,
            queued.queues[queued.stage_ids[0], target.partition],
            target.key_hash,
            target.key,
            target.url,
            target.request,
            target.depth,
            target.lane,
            visit.via,
            visit.shown,
            visit.seconds,
        )
        return RedirectReply(VisitDecision(row["decision"]), row["same_as"])


def result_columns(finished: Sequence[FinishedAttempt]) -> tuple[list[object] | None, ...]:
    results = [(end.lease.item, n, record) for end in finished for n, record in enumerate(end.records)]
    return tuple(list(column) for column in zip(*results, strict=True)) if results else (None,) * 3


async def follow_up_columns(catalog: Catalog, finished: Sequence[FinishedAttempt]) -> tuple[object, ...]:
    queued = await prepare_follow_ups(catalog, finished)
    if queued is None:
        return (None,) * 14
    columns, lanes = as_columns(queued)
    return (queued.parents, *columns, *lanes)


def key_columns(finished: Sequence[FinishedAttempt]) -> tuple[list[object] | None, ...]:
    """The keys of the records as parallel columns, with nulls for records without one."""
    if not any(end.record_keys for end in finished):
        return (None,) * 4
    rows: list[tuple[object, ...]] = []
    for end in finished:
        run = end.lease.run_no
        if end.record_keys:
            rows += [(key.text, key.hash, key.space(run), key.replaces) for key in end.record_keys]
        else:
            rows += [(None,) * 4] * len(end.records)
    return tuple(list(column) for column in zip(*rows, strict=True))
