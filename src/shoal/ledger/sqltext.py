"""Named queries from .sql files: `-- name: claim` starts one, the comment lines below it say why it is as it is."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """Every query in the package's .sql files, by name."""
    queries: dict[str, str] = {}
    for file in sorted(files(package).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file.name}: the query {name} is defined twice")
            queries[name] = text.strip().rstrip(";")
    return queries


def load_scripts(package: str) -> list[tuple[str, str]]:
    """Whole .sql files of a package, as (file name without ending, text), in order."""
    return [
        (file.name[:-4], file.read_text("utf-8"))
        for file in sorted(files(package).iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    ]
