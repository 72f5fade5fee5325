"""JSON records of what the service returns. The command line (`--json`) and the REST API write the same ones.

A thing has the same name in all of them (docs/commands.md lists the names): `run_id`, `item_id`, `worker`, `lane`, and
counts of items by their states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.model.redaction import without_secret_settings

if TYPE_CHECKING:
    from shoal.model.egress import ExitView
    from shoal.model.lane import LaneView
    from shoal.model.run import Run
    from shoal.model.views import AuditEvent, Counts, ItemView, WaitReason
    from shoal.notify.watch import RaisedAlert
    from shoal.observe.doctor import Check
    from shoal.observe.failures import Failures
    from shoal.observe.meter import Reading
    from shoal.observe.sinks import SinkStatus
    from shoal.service.egress import ExitCheck
    from shoal.service.inspect import ItemDetail, RunDetail, RunFigures, RunSummary, WorkerStatus
    from shoal.service.replay import ReplaySummary
    from shoal.service.status import RunStatus, RunStatusDetail

STATES = ("ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled")
KEYED_COUNTS = ("new_records", "changed_records", "unchanged_records", "dropped_records")
OLDER_STATES = ("pending", "claimed", "completed", "failed", "remaining", "total")

Record = dict[str, Any]


def state_counts(counts: Counts) -> dict[str, int]:
    """Items per state, in the order of an item's life."""
    return {state: getattr(counts, state) for state in STATES}


def counts_fields(counts: Counts) -> Record:
    """All items, those that have ended (done or not) and those that have not, then the items of each state, the
    records, and of records with a key those that are new, changed, unchanged and dropped.
    """
    return {
        "total": counts.total,
        "ended": counts.total - counts.remaining,
        "remaining": counts.remaining,
        **state_counts(counts),
        "records": counts.results,
        "duplicates": counts.duplicates,
        **{name: getattr(counts, name) for name in KEYED_COUNTS},
    }


def run_record(run: Run, counts: Counts) -> Record:
    return {
        "run_id": run.id,
        "scraper": run.scraper,
        "state": run.state,
        "sealed": run.sealed,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        **counts_fields(counts),
    }


def run_detail_record(detail: RunDetail) -> Record:
    """A run with what it was made from, its settings without secrets, and its events."""
    run = detail.run
    return {
        **run_record(run, detail.counts),
        "stages": run.stages,
        "max_attempts": run.max_attempts,
        "max_rescues": run.max_rescues,
        "code_version": run.code_version,
        "settings": without_secret_settings(run.settings),
        "events": [event_record(event) for event in detail.events],
    }


def replay_record(summary: ReplaySummary) -> Record:
    names = ("replayed", "failed", "skipped", "records", "dropped_records", "enqueued")
    return {
        "run_id": summary.run.id,
        **{name: getattr(summary, name) for name in names},
        "failures": [{"item_id": each.item, "name": each.name, "error": each.error} for each in summary.failures],
    }


def event_record(event: AuditEvent) -> Record:
    fields = msgspec.to_builtins(event)
    return {"event_id": fields.pop("id"), **fields}


def counts_record(summary: RunSummary, stage: str | None = None) -> Record:
    """Items per state: in the words of the older systems, then in Shoal's."""
    counts = summary.counts
    return {
        "scraper": summary.run.scraper,
        "run_id": summary.run.id,
        "stage": stage,
        **{word: getattr(counts, word) for word in OLDER_STATES},
        **counts_fields(counts),
    }


def reading_record(reading: Reading) -> Record:
    low, high = reading.eta or (None, None)
    return {
        **run_record(reading.snapshot.run, reading.snapshot.counts),
        "done_share": round(reading.done_share, 4),
        "ended_share": round(reading.share, 4),
        "rate_per_minute": None if reading.rate is None else round(reading.rate, 2),
        "ok": None if reading.ok is None else round(reading.ok, 4),
        "eta_seconds": None if low is None or high is None else [round(low, 1), round(high, 1)],
        "total_grows": reading.total_grows,
        "growing": reading.growing,
        "waiting_for": reading.waiting_for,
        "waiting_because": reading.bottleneck.text,
        "egress": [msgspec.to_builtins(pool) for pool in reading.snapshot.egress],
    }


def status_record(status: RunStatus) -> Record:
    return {
        **reading_record(status.reading),
        "alerts": status.conditions,
        "sinks": [sink_record(sink) for sink in status.sinks],
    }


def sink_record(status: SinkStatus) -> Record:
    return {
        "sink": status.name,
        "kind": status.kind,
        "place": status.place,
        "state": status.state,
        "delivered": status.delivered,
        "behind": status.behind,
        "behind_is_at_least": status.at_least,
        "lag_seconds": round(status.lag_seconds, 3),
        "dead_letters": status.dead_letters,
        "delivered_at": status.delivered_at,
        "failing_since": status.failing_since,
        "error": status.error,
    }


def status_detail_record(detail: RunStatusDetail) -> Record:
    snapshot = detail.reading.snapshot
    return {
        **reading_record(detail.reading),
        "alerts": detail.conditions,
        "sinks": [sink_record(sink) for sink in detail.sinks],
        "why": reason_records(snapshot.gates),
        "partitions": [
            {"stage": each.stage, "partition": each.partition, **counts_fields(each.counts)}
            for each in snapshot.partitions
        ],
        "workers": [
            {**msgspec.to_builtins(progress), "state": detail.worker_state(progress.worker)}
            for progress in detail.workers
        ],
        "failures": failure_records(detail.failures),
        "failures_complete": detail.failures.complete,
        "versions": detail.skew.versions,
        "code_versions": detail.skew.codes,
    }


def item_record(item: ItemView, run_id: str) -> Record:
    fields = msgspec.to_builtins(item)
    return {"run_id": run_id, "item_id": fields.pop("id"), **fields}


def item_detail_record(detail: ItemDetail) -> Record:
    return {
        **item_record(detail.item, detail.run.id),
        "attempts": detail.attempts,
        "why": reason_records(detail.reasons),
    }


def reason_records(reasons: Iterable[WaitReason]) -> list[Record]:
    return [
        {
            "code": reason.code,
            "text": reason.text,
            "since": reason.since,
            "until": reason.until,
            "items": reason.items,
            "pool": reason.pool,
        }
        for reason in reasons
    ]


def failure_records(failures: Failures) -> list[Record]:
    """Groups of dead items; `error` and `item_id` are those of one of them."""
    return [
        {
            "outcome": group.outcome,
            "message": group.message,
            "items": group.items,
            "error": group.sample,
            "item_id": group.example,
            "last": group.last,
        }
        for group in failures.groups
    ]


def worker_record(status: WorkerStatus) -> Record:
    fields = msgspec.to_builtins(status.worker)
    code_version = fields.pop("code")
    return {"worker": fields.pop("id"), **fields, "code_version": code_version, "alive": status.worker.alive}


def lane_record(lane: LaneView) -> Record:
    fields = msgspec.to_builtins(lane)
    return {"lane": fields.pop("key"), **fields}


def exit_record(view: ExitView) -> Record:
    fields = msgspec.to_builtins(view)
    left = fields.pop("until")
    return {"pool": fields.pop("pool"), "exit": fields.pop("key"), **fields, "seconds_left": left}


def exit_check_record(check: ExitCheck) -> Record:
    fields: Record = msgspec.to_builtins(check)
    return fields


def check_record(check: Check) -> Record:
    return {
        "check": check.name,
        "ok": check.ok,
        "warning": check.warning,
        "text": check.text,
        "fix": check.fix,
    }


def figures_record(figures: RunFigures) -> Record:
    return {
        **run_record(figures.run, figures.counts),
        "minutes": figures.minutes,
        "rate_per_minute": figures.per_minute,
        "ok_percent": figures.ok_percent,
        "deaths": figures.deaths,
        "deaths_complete": figures.deaths_complete,
    }


def alert_record(raised: RaisedAlert) -> Record:
    alert = raised.alert
    return {
        "at": raised.at,
        "kind": alert.kind,
        "run_id": alert.run,
        "scraper": alert.scraper,
        "title": alert.title,
        "body": alert.body,
        "delivery": raised.delivery,
    }
