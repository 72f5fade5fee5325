"""The files of a newspaper: `urls.csv`, `news.csv`, `dropped.csv`, `failed_urls_DAY.csv`, `failed_news_DAY.csv`,
`metadata.json`.

A run adds to the first three what they do not have; one from scratch replaces the rows that it read again.
Each file is replaced as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.define.scraper import Scraper
from shoal.define.yaml_scraper import YamlHeader
from shoal.export.records import decode_record, result_pages
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.outcome import OutcomeClass
from shoal.model.run import Run, RunState
from shoal.model.views import ItemFilter, ItemView
from shoal.recipes.newspapers.known import (
    DROPPED,
    FAILED_NEWS,
    MARKS,
    MAX_FIELD_BYTES,
    METADATA,
    PAYLOAD,
    newspaper_folder,
    read_marks,
)
from shoal.recipes.newspapers.paging import is_in_period
from shoal.storage.targets import Target, open_target

PAGE = 1_000
RUNS_AT_ONCE = 200
URL_COLUMNS = ("url", "title", "date")
NEWS_COLUMNS = ("url", "title", "date", "body", "tags", "source", "country")
DROPPED_COLUMNS = ("url", "title", "date", "reason", "code")
FAILED_COLUMNS = ("url", "title", "date", "error")
# Of articles also what another run needs to try them again; empty where the error is permanent.
FAILED_NEWS_COLUMNS = (*FAILED_COLUMNS, PAYLOAD)
SETTLED = (ItemState.DONE, ItemState.SKIPPED)
# More than a listing has series, and marked articles that may vanish from the site.
MARKS_KEPT = 50
Row = Mapping[str, Any]


class NewspaperFiles:
    """Writes the files of one newspaper, by what the operator asked of the scraper."""

    def __init__(self, header: YamlHeader, scraper: Scraper) -> None:
        self._header = header
        self._scraper = scraper

    async def write(self, ledger: Ledger, run: Run, data: Path) -> tuple[Path, int]:
        """Add what a run stored to the files below `data`. Returns their folder and the number of new articles.

        A folder without articles gets also what earlier runs of the ledger stored, of a period if the run has one: no
        run fetches it again.
        """
        folder = newspaper_folder(self._header, str(data))
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        replace = self._scraper.from_scratch
        runs = [run] if (folder / "news.csv").exists() else [run, *await _earlier_runs(ledger, run)]

        def of_runs(read: Callable[[Ledger, Run], AsyncIterator[list[Row]]]) -> Callable[[], AsyncIterator[list[Row]]]:
            return lambda: self._of_runs(ledger, runs, read)

        await _add_rows(folder / "urls.csv", URL_COLUMNS, of_runs(_listed), replace=replace)
        added = await _add_rows(folder / "news.csv", NEWS_COLUMNS, of_runs(_records), replace=replace)
        if await _has_any(of_runs(_dropped)()):
            await _add_rows(folder / DROPPED, DROPPED_COLUMNS, of_runs(_dropped), replace=True)
        failed = {stage: [row async for row in _failed(ledger, run, stage)] for stage in ("listing", "article")}
        for name, stage, columns in (
            ("failed_urls", "listing", FAILED_COLUMNS),
            (FAILED_NEWS, "article", FAILED_NEWS_COLUMNS),
        ):
            today, files = folder / f"{name}_{run.created_at:%Y%m%d}.csv", sorted(folder.glob(f"{name}_*.csv"))
            if failed[stage] or files:
                settled = {item.url async for item in _items(ledger, run, ItemFilter(stage=stage, states=SETTLED))}
                for file in dict.fromkeys((*files, today)):
                    rows = failed[stage] if file == today else ()
                    await asyncio.to_thread(_replace_rows, file, columns, rows, settled)
        facts = {
            "country": self._header.country,
            "newspaper": self._header.name,
            "run": run.id,
            "began": run.created_at.isoformat(),
            "ended": None if run.finished_at is None else run.finished_at.isoformat(),
            "new_articles": added,
            "failed_listing_pages": len(failed["listing"]),
            "failed_articles": len(failed["article"]),
            MARKS: await _marks(ledger, run, folder),
        }
        await asyncio.to_thread(_replace, folder / METADATA, [json.dumps(facts, indent=2) + "\n"])
        return folder, added

    async def _of_runs(
        self, ledger: Ledger, runs: Sequence[Run], read: Callable[[Ledger, Run], AsyncIterator[list[Row]]]
    ) -> AsyncIterator[list[Row]]:
        since, until = self._scraper.since, self._scraper.until
        for run in runs:
            async for rows in read(ledger, run):
                yield rows if run is runs[0] else [row for row in rows if is_in_period(row["date"], since, until)]


async def _earlier_runs(ledger: Ledger, run: Run) -> list[Run]:
    """All runs of the scraper before this one that have articles, the newest first."""
    found: list[Run] = []
    cursor: str | None = str(run.no)
    while cursor is not None:
        page = await ledger.runs.list(scraper=run.scraper, cursor=cursor, limit=RUNS_AT_ONCE)
        found += [other for other in page.rows if "article" in other.stages]
        cursor = page.cursor
    return found


async def _marks(ledger: Ledger, run: Run, folder: Path) -> list[str]:
    """The articles behind which everything was read, as `end_key` names them: those of this run, and earlier ones.

    A run that has not finished may have left articles in front of its mark.
    """
    earlier = await asyncio.to_thread(read_marks, folder)
    if run.state is not RunState.FINISHED:
        return earlier
    done = ItemFilter(stage="listing", states=(ItemState.DONE,))
    new = [item.key async for item in _items(ledger, run, done) if item.key is not None and item.url is None]
    return list(dict.fromkeys((*new, *earlier)))[:MARKS_KEPT]


async def _item_pages(ledger: Ledger, run: Run, which: ItemFilter) -> AsyncIterator[Sequence[ItemView]]:
    cursor = None
    while True:
        page = await ledger.reads.items(run.id, which, cursor=cursor, limit=PAGE)
        yield page.rows
        cursor = page.cursor
        if cursor is None:
            return


async def _items(ledger: Ledger, run: Run, which: ItemFilter) -> AsyncIterator[ItemView]:
    async for items in _item_pages(ledger, run, which):
        for item in items:
            yield item


async def _listed(ledger: Ledger, run: Run) -> AsyncIterator[list[Row]]:
    async for items in _item_pages(ledger, run, ItemFilter(stage="article")):
        given = [(item.url, item.payload or {}) for item in items]
        yield [{"url": url, "title": payload.get("title"), "date": payload.get("date")} for url, payload in given]


async def _records(ledger: Ledger, run: Run) -> AsyncIterator[list[Row]]:
    async for rows in result_pages(ledger, run.id, stage="article"):
        yield [decode_record(row) for row in rows]


async def _dropped(ledger: Ledger, run: Run) -> AsyncIterator[list[Row]]:
    """The articles that no later run needs to fetch: those that are not wanted, and those that failed permanently.

    The latter only until the code changes. What lies outside of a period may be wanted by another run.
    """
    async for items in _item_pages(
        ledger, run, ItemFilter(stage="article", states=(ItemState.SKIPPED, ItemState.DEAD))
    ):
        rows: list[Row] = []
        for item in items:
            payload, is_dead = item.payload or {}, item.state == ItemState.DEAD
            if "period" in payload or (is_dead and not (item.outcome == OutcomeClass.PERMANENT and run.code_version)):
                continue
            row = {"url": item.url, "title": payload.get("title"), "date": payload.get("date"), "reason": item.error}
            rows.append({**row, "code": run.code_version if is_dead else None})
        yield rows


async def _has_any(pages: AsyncIterator[list[Row]]) -> bool:
    return any([bool(rows) async for rows in pages])


async def _failed(ledger: Ledger, run: Run, stage: str) -> AsyncIterator[Row]:
    async for item in _items(ledger, run, ItemFilter(stage=stage, states=(ItemState.DEAD,))):
        given = item.payload or {}
        row = {"url": item.url, "title": given.get("title"), "date": given.get("date"), "error": item.error}
        is_final = item.outcome == OutcomeClass.PERMANENT or "period" in given
        yield row if is_final else {**row, PAYLOAD: json.dumps(given, ensure_ascii=False)}


async def _add_rows(
    file: Path, columns: Sequence[str], pages: Callable[[], AsyncIterator[list[Row]]], *, replace: bool
) -> int:
    """Add rows whose URL the file does not have, further fields as further columns. Returns how many were new.

    With `replace` the rows that it has are replaced. The pages are read twice, so that memory holds the URLs only.
    """
    old_columns, known = await asyncio.to_thread(_read_urls, file)
    header, urls = dict.fromkeys((*old_columns, *columns)), set[str]()
    async for rows in pages():
        header |= dict.fromkeys(name for row in rows for name in row)
        urls |= {row["url"] for row in rows}
    if old_columns and not (urls if replace else urls - known):
        return 0
    written = set[str]() if replace else set(known)
    old = (row for row in _read_rows(file) if not replace or row["url"] not in urls)
    target = open_target(str(file))
    try:
        await asyncio.to_thread(_write, target, _csv_lines(list(header), old))
        async for rows in pages():
            new = {row["url"]: row for row in rows if row["url"] not in written}
            written |= new.keys()
            await asyncio.to_thread(_write, target, _csv_lines(list(header), new.values(), with_header=False))
        await asyncio.to_thread(target.commit)
    except BaseException:
        target.discard()
        raise
    return len(urls - known)


def _replace_rows(file: Path, columns: Sequence[str], rows: Sequence[Row], settled: set[Any]) -> None:
    """The rows of this run, and those that other runs wrote and this one did not settle."""
    failed = {row["url"]: row for row in rows}
    own_columns, urls = _read_urls(file)
    if not failed and urls.isdisjoint(settled):
        return
    before = [row for row in _read_rows(file) if row.get("url") not in settled and row.get("url") not in failed]
    if not failed and not before:
        file.unlink(missing_ok=True)
        return
    _replace(file, _csv_lines(list(dict.fromkeys((*columns, *own_columns))), [*before, *failed.values()]))


def _read_urls(file: Path) -> tuple[list[str], set[str]]:
    if not file.exists():
        return [], set()
    csv.field_size_limit(MAX_FIELD_BYTES)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        return list(reader.fieldnames or ()), {row.get("url") or "" for row in reader}


def _read_rows(file: Path) -> Iterator[dict[str, str]]:
    if file.exists():
        csv.field_size_limit(MAX_FIELD_BYTES)
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from csv.DictReader(lines)


def _csv_lines(columns: Sequence[str], rows: Iterable[Row], *, with_header: bool = True) -> Iterator[str]:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    if with_header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items() if name in columns})
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        plain = isinstance(value, list) and all(isinstance(each, str | int | float) for each in value)
        return ", ".join(map(str, value)) if plain else json.dumps(value, ensure_ascii=False)
    return value


def _replace(file: Path, texts: Iterable[str]) -> None:
    target = open_target(str(file))
    try:
        _write(target, texts)
        target.commit()
    except BaseException:
        target.discard()
        raise


def _write(target: Target, texts: Iterable[str]) -> None:
    for text in texts:
        target.write(text.encode())
