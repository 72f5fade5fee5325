"""How many dead items a finished run may have and still count as a success."""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

_LIMIT = re.compile(r"(\d{1,15})|(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)


class DeadLimit(msgspec.Struct, frozen=True):
    """A count of items such as `25`, or a share of the run such as `0.5%`."""

    amount: Decimal
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> DeadLimit | None:
        """The limit a text names, None if it names none."""
        match = _LIMIT.fullmatch(text.strip())
        if match is None:
            return None
        count, share = match.groups()
        limit = cls(Decimal(count or share), count is None)
        return limit if not limit.is_share or limit.amount <= 100 else None

    def exceeded(self, dead: int, total: int) -> bool:
        """Whether so many dead items of so many are more than allowed."""
        # Decimal and int multiply exactly, so 1% of 300 is 3 and not a little less.
        return dead * 100 > self.amount * total if self.is_share else dead > self.amount

    def __str__(self) -> str:
        return f"{self.amount}%" if self.is_share else str(self.amount)
