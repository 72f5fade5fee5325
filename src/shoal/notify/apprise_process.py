"""Sends alerts with apprise, in a child process: `python -m shoal.notify.apprise_process`, JSON in and out.

It costs half a second and tens of megabytes to load and knows no time limit that always holds, so no worker loads it.
Addresses come by standard input, where nobody else can see them.
"""

from __future__ import annotations

import logging
import re
import sys

import msgspec

LONGEST_REASON = 500
_URL = re.compile(r"url: \S+")


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to send where. Without a `body` the addresses are only tried for whether apprise understands them."""

    urls: tuple[str, ...]
    title: str = ""
    body: str = ""
    kind: str = "info"


class SendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`installed`: apprise is there. `reasons`: one for each address, empty where all went well."""

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
            return "apprise does not understand the address."
        captured.clear()
        if not request.body or service.notify(
            request.body, title=request.title, notify_type=request.kind, body_format="text"
        ):
            return ""
        return captured.reason() or "the service did not take it."

    return SendResponse(installed=True, reasons=tuple(send(url) for url in request.urls))


class _LogCapture(logging.Handler):
    """What apprise says about its troubles; the exceptions that it met are worth more than its own words."""

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
        return " ".join(dict.fromkeys(self._messages))[:LONGEST_REASON]


if __name__ == "__main__":
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SendRequest)
    sys.stdout.buffer.write(msgspec.json.encode(handle(request)))
