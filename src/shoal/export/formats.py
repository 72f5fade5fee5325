"""Which format a file is written in: what was asked for, else what its name says."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePath

from shoal.errors import UsageError

STDOUT = "-"


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_BY_SUFFIX = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV, ".parquet": Format.PARQUET}


def format_of(path: str, wanted: str | None = None) -> Format:
    """`wanted` if given, else by the suffix of the path; standard output gets JSON Lines."""
    if wanted is not None:
        if wanted not in list(Format):
            raise UsageError(
                f"{wanted!r} is no format that Shoal writes.", remedy=f"Use one of {', '.join(Format)}."
            ) from None
        return Format(wanted)
    if path == STDOUT:
        return Format.JSONL
    suffix = PurePath(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise UsageError(
            f"The name {path!r} does not say which format to write.",
            remedy=f"End it in {', '.join(_BY_SUFFIX)}, or use `shoal export` with --format {'|'.join(Format)}.",
        )
    return _BY_SUFFIX[suffix]
