"""A browser for tests: real Chromium, and stand-ins for what controls its requests."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.fetch.browser import BrowserFetcher
from shoal.fetch.chromium import find_chromium
from shoal.fetch.http import HttpFetcher
from shoal.model.egress import ProxyAddress
from tests.support import missing


def require_chromium() -> None:
    """Skip the test when there is no Chromium."""
    try:
        find_chromium(os.environ.get("SHOAL_CHROMIUM", ""), "")
    except UsageError as error:
        missing(f"{error.message} run `make parts` as root")


def make_browser(**options: Any) -> BrowserFetcher:
    """Skips the test when there is no Chromium."""
    require_chromium()
    http = HttpFetcher(connections=4, user_agent="shoal/0.1")
    return BrowserFetcher(http, chromium=os.environ.get("SHOAL_CHROMIUM", ""), **options)


async def close_browser(browser: BrowserFetcher) -> None:
    await browser.close()
    await browser._http.close()


class RecordingGate:
    """Remembers what was asked; `refused`: errors by path. Requests of the page are recorded in the same list.

    `lanes`: hosts that have one.
    """

    def __init__(self, *, refused: Mapping[str, Exception] | None = None, lanes: tuple[str, ...] = ()) -> None:
        self.refused = dict(refused or {})
        self.lanes = lanes
        self.asked: list[str] = []
        self.redirects: list[str] = []
        self.throttled: list[str | None] = []
        self.open = 0
        self.sent = 0

    async def before_request(self, url: str, hop: int) -> None:
        self.asked.append(url)
        for path, error in self.refused.items():
            if path in url:
                raise error
        self.open += 1

    async def on_redirect(self, url: str, method: str) -> None:
        self.redirects.append(url)

    async def before_send(self, hop: int) -> None: ...

    def after_send(self, hop: int) -> None:
        self.sent += 1

    def request_done(self, hop: int) -> None:
        self.open -= 1

    async def on_throttled(self, ended: Any) -> None:
        self.throttled.append(ended.host)

    async def for_page_request(self, url: str, *, navigation: bool) -> "RecordingGate | None":
        return self if navigation or any(lane in url for lane in self.lanes) else None


class FixedIdentity:
    """An identity with a proxy and headers of its own. `answered`: the responses that it was told about."""

    def __init__(self, key: str, proxy: ProxyAddress | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.proxy = proxy
        self._headers = dict(headers or {})
        self.answered: list[tuple[str, int]] = []

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        return self._headers

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        self.answered.append((url, status))


def children(process: int) -> dict[int, str]:
    """The processes below this one, with their command lines."""
    found: dict[int, str] = {}
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    queue = [process]
    while queue:
        for child in parents.get(queue.pop(), []):
            queue.append(child)
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found
