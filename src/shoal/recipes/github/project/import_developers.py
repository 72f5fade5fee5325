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
| FAILED | stays FAILED with its error; `--retry-failed` makes it INITIAL |

Rows are added to the unfinished run, or to a new one. Importing a file again stores nothing twice. Until workers of the
stage `profile` have taken the rows, which costs no request, the view `developers` shows all of them as INITIAL.
"""

import argparse
import asyncio
import csv
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import shoal
from github import github, profile

NUMBERS = ("followers", "following", "public_repos", "public_gists")
TEXTS = ("name", "email", "bio", "location", "company", "blog", "twitter_username", "profile_url", "avatar_url")
TIMES = ("created_at", "updated_at", "scraped_at", "profiled_at", "enhanced_at")
STATUSES = ("INITIAL", "PROCESSING", "PROFILED", "ENHANCED", "FAILED")


def read_rows(source: str) -> Iterator[dict]:
    """The rows of a CSV file, of standard input (`-`), or of the table in a SQLite file."""
    if source != "-" and is_sqlite(Path(source)):
        with sqlite3.connect(f"file:{source}?mode=ro", uri=True) as database:
            database.row_factory = sqlite3.Row
            yield from map(dict, database.execute("select * from developers"))
    elif source == "-":
        yield from csv.DictReader(sys.stdin)
    else:
        with Path(source).open(encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file)


def is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


class NoUsername(ValueError):
    """The row of nobody: there is nothing to ask for."""


def row_item(row: dict, *, retry_failed: bool = False):
    """The item of a row, and its status: INITIAL rows are profiled, the others carry what is known of them."""
    name = (row.get("username") or "").strip()
    if not name:
        raise NoUsername
    status = (row.get("enrichment_status") or "INITIAL").strip().upper()
    if status not in STATUSES:
        raise ValueError(f"{name or 'a row'} has the status {status!r}; known are {', '.join(STATUSES)}")
    if status == "PROCESSING":
        status = "PROFILED" if row.get("profiled_at") else "INITIAL"
    if status == "FAILED" and retry_failed:
        status = "INITIAL"
    payload = {"username": name}
    if status != "INITIAL":
        payload |= {"status": status, "row": {"username": name, **fields(row)}}
    return profile.item(key=name.lower(), payload=payload), status


def fields(row: dict) -> dict:
    """The columns that are known, empty ones as None; numbers and truth values may be texts."""
    known: dict = {column: row.get(column) or None for column in (*TEXTS, *TIMES, "last_error")}
    known |= {column: int(row[column]) if row.get(column) not in (None, "") else None for column in NUMBERS}
    hireable = str(row.get("hireable") or "").lower()
    known["hireable"] = None if not hireable else hireable in ("t", "true", "1", "yes")
    return known


async def import_rows(source: str, *, retry_failed: bool, ledger: str | None = None) -> Counter:
    """Add the rows to a run; how many there were of each status. Those without a username are reported and left out."""
    found: Counter = Counter()
    nameless: list[int] = []

    def items() -> Iterator:
        for number, row in enumerate(read_rows(source), start=1):
            try:
                item, status = row_item(row, retry_failed=retry_failed)
            except NoUsername:
                nameless.append(number)
                continue
            found[status] += 1
            yield item

    async with shoal.connect(ledger) as fleet:
        report = await fleet.enqueue(github, items())
    print(f"run {report.run_id}: {report.enqueued} added, {report.duplicates} were there already")
    if nameless:
        first = ", ".join(map(str, nameless[:5])) + (" ..." if len(nameless) > 5 else "")
        print(f"{len(nameless)} left out, without a username: row {first}", file=sys.stderr)
    print("The view `developers` shows all as INITIAL until a worker of the stage profile has taken them.")
    return found


def main() -> int:
    options = argparse.ArgumentParser(description="Import a table `developers` of the earlier system.")
    options.add_argument("source", help="a CSV file with a header, a SQLite file, or - for CSV on standard input")
    options.add_argument("--retry-failed", action="store_true", help="profile FAILED rows again")
    chosen = options.parse_args()
    try:
        found = asyncio.run(import_rows(chosen.source, retry_failed=chosen.retry_failed))
    except (OSError, ValueError, sqlite3.Error, shoal.errors.ShoalError) as error:
        print(error, file=sys.stderr)
        return 1
    for status in STATUSES:
        if found[status]:
            print(f"{status:10} {found[status]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
