"""Log in and out in a real Chromium, what a viewer can press, and the dashboard below a sub-path behind nginx."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, expect

from shoal.ledger.protocols import Ledger
from shoal.model.access import Role
from shoal.service.access import add_token, remove_token
from tests.support import MissingPartError, missing
from tests.support.browser_tab import PATIENCE, Tab, open_tab
from tests.support.certificates import Certificate
from tests.support.nginx import shoal_proxy
from tests.support.project import Project
from tests.support.served import ServedProject
from tests.support.small_ledger import fill
from tests.web.test_pages import THEMES, WIDTHS

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]

# The browser itself says so of every answer with this status.
UNAUTHORIZED = "the server responded with a status of 401"
# A live connection that is refused for want of a session.
REFUSED = "WebSocket connection to"


class Guarded(NamedTuple):
    """A server that asks everybody for a token. `run`: a run of its ledger."""

    served: ServedProject
    run: str
    operator: str
    viewer: str


@contextmanager
def guarding(project: Project, *options: str) -> Iterator[Guarded]:
    project.shoal("db", "migrate", "-q")
    secrets = [
        project.shoal("serve", "token", "add", role, "--role", role, "-q").stdout.strip()
        for role in ("operator", "viewer")
    ]
    with ServedProject(project, *options) as served:
        run = served.ask(fill).id
        yield Guarded(served, run, *secrets)


@pytest.fixture
def guarded(project: Project) -> Iterator[Guarded]:
    with guarding(project, "--require-token") as found:
        yield found


async def log_in(tab: Tab, token: str) -> None:
    await tab.page.get_by_label("Token").fill(token)
    await tab.page.get_by_role("button", name="Log in").click()


async def test_log_in_and_out(browser: Browser, guarded: Guarded) -> None:
    async with open_tab(browser, guarded.served.url) as tab:
        # A link to a page leads to the log-in, and from there to the page.
        await tab.page.goto(f"{tab.url}/runs/{guarded.run}/items?state=dead")
        await expect(tab.page.get_by_label("Token")).to_be_focused(timeout=PATIENCE)
        for theme in THEMES:
            await tab.page.emulate_media(color_scheme=theme)
            assert await tab.violations() == []
        assert [width for width in WIDTHS if await tab.overflow(width) > 0] == []
        await tab.page.set_viewport_size({"width": 1440, "height": 900})

        await log_in(tab, "shoal_wrong")
        await expect(tab.page.get_by_text("The token is not valid")).to_be_visible()
        assert await tab.violations() == []
        await log_in(tab, guarded.operator)
        await expect(tab.heading).to_have_text("Items")
        await expect(tab.page.get_by_role("status", name="Items that match")).to_have_text("2")
        await expect(tab.connection).to_have_text("live")
        assert await tab.page.evaluate("() => document.cookie") == "", "scripts cannot read the session"
        assert guarded.operator not in await tab.page.evaluate(
            "() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }])"
        )
        # A session is kept by the browser, not by the page.
        await tab.page.reload()
        await expect(tab.heading).to_have_text("Items")

        await tab.press("g", "r")
        await tab.loaded()
        await tab.page.get_by_role("button", name="Log out").click()
        await expect(tab.page.get_by_label("Token")).to_be_focused()
        await expect(tab.page.get_by_text("shop.example")).to_have_count(0)
        await tab.disconnected()
        await tab.page.go_back()
        await expect(tab.page.get_by_label("Token")).to_be_visible()
        # Whoever logs in next sees nothing of the one before, and has their own name.
        await log_in(tab, guarded.viewer)
        await expect(tab.page.get_by_role("banner").get_by_text("(viewer)")).to_be_visible()
        await expect(tab.connection).to_have_text("live")
        tab.check(UNAUTHORIZED, REFUSED)


async def test_the_page_notices_that_its_session_has_ended(browser: Browser, guarded: Guarded) -> None:
    async with open_tab(browser, guarded.served.url) as tab:
        await tab.page.goto(tab.url)
        await log_in(tab, guarded.operator)
        await expect(tab.heading).to_have_text("Overview")

        async def remove(ledger: Ledger) -> None:
            await remove_token(ledger, "operator", by="ann@desk")

        await asyncio.to_thread(guarded.served.ask, remove)
        # Whatever asks first: a press, a reading, or the live connection.
        await tab.press("g", "w")
        await expect(tab.page.get_by_label("Token")).to_be_visible(timeout=PATIENCE)

        async def add(ledger: Ledger) -> str:
            return (await add_token(ledger, "again", Role.OPERATOR)).secret

        await log_in(tab, await asyncio.to_thread(guarded.served.ask, add))
        await expect(tab.heading).to_have_text("Fleet")
        await expect(tab.connection).to_have_text("live", timeout=PATIENCE)
        tab.check(UNAUTHORIZED, REFUSED)


async def test_a_viewer_cannot_press(browser: Browser, guarded: Guarded) -> None:
    run = f"runs/{guarded.run}"
    pressed = {
        run: ("Pause", "Scale", "Pace"),
        f"{run}/items": ("Retry", "Cancel"),
        f"{run}/failures": ("Retry all", "Retry"),
        f"{run}/lanes?lane=shop.example": ("Change pace", "Hold", "Block"),
        "fleet": ("Start a pool", "Drain"),
        "egress?pool=isp&exit=000000000001": ("Test", "Rest", "Ban"),
        "activity?view=alerts": ("Send a test alert",),
    }
    async with open_tab(browser, guarded.served.url) as tab:
        await tab.page.goto(tab.url)
        await log_in(tab, guarded.viewer)
        await expect(tab.heading).to_have_text("Overview")
        tab.requests.clear()
        for path, names in pressed.items():
            await tab.open(path)
            for name in names:
                button = tab.button(name, within=tab.dialog if "exit=" in path else None).first
                await expect(button).to_have_attribute("aria-disabled", "true")
                await button.click(force=True)
                await button.press("Enter")
                await button.press("Space")
                tip = tab.page.locator("#tooltip")
                await expect(tip).to_contain_text("iewer")
                assert await tip.evaluate("(tip) => tip.matches(':popover-open')"), "it would be behind a dialog"
                await expect(tab.page.locator("dialog form")).to_have_count(0)
        await tab.open(run)
        await tab.page.get_by_role("button", name="More actions").click()
        await tab.page.get_by_role("menuitem", name="Cancel the run").click(force=True)
        await expect(tab.dialog).to_have_count(0)
        assert await tab.violations() == []
        # The server refuses what the page does not offer.
        answer = await tab.page.evaluate(
            """async (run) => (await fetch(`api/v1/runs/${run}/pause`, {
                 method: "POST", headers: { "X-Shoal-CSRF": "1" } })).status""",
            guarded.run,
        )
        assert answer == 403
        tab.check(UNAUTHORIZED, "status of 403")


@pytest.fixture(params=[False, True], ids=["path kept", "path removed"])
def proxied(
    project: Project, certificate: Certificate, request: pytest.FixtureRequest
) -> Iterator[tuple[Guarded, str]]:
    """A server behind nginx, which speaks TLS, and the address that browsers use."""
    with guarding(project, "--root-path", "/shoal", "--trust-proxy", "127.0.0.1") as guarded:
        upstream = guarded.served.url.removesuffix("/shoal")
        try:
            with shoal_proxy(upstream, certificate, removes_path=request.param) as port:
                yield guarded, f"https://127.0.0.1:{port}/shoal"
        except MissingPartError as error:
            missing(str(error))


async def test_below_a_sub_path_behind_nginx(browser: Browser, proxied: tuple[Guarded, str]) -> None:
    guarded, url = proxied
    async with open_tab(browser, url, ignore_https_errors=True) as tab:
        await tab.page.goto(f"{url}/runs/{guarded.run}/failures")
        await log_in(tab, guarded.operator)
        await expect(tab.heading).to_have_text("Failures")
        await expect(tab.connection).to_have_text("live")
        for key, path in (("r", "runs"), ("e", "egress"), ("u", f"runs/{guarded.run}"), ("m", None), ("o", "")):
            await tab.press("g", key)
            await tab.is_at(f"runs/{guarded.run}/map" if path is None else path)
            await tab.loaded()
        await tab.page.get_by_role("link", name="shop").first.click()
        await tab.loaded()
        await tab.page.go_back()
        await expect(tab.heading).to_have_text("Overview")
        await tab.page.get_by_role("button", name="Log out").click()
        await expect(tab.page.get_by_label("Token")).to_be_visible()
        assert [each for each in tab.requests if each.startswith("wss://")], "the live connection is encrypted too"
        below = urlsplit(url).path + "/"
        outside = [each for each in tab.requests if not urlsplit(each).path.startswith(below)]
        assert outside == []
        tab.check(UNAUTHORIZED)
