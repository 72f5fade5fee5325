"""Logins at work: when they run, what ends a session, what a failing login does, and where sessions are kept.

The site's own log is the witness.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Download, Http, Item, Log, LoggedOut, Page, Permanent, Scraper, Tab, secret
from shoal.config import Settings
from shoal.errors import LoginBroken, SecretMissing, UsageError
from shoal.fetch.chromium import find_chromium
from shoal.fetch.session import SessionState
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, ItemState, NewItem, prepare
from shoal.model.views import ItemView
from shoal.model.worker import Scope
from shoal.testing import RecordedLog
from shoal.wiring import build_attempts, build_fetcher, build_worker, ledger_context
from shoal.worker import logins as logins_module
from shoal.worker import session_store
from shoal.worker.session_store import SessionCipher, SessionFiles, SharedSessions, file_name
from shoal.worker.state import WorkerOptions, WorkSummary
from tests.support import missing
from tests.support.member_site import PASSWORD, MemberSite
from tests.worker.test_egress import ScriptedPool

KEY = "q83vEjRWeJASNFZ4kBI0VniQEjRWeJASNFZ4kBI0Vng="
OTHER_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


@dataclass
class Account:
    password: str = PASSWORD


class Vault:
    header = "Bearer given"


class Members:
    """A scraper of a site for members, and workers for it."""

    def __init__(self, ledger: Ledger, settings: Settings, site: MemberSite) -> None:
        self.ledger = ledger
        self.settings = settings
        self.site = site
        self.log = RecordedLog()
        self.run_id = ""
        self.scraper = self.new_scraper()

    def new_scraper(self) -> Scraper:
        scraper = Scraper("members", settings=Account)
        scraper.configure(settings={}, stages={})
        return scraper

    async def log_in(self, http: Http, account: Account) -> None:
        """What most logins look like."""
        page = await http.get(f"{self.site.url}/login")
        answer = await http.submit(page.form(), {"user": "me", "password": account.password})
        if "welcome" not in answer.text:
            raise Permanent("the site does not accept the password")

    def with_login(self, **options: Any) -> None:
        """A login by a form, and a stage for pages that need it."""

        @self.scraper.login(**options)
        async def enter(http: Http, account: Account) -> None:
            await self.log_in(http, account)

    def with_stage(self, **options: Any) -> None:
        @self.scraper.stage(**{"lane": None, "retries": 1, **options})
        async def item(page: Page) -> dict[str, str | None]:
            return {"n": page.css("h1::text").get()}

    async def fill(self, count: int, path: str = "/item/", **more: Any) -> None:
        stage = self.scraper.check().first_stage
        run = await self.ledger.runs.create(self.scraper.run_spec())
        await self.ledger.intake.enqueue(
            run.id, [stage.item(f"{self.site.url}{path}{n}", **more) for n in range(count)]
        )
        await self.ledger.runs.seal(run.id, by="test")
        self.run_id = run.id

    @contextlib.asynccontextmanager
    async def working(self, scraper: Scraper | None = None, **options: Any) -> AsyncIterator[asyncio.Task[WorkSummary]]:
        fetcher = build_fetcher(self.settings)
        chosen = WorkerOptions(scope=Scope(scraper="members"), **{"concurrency": 8, **options})
        worker = build_worker(scraper or self.scraper, self.settings, self.ledger, fetcher, chosen, log=self.log)
        task = asyncio.create_task(worker.work())
        try:
            async with asyncio.timeout(60):
                yield task
        finally:
            if not task.done():
                worker.stop_now()
            await asyncio.gather(task, return_exceptions=True)
            await fetcher.close()

    async def work(self, scraper: Scraper | None = None, **options: Any) -> WorkSummary:
        async with self.working(scraper, **options) as task:
            return await task

    async def items(self) -> tuple[ItemView, ...]:
        return (await self.ledger.reads.items(self.run_id, limit=1000)).rows

    async def until_logged(self, event: str) -> dict[str, Any]:
        while True:
            for logged in self.log.events:
                if event in logged.event:
                    return dict(logged.fields)
            await asyncio.sleep(0.005)


def claim_of(new: NewItem, stage: str) -> ClaimedItem:
    item = prepare(new, stage)
    return ClaimedItem(0, 1, 0, "try", stage, "", 0, item.url, item.key, item.payload, item.lane, 0, 0, 2)


@pytest.fixture
def site() -> Iterator[MemberSite]:
    with MemberSite() as site:
        yield site


@pytest.fixture
async def members(sqlite_path: Path, tmp_path: Path, site: MemberSite) -> AsyncIterator[Members]:
    settings = Settings(
        ledger=str(sqlite_path), robots=False, sessions=str(tmp_path / "sessions"), files=str(tmp_path / "files")
    )
    async with ledger_context(settings, migrate=True) as ledger:
        yield Members(ledger, settings, site)


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RETRY_SECONDS", "FIRST_REFUSED_SECONDS"):
        monkeypatch.setattr(logins_module, name, 0.2)


# When it runs


async def test_an_identity_is_logged_in_once_before_its_first_request(members: Members, site: MemberSite) -> None:
    members.with_login()
    members.with_stage()
    await members.fill(30)
    summary = await members.work()
    assert (summary.done, summary.records, len(site.logins)) == (30, 30, 1)
    assert [visit.path for visit in site.log[:2]] == ["/login", "/login"]
    assert site.statuses() == {200: 30}


async def test_a_login_may_return_headers_to_send(members: Members, site: MemberSite) -> None:
    @members.scraper.login
    async def enter(http: Http, account: Account, log: Log) -> dict[str, str]:
        log.info("asking for a token")
        answer = await http.post(f"{site.url}/token", form={"password": account.password})
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    @members.scraper.stage(lane=None)
    async def item(item: Item, http: Http) -> dict[str, str]:
        return {"text": (await http.get(item.url or "")).text}

    await members.fill(5)
    assert (await members.work()).done == 5
    assert {visit.session for visit in site.log if visit.path.startswith("/item/")} == {site.logins[0]}
    assert "asking for a token" in [event.event for event in members.log.events]


async def test_a_login_is_for_its_stages_only(members: Members, site: MemberSite) -> None:
    members.with_login(stages=["private"])

    @members.scraper.stage(lane=None, accept=[401])
    async def public(page: Page) -> None:
        assert page.status == 401

    @members.scraper.stage(lane=None)
    async def private(page: Page) -> None: ...

    await members.fill(3)
    assert (await members.work()).done == 3
    assert not site.logins


async def test_a_login_may_use_what_the_worker_has_and_code_that_blocks(members: Members, site: MemberSite) -> None:
    @members.scraper.provide
    def vault() -> Vault:
        return Vault()

    @members.scraper.login
    def enter(vault: Vault) -> dict[str, str]:
        return {"Authorization": vault.header}

    @members.scraper.stage(lane=None, accept=[401])
    async def item(page: Page) -> None: ...

    await members.fill(1)
    assert (await members.work()).done == 1
    assert site.log[-1].session == "given"


# Sessions that end


async def test_many_items_that_find_the_session_ended_cause_one_login_and_are_not_charged(
    members: Members, site: MemberSite
) -> None:
    """The 401 of a late answer removes the cookie; that must not be the new session's."""
    site.delay = 0.05
    site.ends_after = 20
    members.with_login()
    members.with_stage(retries=0)
    await members.fill(60)
    summary = await members.work()
    assert (summary.done, summary.dead, summary.retried) == (60, 0, 0)
    assert len(site.logins) == 2
    assert site.statuses()[401] > 1
    assert {item.tries for item in await members.items()} == {1}


@pytest.mark.parametrize("way", ["soft", "http", "file"])
async def test_other_signs_of_a_session_that_ended(members: Members, site: MemberSite, way: str) -> None:
    members.with_login()
    site.ends_after = 3

    if way == "soft":

        @members.scraper.stage(lane=None, retries=0)
        async def soft(page: Page) -> None:
            if page.css("form"):
                raise LoggedOut("the page has a login form")
    elif way == "http":

        @members.scraper.stage(lane=None, retries=0)
        async def fetch(item: Item, http: Http) -> None:
            await http.get(f"{site.url}/item/{item.key}")
    else:

        @members.scraper.stage(lane=None, retries=0, save=True)
        async def file(download: Download) -> None: ...

    await members.fill(9, "/soft/" if way == "soft" else "/file/")
    summary = await members.work(concurrency=2)
    assert (summary.done, summary.dead, len(site.logins)) == (9, 0, 2)


async def test_a_session_that_is_too_old_is_not_used(members: Members, site: MemberSite) -> None:
    site.delay = 0.02
    members.with_login(max_age=0.2)
    members.with_stage()
    await members.fill(60)
    assert (await members.work(concurrency=2)).done == 60
    assert len(site.logins) > 1
    assert site.statuses() == {200: 60}


async def test_one_item_that_no_login_helps_for_dies_and_the_others_go_on(members: Members, site: MemberSite) -> None:
    site.refuses = {"/item/7"}
    members.with_login()
    members.with_stage(retries=1, backoff_cap=0.1)
    await members.fill(20)
    summary = await members.work(concurrency=4)
    assert (summary.done, summary.dead) == (19, 1)
    (dead,) = [item for item in await members.items() if item.state is ItemState.DEAD]
    assert dead.error is not None
    assert "401 Unauthorized: a login is asked for, " in dead.error
    assert dead.error.endswith(("right after a new login", f"also after {logins_module.MAX_RERUNS} new logins"))
    assert len(site.logins) <= 1 + dead.tries * logins_module.MAX_RERUNS


async def test_a_login_that_succeeds_and_does_not_help_makes_the_items_wait(
    members: Members, site: MemberSite, quick_backoff: None
) -> None:
    site.refuses_all = True
    members.with_login()
    members.with_stage(retries=3, backoff_cap=0.1)
    await members.fill(100)
    async with members.working() as task:
        failed = await members.until_logged("login failed; items wait")
        assert "still answers '401 Unauthorized: a login is asked for' after a login that succeeded" in failed["error"]
        charged = sum(item.tries for item in await members.items())
        site.refuses_all = False
        summary = await task
    assert (summary.done, summary.dead) == (100, 0)
    assert charged <= 2 * logins_module.MAX_UNHELPFUL
    assert len(site.logins) < 20


async def test_sessions_that_end_all_the_time_are_reported(members: Members, site: MemberSite) -> None:
    members.with_login()
    members.with_stage(retries=0)

    @members.scraper.after_response
    def end(page: Page) -> None:
        site.end_sessions()

    await members.fill(12)
    assert (await members.work(concurrency=1)).done == 12
    warned = await members.until_logged("sessions end soon after each login")
    assert warned["logins"] == logins_module.FREQUENT_LOGINS


async def test_logged_out_without_a_login_says_so(members: Members, site: MemberSite) -> None:
    @members.scraper.stage(lane=None, retries=0)
    async def item(item: Item) -> None:
        raise LoggedOut("no session")

    await members.fill(1)
    assert (await members.work()).dead == 1
    (dead,) = await members.items()
    assert dead.error == "no session: item has no login; declare one with @members.login"


async def test_a_401_without_a_login_is_permanent(members: Members, site: MemberSite) -> None:
    members.with_stage()
    await members.fill(1)
    assert (await members.work()).dead == 1
    assert site.statuses() == {401: 1}


# Logins that fail


async def test_a_wrong_password_kills_nothing_and_is_not_sent_often(
    members: Members, site: MemberSite, quick_backoff: None
) -> None:
    site.password = "changed-since"
    members.with_login()
    members.with_stage(retries=0)
    await members.fill(50)
    async with members.working(lease=1.0) as task:
        failed = await members.until_logged("login failed; items wait")
        assert failed["error"] == "the site does not accept the password"
        async with asyncio.timeout(20):
            while not (report := (await members.ledger.workers.list())[0].report) or not report.egress:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (wait,) = report.egress
        assert wait.stage == "item"
        assert "enter() (test_logins.py:" in wait.why
        assert wait.why.endswith("fails: the site does not accept the password")
        assert not site.statuses()
        assert {item.tries for item in await members.items()} == {0}
        site.password = PASSWORD
        summary = await task
    assert (summary.done, summary.dead) == (50, 0)
    sent = [visit for visit in site.log if visit.method == "POST"]
    assert 2 <= len(sent) <= 6


@pytest.mark.parametrize("status", [503, 403, 429])
async def test_a_login_that_the_site_cannot_serve_is_repeated(
    members: Members, site: MemberSite, quick_backoff: None, status: int
) -> None:
    site.login_status = status
    members.with_login()
    members.with_stage(retries=0)
    await members.fill(20)
    async with members.working() as task:
        failed = await members.until_logged("login failed; items wait")
        assert str(status) in failed["error"]
        site.login_status = 200
        summary = await task
    assert (summary.done, summary.dead) == (20, 0)


async def test_a_login_that_takes_too_long_is_ended(members: Members, site: MemberSite, quick_backoff: None) -> None:
    tries: list[float] = []

    @members.scraper.login(timeout=0.2)
    async def enter(http: Http, account: Account) -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            await asyncio.sleep(30)
        await members.log_in(http, account)

    members.with_stage(retries=0, timeout=5.0)
    await members.fill(4)
    assert (await members.work()).done == 4
    assert (await members.until_logged("login failed"))["error"] == "it timed out after 0.2 s"


async def test_the_time_of_a_login_is_not_the_item_s(members: Members, site: MemberSite) -> None:
    @members.scraper.login
    async def enter(http: Http, account: Account) -> None:
        await asyncio.sleep(1.0)
        await members.log_in(http, account)

    members.with_stage(retries=5, backoff_cap=0.1, timeout=0.7)  # retries are for a busy machine
    await members.fill(8)
    assert (await members.work()).done == 8
    assert len(site.logins) == 1


async def test_code_that_is_wrong_stops_the_worker_and_kills_nothing(members: Members, site: MemberSite) -> None:
    @members.scraper.login
    async def enter(http: Http) -> None:
        http.gett  # type: ignore[attr-defined] # noqa: B018

    members.with_stage()
    await members.fill(5)
    with pytest.raises(LoginBroken, match=r"The login enter\(\) \(test_logins.py:\d+\) does not work: AttributeError"):
        await members.work()
    assert {item.state for item in await members.items()} == {ItemState.READY}


async def test_a_login_returns_headers_or_nothing(members: Members, site: MemberSite) -> None:
    @members.scraper.login
    async def enter(http: Http) -> str:
        return "token"

    members.with_stage()
    await members.fill(1)
    with pytest.raises(LoginBroken, match="returned a value of the type str"):
        await members.work()


async def test_a_secret_that_is_missing_stops_the_worker(members: Members, site: MemberSite) -> None:
    @members.scraper.login
    async def enter(http: Http) -> None:
        await http.get(site.url, headers={"X-Key": secret("NO_SUCH_SECRET")})

    members.with_stage()
    await members.fill(1)
    with pytest.raises(SecretMissing, match="NO_SUCH_SECRET"):
        await members.work()


# Politeness


async def test_a_login_keeps_the_pace_of_the_host(members: Members, site: MemberSite) -> None:
    members.with_login()

    @members.scraper.stage(delay=0.15, concurrency=2)
    async def item(page: Page) -> None: ...

    site.ends_after = 3
    await members.fill(5)
    summary = await members.work()
    assert (summary.done, summary.retried, len(site.logins)) == (5, 0, 2)
    starts = [visit.at for visit in site.log]
    assert len(starts) >= 10  # two logins of two requests, five items, and what found the session ended
    # Without the time of the logins it would be a third less; the site may have seen the first one late.
    assert starts[-1] - starts[0] > (len(starts) - 1) * 0.15 - 0.3


async def test_a_login_obeys_robots_txt(members: Members, site: MemberSite, quick_backoff: None) -> None:
    site.robots = "User-agent: *\nDisallow: /login"
    members.scraper.robots = True
    members.with_login()
    members.with_stage()
    await members.fill(2)
    async with members.working():
        failed = await members.until_logged("login failed; items wait")
    assert failed["error"].startswith("robots.txt of 127.0.0.1")
    assert {visit.path for visit in site.log} == {"/robots.txt"}


async def test_pages_of_a_login_are_not_kept_in_the_page_store(
    members: Members, site: MemberSite, tmp_path: Path
) -> None:
    members.settings = Settings(
        ledger=members.settings.ledger, robots=False, sessions="", store=str(tmp_path / "store")
    )
    members.with_login()
    members.with_stage()
    await members.fill(2)
    assert (await members.work()).done == 2
    kept = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(kept) == 2
    assert not any(b"/login" in path.read_bytes() for path in kept)


# Identities


@pytest.fixture
def pool(members: Members, monkeypatch: pytest.MonkeyPatch) -> ScriptedPool:
    """Three exits in turn."""
    pool = ScriptedPool("homes", "abc")
    monkeypatch.setattr("shoal.wiring.build_pool", lambda *_args, **_kwargs: pool)
    return pool


async def test_each_exit_has_a_session_of_its_own(members: Members, site: MemberSite, pool: ScriptedPool) -> None:
    members.with_login()
    members.with_stage(egress="homes", retries=0)
    site.ends_after = 12
    await members.fill(24)
    summary = await members.work(concurrency=3)
    assert (summary.done, summary.dead) == (24, 0)
    assert 3 < len(site.logins) <= 6
    sessions: dict[str, set[str]] = {}
    for visit in site.log:
        assert visit.exit in "abc", "a login goes out as its identity"
        if visit.path.startswith("/item/"):
            sessions.setdefault(visit.session, set()).add(visit.exit)
    assert len(sessions) == len(site.logins)
    assert all(len(exits) == 1 for exits in sessions.values())
    assert len(kept_sessions(members)) == 3


async def test_an_exit_that_cannot_log_in_is_left_to_others(
    members: Members, site: MemberSite, pool: ScriptedPool
) -> None:
    site.blocks = {"b"}
    members.with_login()
    members.with_stage(egress="homes", retries=0)
    await members.fill(24)
    summary = await members.work(concurrency=3)
    assert (summary.done, summary.dead) == (24, 0)
    assert {visit.exit for visit in site.log if visit.path.startswith("/item/")} == {"a", "c"}
    assert len([visit for visit in site.log if visit.exit == "b"]) == 1, "it is not asked for each item"


async def test_a_wrong_password_is_not_sent_from_every_exit(
    members: Members, site: MemberSite, pool: ScriptedPool
) -> None:
    site.password = "changed-since"
    members.with_login()
    members.with_stage(egress="homes", retries=0)
    await members.fill(10)
    async with members.working(lease=1.0):
        await members.until_logged("login failed; items wait")
        await asyncio.sleep(0.5)
    assert len([visit for visit in site.log if visit.method == "POST"]) == 1
    assert {item.tries for item in await members.items()} == {0}


# Where sessions are kept


def kept_sessions(members: Members) -> list[Path]:
    return sorted(Path(members.settings.sessions).rglob("*.json"))


async def test_a_session_is_kept_for_the_next_start_and_only_its_user_can_read_it(
    members: Members, site: MemberSite
) -> None:
    members.with_login()
    members.with_stage()
    await members.fill(10)
    await members.work(limit=4)
    (file,) = kept_sessions(members)
    assert file == Path(members.settings.sessions) / "members" / "1" / "enter-direct.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (file.parent, file.parent.parent, file.parent.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert site.logins[0] in file.read_text()
    await members.work()
    assert (len(site.logins), site.statuses()) == (1, {200: 10})


@pytest.mark.parametrize("why", ["ended", "old", "damaged", "other format"])
async def test_a_kept_session_that_cannot_be_used_is_replaced(members: Members, site: MemberSite, why: str) -> None:
    members.with_login(max_age=3600)
    members.with_stage(retries=0)
    await members.fill(10)
    await members.work(limit=4)
    (file,) = kept_sessions(members)
    if why == "ended":
        site.end_sessions()
    elif why == "old":
        state = msgspec.json.decode(file.read_bytes())
        file.write_bytes(msgspec.json.encode({**state, "at": time.time() - 4000}))
    else:
        file.write_text('{"shoal_session": 99}' if why == "other format" else "{]")
    summary = await members.work()
    assert (summary.dead, len(site.logins)) == (0, 2)
    assert all(item.state is ItemState.DONE for item in await members.items())
    assert site.logins[1] in file.read_text()


@pytest.mark.parametrize("what", ["password", "secret", "code"])
async def test_a_session_of_another_account_is_not_continued(
    members: Members, site: MemberSite, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def declare(*, changed: bool) -> None:
        members.scraper = members.new_scraper()
        site.password = "another-one" if changed else PASSWORD
        monkeypatch.setenv("MEMBERS_PASSWORD", site.password)
        if what == "password":
            members.scraper.configure(settings={"password": site.password}, stages={})

            @members.scraper.login
            async def enter(http: Http, account: Account) -> None:
                await members.log_in(http, account)
        elif what == "secret":

            @members.scraper.login
            async def enter(http: Http, account: Account) -> None:
                await http.submit(
                    (await http.get(f"{site.url}/login")).form(), {"password": secret("MEMBERS_PASSWORD")}
                )
        elif changed:

            @members.scraper.login
            async def enter(http: Http, account: Account) -> None:
                await members.log_in(http, Account(site.password))
        else:

            @members.scraper.login
            async def enter(http: Http, account: Account) -> None:
                await members.log_in(http, Account())

        members.with_stage()

    declare(changed=False)
    await members.fill(6)
    await members.work(limit=2)
    declare(changed=False)
    await members.work(limit=2)
    assert len(site.logins) == 1
    declare(changed=True)
    await members.work()
    assert len(site.logins) == 2
    content = kept_sessions(members)[0].read_text()
    assert PASSWORD not in content
    assert "another-one" not in content


async def test_cookies_that_changed_since_the_login_are_kept_when_the_worker_leaves(
    members: Members, site: MemberSite
) -> None:
    members.with_login()

    @members.scraper.stage(lane=None)
    async def item(item: Item, http: Http) -> None:
        await http.get(f"{site.url}/renew")

    await members.fill(1)
    await members.work()
    assert "renewed" in kept_sessions(members)[0].read_text()


async def test_workers_that_run_at_once_have_sessions_of_their_own(members: Members, site: MemberSite) -> None:
    site.delay = 0.05
    members.with_login()
    members.with_stage()
    await members.fill(60)
    done = await asyncio.gather(*(members.work(concurrency=2, batch_size=2) for _ in range(3)))
    assert sum(summary.done for summary in done) == 60
    assert len(site.logins) == len(kept_sessions(members)) == 3
    assert [file.parent.name for file in kept_sessions(members)] == ["1", "2", "3"]
    assert {visit.session for visit in site.log if visit.path.startswith("/item/")} == set(site.logins)


async def test_no_folder_means_no_kept_session(members: Members, site: MemberSite) -> None:
    members.settings = msgspec.structs.replace(members.settings, sessions="")
    members.with_login()
    members.with_stage()
    await members.fill(4)
    assert (await members.work()).done == 4
    assert (await members.work()).done == 0


async def test_a_folder_that_cannot_be_written_is_only_reported(members: Members, site: MemberSite) -> None:
    Path(members.settings.sessions).write_text("a file")
    members.with_login()
    members.with_stage()
    await members.fill(4)
    assert (await members.work()).done == 4
    assert (await members.until_logged("sessions are not kept"))["error"]


def test_a_link_in_the_place_of_a_session_is_not_followed(tmp_path: Path) -> None:
    log = RecordedLog()
    files = SessionFiles(tmp_path / "sessions", "members", log)
    files.save("enter", "direct", SessionState(at=1.0))
    (tmp_path / "target").write_bytes(SessionState(at=2.0).encode())
    (tmp_path / "target").chmod(0o644)
    (file,) = (tmp_path / "sessions").rglob("*.json")
    file.unlink()
    file.symlink_to(tmp_path / "target")
    assert files.load("enter", "direct") is None
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o644
    files.close()


def test_names_of_files_are_safe_and_unique() -> None:
    names = ["direct", "homes/abc", "homes-abc", "../../etc/passwd", "..", "ü", "a" * 300, "a" * 301]
    found = [file_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in found)


# Shared sessions


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SESSION_KEY", KEY)


async def test_workers_share_one_session_of_a_site_that_allows_one(
    members: Members, site: MemberSite, key: None, sqlite_path: Path
) -> None:
    site.one_at_a_time, site.delay, site.ends_after = True, 0.02, 40
    members.with_login(sessions="shared")
    members.with_stage(retries=0)
    await members.fill(90)
    done = await asyncio.gather(*(members.work(concurrency=3, batch_size=3) for _ in range(3)))
    assert sum(summary.done for summary in done) == 90
    assert len(site.logins) == 2
    assert not kept_sessions(members)
    content = b"".join(path.read_bytes() for path in sqlite_path.parent.glob("*.db*"))
    assert not any(token.encode() in content for token in site.logins)
    assert not any(token in str(members.log.events) for token in site.logins)


async def test_a_shared_session_is_continued_by_later_workers(members: Members, site: MemberSite, key: None) -> None:
    site.one_at_a_time = True
    members.with_login(sessions="shared", max_age=3600)
    members.with_stage()
    await members.fill(6)
    await members.work(limit=3)
    await members.work()
    assert (len(site.logins), site.statuses()) == (1, {200: 6})


async def test_one_wrong_password_holds_all_workers_back(
    members: Members, site: MemberSite, key: None, quick_backoff: None
) -> None:
    site.password = "changed-since"
    members.with_login(sessions="shared")
    members.with_stage(retries=0)
    await members.fill(10)
    async with members.working(), members.working(), members.working() as third:
        await members.until_logged("login failed; items wait")
        site.password = PASSWORD
        await third
        async with asyncio.timeout(30):
            while any(item.state is not ItemState.DONE for item in await members.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert len(site.logins) == 1


async def test_a_worker_that_leaves_holds_nobody_back(members: Members, site: MemberSite, key: None) -> None:
    """Its login failed, so it is an hour until it would try again; whoever comes with the right password may."""
    site.password = "changed-since"
    members.with_login(sessions="shared")
    members.with_stage(retries=0)
    await members.fill(4)
    async with members.working():
        await members.until_logged("login failed; items wait")
    site.password = PASSWORD
    assert (await members.work()).done == 4


async def test_a_worker_that_died_in_its_login_holds_nobody_back_for_long(
    members: Members, site: MemberSite, key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "LOCK_SECONDS", 4.0)
    dead = SharedSessions(members.ledger, "members", SessionCipher(KEY))
    assert await dead.acquire("enter direct")

    @members.scraper.login(sessions="shared")
    async def enter(http: Http, account: Account) -> None:
        await asyncio.sleep(6)  # its own lock is renewed meanwhile
        assert not await dead.acquire("enter direct")
        await members.log_in(http, account)

    members.with_stage(retries=0)
    await members.fill(4)
    assert (await members.work()).done == 4
    assert await dead.acquire("enter direct")


async def test_another_key_is_told_and_changes_nothing(
    members: Members, site: MemberSite, key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.with_login(sessions="shared")
    members.with_stage()
    await members.fill(6)
    await members.work(limit=3)
    monkeypatch.setenv("SHOAL_SESSION_KEY", OTHER_KEY)
    with pytest.raises(LoginBroken, match="cannot be decrypted: SHOAL_SESSION_KEY is not the key"):
        await members.work()
    assert len(site.logins) == 1
    monkeypatch.setenv("SHOAL_SESSION_KEY", KEY)
    await members.work()
    assert (len(site.logins), site.statuses()) == (1, {200: 6})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "encrypted with SHOAL_SESSION_KEY, which is not set"),
        ("c2hvcnQ=", "SHOAL_SESSION_KEY is not a key: it must be 32 bytes in base64"),
        ("no base64 at all!", "SHOAL_SESSION_KEY is not a key"),
    ],
)
async def test_shared_sessions_need_a_key(
    members: Members, site: MemberSite, monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv("SHOAL_SESSION_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SHOAL_SESSION_KEY", value)
    members.with_login(sessions="shared")
    members.with_stage()
    await members.fill(1)
    with pytest.raises(UsageError, match=message) as caught:
        await members.work()
    assert value is None or value not in str(caught.value)


def test_shared_sessions_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(UsageError, match=r"pip install 'shoal\[sessions\]'"):
        SessionCipher(KEY)


def test_a_session_of_another_identity_is_not_decrypted() -> None:
    cipher = SessionCipher(KEY)
    content = cipher.encrypt(SessionState(at=1.0), "members enter direct")
    assert cipher.decrypt(content, "members enter direct") == SessionState(at=1.0)
    assert b"shoal_session" not in content
    for damaged in (content[:-1], content[:5], b"", bytes(60)):
        with pytest.raises(LoginBroken):
            cipher.decrypt(damaged, "members enter direct")
    with pytest.raises(LoginBroken):
        cipher.decrypt(content, "members enter other")


# In a browser


@pytest.fixture
def browser(members: Members) -> None:
    pytest.importorskip("playwright")
    if find_chromium("", "") is None:
        missing("there is no Chromium: run `make parts` as root")
    members.settings = msgspec.structs.replace(members.settings, browser_sandbox=False)


@pytest.mark.slow
async def test_the_storage_of_a_browser_belongs_to_the_session(
    members: Members, site: MemberSite, browser: None
) -> None:
    @members.scraper.login
    async def enter(tab: Tab, account: Account) -> None:
        await tab.goto(f"{site.url}/app/login")
        await tab.fill("#password", account.password)
        await tab.click("button")
        await tab.wait_for_selector("#in", state="attached")

    @members.scraper.stage(lane=None, retries=0, client="browser", wait_for="main *")
    async def item(page: Page) -> dict[str, str | None]:
        if page.css("b"):
            raise LoggedOut("the application is logged out")
        return {"n": page.css("h1::text").get()}

    await members.fill(4, "/app/")
    assert (await members.work(limit=2, concurrency=1)).done == 2
    assert site.logins[0] in kept_sessions(members)[0].read_text()
    site.ends_after = 3
    assert (await members.work(concurrency=1)).done == 2
    first, second = site.logins
    seen = [visit.session for visit in site.log if visit.path.startswith("/item/")]
    assert seen == [first, first, first, first, second], "the storage was kept, until the site ended the session"


@pytest.mark.slow
async def test_plain_requests_have_the_cookies_of_a_login_in_a_browser(
    members: Members, site: MemberSite, browser: None
) -> None:
    @members.scraper.login
    async def enter(tab: Tab, account: Account) -> None:
        await tab.goto(f"{site.url}/login")
        await tab.fill("[name=password]", account.password)
        async with tab.expect_navigation():
            await tab.evaluate("document.forms[0].submit()")

    members.with_stage(retries=0)
    await members.fill(4)
    assert (await members.work()).done == 4
    assert (len(site.logins), site.statuses()) == (1, {200: 4})


# Without a ledger


async def test_a_try_logs_in_too(members: Members, site: MemberSite) -> None:
    members.with_login()
    members.with_stage()
    fetcher = build_fetcher(members.settings)
    attempts = build_attempts(members.scraper.check(), fetcher, members.settings, log=members.log)
    stage = members.scraper.first_stage
    claimed = claim_of(stage.item(f"{site.url}/item/3"), stage.name)
    finished, _ = await attempts.run(claimed, time.monotonic())
    site.password = "changed-since"
    site.end_sessions()
    failed, _ = await attempts.run(claimed, time.monotonic())
    await attempts.close()
    await fetcher.close()
    assert finished.records == ('{"n":"3"}',)
    assert failed.decision.error is not None
    assert failed.decision.error.endswith("fails: the site does not accept the password")
