"""Settings: those that are stored in the ledger by scope, and those in force in this process."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.config.settings import RETRY_NAMES, SETTING_TYPES
from shoal.config.sources import Origin, RawValue
from shoal.config.values import read_value
from shoal.errors import InvalidSetting, LedgerError, WrongState
from shoal.model.redaction import without_secret_settings

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.views import StoredSettingsView

MAX_SCOPES = 200
# A process that dies while it changes settings holds up the others for so long.
CHANGE_SECONDS = 5.0
# Other scopes have commands of their own, which check their values.
_SCOPE = re.compile(r"scraper:[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
# What can be set for a scraper while it runs: workers follow with their next heartbeat.
STORABLE = RETRY_NAMES


class EffectiveSettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of this process without secrets, and where its value came from."""

    name: str
    value: Any
    origin: str


async def list_stored(ledger: Ledger) -> list[StoredSettingsView]:
    """The newest settings of each scope, without secrets."""
    stored = await ledger.settings.list(limit=MAX_SCOPES)
    return [msgspec.structs.replace(each, value=without_secret_settings(each.value)) for each in stored]


def effective_settings(settings: Settings) -> Iterator[EffectiveSettingView]:
    """Every setting, then the tables of single scrapers, pools and sinks in the files."""

    def rows(shown: Mapping[str, Any], origins: Mapping[str, Any], before: str = "") -> Iterator[EffectiveSettingView]:
        for name, value in shown.items():
            yield EffectiveSettingView(name=before + name, value=value, origin=str(origins[name]))

    yield from rows(settings.shown(), settings.origins)
    for table in settings.scrapers.values():
        yield from rows(table.shown(), table.origins, f"scrapers.{table.name}.")
    for egress in settings.egress.values():
        yield from rows(egress.shown(), egress.origins, f"egress.{egress.name}.")
    for sink in settings.sinks.values():
        yield from rows(sink.shown(), sink.origins, f"sinks.{sink.name}.")


async def read_version(ledger: Ledger, scope: str) -> int:
    """The newest version of a scope; 0 when nothing is stored for it."""
    found = await ledger.settings.get(_checked(scope))
    return 0 if found is None else found[0]


async def put_stored(
    ledger: Ledger, scope: str, value: Mapping[str, Any], *, version: int | None = None, by: str
) -> int:
    """Store the retry options of `scraper:NAME` as a new version, and an event. Returns the version.

    Options that are left out, or null, are as configured; other settings of the scope stay. Raises InvalidSetting for
    other names and values, and WrongState unless `version`, if given, is the newest one.
    """
    given = check_storable(value)

    def change(before: Mapping[str, Any]) -> dict[str, Any]:
        return {**{name: each for name, each in before.items() if name not in STORABLE}, **given}

    return await change_stored(ledger, _checked(scope), change, version=version, by=by)


async def change_stored(
    ledger: Ledger,
    scope: str,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    version: int | None = None,
    by: str,
) -> int:
    """Store what `change` makes of the newest settings of a scope, and an event with what differs. Returns the version.

    Changes by several processes at once are made one after the other, so that none is lost. Raises WrongState when
    others change them all the time, or unless `version`, if given, is the newest one.
    """
    async with _changing(ledger, scope):
        found = await ledger.settings.get(scope)
        newest, before = (0, {}) if found is None else found
        if version is not None and version != newest:
            raise WrongState(
                f"The settings of {scope} have the version {newest}, not {version}: somebody else changed them.",
                remedy="Read them again and repeat the change.",
            )
        after = dict(change(before))
        stored = await ledger.settings.put(scope, after, by=by)
    names = sorted(before.keys() | after.keys())
    changed = {name: after.get(name) for name in names if before.get(name) != after.get(name)}
    await ledger.runs.record_event(
        None, "settings.stored", scope, {"version": stored, **without_secret_settings(changed)}, by=by
    )
    return stored


@asynccontextmanager
async def _changing(ledger: Ledger, scope: str) -> AsyncIterator[None]:
    """For the length of a block no other process changes the settings of the scope."""
    lock, owner = f"settings/{scope}", secrets.token_hex(8)
    deadline = time.monotonic() + 2 * CHANGE_SECONDS
    while not await ledger.locks.acquire(lock, owner, CHANGE_SECONDS):
        if time.monotonic() > deadline:
            raise WrongState(f"The settings of {scope} are being changed.", remedy="Try again in a moment.")
        await asyncio.sleep(random.uniform(0.02, 0.1))
    try:
        yield
    finally:
        with suppress(LedgerError):  # it then ends by itself
            await ledger.locks.release(lock, owner)


def check_storable(value: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not null. Raises InvalidSetting for a name or a value that cannot be stored."""
    given = {}
    for name, each in value.items():
        if name not in STORABLE:
            raise InvalidSetting(
                f"{name!r} cannot be stored for a scraper.", remedy=f"Those that can: {', '.join(STORABLE)}."
            )
        if each is not None:
            origin = Origin("request", f"{name} in the request")
            given[name] = read_value(name, SETTING_TYPES[name], RawValue(each, origin))
    return given


def _checked(scope: str) -> str:
    if _SCOPE.fullmatch(scope) is None:
        raise InvalidSetting(f"{scope!r} is not a scope such as `scraper:NAME`.", remedy="Correct the scope.")
    return scope
