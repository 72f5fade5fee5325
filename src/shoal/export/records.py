"""The stored records of a run: read in pages, rendered as lines of JSON, sampled for the coverage of their fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from shoal.errors import InvalidRecord
from shoal.export.tables import MAX_COLUMNS, cell_text
from shoal.ledger.protocols import Ledger
from shoal.model.changes import ChangedRecord
from shoal.model.redaction import redacted
from shoal.model.url_key import key_hash, url_hash
from shoal.model.views import ResultRow

META = ("_run", "_stage", "_key", "_url", "_url_hash", "_item")
# The first page is small, because the size of records is unknown; later pages have about PAGE_CHARACTERS.
FIRST_PAGE = 10
MAX_PAGE = 1_000
PAGE_CHARACTERS = 4 << 20

# A record of a run, or one of the log of result changes, which may be of any run.
StoredRecord = ResultRow | ChangedRecord

_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(dict[str, Any]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
MAX_EXAMPLE_LENGTH = 60
SAMPLE = 20_000
SAMPLE_POINTS = 50
_TYPE_NAMES = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "object"}
EMPTY_VALUES: tuple[Any, ...] = (None, "", [], {})


async def result_pages(
    ledger: Ledger, run_id: str, *, stage: str | None = None
) -> AsyncIterator[tuple[ResultRow, ...]]:
    """All results in a stable order. Of a running run: all that were stored before and some stored later, each once."""
    cursor, limit = None, FIRST_PAGE
    while True:
        page = await ledger.reads.results(run_id, stage=stage, cursor=cursor, limit=limit)
        if page.rows:
            yield page.rows
            longest = max(len(row.record) for row in page.rows)
            limit = min(MAX_PAGE, max(1, PAGE_CHARACTERS // longest))
        cursor = page.cursor
        if cursor is None:
            return


async def first_results(ledger: Ledger, run_id: str, count: int, *, stage: str | None = None) -> list[ResultRow]:
    """The first `count` results of a run, or of one stage of it."""
    found: list[ResultRow] = []
    async for rows in result_pages(ledger, run_id, stage=stage):
        found += rows[: count - len(found)]
        if len(found) >= count:
            break
    return found


def decode_record(row: StoredRecord, text: str | None = None) -> dict[str, Any]:
    """Decode the row's record, or the line made from it. Raises InvalidRecord."""
    try:
        return _decode_record(row.record if text is None else text)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _unreadable(row, problem) from None


class LineMaker:
    """Renders results as lines: the record as stored, with `meta` preceded by run, stage, key, URL, its hash and item.

    `run_id`: the run of results that do not name their own.
    Logins and tokens in URL and key are redacted, because files are passed on. `columns` selects fields, in that order.
    A record's own field takes precedence over a meta field of the same name.
    """

    def __init__(self, run_id: str = "", *, meta: bool = False, columns: Sequence[str] = ()) -> None:
        self._run_id = run_id
        self._meta = meta
        chosen = tuple(dict.fromkeys(columns))
        self._selects_columns = bool(chosen)
        self.columns = tuple(dict.fromkeys((*META, *chosen))) if meta else chosen

    def line(self, row: StoredRecord) -> str:
        text: str = row.record
        # Line breaks in JSON are only between tokens, where a blank is equivalent.
        if "\n" in text or "\r" in text:
            text = text.replace("\r", " ").replace("\n", " ")
        if self._meta:
            text = self._with_meta(row, text)
        if self._selects_columns:
            fields = _fields(row, text)
            text = _text({name: fields[name] for name in self.columns if name in fields})
        return text

    def _with_meta(self, row: StoredRecord, text: str) -> str:
        run_id = row.run_id if isinstance(row, ChangedRecord) else self._run_id
        key, url = (None if text is None else redacted(text) for text in (row.key, row.url))
        values = (_text(run_id), _text(row.stage), _text(key), _text(url), _text(_item_hash(row)), str(row.item))
        own = _fields(row, text) if '"_' in text or "\\" in text else {}
        head = ",".join(f'"{name}":{value}' for name, value in zip(META, values, strict=True) if name not in own)
        rest = text[1:].lstrip()
        return f"{{{head}{',' if head and not rest.startswith('}') else ''}{rest}"


def _item_hash(row: StoredRecord) -> str | None:
    """The hash of the item's key, as the ledger has it."""
    if row.key is not None:
        return key_hash(row.key).hex()
    return None if row.url is None else url_hash(row.url)


def _fields(row: StoredRecord, text: str) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(text)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _unreadable(row, problem) from None


def _unreadable(row: StoredRecord, problem: Exception) -> InvalidRecord:
    return InvalidRecord(
        f"Record {row.n} of item {row.item} ({row.stage}) cannot be read: {problem}.",
        remedy="Export as JSONL without --columns: that copies records as they are stored.",
    )


def _text(value: object) -> str:
    return _encode(value).decode()


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
        if value not in EMPTY_VALUES:
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


async def sample_results_evenly(ledger: Ledger, run_id: str, sample: int) -> AsyncIterator[tuple[ResultRow, ...]]:
    """All results of a run with at most `sample` of them; of a larger one about so many, spread evenly over it."""
    stored = (await ledger.reads.stats(run_id)).results
    pages = result_pages(ledger, run_id) if stored <= sample else _sample_pages(ledger, run_id, None, sample)
    async for rows in pages:
        yield rows


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
