"""What every benchmark is given: the places to run in and how much to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from bench.places import Place, PostgresPlace, SqlitePlace

_T = TypeVar("_T")
Effort = Literal["quick", "full"]


@dataclass
class Session:
    """Both backends, and whether to measure quickly or in full."""

    postgres: PostgresPlace
    sqlite: SqlitePlace
    effort: Effort

    @property
    def rounds(self) -> int:
        return 3 if self.effort == "quick" else 5

    @property
    def places(self) -> list[Place]:
        return [self.postgres, self.sqlite]

    def size(self, sizes: Mapping[Effort, _T]) -> _T:
        return sizes[self.effort]
