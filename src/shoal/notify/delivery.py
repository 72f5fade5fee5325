"""Delivers raised alerts through the apprise process, with retries, and checks addresses.

Each delivery has a lock. A process that has an address takes it, renews it while it tries, and completes it when the
alert was delivered or given up; if the process dies, another one takes the lock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from shoal.config.settings import Settings
from shoal.config.values import Addresses, AlertKind
from shoal.errors import InvalidSetting, LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.redaction import redacted
from shoal.notify.apprise_process import SendRequest, SendResponse
from shoal.notify.conditions import DELIVERY_PREFIX, RAISE_PREFIX, Alert, delivery_lock
from shoal.notify.watch import MAX_RECENT_ALERTS, ledger_now

SEND_SECONDS = 30.0
# apprise's notification types.
_TYPES = {
    AlertKind.FINISH: "success",
    AlertKind.FAILURE: "failure",
    AlertKind.STALL: "warning",
    AlertKind.ERRORS: "failure",
    AlertKind.COVERAGE: "warning",
    AlertKind.SINK: "warning",
}
DELIVERY_LOCK = "alert-deliver"
LOCK_SECONDS = 60.0
RENEW_SECONDS = 15.0
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 2.0, 300.0
MAX_TRIES = 10
# Older alerts are not delivered.
MAX_ALERT_AGE = dt.timedelta(hours=1)
DELIVERED, UNDELIVERED = "delivered", "undelivered"

Send = Callable[[tuple[str, ...], Alert], Awaitable[list[str]]]


async def send(urls: tuple[str, ...], alert: Alert) -> list[str]:
    """Send an alert to all addresses. Returns per address why it failed, empty on success."""
    return await send_text(urls, alert.title, alert.body, _TYPES[alert.kind])


async def send_text(urls: tuple[str, ...], title: str, body: str, type: str = "info") -> list[str]:
    """Send a message as `send` does. Each address has its own process, so that a hanging one delays no other."""
    requests = [SendRequest(urls=(url,), title=title, body=body, kind=type) for url in urls]
    answers = await asyncio.gather(*map(_run_apprise, requests))
    return [answer if isinstance(answer, str) else _reason(answer) for answer in answers]


def _reason(answer: SendResponse) -> str:
    return answer.reasons[0] if answer.installed else "apprise is not installed (pip install 'shoal[notify]')."


async def check_addresses(settings: Settings) -> None:
    """Raise InvalidSetting unless apprise is installed and can parse every address, also those of scrapers' tables."""
    given = {str(settings.origins.get("notify", "notify")): settings.notify}
    for table in settings.scrapers.values():
        if "notify" in table.values:
            given[str(table.origins["notify"])] = table.values["notify"]
    numbered = [
        (origin, number, addresses, url)
        for origin, addresses in given.items()
        for number, url in enumerate(addresses.urls)
    ]
    if not numbered:
        return
    answer = await _run_apprise(SendRequest(urls=tuple(url for *_, url in numbered)))
    if isinstance(answer, str):
        raise InvalidSetting(f"The addresses of notify cannot be checked: {answer}", remedy="Try again.")
    if not answer.installed:
        raise InvalidSetting(
            "notify has addresses, but apprise, which sends to them, is not installed.",
            remedy="Install it with pip install 'shoal[notify]', or leave notify empty.",
        )
    for (origin, number, addresses, _), reason in zip(numbered, answer.reasons, strict=True):
        if reason:
            raise _invalid_address(origin, number, addresses)


def _invalid_address(origin: str, number: int, addresses: Addresses) -> InvalidSetting:
    return InvalidSetting(
        f"Address {number + 1} of notify (from {origin}), {addresses.shown()[number]}, cannot be parsed by apprise.",
        remedy=f"Correct {origin}: use an apprise address, such as mailto://, slack://, tgram:// or json://.",
    )


async def _run_apprise(request: SendRequest) -> SendResponse | str:
    """Run the request in a child process. Returns its response, or the reason why there is none."""
    # A new session: Ctrl-C at the terminal must not stop the delivery. -P: no imports from the current folder.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "shoal.notify.apprise_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SEND_SECONDS):
            output, _ = await process.communicate(msgspec.json.encode(request))
    except TimeoutError:
        return f"no answer within {SEND_SECONDS:g} s."
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(output, type=SendResponse)
    except msgspec.DecodeError:
        return f"the sending process ended with exit code {process.returncode}."


class Deliveries:
    """The deliveries of this process, as tasks on one event loop. `by` identifies the process in locks."""

    def __init__(self, settings: Settings, send: Send, *, by: str, log: Log) -> None:
        self._settings = settings
        self._send = send
        self._by = by
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}
        addresses = [settings.notify, *(table.values.get("notify") for table in settings.scrapers.values())]
        self._has_addresses = any(addresses)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def run_if_due(self, ledger: Ledger, *, every: float) -> bool:
        """Start deliveries unless another process did within `every` seconds. Returns whether this process did."""
        if not self._has_addresses or not await ledger.locks.acquire(DELIVERY_LOCK, self._by, every):
            return False
        await self.start_pending(ledger)
        return True

    async def start_pending(self, ledger: Ledger) -> None:
        """Start the delivery of recent alerts that no live process delivers."""
        if not self._has_addresses:
            return
        now = await ledger_now(ledger)
        delivered = {
            lock.name for lock in await ledger.locks.list(DELIVERY_PREFIX, limit=MAX_RECENT_ALERTS) if lock.finished_at
        }
        raised = [lock for lock in await ledger.locks.list(RAISE_PREFIX, limit=MAX_RECENT_ALERTS) if lock.finished_at]
        for lock in sorted(raised, key=lambda lock: lock.finished_at or now):  # oldest first
            if lock.finished_at is None or now - lock.finished_at > MAX_ALERT_AGE:
                continue
            alert = msgspec.convert(lock.value, Alert)
            name, addresses = delivery_lock(alert), self._addresses(alert)
            if not addresses or name in delivered or name in self._tasks:
                continue
            if await ledger.locks.acquire(name, self._by, LOCK_SECONDS):
                seconds_left = (MAX_ALERT_AGE - (now - lock.finished_at)).total_seconds()
                self._start_task(name, self._deliver(ledger, alert, addresses, time.monotonic() + seconds_left))

    def _start_task(self, name: str, delivery: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(delivery)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for the deliveries, then cancel them; other processes take over what is left."""
        try:
            if tasks := list(self._tasks.values()):
                await asyncio.wait(tasks, timeout=seconds)
        finally:
            for task in (left := list(self._tasks.values())):
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _addresses(self, alert: Alert) -> Addresses:
        settings = self._settings.with_scraper_table(alert.scraper)
        return settings.notify if alert.kind in settings.notify_on.split() else Addresses()

    async def _deliver(self, ledger: Ledger, alert: Alert, addresses: Addresses, give_up_at: float) -> None:
        name = delivery_lock(alert)
        try:
            try:
                outcome = await self._send_with_retries(ledger, alert, addresses, give_up_at)
            except asyncio.CancelledError:
                await ledger.locks.release(name, self._by)
                raise
            if outcome is not None:
                await self._record(ledger, alert, outcome)
        except LedgerError as error:  # when the lock expires, another process starts again
            self._log.warning("delivery interrupted", run=alert.run, error=error.message)
        except Exception as error:
            self._log.error("delivery crashed", run=alert.run, exc_info=error)

    async def _record(self, ledger: Ledger, alert: Alert, outcome: dict[str, object]) -> None:
        """Record what was sent, also when the delivery is cancelled meanwhile: nobody may send it again."""
        recording = asyncio.create_task(ledger.locks.complete(delivery_lock(alert), self._by, outcome))
        try:
            await asyncio.shield(recording)
        finally:
            await recording
            fields = {"run": alert.run, "kind": alert.kind.value, "tries": outcome["tries"]}
            if outcome["state"] == DELIVERED:
                self._log.info("alert delivered", **fields)
            else:
                self._log.error("delivery given up", **fields)

    async def _send_with_retries(
        self, ledger: Ledger, alert: Alert, addresses: Addresses, give_up_at: float
    ) -> dict[str, object] | None:
        """The outcome; None when this process lost the lock."""
        remaining, pause, tries = addresses, MIN_PAUSE_SECONDS, 0
        while True:
            tries += 1
            reasons = await self._send(remaining.urls, alert)
            answers = zip(remaining.urls, remaining.shown(), reasons, strict=True)
            failed = [(url, shown, why) for url, shown, why in answers if why]
            if not failed:
                return {"state": DELIVERED, "tries": tries}
            for _, shown, why in failed:
                reason = redacted(why, self._settings.secrets())
                fields = {"run": alert.run, "kind": alert.kind.value, "to": shown, "tries": tries, "reason": reason}
                self._log.warning("delivery failed", **fields)
            if tries >= MAX_TRIES or time.monotonic() + pause > give_up_at:
                return {"state": UNDELIVERED, "tries": tries, "to": [shown for _, shown, _ in failed]}
            remaining = Addresses(tuple(url for url, _, _ in failed))
            if not await self._sleep_and_renew(ledger, delivery_lock(alert), pause):
                return None
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _sleep_and_renew(self, ledger: Ledger, name: str, seconds: float) -> bool:
        """Sleep and renew the lock. Returns False when the lock was lost."""
        wake_at = time.monotonic() + seconds
        while (left := wake_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left, RENEW_SECONDS))
            if not await ledger.locks.renew(name, self._by, LOCK_SECONDS):
                return False
        return True
