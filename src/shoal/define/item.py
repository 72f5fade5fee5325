"""The item a handler works on, as its author sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.model.item import Claimed

DEPTH = "depth"


class Item:
    """Ask for it with a parameter `item: Item`. In a test, make one: `Item(key="octocat", payload={"page": 2})`."""

    __slots__ = ("_claimed", "_payload")

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        payload: Mapping[str, Any] | None = None,
        partition: str = "",
        stage: str = "",
        run_id: str = "",
    ) -> None:
        self._claimed = Claimed(0, 1, 0, run_id, stage, partition, 0, url, key, None, None, 0, 0, 1)
        self._payload: Mapping[str, Any] | None = payload or {}

    @classmethod
    def of(cls, claimed: Claimed) -> Item:
        """The item behind a lease."""
        item = cls.__new__(cls)
        item._claimed = claimed
        item._payload = None
        return item

    @property
    def id(self) -> int:
        """Its number in the ledger."""
        return self._claimed.item

    @property
    def run_id(self) -> str:
        return self._claimed.run_id

    @property
    def stage(self) -> str:
        return self._claimed.stage

    @property
    def url(self) -> str | None:
        return self._claimed.url

    @property
    def key(self) -> str:
        """What makes it unique within run and stage: the key it was given, else its URL."""
        return self._claimed.name

    @property
    def own_key(self) -> str | None:
        """The key it was given, None when its URL is its key."""
        return self._claimed.key

    @property
    def payload(self) -> Mapping[str, Any]:
        if self._payload is None:
            self._payload = self._claimed.payload
        return self._payload

    @property
    def partition(self) -> str:
        return self._claimed.partition

    @property
    def priority(self) -> int:
        return self._claimed.priority

    @property
    def tries(self) -> int:
        """How many attempts were made before this one."""
        return self._claimed.tries

    @property
    def depth(self) -> int:
        """How many links away from where the run started, when links are followed."""
        depth = self.payload.get(DEPTH, 0)
        return depth if isinstance(depth, int) else 0

    def __repr__(self) -> str:
        return f"Item({self.key!r}, stage={self.stage!r})"
