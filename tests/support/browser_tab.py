"""A tab of a real Chromium that shows the dashboard, and everything that goes wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Request,
    WebSocket,
    async_playwright,
    expect,
)

from shoal.errors import UsageError
from shoal.fetch.chromium import find_chromium
from tests.support import missing

PATIENCE = 60_000.0
expect.set_options(timeout=PATIENCE)  # a default timeout of a page does not apply to it
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
# A size of the window and nothing else may move: animations end at once.
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
# What a script of a page cannot hide: a violation of the policy, and a planted script that runs.
WATCH = """
window.__ran = [];
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
"""
# What a page may still be waiting for: its first data.
LOADED = """() => {
  const heads = [...document.querySelectorAll("main h1")];
  return heads.length > 0 && document.querySelector("main .placeholder") === null;
}"""
SETTLING_FRAMES = 100
AFTER_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
Rules = Literal["all", "contrast", "structure"]
AXE_OPTIONS: dict[Rules, dict[str, Any]] = {
    "all": {},
    "contrast": {"runOnly": ["color-contrast"]},
    "structure": {"rules": {"color-contrast": {"enabled": False}}},
}
RUN_AXE = """async (options) => {
  const found = await axe.run(document, { resultTypes: ["violations"], ...options });
  return found.violations.flatMap((violation) => violation.nodes.map((node) =>
    `${violation.id}: ${node.target.join(" ")}: ${(node.failureSummary || "").replace(/\\s+/g, " ")}`));
}"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Skips the test when there is no Chromium."""
    async with async_playwright() as driver:
        try:
            program = find_chromium(os.environ.get("SHOAL_CHROMIUM", ""), driver.chromium.executable_path)
        except UsageError as error:
            missing(f"{error.message} run `make parts` as root")
        browser = await driver.chromium.launch(
            executable_path=program, args=list(FLAGS), chromium_sandbox=os.geteuid() != 0, timeout=PATIENCE
        )
        try:
            yield browser
        finally:
            await browser.close()


@cache
def axe_source() -> str:
    return AXE.read_text()


class Tab:
    """A page of the dashboard at `url`.

    `requests`: the addresses that it asked for; `sockets`: its live connections, open or not; `frames`: what they have
    brought; `problems`: errors, dialogs and violations of the policy.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url.rstrip("/")
        self.requests: list[str] = []
        self.sockets: list[WebSocket] = []
        self.frames: list[str] = []
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("request", self._on_request)
        page.on("websocket", self._on_websocket)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("popup", lambda popup: self.problems.append(f"popup: {popup.url}"))

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_websocket(self, socket: WebSocket) -> None:
        self.requests.append(socket.url)
        self.sockets.append(socket)
        socket.on("framereceived", lambda frame: self.frames.append(str(frame)))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    # What a person does

    async def open(self, path: str) -> None:
        """Type an address and wait for what it shows."""
        await self.page.goto(f"{self.url}/{path}")
        await self.loaded()

    async def loaded(self) -> None:
        await self.page.wait_for_function(LOADED)

    async def disconnected(self) -> None:
        """Wait until the live connection is closed."""
        if not self.sockets[-1].is_closed():
            await self.sockets[-1].wait_for_event("close", timeout=PATIENCE)

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    def button(self, name: str | re.Pattern[str], *, within: Locator | None = None) -> Locator:
        return (within or self.page.locator("main")).get_by_role("button", name=name, exact=isinstance(name, str))

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    @property
    def heading(self) -> Locator:
        return self.page.get_by_role("heading", level=1)

    @property
    def connection(self) -> Locator:
        return self.page.get_by_role("status", name="Connection")

    def stat(self, label: str) -> Locator:
        """The figure with this label."""
        return self.page.locator("main .stat").filter(has=self.page.get_by_text(label, exact=True)).locator("dd").first

    async def is_at(self, path: str) -> None:
        await expect(self.page).to_have_url(re.compile(re.escape(f"{self.url}/{path}") + "$"), timeout=PATIENCE)

    async def focused(self) -> str:
        """What has the focus: its name, else its text."""
        found: str = await self.page.evaluate(
            """() => { const at = document.activeElement;
                       return at.getAttribute("aria-label") || at.innerText || at.tagName; }"""
        )
        return found.strip()

    # What must hold

    async def violations(self, which: Rules = "all") -> list[str]:
        """What axe-core finds on the page as it is: with all its rules, the one about contrast, or all others."""
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(axe_source())
        await self.page.evaluate(AFTER_FRAMES)
        found: list[str] = await self.page.evaluate(RUN_AXE, AXE_OPTIONS[which])
        return found

    async def overflow(self, width: int) -> int:
        """How far the page can be scrolled sideways in a window of this width, in pixels, when it has settled."""
        await self.page.set_viewport_size({"width": width, "height": 900})
        found = 0
        # Charts fit themselves to a new width some frames after the page.
        for _ in range(SETTLING_FRAMES):
            await self.page.evaluate(AFTER_FRAMES)
            if (found := await self.page.evaluate(OVERFLOW)) <= 0:
                break
        return found

    def check(self, *allowed: str) -> None:
        """Nothing went wrong but what has one of these texts in it, and nothing was asked of another origin."""
        problems = [each for each in self.problems if not any(text in each for text in allowed)]
        assert not problems, "\n".join(problems)
        own = urlsplit(self.url).netloc
        elsewhere = {each for each in self.requests if urlsplit(each).netloc != own}
        assert not elsewhere, elsewhere
        assert self.requests, "no request was recorded"


@asynccontextmanager
async def open_tab(
    browser: Browser, url: str, *, theme: Literal["light", "dark"] = "light", width: int = 1440, **options: Any
) -> AsyncIterator[Tab]:
    """A tab with a profile of its own."""
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", **options
    )
    try:
        await context.add_init_script(WATCH)
        yield Tab(await context.new_page(), url)
    finally:
        await context.close()
