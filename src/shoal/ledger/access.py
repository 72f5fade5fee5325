"""Tokens and browser sessions of `shoal serve`, on both ledgers."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Mapping

from shoal.errors import InvalidItem, InvalidSetting
from shoal.ledger.rows import Queryable, Row, grant_from, token_from
from shoal.model.access import AccessGrant, AccessToken, Role
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.url_key import check_text

DIGEST_BYTES = 32
# An expiry beyond this is no expiry; it also keeps times within what a ledger can store.
MAX_SECONDS = 100 * 366 * 86_400.0


class BaseAccess(ABC):
    """What both backends share; writes that leave an event are implemented by them."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def add_token(
        self, name: str, role: Role, digest: bytes, *, seconds: float | None = None, by: str = ""
    ) -> AccessToken | None:
        try:
            check_text("name of the token", name, MAX_NAME_BYTES)
        except InvalidItem as error:
            raise InvalidSetting(error.message, remedy="Choose a name such as grafana.") from None
        _check_digest(digest)
        if seconds is not None and not 0 < seconds <= MAX_SECONDS:
            raise InvalidSetting(f"A token is valid for more than 0 s and at most 100 years, not for {seconds:g} s.")
        row = await self._add_token(name, Role(role), digest, seconds, by)
        return None if row is None else token_from(row)

    @abstractmethod
    async def _add_token(self, name: str, role: Role, digest: bytes, seconds: float | None, by: str) -> Row | None: ...

    async def tokens(self) -> list[AccessToken]:
        return [token_from(row) for row in await self._queryable.fetch(self._sql["list_tokens"])]

    async def has_token(self) -> bool:
        return bool(await self._queryable.value(self._sql["has_token"]))

    @abstractmethod
    async def remove_token(self, name: str, *, by: str = "") -> bool: ...

    async def find_token(self, digest: bytes) -> AccessGrant | None:
        return await self._find("find_token", digest)

    async def start_session(
        self, token_id: int, digest: bytes, *, seconds: float, idle_seconds: float, by: str = ""
    ) -> AccessGrant | None:
        _check_digest(digest)
        await self._queryable.fetch(self._sql["tidy_sessions"])
        await self._start_session(token_id, digest, seconds, idle_seconds, by)
        return await self.find_session(digest)

    @abstractmethod
    async def _start_session(
        self, token_id: int, digest: bytes, seconds: float, idle_seconds: float, by: str
    ) -> None: ...

    async def find_session(self, digest: bytes) -> AccessGrant | None:
        return await self._find("find_session", digest)

    async def record_use(self, token_id: int, session: bytes | None = None) -> None:
        await self._queryable.fetch(self._sql["use_token"], token_id)
        if session is not None:
            await self._queryable.fetch(self._sql["use_session"], session)

    @abstractmethod
    async def end_session(self, digest: bytes, *, by: str = "") -> bool: ...

    async def _find(self, query: str, digest: bytes) -> AccessGrant | None:
        _check_digest(digest)
        rows = await self._queryable.fetch(self._sql[query], digest)
        if not rows or not hmac.compare_digest(bytes(rows[0]["digest"]), digest):
            return None
        return grant_from(rows[0])


def _check_digest(digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise InvalidSetting(f"A digest has {DIGEST_BYTES} bytes, not {len(digest)}.")
