"""Warns of fields that are empty in most records of a run, or far more often than in the run before.

The fields of a run are counted in a sample of bounded size. The counts of a finished run are stored with it, so that it
is sampled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.export.records import EMPTY_VALUES, decode_record, sample_results_evenly
from shoal.ledger.protocols import Ledger
from shoal.model.run import DeadLimit, Run, RunState
from shoal.model.views import Counts

# A run or a stage with fewer records says too little.
MIN_RECORDS = 20
SAMPLE_RECORDS = 2_000
MAX_FIELDS = 200
MAX_RUNS_SEARCHED = 20
NOTE = "coverage"
# Fields by stage that every record should have, and those that may be empty, as the code declares them.
EXPECTED_NOTE = "expected fields"
OPTIONAL_NOTE = "fields that may be empty"


class CoverageRules(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds. `empty_share`: of the records that have a field. `coverage_drop`: in percentage points."""

    empty_share: DeadLimit
    coverage_drop: DeadLimit


class FieldCount(msgspec.Struct, frozen=True):
    """`present`: records with the field; `filled`: those where it is not null, "", [] or {}."""

    present: int
    filled: int


class StageFields(msgspec.Struct, frozen=True):
    """The fields of a sample of a stage's records."""

    records: int
    fields: dict[str, FieldCount]

    def filled_share(self, field: str) -> float:
        return self.fields[field].filled / self.records if field in self.fields else 0.0


class RunFields(msgspec.Struct, frozen=True):
    """The fields of a run's records by stage, when it had `results` of them."""

    results: int
    stages: dict[str, StageFields]


class CoverageWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is empty in `empty` of `records`; `last_empty`: its share in the last run, if that is known."""

    stage: str
    field: str
    empty: int
    records: int
    last_empty: float | None

    @property
    def text(self) -> str:
        last = "" if self.last_empty is None else f"; last run {_percent(self.last_empty)}"
        return f"{self.field} is empty in {self.empty:,} of {self.records:,} records of {self.stage}{last}"


async def check_coverage(ledger: Ledger, run: Run, rules: CoverageRules) -> tuple[CoverageWarning, ...]:
    """The fields of a run that are empty too often, compared with the last finished run of the scraper."""
    expected = await ledger.runs.get_note(run.id, EXPECTED_NOTE)
    now = await _read_fields(ledger, run, small=expected is not None)
    missing = missing_fields(now.stages, expected or {})
    if not any(fields.records >= MIN_RECORDS for fields in now.stages.values()):
        return missing
    last = await _last_finished(ledger, run)
    others = coverage_warnings(now.stages, {} if last is None else last.stages, rules)
    named = {(warning.stage, warning.field) for warning in missing}
    optional = await ledger.runs.get_note(run.id, OPTIONAL_NOTE) or {}
    named |= {(stage, field) for stage, fields in optional.items() for field in fields}
    return (*missing, *(warning for warning in others if (warning.stage, warning.field) not in named))


async def has_only_failures(ledger: Ledger, run_id: str, counts: Counts) -> bool:
    """Whether items died and no item ended well of the stages that expect fields in their records.

    Then the run has failed, however small the share of the dead items is.
    """
    if not counts.dead or counts.results:
        return False
    stages = await ledger.runs.get_note(run_id, EXPECTED_NOTE) or {}
    ended = [await ledger.reads.stats(run_id, stage=stage) for stage in stages]
    return bool(ended) and not any(each.done or each.skipped for each in ended)


def missing_fields(
    now: Mapping[str, StageFields], expected: Mapping[str, Sequence[str]]
) -> tuple[CoverageWarning, ...]:
    """The expected fields that most records lack, however few records there are and whatever the last run had."""
    return tuple(
        CoverageWarning(
            stage=stage, field=field, empty=fields.records - filled, records=fields.records, last_empty=None
        )
        for stage, fields in now.items()
        for field in expected.get(stage, ())
        for filled in [fields.fields.get(field, FieldCount(0, 0)).filled]
        if fields.records and 2 * (fields.records - filled) > fields.records
    )


def coverage_warnings(
    now: Mapping[str, StageFields], last: Mapping[str, StageFields], rules: CoverageRules
) -> tuple[CoverageWarning, ...]:
    """What is empty too often, worst first. A field that was mostly empty in the last run too is no news."""
    found = []
    for stage, fields in now.items():
        if fields.records < MIN_RECORDS:
            continue
        before = last.get(stage)
        if before is not None and before.records < MIN_RECORDS:
            before = None
        for name in dict.fromkeys((*fields.fields, *(before.fields if before is not None else ()))):
            if (warning := _judge(stage, name, fields, before, rules)) is not None:
                found.append(warning)
    return tuple(sorted(found, key=lambda warning: -warning.empty / warning.records))


def summarize_warnings(warnings: Sequence[CoverageWarning], most: int = 5) -> str:
    """The first warnings as one sentence."""
    more = f"; and {len(warnings) - most} more" if len(warnings) > most else ""
    return "; ".join(warning.text for warning in warnings[:most]) + more


def _judge(
    stage: str, name: str, now: StageFields, last: StageFields | None, rules: CoverageRules
) -> CoverageWarning | None:
    count = now.fields.get(name, FieldCount(0, 0))
    last_empty = None if last is None else 1 - last.filled_share(name)
    empty = now.records - count.filled
    if last is not None and last_empty is not None:
        if 100 * (empty / now.records - last_empty) > rules.coverage_drop.amount:
            return CoverageWarning(stage=stage, field=name, empty=empty, records=now.records, last_empty=last_empty)
        before = last.fields.get(name)
        if before is not None and rules.empty_share.exceeded(before.present - before.filled, before.present):
            return None
    # A field that few records have at all may be optional; it counts where it is there and empty.
    unfilled = count.present - count.filled
    if count.present < MIN_RECORDS or not rules.empty_share.exceeded(unfilled, count.present):
        return None
    return CoverageWarning(stage=stage, field=name, empty=unfilled, records=count.present, last_empty=last_empty)


async def _last_finished(ledger: Ledger, run: Run) -> RunFields | None:
    for other in (await ledger.runs.list(scraper=run.scraper, limit=MAX_RUNS_SEARCHED)).rows:
        if other.no < run.no and other.state is RunState.FINISHED:
            fields = await _read_fields(ledger, other, at_its_end=True)
            if fields.results >= MIN_RECORDS:
                return fields
    return None


async def store_coverage(ledger: Ledger, run: Run, *, small: bool = False) -> RunFields:
    """Count the fields of a run in a sample of its records, and store that with the run if it has finished.

    `small`: also those of a run with few records.
    """
    results = (await ledger.reads.stats(run.id)).results
    counted = results >= (1 if small else MIN_RECORDS)
    fields = RunFields(results, await _sample_fields(ledger, run.id) if counted else {})
    if run.state is RunState.FINISHED:
        await ledger.runs.put_note(run.id, NOTE, msgspec.to_builtins(fields))
    return fields


async def _read_fields(ledger: Ledger, run: Run, *, at_its_end: bool = False, small: bool = False) -> RunFields:
    """From the note of a finished run, or from a sample.

    `at_its_end`: as the run was when it finished. Later runs may have replaced its records.
    """
    note = await ledger.runs.get_note(run.id, NOTE)
    if note is not None:
        known = msgspec.convert(note, RunFields)
        if at_its_end or known.results == (await ledger.reads.stats(run.id)).results:
            return known
    return await store_coverage(ledger, run, small=small)


async def _sample_fields(ledger: Ledger, run_id: str) -> dict[str, StageFields]:
    records: dict[str, int] = {}
    counts: dict[str, dict[str, list[int]]] = {}
    async for rows in sample_results_evenly(ledger, run_id, SAMPLE_RECORDS):
        for row in rows:
            records[row.stage] = records.get(row.stage, 0) + 1
            fields = counts.setdefault(row.stage, {})
            for name, value in decode_record(row).items():
                count = fields.get(name)
                if count is None:
                    if len(fields) == MAX_FIELDS:
                        continue
                    count = fields[name] = [0, 0]
                count[0] += 1
                count[1] += value not in EMPTY_VALUES
    return {
        stage: StageFields(records[stage], {name: FieldCount(*count) for name, count in fields.items()})
        for stage, fields in counts.items()
    }


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share in (0, 1) or 0.01 <= share <= 0.99 else f"{100 * share:.1f}%"
