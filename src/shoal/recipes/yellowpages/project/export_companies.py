"""Write the companies of all runs to a CSV file: `python export_companies.py companies.csv`."""

import asyncio
import csv
import dataclasses
import json
import sys
from pathlib import Path

import shoal
from yellowpages import Company, yellowpages

COLUMNS = [field.name for field in dataclasses.fields(Company)]


async def export(path: Path) -> int:
    """Each company is in the run that saw it last. The file appears when it is complete; returns how many it has."""
    part, number = path.with_name(f".{path.name}.part"), 0
    async with shoal.connect() as fleet:
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            cursor = None
            while True:
                page = await fleet.runs(scraper=yellowpages.name, cursor=cursor)
                for row in page.rows:
                    async for company in fleet.records(row.run.id):
                        writer.writerow({name: text_of(company.get(name)) for name in COLUMNS})
                        number += 1
                cursor = page.cursor
                if cursor is None:
                    break
    part.replace(path)
    return number


def text_of(value) -> str:
    """Texts as they are, nothing for what is not known, other values as JSON: as `shoal export` writes them."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python export_companies.py FILE.csv", file=sys.stderr)
        return 2
    print(f"{asyncio.run(export(Path(sys.argv[1])))} companies in {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
