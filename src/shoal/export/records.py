"""A run's results as lines of JSON: what a JSONL file holds, and what tables are made from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from shoal.errors import InvalidRecord
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.model.views import ResultRow

META = ("_run", "_stage", "_key", "_url", "_item")
# Few records at first, since nobody knows how large they are; then as many as fill a page of so many characters.
FIRST_PAGE = 10
LARGEST_PAGE = 1_000
PAGE_CHARACTERS = 4 << 20

_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(dict[str, Any]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def result_pages(
    ledger: Ledger, run_id: str, *, stage: str | None = None
) -> AsyncIterator[tuple[ResultRow, ...]]:
    """All results in their stable order. While the run goes on: all that were stored before, and some that come
    meanwhile, each once."""
    cursor, limit = None, FIRST_PAGE
    while True:
        page = await ledger.reads.results(run_id, stage=stage, cursor=cursor, limit=limit)
        if page.rows:
            yield page.rows
            longest = max(len(row.record) for row in page.rows)
            limit = min(LARGEST_PAGE, max(1, PAGE_CHARACTERS // longest))
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


def decode_record(row: ResultRow, text: str | None = None) -> dict[str, Any]:
    """The row's record (or the line made from it) as a value. Raises InvalidRecord when it is none."""
    try:
        return _decode_record(row.record if text is None else text)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _unreadable(row, problem) from None


class LineMaker:
    """One line per result: the record's text as it is stored, with `meta` the facts about it in front.

    A file goes to others, so logins and tokens in the item's URL and key are left out of these.

    `columns` picks fields, in that order. A record's own field wins over a fact of the same name.
    """

    def __init__(self, run_id: str, *, meta: bool = False, columns: Sequence[str] = ()) -> None:
        self._run = _text(run_id)
        self._meta = meta
        chosen = tuple(dict.fromkeys(columns))
        self._selects_columns = bool(chosen)
        self.columns = tuple(dict.fromkeys((*META, *chosen))) if meta else chosen

    def line(self, row: ResultRow) -> str:
        text: str = row.record
        # JSON has line breaks only between its tokens, where a blank means the same.
        if "\n" in text or "\r" in text:
            text = text.replace("\r", " ").replace("\n", " ")
        if self._meta:
            text = self._with_meta(row, text)
        if self._selects_columns:
            fields = _fields(row, text)
            text = _text({name: fields[name] for name in self.columns if name in fields})
        return text

    def _with_meta(self, row: ResultRow, text: str) -> str:
        key, url = (None if text is None else redacted(text) for text in (row.key, row.url))
        facts = (self._run, _text(row.stage), _text(key), _text(url), str(row.item))
        own = _fields(row, text) if '"_' in text or "\\" in text else {}
        head = ",".join(f'"{name}":{fact}' for name, fact in zip(META, facts, strict=True) if name not in own)
        rest = text[1:].lstrip()
        return f"{{{head}{',' if head and not rest.startswith('}') else ''}{rest}"


def _fields(row: ResultRow, text: str) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(text)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise _unreadable(row, problem) from None


def _unreadable(row: ResultRow, problem: Exception) -> InvalidRecord:
    return InvalidRecord(
        f"Record {row.n} of item {row.item} ({row.stage}) cannot be read: {problem}.",
        remedy="A plain JSONL export copies records as they are.",
    )


def _text(value: object) -> str:
    return _encode(value).decode()
