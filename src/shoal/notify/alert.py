"""An alert: something about a run that a person should know of."""

from __future__ import annotations

from enum import StrEnum

import msgspec

RAISED = "alert:"
TOLD = "tell:"


class Kind(StrEnum):
    FINISH = "finish"
    FAILURE = "failure"
    STALL = "stall"
    ERRORS = "errors"


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run needs attention: one sentence. `episode` tells one time that it happens from the next."""

    kind: Kind
    episode: str
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of one run, put into words for somebody who reads it on a telephone."""

    kind: Kind
    run: str
    scraper: str
    episode: str
    title: str
    body: str


def raising(run: str, sign: Sign) -> str:
    """The errand of raising it. Names sort by run, so the newest runs' alerts are the last."""
    return f"{RAISED}{run}:{sign.kind.value}:{sign.episode}"


def telling(alert: Alert) -> str:
    """The errand of telling people about it."""
    return f"{TOLD}{alert.run}:{alert.kind.value}:{alert.episode}"
