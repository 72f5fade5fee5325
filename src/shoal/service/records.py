"""JSON records of what the service returns. The command line (`--json`) and the REST API write the same ones.

A thing has the same name in all of them (docs/commands.md lists the names): `run_id`, `item_id`, `worker`, `lane`, and
counts of items by their states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.model.redaction import redacted_value, without_secret_settings

if TYPE_CHECKING:
    from shoal.model.egress import EgressMatrix, ExitView
    from shoal.model.failures import FailureView
    from shoal.model.lane import LaneView
    from shoal.model.latency import LatencySummary
    from shoal.model.run import Run
    from shoal.model.views import AuditEvent, Counts, ItemView, PartitionProgress, ResultRow, WaitReason
    from shoal.notify.watch import RaisedAlert
    from shoal.observe.doctor import Check
    from shoal.observe.failures import Failures
    from shoal.observe.meter import Reading
    from shoal.observe.sinks import SinkStatus
    from shoal.service.collection import CollectionView
    from shoal.service.egress import ExitCheck
    from shoal.service.history import History, RunOutlook
    from shoal.service.inspect import ItemDetail, ItemPageDetail, RunDetail, RunFigures, RunSummary, WorkerStatus
    from shoal.service.lanes import LaneStatus, LaneTimeline
    from shoal.service.overview import RunPage
    from shoal.service.replay import ReplaySummary
    from shoal.service.results import CoverageDrift
    from shoal.service.schedule import ScheduleView
    from shoal.service.status import RunStatus, RunStatusDetail
    from shoal.service.workers import WorkerDetail

STATES = ("ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled")
KEYED_COUNTS = ("new_records", "changed_records", "unchanged_records", "dropped_records")
MAX_RUNNING_SHOWN = 5
ENDED_ATTEMPTS = ("done", "dead", "skipped", "retried", "throttled")
Record = dict[str, Any]


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """What is sent to others: plain JSON values without secrets. Stored records are raw JSON and stay as they are."""
    return redacted_value(msgspec.to_builtins(value, str_keys=True, builtin_types=(msgspec.Raw,)), secrets)


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
        **counts.by_status(),
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
        "critical_lane": status.critical_lane,
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
        "critical_lane": detail.critical_lane,
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
        "wait": latency_record(detail.wait),
        "work": latency_record(detail.work),
        "versions": detail.skew.versions,
        "code_versions": detail.skew.codes,
    }


def latency_record(summary: LatencySummary) -> Record:
    """How many durations there were, and their quantiles in seconds."""
    quantiles = {name: getattr(summary, name) for name in ("p50", "p95", "p99")}
    return {
        "count": summary.count,
        **{name: None if value is None else round(value, 4) for name, value in quantiles.items()},
    }


def history_record(history: History) -> Record:
    """A run over time. The items by state and `waiting_for` are null where nothing was sampled."""
    return {
        "run_id": history.run.id,
        "step_seconds": history.step_seconds,
        "points": [
            {
                "at": point.at,
                **(dict.fromkeys(STATES) if point.counts is None else state_counts(point.counts)),
                "ended": {name: getattr(point, name) for name in ENDED_ATTEMPTS},
                "records": point.records,
                "wait": latency_record(point.wait.summary),
                "work": latency_record(point.work.summary),
                "waiting_for": point.waiting_for,
            }
            for point in history.points
        ],
        "marks": [msgspec.to_builtins(mark) for mark in history.marks],
    }


def outlook_record(outlook: RunOutlook) -> Record:
    """What limits a run, since when, and when it may end."""
    return {
        "run_id": outlook.run.id,
        "text": outlook.text,
        "since": outlook.since,
        "until": outlook.until,
        "reasons": reason_records(outlook.reasons),
        "eta_seconds": rounded_range(outlook.eta_seconds),
        "growing": outlook.growing,
        "critical_lane": outlook.critical_lane,
        "critical_seconds": rounded_range(outlook.critical_seconds),
        "bottleneck": {
            "cause": outlook.bottleneck.cause,
            "share": None if outlook.bottleneck.share is None else round(outlook.bottleneck.share, 4),
            "text": outlook.bottleneck.text,
        },
    }


def rounded_range(seconds: tuple[float, float] | None) -> list[float] | None:
    return None if seconds is None else [round(seconds[0], 1), round(seconds[1], 1)]


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
            "failure_ids": group.failure_ids,
        }
        for group in failures.groups
    ]


def failure_group_record(view: FailureView, *, at_least: bool = False) -> Record:
    """A group of dead items. `error` and `item_id` are those of the one that died last."""
    return {
        "failure_id": view.id,
        "stage": view.stage,
        "outcome": view.outcome,
        "host": view.host,
        "message": view.shape,
        "items": view.items,
        "items_is_at_least": at_least,
        "first_at": view.first_at,
        "last_at": view.last_at,
        "error": view.error,
        "item_id": view.item,
        "last": view.name,
        "muted": view.muted_at is not None,
        "muted_by": view.muted_by,
        "muted_at": view.muted_at,
        "trend": view.trend,
    }


def lane_status_record(status: LaneStatus) -> Record:
    """A lane with the items that wait, run and have ended in it."""
    progress, eta = status.progress, status.eta_seconds
    return {
        **lane_record(progress.lane),
        "ordered": progress.lane.policy.ordered,
        "waiting": progress.waiting,
        "waiting_is_at_least": progress.waiting_is_at_least,
        "leased": progress.leased,
        "ended": progress.ended,
        "ended_is_at_least": progress.ended_is_at_least,
        "eta_seconds": None if eta is None else [round(seconds, 1) for seconds in eta],
        "critical": status.critical,
    }


def lane_timeline_record(timeline: LaneTimeline) -> Record:
    return {
        "from": timeline.begin,
        "to": timeline.end,
        "lanes": [
            {
                **lane_status_record(row.status),
                "limit": row.status.progress.lane.policy.limit,
                "spans": [
                    {
                        "item_id": span.item,
                        "key": span.name,
                        "begin": span.begin,
                        "end": span.end,
                        "outcome": span.outcome,
                    }
                    for span in row.spans
                ],
            }
            for row in timeline.lanes
        ],
    }


def partition_record(progress: PartitionProgress) -> Record:
    eta = progress.eta_seconds
    return {
        "stage": progress.stage,
        "partition": progress.partition,
        **counts_fields(progress.counts),
        "rate_per_minute": None if progress.rate is None else round(progress.rate, 2),
        "eta_seconds": None if eta is None else round(eta, 1),
    }


def worker_detail_record(detail: WorkerDetail) -> Record:
    return {
        **worker_record(detail.status),
        "items": [
            {"run_id": item.run_id, "item_id": item.item, "name": item.name, "seconds": item.seconds}
            for item in detail.items
        ],
        "trouble": detail.trouble,
    }


def matrix_record(matrix: EgressMatrix) -> Record:
    return {
        "pool": matrix.pool,
        "hosts": matrix.hosts,
        "exits": [
            {
                "exit": row.key,
                "label": row.label,
                "state": row.state,
                "cells": [
                    {
                        "host": cell.host,
                        "state": "good" if cell.until is None else "blocked",
                        "blocks": cell.blocked,
                        "succeeded": cell.succeeded,
                        "until": cell.until,
                    }
                    for cell in row.cells
                ],
            }
            for row in matrix.exits
        ],
        "complete": matrix.complete,
    }


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
        "severity": check.severity,
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


# Pages of the dashboard


def run_page_record(page: RunPage) -> Record:
    """A run with how it stands, what it was made from, and who works on it."""
    run, status = page.run, page.status
    snapshot = status.reading.snapshot
    return {
        **status_record(status),
        "stages": run.stages,
        "stage_counts": {stage: counts_fields(counts) for stage, counts in snapshot.stages.items()},
        "max_attempts": run.max_attempts,
        "max_rescues": run.max_rescues,
        "code_version": run.code_version,
        "settings": without_secret_settings(run.settings),
        "events": [event_record(event) for event in page.events],
        "why": reason_records(snapshot.gates),
        "workers": page.worker_counts,
        "worker_progress": [
            {**msgspec.to_builtins(progress), "state": page.worker_state(progress.worker)} for progress in page.progress
        ],
        "versions": page.skew.versions,
        "code_versions": page.skew.codes,
    }


def item_page_record(page: ItemPageDetail) -> Record:
    """An item with its attempts, why it does not run, its first records and the items that it led to."""
    detail = page.detail
    return {
        **item_record(detail.item, detail.run.id),
        "waiting_text": page.waiting_text,
        "attempts": [
            {**msgspec.to_builtins(attempt), "egress": (attempt.detail or {}).get("egress")}
            for attempt in detail.attempts
        ],
        "why": reason_records(detail.reasons),
        "results": [result_record(row) for row in page.results],
        "children": [
            {"item_id": child.id, "stage": child.stage, "name": child.name, "state": child.state}
            for child in page.children
        ],
        "children_is_at_least": page.more_children,
    }


def worker_page_record(detail: WorkerDetail) -> Record:
    """A worker with the items that it runs longest; counts of its report instead of the report."""
    fields = worker_detail_record(detail)
    report = detail.status.worker.report
    del fields["report"]
    return {
        **fields,
        "problem": detail.status.problem,
        "running": 0 if report is None else sum(report.running.values()),
        "unstored": 0 if report is None else report.unstored,
        "items": fields["items"][:MAX_RUNNING_SHOWN],
        "rate_per_minute": detail.per_minute,
    }


def result_record(row: ResultRow) -> Record:
    """A stored record, unchanged, with its item."""
    return {
        "item_id": row.item,
        "n": row.n,
        "stage": row.stage,
        "key": row.key,
        "url": row.url,
        "record": msgspec.Raw(row.record.encode()),
        "record_key": None if row.record_key is None else msgspec.Raw(row.record_key.encode()),
        "change": row.change,
    }


def coverage_record(found: CoverageDrift) -> Record:
    """The fields of a run's records, each with its share in the run before."""
    before = {} if found.before is None else {field.field: field.filled_share for field in found.before.fields}
    known = found.before is not None and found.before.records > 0

    def drift(name: str, share: float) -> Record:
        share_before = before.get(name, 0.0) if known else None
        difference = None if share_before is None else round(share - share_before, 4)
        return {"before_share": share_before, "drift": difference}

    present = [
        {**msgspec.to_builtins(field), **drift(field.field, field.filled_share)} for field in found.coverage.fields
    ]
    names = {field.field for field in found.coverage.fields}
    gone = [
        {
            **msgspec.to_builtins(field),
            "present": 0,
            "filled": 0,
            "filled_share": 0.0,
            "example": "",
            "records": found.coverage.records,
            **drift(field.field, 0.0),
        }
        for field in (() if found.before is None else found.before.fields)
        if field.field not in names
    ]
    return {
        "run_id": found.run.id,
        "before_run_id": None if found.before_run is None else found.before_run.id,
        **{name: getattr(found.coverage, name) for name in ("records", "of", "sampled", "complete")},
        "fields": present + gone,
    }


def collection_record(view: CollectionView) -> Record:
    """A collection and its last run."""
    return {"collection": view.name, "run": run_record(view.run, view.counts)}


def collection_detail_record(view: CollectionView, if_stopped: int) -> Record:
    """A collection with the groups and members of its last run."""
    summary = view.summary
    assert summary is not None
    return {
        **collection_record(view),
        "success": summary.count("success"),
        "warnings": summary.count("warning"),
        "failed": summary.count("failed"),
        "not_run": summary.count("not run"),
        "success_rate": summary.success_rate,
        "groups": msgspec.to_builtins(summary.groups(if_stopped)),
        "members": msgspec.to_builtins(summary.members),
        "members_complete": summary.complete,
    }


def schedule_record(view: ScheduleView) -> Record:
    """When a scraper starts, its next slots and the last ones."""
    return {
        "schedule": view.name,
        **msgspec.structs.asdict(view.config),
        "seen": view.seen,
        "next": view.next,
        "slots": view.slots,
    }
