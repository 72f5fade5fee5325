"""Why there are as many workers, or items at once, as there are: what the elastic rule said when it last decided."""

from __future__ import annotations

import datetime as dt

import msgspec

from shoal.model.views import WaitReason


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A change from `before` to `after`, or, where they are the same, that it held back. `most`: what is allowed."""

    subject: str
    at: dt.datetime
    seconds_ago: float
    before: int
    after: int
    most: int
    what: str
    why: str


def scaling_reason(scaling: Scaling) -> WaitReason:
    kind, _, name = scaling.subject.partition(" ")
    who = f"The pool on {name}" if kind == "pool" else f"The {scaling.subject}"
    how = f"went from {scaling.before} to {scaling.after} {scaling.what}"
    if scaling.before == scaling.after:
        how = f"stayed at {scaling.after} of {scaling.most} {scaling.what}"
    return WaitReason(code="scaled", text=f"{who} {how} {_ago(scaling.seconds_ago)}: {scaling.why}.", since=scaling.at)


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
