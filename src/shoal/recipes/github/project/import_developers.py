"""Take over a table `developers` of the earlier system, with the status of each row.

    psql -c "copy developers to stdout with csv header" | python import_developers.py -
    python import_developers.py developers.csv
    python import_developers.py old.db              # a SQLite file with the table

| status there | here |
|---|---|
| INITIAL | is profiled, then enhanced |
| PROCESSING | as PROFILED when it was profiled, else as INITIAL: its instance is gone |
| PROFILED | keeps its fields and is enhanced, without a request for its profile |
| ENHANCED | keeps its fields; nothing is requested |
| FAILED | stays FAILED with its fields and error; `--retry-failed`, then or later, profiles it again |

Rows are added to the unfinished run, or to a new one. Import before anything else: the row of a developer whom a search
has found already is not taken over, which is said by name and ends with exit code 1. Importing a file again stores
nothing twice. All rows are checked first: if one cannot be imported, nothing is. Times without a zone are taken as UTC.
"""

import argparse
import asyncio
import csv
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import shoal
from github import github, links_of, profile

NUMBERS = ("followers", "following", "public_repos", "public_gists", "retry_count")
TEXTS = ("name", "email", "bio", "location", "company", "blog", "twitter_username", "profile_url", "avatar_url")
TIMES = ("created_at", "updated_at", "scraped_at", "profiled_at", "enhanced_at")
STATUSES = ("INITIAL", "PROCESSING", "PROFILED", "ENHANCED", "FAILED")
TRUTH = {"t": True, "true": True, "1": True, "yes": True, "f": False, "false": False, "0": False, "no": False}
# Rows with fields go before developers that must be asked for.
FIRST = -1
# FAILED rows are items of this partition, which are cancelled at once; the delay keeps workers away until then.
FAILED, LATER = "failed before the import", 3_600
# What a row has that is not profiled yet.
INITIAL_COLUMNS = ("scraped_at", "retry_count", "last_error")
SHOWN, PAGE = 5, 1_000


def read_rows(source: str) -> Iterator[dict]:
    """The rows of a CSV file, of standard input (`-`), or of the table in a SQLite file.

    Raises ValueError when there is no column username, as when a CSV file has no header.
    """
    if source != "-" and is_sqlite(Path(source)):
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("select * from developers")
            check_columns([column for column, *_ in rows.description], source)
            yield from map(dict, rows)
    elif source == "-":
        yield from csv_rows(sys.stdin, "standard input")
    else:
        with Path(source).open(encoding="utf-8-sig", newline="") as file:
            yield from csv_rows(file, source)


def csv_rows(lines: Iterable[str], source: str) -> Iterator[dict]:
    rows = csv.DictReader(lines)
    check_columns(rows.fieldnames or (), source)
    yield from rows


def check_columns(columns: Sequence[str], source: str) -> None:
    if not columns:
        raise ValueError(f"Nothing was imported: {source} is empty.")
    if "username" not in columns:
        raise ValueError(
            f"Nothing was imported: {source} has no column username. A CSV file begins with a line of the names of its "
            "columns, separated by commas, as `copy developers to stdout with csv header` writes it."
        )


def is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


class NoUsername(ValueError):
    """A row without a username."""


def row_items(row: dict, *, retry_failed: bool = False) -> tuple[str, list]:
    """The status of a row here, and its items: of its profile, and of its links if it is PROFILED."""
    name = (row.get("username") or "").strip()
    if not name:
        raise NoUsername
    status = (row.get("enrichment_status") or "INITIAL").strip().upper()
    if status not in STATUSES:
        raise ValueError(f"enrichment_status {status!r} is none of {', '.join(STATUSES)}")
    if status == "PROCESSING":
        status = "PROFILED" if row.get("profiled_at") else "INITIAL"
    key, known = name.lower(), {"username": name, **fields(row)}
    if status == "INITIAL" or (status == "FAILED" and retry_failed):
        before = {column: known[column] for column in INITIAL_COLUMNS}
        return "INITIAL", [profile.item(key=key, payload={"username": name, "imported": before})]
    options = {"partition": FAILED, "delay": LATER} if status == "FAILED" else {"priority": FIRST}
    item = profile.item(key=key, payload={"username": name, "status": status, "row": known}, **options)
    return status, [item, links_of(key, known)] if status == "PROFILED" else [item]


def fields(row: dict) -> dict:
    """The columns that are known, empty ones as None; numbers, times and truth values may be texts."""
    known: dict = {column: row.get(column) or None for column in (*TEXTS, "last_error")}
    for columns, convert in ((NUMBERS, number), (TIMES, utc), (("hireable",), truth)):
        for column in columns:
            value = row.get(column)
            try:
                known[column] = None if value is None or value == "" else convert(value)
            except (ValueError, KeyError, OverflowError):
                raise ValueError(f"{column} cannot be {value!r}") from None
    return known


def number(value: object) -> int:
    """A whole number, which other programs also write as 3.0."""
    found = float(str(value))
    if not found.is_integer() or not 0 <= found < 2**31:
        raise ValueError
    return int(found)


def utc(value: object) -> str:
    """A time in UTC, as the views can compare it with others."""
    found = datetime.fromisoformat(str(value).strip())
    return (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)).isoformat()


def truth(value: object) -> bool:
    return TRUTH[str(value).strip().lower()]


def check_rows(source: str, *, retry_failed: bool) -> tuple[list, Counter, list[int]]:
    """The items of all rows, how many rows have each status, and the numbers of rows without a username.

    Raises ValueError that names the rows which cannot be imported, and their columns.
    """
    items: list = []
    found: Counter = Counter()
    nameless: list[int] = []
    wrong: list[str] = []
    for at, row in enumerate(read_rows(source), start=1):
        try:
            status, made = row_items(row, retry_failed=retry_failed)
        except NoUsername:
            nameless.append(at)
        except ValueError as error:
            wrong.append(f"row {at} ({row['username']}): {error}")
        else:
            found[status] += 1
            items += made
    if wrong:
        first = "".join(f"\n  {each}" for each in wrong[:SHOWN]) + ("\n  ..." if len(wrong) > SHOWN else "")
        raise ValueError(f"Nothing was imported. Rows to correct or to remove first: {len(wrong)}{first}")
    if not items:
        raise ValueError(f"Nothing was imported: {source} has no row with a username.")
    return items, found, nameless


async def import_rows(source: str, *, retry_failed: bool, ledger: str | None = None) -> tuple[Counter, list[str]]:
    """Add the rows to a run. Those without a username are reported and left out.

    Returns how many there were of each status, and the developers whose rows were not taken over.
    """
    items, found, nameless = check_rows(source, retry_failed=retry_failed)
    async with shoal.connect(ledger) as fleet:
        report = await fleet.enqueue(github, items)
        failed = {"stage": profile.name, "partition": FAILED}
        if found["FAILED"]:
            await fleet.cancel_items(report.run_id, shoal.ItemFilter(**failed, states=("delayed",)))
        if retry_failed:
            await fleet.retry(report.run_id, shoal.ItemFilter(**failed, states=("cancelled", "dead")))
        refused = await find_refused(fleet, report.run_id, items) if report.duplicates else []
    own = report.enqueued + report.duplicates + report.invalid - len(items)
    begins = f"; {own} of these are what the new run begins with by itself" if own else ""
    print(f"run {report.run_id}: {report.enqueued} items added, {report.duplicates} were there already{begins}")
    if refused:
        print(
            f"{len(refused)} developers were in the run before: their rows were not taken over: {shown(refused)}\n"
            f"To take them over: shoal runs cancel {report.run_id}, then this import again, which makes a new run.",
            file=sys.stderr,
        )
    if report.invalid:
        print(f"{report.invalid} items were refused: their usernames cannot be keys", file=sys.stderr)
    if nameless:
        print(f"{len(nameless)} left out, without a username: row {shown(nameless)}", file=sys.stderr)
    return found, refused


async def find_refused(fleet: shoal.Fleet, run_id: str, items: list) -> list[str]:
    """The developers whose rows have fields or an error, and whose items were in the run before without them.

    Whom the run has profiled since is not among them: what it stored is newer.
    """
    rows = {item.key for item in items if item.stage == profile.name and "row" in item.payload}
    refused: list[str] = []
    cursor = None
    while True:
        page = await fleet.items(run_id, shoal.ItemFilter(stage=profile.name), cursor=cursor, limit=PAGE)
        refused += [
            item.key
            for item in page.rows
            if item.key in rows and "row" not in (item.payload or {}) and item.state != "done"
        ]
        cursor = page.cursor
        if cursor is None:
            return refused


def shown(values: list) -> str:
    return ", ".join(map(str, values[:SHOWN])) + (" ..." if len(values) > SHOWN else "")


def main() -> int:
    options = argparse.ArgumentParser(description="Import a table `developers` of the earlier system.")
    options.add_argument("source", help="a CSV file with a header, a SQLite file, or - for CSV on standard input")
    options.add_argument("--retry-failed", action="store_true", help="profile FAILED rows again")
    chosen = options.parse_args()
    try:
        found, refused = asyncio.run(import_rows(chosen.source, retry_failed=chosen.retry_failed))
    except (OSError, ValueError, csv.Error, sqlite3.Error, shoal.errors.ShoalError) as error:
        print(error, file=sys.stderr)
        return 1
    for status in STATUSES:
        if found[status]:
            print(f"{status:10} {found[status]}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
