"""Sending, and finding out beforehand whether that can work."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import msgspec

from shoal.config.settings import Settings
from shoal.config.telling import Addresses
from shoal.errors import InvalidSetting
from shoal.notify.alert import Alert, Kind
from shoal.notify.post import Answer, Letter

SEND_SECONDS = 30.0
# As apprise names them; services show them by a colour or a sign.
_TYPES = {Kind.FINISH: "success", Kind.FAILURE: "failure", Kind.STALL: "warning", Kind.ERRORS: "failure"}


async def send(urls: tuple[str, ...], alert: Alert) -> list[str]:
    """Tell all of them. One reason for each: why it did not work, empty where it did."""
    return await send_text(urls, alert.title, alert.body, _TYPES[alert.kind])


async def send_text(urls: tuple[str, ...], title: str, body: str, type: str = "info") -> list[str]:
    """As `send`. A process for each, so that one that hangs keeps no other from being told."""
    letters = [Letter(urls=(url,), title=title, body=body, kind=type) for url in urls]
    answers = await asyncio.gather(*map(_ask, letters))
    return [answer if isinstance(answer, str) else _reason(answer) for answer in answers]


def _reason(answer: Answer) -> str:
    return answer.reasons[0] if answer.installed else "apprise is not installed."


async def check_addresses(settings: Settings) -> None:
    """Raise InvalidSetting unless apprise is there and understands every address, those of scrapers' tables too."""
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
    answer = await _ask(Letter(urls=tuple(url for *_, url in numbered)))
    if isinstance(answer, str):
        raise InvalidSetting(f"The addresses of notify cannot be checked: {answer}", remedy="Try again.")
    if not answer.installed:
        raise InvalidSetting(
            "notify names addresses, but apprise, which sends to them, is not installed.",
            remedy="Install it with pip install 'shoal[notify]', or leave notify empty.",
        )
    for (origin, number, addresses, _), reason in zip(numbered, answer.reasons, strict=True):
        if reason:
            raise _wrong(origin, number, addresses)


def _wrong(origin: str, number: int, addresses: Addresses) -> InvalidSetting:
    return InvalidSetting(
        f"Address {number + 1} of notify (from {origin}), {addresses.shown()[number]}, is none that apprise "
        f"understands.",
        remedy=f"Correct {origin}: mailto, slack, tgram, json and so on, each with what its service needs.",
    )


async def _ask(letter: Letter) -> Answer | str:
    """The answer of a process that sends, or why there is none."""
    # A session of its own: Ctrl-C at the terminal stops the work, not the news of it. -P: no file of the current
    # folder is taken for a module.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "shoal.notify.post"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SEND_SECONDS):
            said, _ = await process.communicate(msgspec.json.encode(letter))
    except TimeoutError:
        return f"no answer within {SEND_SECONDS:g} s."
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(said, type=Answer)
    except msgspec.DecodeError:
        return f"the process that sends ended with exit code {process.returncode}."
