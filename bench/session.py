"""What every benchmark is given: the places to run in and how much to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from bench.places import Place, PostgresPlace, SqlitePlace

_T = TypeVar("_T")
Effort = Literal["quick", "full"]


@dataclass
class Session:
    postgres: PostgresPlace
    sqlite: SqlitePlace | None
    effort: Effort
    repository: Path
    machine: dict[str, Any]
    sqlite_files: SqlitePlace = field(default_factory=SqlitePlace)

    @property
    def rounds(self) -> int:
        return 3 if self.effort == "quick" else 5

    @property
    def places(self) -> list[Place]:
        """All backends there are."""
        return [self.postgres] if self.sqlite is None else [self.postgres, self.sqlite]

    def size(self, sizes: Mapping[Effort, _T] | Mapping[str, _T]) -> _T:
        return sizes[self.effort]  # type: ignore[index]
