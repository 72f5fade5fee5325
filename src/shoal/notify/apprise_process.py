"""Sends alerts with apprise, in a child process: `python -m shoal.notify.apprise_process`, JSON in and out.

apprise takes half a second and tens of megabytes to load and has no reliable timeout, so workers do not load it.
Addresses are passed on standard input, because command lines are visible to other users.
"""

from __future__ import annotations

import logging
import re
import sys

import msgspec

MAX_REASON_LENGTH = 500
_URL = re.compile(r"url: \S+")


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its addresses. Without a `body` apprise only parses the addresses."""

    urls: tuple[str, ...]
    title: str = ""
    body: str = ""
    kind: str = "info"


class SendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`installed`: whether apprise is. `reasons`: one per address, why sending failed; empty on success."""

    installed: bool
    reasons: tuple[str, ...] = ()


def handle(request: SendRequest) -> SendResponse:
    try:
        import apprise
    except ImportError:
        return SendResponse(installed=False)
    asset = apprise.AppriseAsset(app_id="Shoal", app_desc="Shoal", app_url="", image_url_mask="", image_url_logo="")
    captured = _LogCapture()
    logger = logging.getLogger("apprise")
    logger.addHandler(captured)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    def send(url: str) -> str:
        service = apprise.Apprise(asset=asset)
        if not service.add(url):
            return "apprise cannot parse the address."
        captured.clear()
        if not request.body or service.notify(
            request.body, title=request.title, notify_type=request.kind, body_format="text"
        ):
            return ""
        return captured.reason() or "the service rejected the message."

    return SendResponse(installed=True, reasons=tuple(send(url) for url in request.urls))


class _LogCapture(logging.Handler):
    """Collects apprise's warnings, and its debug messages that name an exception."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = _URL.sub("url: ***", " ".join(record.getMessage().split()))
        if record.levelno >= logging.WARNING or "Exception" in text:
            self._messages.append(text)

    def clear(self) -> None:
        self._messages.clear()

    def reason(self) -> str:
        return " ".join(dict.fromkeys(self._messages))[:MAX_REASON_LENGTH]


if __name__ == "__main__":
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SendRequest)
    sys.stdout.buffer.write(msgspec.json.encode(handle(request)))
