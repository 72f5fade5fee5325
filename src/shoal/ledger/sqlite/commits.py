"""Commits on SQLite: leases, results, follow-ups, attempts, outcomes, lanes and counts in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.ledger.catalog import Catalog
from shoal.ledger.commits import BaseCommits, BatchActivity, detail_text, prepare_follow_ups, sum_activity
from shoal.ledger.intake import QueuedItems
from shoal.ledger.sqlite.connection import Transaction, decoded, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.intake import ItemBatch, as_batch, make_lanes, store_alias, store_items
from shoal.ledger.sqlite.moves import admit
from shoal.model.latency import trimmed
from shoal.model.outcome import (
    DONE,
    AttemptDecision,
    DecisionKind,
    FinishedAttempt,
    OutcomeClass,
    RedirectReply,
    RedirectVisit,
    VisitDecision,
)
from shoal.model.views import CommitReport


class _CommitBatch(msgspec.Struct, frozen=True):
    """A batch of finished attempts as the queries take it."""

    count: int
    attempts: str
    all_done: bool
    results: str | None = None
    result_counts: str = "{}"
    keyed: KeyedRecords | None = None
    follow_ups: ItemBatch | None = None


class KeyedRecords(msgspec.Struct, frozen=True):
    """Records with a key as the queries take them; the hashes are one blob."""

    records: str
    hashes: bytes


class _LeaseSummary(msgspec.Struct, frozen=True):
    """What commit_summary returns about the valid leases."""

    count: int
    ended: int
    laned: int
    queue: int | None
    seconds: float


class SqliteCommits(BaseCommits):
    def __init__(self, db: SqliteDatabase, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db

    async def _commit(self, worker_no: int, finished: Sequence[FinishedAttempt]) -> CommitReport:
        all_done = all(end.decision == DONE and end.detail is None for end in finished)
        queued = await prepare_follow_ups(self._catalog, finished)
        ends = _CommitBatch(
            len(finished),
            _done_text(finished) if all_done else _any_text(finished),
            all_done,
            plain_records(finished),
            plain_counts(finished),
            keyed_records(finished),
            None if queued is None else as_batch(queued),
        )
        return await self._db.write(lambda tx: _commit(tx, worker_no, ends, finished))

    async def _visit_redirect(self, worker_no: int, visit: RedirectVisit, queued: QueuedItems) -> RedirectReply:
        batch = as_batch(queued)
        return await self._db.write(lambda tx: _visit_redirect(tx, worker_no, visit, batch, queued.stage_ids[0]))


def _commit(tx: Transaction, worker: int, ends: _CommitBatch, finished: Sequence[FinishedAttempt]) -> CommitReport:
    """Only items with a valid lease change. The others are `repeated` (this commit was made before) or `lost`."""
    lane_ids = make_lanes(tx, ends.follow_ups) if ends.follow_ups is not None else []
    tx.run("commit_take_done" if ends.all_done else "commit_take", ends.attempts)
    summary = _LeaseSummary(*tx.json("commit_summary"))
    count, ended, laned = summary.count, summary.ended, summary.laned
    enqueued = duplicates = dropped = 0
    if count:
        tx.run("commit_leave")
        _move(tx, worker, ends, summary, finished)
        if ends.keyed is not None and ended:
            dropped = store_keyed(tx, worker, ends.keyed)
        if ends.follow_ups is not None and ended:
            accepted = set(tx.json("commit_ended_items"))
            enqueued, duplicates = store_items(tx, ends.follow_ups, lane_ids, accepted)
        tx.should_notify = enqueued > 0
    if laned or lane_ids:
        admit(tx)
    lost, repeated = _not_held(tx, worker, finished) if count < ends.count else ((), ())
    tx.run("commit_end")
    return CommitReport(
        committed=count,
        lost=lost,
        repeated=repeated,
        enqueued=enqueued,
        duplicates=duplicates,
        dropped_records=dropped,
    )


def _visit_redirect(tx: Transaction, worker: int, visit: RedirectVisit, batch: ItemBatch, stage: int) -> RedirectReply:
    """As shoal.visit_redirect in functions/46_redirects.sql."""
    item = visit.lease.item
    ended_as = tx.value("redirect_lease", item, visit.lease.epoch)
    if ended_as is None:
        return RedirectReply(VisitDecision.LOST)
    if ended_as:
        return RedirectReply(VisitDecision.DUPLICATE, ended_as)
    if visit.via is not None:
        tx.run("redirect_passed", stage, visit.via, item)
    found = tx.value("redirect_target", stage, visit.target.key_hash)
    if found is None:
        store_alias(tx, batch, item)
        return RedirectReply(VisitDecision.VISIT)
    target, _, redirects, runs = decoded(found)
    if redirects:
        return RedirectReply(VisitDecision.VISIT)
    same_as: int = tx.value("redirect_same_as", target)
    if same_as == item:
        return RedirectReply(VisitDecision.VISIT, item)
    if runs:
        return RedirectReply(VisitDecision.WAIT, same_as)
    error = f"redirects to {visit.shown}, the same page as item {same_as}"
    end = FinishedAttempt(
        lease=visit.lease,
        decision=AttemptDecision(DecisionKind.SKIPPED, OutcomeClass.DUPLICATE, 0.0, error),
        seconds=visit.seconds,
        detail={"same_as": same_as},
    )
    _commit(tx, worker, _CommitBatch(1, _any_text([end]), False), [end])
    return RedirectReply(VisitDecision.DUPLICATE, same_as)


def store_keyed(tx: Transaction, worker: int | None, keyed: KeyedRecords) -> int:
    """Store the records of items in temp.ended, each key once. Returns how many were dropped.

    Without a worker it is a replay, which logs the change of the whole item itself.
    """
    tx.run("commit_keyed", keyed.records, keyed.hashes)
    tx.run("commit_keyed_move")
    tx.run("commit_keyed_insert")
    tx.run("commit_keyed_lost")
    tx.run("commit_keyed_counts")
    if worker is not None:
        tx.run("commit_keyed_minutes", tx.now, worker)
        tx.run("commit_keyed_activity", tx.now)
        tx.run("commit_keyed_changes", tx.now)
    dropped: int = tx.value("commit_keyed_dropped")
    tx.run("commit_keyed_end")
    return dropped


def plain_records(finished: Sequence[FinishedAttempt]) -> str | None:
    """The records without a key, {"item:n": record}; None when there are none."""
    results = {
        f"{end.lease.item}:{n}": record
        for end in finished
        if not end.record_keys
        for n, record in enumerate(end.records)
    }
    return json_text(results) if results else None


def plain_counts(finished: Sequence[FinishedAttempt]) -> str:
    """How many records without a key there are, {"item": number}."""
    return json_text({end.lease.item: len(end.records) for end in finished if end.records and not end.record_keys})


def keyed_records(finished: Sequence[FinishedAttempt]) -> KeyedRecords | None:
    """The records with a key; None when there are none."""
    rows = [
        (end.lease.item, n, key.space(end.lease.run_no), key.text, int(key.replaces), record)
        for end in finished
        if end.record_keys
        for n, (key, record) in enumerate(zip(end.record_keys, end.records, strict=True))
    ]
    if not rows:
        return None
    return KeyedRecords(json_text(rows), b"".join([key.hash for end in finished for key in end.record_keys]))


def _move(
    tx: Transaction, worker: int, ends: _CommitBatch, summary: _LeaseSummary, finished: Sequence[FinishedAttempt]
) -> None:
    tx.run("commit_outcomes", tx.now, worker)
    if not ends.all_done:
        tx.run("commit_attempts", tx.now, worker)
        tx.run("commit_delayed", tx.now)
        tx.run("commit_waiting", tx.now)
        tx.run("commit_author_counts", worker)
    if summary.laned:
        tx.run("commit_lanes", tx.now)
        tx.run("commit_touch")
    if ends.all_done and summary.queue is not None:
        tx.run("commit_count_done", summary.queue, summary.count, tx.now)
        tx.run("commit_minute_done", tx.now, summary.queue, worker, summary.count, summary.seconds)
    else:
        tx.run("commit_counts", tx.now)
        tx.run("commit_minutes", tx.now, worker)
    for run_no, sums in _activity(tx, finished, summary.count).items():
        waits, works = json_text(trimmed(sums.waits)), json_text(trimmed(sums.works))
        tx.run(
            "commit_activity", run_no, tx.now, sums.done, sums.dead, sums.skipped, sums.retried, sums.throttled,
            sums.records, sums.seconds, waits, works
        )  # fmt: skip
    if ends.results is not None:
        tx.run("commit_results", ends.results)
        tx.run("commit_result_counts", ends.result_counts)
        tx.run("commit_result_minutes", ends.result_counts, tx.now, worker)
        tx.run("commit_changes", ends.result_counts, tx.now)


def _activity(tx: Transaction, finished: Sequence[FinishedAttempt], held: int) -> dict[int, BatchActivity]:
    """What the attempts with a valid lease add to the history of their runs."""
    if held < len(finished):
        valid = set(tx.json("commit_held_items"))
        finished = [end for end in finished if end.lease.item in valid]
    return sum_activity(finished)


def _not_held(
    tx: Transaction, worker: int, finished: Sequence[FinishedAttempt]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    missed = tx.json("commit_not_held", json_text([(end.lease.item, end.lease.epoch) for end in finished]), worker)
    return tuple(item for item, mine in missed if not mine), tuple(item for item, mine in missed if mine)


def _done_text(finished: Sequence[FinishedAttempt]) -> str:
    return json_text({f"{end.lease.item}:{end.lease.epoch}": float(end.seconds) for end in finished})


def _any_text(finished: Sequence[FinishedAttempt]) -> str:
    return json_text(
        [
            (
                end.lease.item,
                end.lease.epoch,
                end.decision.kind.value,
                end.decision.outcome.value,
                micros(end.decision.delay),
                end.decision.error,
                float(end.seconds),
                detail_text(end),
            )
            for end in finished
        ]
    )
