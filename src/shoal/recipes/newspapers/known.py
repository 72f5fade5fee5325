"""The articles that are known already: those of files with earlier exports."""

from __future__ import annotations

import asyncio
import csv
import glob
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from shoal.define.yaml_scraper import YamlHeader, slug, yaml_error
from shoal.errors import InvalidItem, InvalidScraper, Permanent
from shoal.model.url_key import key_hash, url_key
from shoal.recipes.newspapers.settings import Newspaper, as_tuple

SUFFIXES = (".csv", ".jsonl", ".txt")
# Where the files of a newspaper go unless the operator names a folder.
DATA_FOLDER = "data"
METADATA = "metadata.json"
DROPPED = "dropped.csv"
FAILED_NEWS = "failed_news"
PAYLOAD = "payload"
MARKS = "read_behind"
MAX_FIELD_BYTES = 16 << 20


def newspaper_folder(header: YamlHeader, data: str) -> Path:
    """`data/fiji/times`: where the files of this newspaper are."""
    return Path(data or DATA_FOLDER).expanduser() / header.section / (slug(header.path.stem) or "x")


class _Line(msgspec.Struct):
    url: str | None = None


class KnownArticles:
    """The keys of the known articles, loaded once in every process that reads the listing.

    `marks`: the articles behind which earlier runs have read everything, as `end_key` names them. They are also in the
    ledger; those of the files are for runs whose ledger is new each time. So are `failed`: the payloads of the articles
    that failed and may be tried again, by URL.
    """

    def __init__(
        self, header: YamlHeader, paper: Newspaper, data_folder: Callable[[], str], code: Callable[[], str | None]
    ) -> None:
        """`data_folder`: the operator's folder for exports, known when the scraper was configured.

        `code`: the version of the file and its functions. What failed permanently is known to the same version only.
        """
        self._header = header
        self._data_folder = data_folder
        self._code = code
        self._patterns = as_tuple(paper.known)
        self._keys: frozenset[bytes] | None = None
        self.marks: frozenset[str] = frozenset()
        self.failed: dict[str, dict[str, Any]] = {}
        self._reading = asyncio.Lock()
        for pattern in self._patterns:
            if not pattern.endswith(SUFFIXES):
                message = f"known is {pattern!r}; it must end in {', '.join(SUFFIXES)}."
                raise yaml_error(header, ["known"], message, remedy="Name an export, such as news/*.jsonl.")

    async def load(self) -> None:
        """Read the files, once. Raises Permanent when one cannot be parsed: somebody must correct it."""
        async with self._reading:
            if self._keys is None:
                try:
                    self._keys = await asyncio.to_thread(self._read)
                except InvalidScraper as problem:
                    raise Permanent(f"{problem.message} {problem.remedy}") from None

    def has(self, url: str) -> bool:
        assert self._keys is not None, "load() comes first"
        return bool(self._keys) and _key(url) in self._keys

    @property
    def has_any(self) -> bool:
        return bool(self._keys)

    def _read(self) -> frozenset[bytes]:
        folder = self._header.folder
        self.marks = frozenset(read_marks(folder / newspaper_folder(self._header, self._data_folder())))
        for file in sorted((folder / newspaper_folder(self._header, self._data_folder())).glob(f"{FAILED_NEWS}_*.csv")):
            self.failed |= _failed_articles(file)
        own = glob.escape(str(newspaper_folder(self._header, self._data_folder())))
        patterns = (*self._patterns, f"{own}/news*.csv", f"{own}/{DROPPED}", f"{own}/*.jsonl")
        found = (glob.glob(pattern, root_dir=folder, recursive=True) for pattern in patterns)
        code = self._code()
        urls = (
            url
            for names in found
            for name in names
            for url in _urls(folder / name, code if name.endswith(f"/{DROPPED}") else None)
        )
        return frozenset(key for url in urls if (key := _key(url)) is not None)


def read_marks(folder: Path) -> list[str]:
    """The marks in a newspaper's metadata; none if there is no file that has some."""
    try:
        facts = json.loads((folder / METADATA).read_bytes())
    except (OSError, ValueError):
        return []
    marks = facts.get(MARKS) if isinstance(facts, dict) else None
    return [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []


def _failed_articles(file: Path) -> dict[str, dict[str, Any]]:
    """Those of one day. Rows without a payload are left out: those that are final, or that another program wrote."""
    csv.field_size_limit(MAX_FIELD_BYTES)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = [(row.get("url"), row.get(PAYLOAD)) for row in csv.DictReader(lines)]
            return {url: msgspec.json.decode(text, type=dict[str, Any]) for url, text in rows if url and text}
    except (OSError, ValueError, csv.Error):
        return {}


def _urls(file: Path, code: str | None = None) -> Iterator[str]:
    """`code`: leave out the rows of other versions of the code."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".csv":
                yield from _column(file, lines, code)
            elif file.suffix == ".jsonl":
                decode = msgspec.json.Decoder(_Line).decode
                yield from (url for line in lines if not line.isspace() and (url := decode(line).url))
            else:
                yield from (line.strip() for line in lines)
    except (OSError, ValueError, csv.Error) as problem:
        raise InvalidScraper(
            f"{file} cannot be read as a list of known articles: {' '.join(str(problem).split())}.",
            remedy="Correct the file, move it away, or take it out of known.",
        ) from None


def _column(file: Path, lines: TextIO, code: str | None) -> Iterator[str]:
    csv.field_size_limit(MAX_FIELD_BYTES)
    rows = csv.DictReader(lines)
    if "url" not in (rows.fieldnames or ()):
        raise InvalidScraper(f"{file} has no column url.", remedy="Move it away, or take it out of known.")
    yield from (row["url"] for row in rows if row["url"] and (code is None or row.get("code") in (None, "", code)))


def _key(url: str) -> bytes | None:
    try:
        return key_hash(url_key(url))[:16]
    except InvalidItem:
        return None
