"""Egress for operators: the log of exits, the plan of a pool, the checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal import Page, Scraper
from shoal.config import Settings
from shoal.config.egress import EgressConfig
from shoal.demo.stand_in import StandInRequest, StandInResponse
from shoal.errors import ShoalError, UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.egress import ExitReport, ExitSpec, HealthRules, HostReport
from shoal.model.worker import FixedPart, Scope, WorkerSpec
from shoal.observe.doctor import Check
from shoal.recipes.countries.exits import NETWORK, exit_address, local_exits
from shoal.recipes.countries.stand_in import PriceRegisters
from shoal.service.egress import ExitLog, PlannedExits, check_egress, check_parts_are_free, plan_exits
from shoal.service.events import Host
from shoal.service.run import RunRequest, run_scraper
from shoal.service.work import work
from shoal.wiring import ledger_context
from tests.support.raw_site import Site as RawSite
from tests.support.raw_site import reply

RULES = HealthRules(ban_after=2, ban_for=60.0, block_after=1, block_for=30.0)


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def bind(self, **_: Any) -> Lines:
        return self

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))


@pytest.fixture
async def ledger(sqlite_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_context(Settings(ledger=str(sqlite_path))) as ledger:
        yield ledger


async def test_a_dead_worker_that_has_the_exits_of_a_pool_is_waited_for(ledger: Ledger, tmp_path: Path) -> None:
    """Another list is no conflict, nor is another part; one that gives signs of life ends the check."""
    file = tmp_path / "proxies.txt"
    file.write_text("198.51.100.1:80\n198.51.100.2:80\n")
    homes = EgressConfig(name="homes", kind="proxies", file=str(file), share="fixed")
    settings = Settings(egress={"homes": homes})
    scope, told = Scope(scraper="x", parts=(FixedPart("homes", 0, 2),)), list[str]()
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, scope=scope, lease_seconds=1.0))
    await check_parts_are_free(ledger, settings, [FixedPart("homes", 1, 2)], notice=told.append)
    assert told == []
    await check_parts_are_free(ledger, settings, [FixedPart("homes", 0, 4)], notice=told.append)
    assert told == ["Waiting for worker w, which has proxies of homes and may be dead."]

    await ledger.workers.register(WorkerSpec(id="v", node="n", pid=2, scope=scope, lease_seconds=600.0))
    checking = asyncio.create_task(
        check_parts_are_free(ledger, settings, [FixedPart("homes", 0, 2)], notice=told.append)
    )
    while len(told) < 2:  # noqa: ASYNC110 - it waits for its own event
        await asyncio.sleep(0.01)
    await ledger.workers.heartbeat("v")
    with pytest.raises(UsageError, match="Worker v of another pool has proxies of homes"):
        await checking
    await ledger.exits.register("v", "homes", "proxies", [ExitSpec("elsewhere", "proxy of another list")])
    await check_parts_are_free(ledger, settings, [FixedPart("homes", 0, 2)], notice=told.append)


async def test_the_log_of_exits_has_each_change_once(ledger: Ledger) -> None:
    lines = Lines()
    log = ExitLog(ledger, ["homes"], lines)  # type: ignore[arg-type]  # only `info` is called
    await log.read()
    assert lines.lines == []
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
    await ledger.exits.register("w", "homes", "proxies", [ExitSpec("a", "proxy a"), ExitSpec("b", "proxy b")])
    failed = ExitReport(key="a", failed=2, failures_in_row=2, error="refused")
    blocked = ExitReport(key="b", succeeded=1, hosts=(HostReport(host="h", blocked=1, blocks_in_row=1, error="403"),))
    await ledger.exits.report("w", "homes", [failed, blocked], RULES)
    await log.read()
    await log.read()
    events = [(event, fields.get("exit"), fields.get("state")) for event, fields in lines.lines]
    assert events == [
        ("exit changed", "proxy a", "banned"),
        ("exit blocked by a host", "proxy b", None),
        ("pool of exits", None, None),
    ]
    await ledger.exits.free("homes", "a")
    await log.read()
    assert lines.lines[-2][1]["state"] == "good"


async def test_the_plan_of_a_pool_gives_each_worker_its_part(tmp_path: Path) -> None:
    """S3.9, S3.17: 50 proxies and ten workers are five each; S3.24: fewer also work."""
    file = tmp_path / "proxies.txt"
    file.write_text("".join(f"127.0.0.1:{9_000 + n}\n" for n in range(50)))
    settings = Settings(
        egress={
            "homes": EgressConfig(name="homes", kind="proxies", file=str(file), share="split"),
            "all": EgressConfig(name="all", kind="proxies", file=str(file)),
            "github": EgressConfig(name="github", kind="tokens", given={"A": "1", "B": "2", "C": "1"}),
            "onion": EgressConfig(name="onion", kind="tor", circuits=8),
        }
    )
    planned = {each.pool: each for each in await plan_exits(settings, list(settings.egress), 10)}
    assert [planned["homes"].part(n) for n in range(10)] == [5] * 10
    assert [planned[name].part(0) for name in ("all", "github", "onion")] == [50, 2, 8]
    few = PlannedExits(pool="p", kind="proxies", exits=7, workers=3, split=True)
    assert [few.part(n) for n in range(3)] == [3, 2, 2]
    fewer = PlannedExits(pool="p", kind="proxies", exits=2, workers=3, split=True)
    assert [fewer.part(n) for n in range(3)] == [1, 1, 1]


async def test_checks_name_what_is_missing_and_how_to_mend_it(tmp_path: Path) -> None:
    settings = Settings(
        egress={
            "homes": EgressConfig(name="homes", kind="proxies", file=str(tmp_path / "none.txt")),
            "github": EgressConfig(name="github", kind="tokens", env=("GH",), missing=("GH",)),
            "onion": EgressConfig(name="onion", kind="tor", socks="127.0.0.1:1"),
        }
    )
    checks = {check.name: check for check in await check_egress(settings)}
    assert checks.keys() == {"egress.homes", "egress.github", "egress.onion"}
    assert not any(check.ok for check in checks.values())
    assert all(check.fix for check in checks.values())
    assert checks["egress.github"].text == "no token: no variable GH is set"
    assert checks["egress.onion"].text == "tor at 127.0.0.1:1: connection refused"


async def test_an_exit_with_the_address_of_this_machine_is_found(tmp_path: Path) -> None:  # S1.10
    """Proxies and circuits are asked for the address that a page of the operator's choice sees."""
    proxies = tmp_path / "proxies.txt"
    proxies.touch(0o600)
    other = RawSite()
    await other.start()
    other.answers["/same"] = reply("You are 203.0.113.9")
    try:
        with PriceRegisters().serving() as site, local_exits() as port:
            proxies.write_text("".join(f"socks5h://{user}:x@127.0.0.1:{port}\n" for user in ("ann", "bob")))

            async def check(url: str) -> list[tuple[bool, str]]:
                pools = {
                    "homes": EgressConfig(name="homes", kind="proxies", file=str(proxies), address_url=url),
                    "onion": EgressConfig(name="onion", kind="tor", socks=f"127.0.0.1:{port}", address_url=url),
                }
                found = await check_egress(Settings(egress=pools))
                return [(each.ok, each.text) for each in found if each.name.endswith(".address")]

            homes, onion = await check(f"{site.url}/ip")
            first = min(map(exit_address, ("ann", "bob")))
            assert homes == (True, f"sites see {first} and 1 more; this machine is 127.0.0.1")
            assert onion[0]
            assert onion[1].endswith("this machine is 127.0.0.1")
            _, lies = await check(other.url("/same"))
            assert lies == (False, "tor goes out with the address of this machine (203.0.113.9)")
            _, gone = await check(f"{site.url}/nothing")
            assert gone == (False, f"tor: {site.url}/nothing answered 404")
    finally:
        await other.stop()


async def test_a_check_that_takes_minutes_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tor of its own has to find the network first."""
    program = tmp_path / "tor"
    program.touch(mode=0o700)
    events: list[str] = []

    async def see_address(*_: object) -> Check:
        events.append("checked")
        return Check(name="egress.onion.address", ok=True, text="sites see 192.0.2.1")

    monkeypatch.setattr("shoal.service.egress._address_check", see_address)
    onion = EgressConfig(name="onion", kind="tor", address_url="http://site.example/ip")
    await check_egress(Settings(tor=str(program), egress={"onion": onion}), on_notice=events.append)
    notice, checked = events
    assert (notice.startswith("egress.onion: starting tor"), "two minutes" in notice, checked) == (
        True,
        True,
        "checked",
    )


class ClosedToThisMachine(PriceRegisters):
    """Answers with the visitor's address to exits only."""

    async def answer(self, request: StandInRequest) -> StandInResponse:
        return await super().answer(request) if request.peer.startswith(NETWORK) else StandInResponse(status=403)


async def test_a_page_that_does_not_answer_directly_proves_nothing(tmp_path: Path) -> None:  # S1.10
    """The exits may have the address of this machine all the same: a warning, which says so."""
    with ClosedToThisMachine().serving() as site, local_exits() as port:
        url = f"{site.url}/ip"
        onion = EgressConfig(name="onion", kind="tor", socks=f"127.0.0.1:{port}", address_url=url)
        found = await check_egress(Settings(egress={"onion": onion}))
    (check,) = (each for each in found if each.name == "egress.onion.address")
    assert (check.ok, check.warning, check.severity) == (True, True, "warning")
    seen, _, proven = check.text.partition("; ")
    assert seen.startswith(f"sites see {NETWORK}")
    assert proven == f"that this machine has another is not proven, asked directly: {url} answered 403"
    assert "address_url" in check.fix


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"egress": "hoomes"}, "'hoomes', which is not configured"),
        ({"egress": "homes"}, "proxies.txt cannot be read"),
        ({"egress": "github"}, "has no token: GITHUB_TOKEN is not set"),
        ({"egress": "onion"}, "/nonexistent"),
        ({"client": "browser"}, "The setting chromium is /nonexistent"),
    ],
)
async def test_what_no_worker_could_start_with_is_told_before_a_run_begins(
    tmp_path: Path, option: dict[str, Any], message: str
) -> None:
    if "client" in option:
        pytest.importorskip("playwright")
    shop = Scraper("shop")

    @shop.stage(**option)
    async def product(page: Page) -> None: ...

    settings = Settings(
        ledger=str(tmp_path / "ledger.db"),
        chromium="/nonexistent",
        tor="/nonexistent",
        egress={
            "homes": EgressConfig(name="homes", kind="proxies", file=str(tmp_path / "proxies.txt")),
            "github": EgressConfig(name="github", kind="tokens", env=("GITHUB_TOKEN",), missing=("GITHUB_TOKEN",)),
            "onion": EgressConfig(name="onion", kind="tor"),
        },
    )
    shop.start("http://127.0.0.1:1/")
    with pytest.raises(ShoalError) as caught:
        await run_scraper(shop, settings, RunRequest(), Host())
    assert message in caught.value.message
    with pytest.raises(ShoalError):
        await work(shop, settings, Scope(scraper="shop"), Host())
    assert not (tmp_path / "ledger.db").exists()
