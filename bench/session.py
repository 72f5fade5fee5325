"""What every benchmark is given: the places to run in and how much to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from bench.places import Place, PostgresPlace, SqlitePlace

_T = TypeVar("_T")
Effort = Literal["quick", "full"]


@dataclass
class Session:
    """`sqlite` is None while Shoal has no SQLite ledger; `sqlite_files` serves bare loops all the same."""

    postgres: PostgresPlace
    sqlite: SqlitePlace | None
    effort: Effort
    sqlite_files: SqlitePlace = field(default_factory=SqlitePlace)

    @property
    def rounds(self) -> int:
        return 3 if self.effort == "quick" else 5

    @property
    def places(self) -> list[Place]:
        """All backends there are."""
        return [self.postgres] if self.sqlite is None else [self.postgres, self.sqlite]

    def size(self, sizes: Mapping[Effort, _T]) -> _T:
        return sizes[self.effort]
