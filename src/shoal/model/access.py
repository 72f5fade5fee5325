"""Who may use `shoal serve`: tokens, their roles, and the browser sessions that they start."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a token allows. A viewer reads everything and changes nothing."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret, of which only a digest is stored. `expired`: by the ledger's clock."""

    id: int
    name: str
    role: Role
    created_at: dt.datetime
    created_by: str
    expires_at: dt.datetime | None
    used_at: dt.datetime | None
    expired: bool


class AccessGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid token or session gives to its bearer, as stored.

    `expires_at`: when it ends at the latest. `idle_seconds`: since its last use was recorded; None: never.
    """

    token_id: int
    name: str
    role: Role
    expires_at: dt.datetime | None
    idle_seconds: float | None
