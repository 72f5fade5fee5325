"""Tokens for `shoal serve`, and the sessions that browsers start with them.

A token is 256 random bits, so nobody can guess it, and a slow hash would protect nothing: the ledger has its SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import LedgerError, NotFound, WrongState
from shoal.model.access import AccessGrant, AccessToken, Role
from shoal.service.lookup import suggest

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger

# It is found by programs that search files for secrets, and by whoever reads a log.
TOKEN_PREFIX = "shoal_"
SECRET_BYTES = 32
MAX_SECRET_LENGTH = 200
# A session ends after so many seconds, or so many without use.
SESSION_SECONDS = 7 * 86_400.0
SESSION_IDLE_SECONDS = 12 * 3_600.0
RECORD_USE_SECONDS = 60.0


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token with its secret, which is shown once."""

    token: AccessToken
    secret: str


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session with its secret, for the cookie."""

    grant: AccessGrant
    secret: str


async def add_token(ledger: Ledger, name: str, role: Role, *, seconds: float | None = None, by: str = "") -> NewToken:
    """Add a token, valid for so many seconds or until it is removed. Raises WrongState when the name is in use."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    token = await ledger.access.add_token(name, role, digest_of(secret), seconds=seconds, by=by)
    if token is None:
        raise WrongState(
            f"There is a token {name!r} already.",
            remedy="Choose another name, or remove it with `shoal serve token rm`.",
        )
    return NewToken(token=token, secret=secret)


async def list_tokens(ledger: Ledger) -> list[AccessToken]:
    """All tokens by name, without their secrets."""
    return await ledger.access.tokens()


async def remove_token(ledger: Ledger, name: str, *, by: str = "") -> None:
    """Remove a token and end its sessions. Raises NotFound."""
    if not await ledger.access.remove_token(name, by=by):
        known = [token.name for token in await ledger.access.tokens()]
        raise NotFound(
            f"There is no token {name!r}.", remedy=suggest(name, known) + "`shoal serve token ls` lists the tokens."
        )


async def find_token(ledger: Ledger, secret: str) -> AccessGrant | None:
    """What a token gives; None when it is not valid."""
    if not secret.startswith(TOKEN_PREFIX) or len(secret) > MAX_SECRET_LENGTH:
        return None
    return await ledger.access.find_token(digest_of(secret))


async def find_session(ledger: Ledger, secret: str) -> AccessGrant | None:
    """What a session gives; None when it has ended."""
    if not secret or len(secret) > MAX_SECRET_LENGTH:
        return None
    return await ledger.access.find_session(digest_of(secret))


async def start_session(ledger: Ledger, token: AccessGrant, *, by: str = "") -> NewSession | None:
    """Start a session for a token that was found; None when it was removed meanwhile."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    grant = await ledger.access.start_session(
        token.token_id, digest_of(secret), seconds=SESSION_SECONDS, idle_seconds=SESSION_IDLE_SECONDS, by=by
    )
    return None if grant is None else NewSession(grant=grant, secret=secret)


async def end_session(ledger: Ledger, secret: str, *, by: str = "") -> bool:
    """End a session. False: there is none."""
    return await ledger.access.end_session(digest_of(secret), by=by)


async def record_use(ledger: Ledger, grant: AccessGrant, session: str | None = None) -> None:
    """Record when a token and its session were last used, for 2 s at most: it must not delay a request."""
    if grant.idle_seconds is not None and grant.idle_seconds < RECORD_USE_SECONDS:
        return
    try:
        async with asyncio.timeout(2):
            await ledger.access.record_use(grant.token_id, None if session is None else digest_of(session))
    except (LedgerError, TimeoutError):
        return


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
