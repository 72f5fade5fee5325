"""Coverage of the fields of a run's records: how often each is present and filled, with its types and an example."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from shoal.export.records import decode_record, result_pages
from shoal.export.tables import MAX_COLUMNS, cell_text
from shoal.ledger.protocols import Ledger
from shoal.model.views import ResultRow

MAX_EXAMPLE_LENGTH = 60
SAMPLE = 20_000
SAMPLE_POINTS = 50
_TYPE_NAMES = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "object"}
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class FieldCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """`present`: records with the field; `filled`: those where it is not null, "", [] or {}; both of `records`."""

    field: str
    present: int
    filled: int
    filled_share: float
    types: tuple[str, ...]
    example: str
    records: int


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`records` of `of` were read: all of them or, when `sampled`, a part spread evenly over the run.

    When `sampled`, `of` counts the records of all stages. `complete` is False above MAX_COLUMNS different fields.
    """

    records: int
    of: int
    fields: tuple[FieldCoverage, ...]
    complete: bool
    sampled: bool


class _Field:
    __slots__ = ("example", "filled", "present", "types")

    def __init__(self) -> None:
        self.present = self.filled = 0
        self.types: dict[str, None] = {}
        self.example = ""

    def add(self, value: Any) -> None:
        self.present += 1
        self.types[_TYPE_NAMES[type(value)]] = None
        if value not in _EMPTY:
            self.filled += 1
            if not self.example:
                text = cell_text(value)
                self.example = text if len(text) <= MAX_EXAMPLE_LENGTH else text[: MAX_EXAMPLE_LENGTH - 1] + "…"


async def measure_coverage(
    ledger: Ledger, run_id: str, *, stage: str | None = None, sample: int | None = SAMPLE
) -> Coverage:
    """Measure the fields of a run's records in constant memory; fields are in the order of first appearance.

    Of a run with more than `sample` records about `sample` are read, spread evenly over it; with None all are read.
    """
    stored = (await ledger.reads.stats(run_id)).results
    reads_all = sample is None or stored <= sample
    pages = (
        result_pages(ledger, run_id, stage=stage) if reads_all else _sample_pages(ledger, run_id, stage, sample or 1)
    )
    fields: dict[str, _Field] = {}
    records, complete = 0, True
    async for rows in pages:
        records += len(rows)
        for row in rows:
            for name, value in decode_record(row).items():
                field = fields.get(name)
                if field is None:
                    if len(fields) == MAX_COLUMNS:
                        complete = False
                        continue
                    field = fields[name] = _Field()
                field.add(value)
    field_coverage = tuple(
        FieldCoverage(
            field=name,
            present=field.present,
            filled=field.filled,
            filled_share=round(field.filled / records, 4),
            types=tuple(field.types),
            example=field.example,
            records=records,
        )
        for name, field in fields.items()
    )
    return Coverage(
        records=records,
        of=records if reads_all else stored,
        fields=field_coverage,
        complete=complete,
        sampled=not reads_all,
    )


async def _sample_pages(
    ledger: Ledger, run_id: str, stage: str | None, sample: int
) -> AsyncIterator[tuple[ResultRow, ...]]:
    """Pages of results from evenly spaced positions in the run, without overlap."""
    span = await ledger.reads.result_span(run_id)
    if span is None:
        return
    first, last = span
    last_item = -1
    for point in range(SAMPLE_POINTS):
        item = first + (last - first) * point // SAMPLE_POINTS
        if item <= last_item:
            continue
        page = await ledger.reads.results(
            run_id, stage=stage, cursor=f"{item}.0" if point else None, limit=max(1, sample // SAMPLE_POINTS)
        )
        if page.rows:
            yield page.rows
            last_item = page.rows[-1].item
