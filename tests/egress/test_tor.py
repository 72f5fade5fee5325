"""Tor: an identity is a circuit, told apart by its user name; what happens when tor or its circuits are gone.

A SOCKS server that logs user names stands for tor where circuits do not matter; a real tor that has no network
shows how it is started and ended; the last tests are on a private Tor network (tests/support/tor_network.py).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config import load_settings
from shoal.config.egress import EgressConfig
from shoal.egress.tor import MAX_PAUSE, MIN_PAUSE, CircuitTrouble, TorPool
from shoal.egress.tor_process import ManagedTor, bootstrap_problem, find_tor
from shoal.errors import EgressUnavailable, ExitFailed, InvalidSetting, Transient, UsageError
from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Request
from shoal.model.egress import ExitState
from shoal.observe.logs import open_logs
from shoal.testing.harness import LedgerHarness
from tests.support import LONG, missing
from tests.support.ledgers import postgres_harness, prepare_template, sqlite_harness
from tests.support.pools import until
from tests.support.project import Project
from tests.support.raw_site import Site as RawSite
from tests.support.raw_site import reply
from tests.support.site import Site, Visit
from tests.support.socks_server import SocksServer
from tests.support.tor_network import EXITS, ONION_SERVICE, TorNetwork

# One test process has the network, which needs a quarter of a minute to start, and starts it with the first test here.
pytestmark = pytest.mark.xdist_group("tor")
LOG = open_logs(format="console", level="error", file=None, stream=None).log
SHOP = "shop.example"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module", autouse=True)
def early(request: pytest.FixtureRequest) -> None:
    """Start the network while other tests run, if a test here needs it."""
    if any("tor_network" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("starting_tor_network")


@pytest.fixture
async def socks() -> AsyncIterator[SocksServer]:
    async with SocksServer() as server:
        yield server


@pytest.fixture
async def site() -> AsyncIterator[RawSite]:
    site = RawSite()
    await site.start()
    site.answers["/"] = reply(b"welcome")
    yield site
    await site.stop()


def pool_of(port: int, *, clock: Clock | None = None, alone: bool = True, **options: Any) -> TorPool:
    config = EgressConfig(name="onion", kind="tor", socks=f"127.0.0.1:{port}", **options)
    return TorPool(config, log=LOG, alone=alone, now=clock or time.monotonic)


async def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - other processes are looked at
            await asyncio.sleep(0.01)


# Settings


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('socks = "tor"', "socks is 'tor'"),
        ('socks = "tor:65536"', "which is 65535 at most"),
        ('socks = "http://tor:9050"', "socks is"),
        ('socks = "tor:9050"\ntorrc = "more.torrc"', "it starts no tor that could read torrc"),
        ('ban_for = "60m"', "is no option of egress of the kind tor"),
        ("circuits = 0", "circuits is 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, lines: str, problem: str) -> None:
    (tmp_path / "shoal.toml").write_text(f'[egress.onion]\nkind = "tor"\n{lines}\n')
    with pytest.raises(InvalidSetting, match=re.escape(problem)):
        load_settings({}, environ={}, folder=tmp_path)


def test_the_tor_of_somebody_else_may_have_an_ipv6_address(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[egress.onion]\nkind = "tor"\nsocks = "[::1]:9050"\nrotate_every = "90s"\n')
    config = load_settings({}, environ={}, folder=tmp_path).egress["onion"]
    assert TorPool(config, log=LOG).tor.address == ("::1", 9050)
    assert config.rotate_every == 90.0


def test_a_port_alone_is_one_of_this_machine_and_an_empty_text_is_none(tmp_path: Path) -> None:  # S1.10
    """So that `socks = "${TOR_SOCKS_PORT:-}"` reads the setting of an older system."""
    lines = ['kind = "tor"', *(f'{name} = "${{{name.upper()}:-}}"' for name in ("socks", "control", "torrc"))]
    (tmp_path / "shoal.toml").write_text("[egress.onion]\n" + "\n".join(lines))
    config = load_settings({}, environ={"SOCKS": "9050", "CONTROL": "9051"}, folder=tmp_path).egress["onion"]
    assert (config.socks, config.control, config.torrc) == ("127.0.0.1:9050", "127.0.0.1:9051", None)
    without = load_settings({}, environ={"TORRC": "more.torrc"}, folder=tmp_path).egress["onion"]
    assert (without.socks, without.control, without.torrc) == (None, None, "more.torrc")
    with pytest.raises(InvalidSetting, match="has control without socks"):
        load_settings({}, environ={"CONTROL": "9051"}, folder=tmp_path)


@pytest.mark.parametrize("method", ["NULL", "COOKIE,SAFECOOKIE"])
async def test_the_control_port_of_somebody_elses_tor_says_how_far_it_is(
    socks: SocksServer, tmp_path: Path, method: str
) -> None:
    cookie, asked, progress = tmp_path / "cookie", [], [45]
    cookie.write_bytes(bytes(range(32)))

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            asked.append(line)
            if line.startswith("PROTOCOLINFO"):
                writer.write(f'250-AUTH METHODS={method} COOKIEFILE="{cookie}"\r\n'.encode())
            elif line.startswith("GETINFO"):
                phase = f'PROGRESS={progress[0]} TAG=x SUMMARY="Loading relay descriptors"'
                writer.write(f"250-status/bootstrap-phase=NOTICE BOOTSTRAP {phase}\r\n".encode())
            writer.write(b"250 OK\r\n")
        writer.close()

    async with await asyncio.start_server(control, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = pool_of(socks.port, control=f"127.0.0.1:{port}")
        await pool.start()
        try:
            wait = pool.wait()
            assert wait is not None
            assert wait.why == f"tor at 127.0.0.1:{socks.port} is bootstrapping: 45 % (loading relay descriptors)"
            progress[0] = 100
            await eventually(lambda: pool.wait() is None)
        finally:
            await pool.close()
    assert ("AUTHENTICATE" if method == "NULL" else f"AUTHENTICATE {bytes(range(32)).hex()}") in asked


@pytest.mark.parametrize("file", ["long", "short", "none", "folder", "fifo", "/dev/zero", "/proc/self/environ"])
async def test_a_control_port_gets_no_file_that_is_no_cookie(tmp_path: Path, file: str) -> None:
    """It may be that of another machine, and it says itself where its cookie is."""
    (tmp_path / "long").write_text("[default]\naws_secret_access_key = ...\n")
    (tmp_path / "short").write_text("x" * 31)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    asked: list[str] = []
    left = asyncio.Event()

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            asked.append(line)
            if line.startswith("PROTOCOLINFO"):
                writer.write(f'250-AUTH METHODS=COOKIE COOKIEFILE="{tmp_path / file}"\r\n'.encode())
            writer.write(b"250 OK\r\n" if line.startswith("PROTOCOLINFO") else b"515 Authentication failed\r\n")
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(control, "127.0.0.1", 0) as server:
        assert await bootstrap_problem("127.0.0.1", server.sockets[0].getsockname()[1]) is None
        await left.wait()
    assert asked == ["PROTOCOLINFO 1", "AUTHENTICATE"]


async def test_a_try_does_not_wait_for_the_tor_of_somebody_else_that_is_not_there() -> None:
    pool = pool_of(1)
    async with asyncio.timeout(60):  # it waits twice as long for a tor of its own
        await pool.start()
    try:
        wait = pool.wait()
        assert wait is not None
        assert wait.why == "tor at 127.0.0.1:1 does not answer: connection refused"
    finally:
        await pool.close()


# Circuits


async def test_a_circuit_is_a_user_name_and_names_of_sites_are_left_to_tor(socks: SocksServer, site: RawSite) -> None:
    pool, fetcher = pool_of(socks.port, circuits=2), HttpFetcher(connections=4, user_agent="shoal")
    await pool.start()
    try:
        for _ in range(4):
            identity = pool.choose(SHOP)
            page = await fetcher.fetch(Request(url=site.url("/", SHOP)), identity=identity)
            assert page.body == b"welcome"
            identity.record_success(SHOP)
    finally:
        await fetcher.close()
        await pool.close()
    assert {asked.host for asked in socks.asked} == {SHOP}
    assert len(set(socks.users)) == 2
    assert len({asked.password for asked in socks.asked}) == 2


async def test_a_block_or_a_failure_retires_the_circuit_of_one_place(socks: SocksServer) -> None:
    pool = pool_of(socks.port, circuits=2)
    await pool.start()
    first, second = pool.choose(SHOP), pool.choose(SHOP)
    assert first.exit.key != second.exit.key
    first.record_block(SHOP, "403")
    after, unchanged = pool.choose(SHOP), pool.choose(SHOP)
    assert after.exit == first.exit
    assert after.key != first.key
    assert after.proxy is not None
    assert first.proxy is not None
    assert after.proxy.username != first.proxy.username
    assert unchanged.key == second.key
    unchanged.record_failure("the circuit broke")
    assert second.key not in {pool.choose(SHOP).key for _ in range(4)}
    await pool.close()


async def test_circuits_are_replaced_after_requests_and_after_a_time(socks: SocksServer) -> None:
    clock = Clock()
    pool = pool_of(socks.port, clock=clock, circuits=1, rotate_after=3, rotate_every=60.0)
    await pool.start()
    identity = pool.choose(SHOP)
    for hop in range(3):
        assert pool.choose(SHOP).key == identity.key
        await identity.before_request("http://shop.example/", hop)
    by_requests = pool.choose(SHOP)
    assert by_requests.key != identity.key
    clock.now += 59.0
    assert pool.choose(SHOP).key == by_requests.key
    clock.now += 1.0
    assert pool.choose(SHOP).key != by_requests.key
    await pool.close()


async def test_a_host_that_blocks_one_circuit_after_another_is_left_alone(socks: SocksServer) -> None:
    pool = pool_of(socks.port, circuits=2, block_after=2, block_for=600.0)
    await pool.start()
    for _ in range(4):
        pool.choose(SHOP).record_block(SHOP, "403")
    with pytest.raises(EgressUnavailable, match=r"all 2 circuits of onion are blocked by shop\.example"):
        pool.choose(SHOP)
    assert pool.choose("bank.example").key
    assert pool.wait() is None
    await pool.close()


# Trouble


async def test_failures_of_all_circuits_mean_that_there_are_none(socks: SocksServer) -> None:
    clock = Clock()
    pool = pool_of(socks.port, clock=clock, circuits=2, ban_after=3)
    await pool.start()
    for _ in range(3):
        assert pool.wait() is None
        pool.choose(SHOP).record_failure("SOCKS: general failure")
        clock.now += 1.0
    wait = pool.wait()
    assert wait is not None
    assert wait.why == "tor has no circuit: SOCKS: general failure"
    assert wait.since == 3.0
    assert wait.until == MIN_PAUSE - 1.0
    with pytest.raises(EgressUnavailable, match="tor has no circuit"):
        pool.choose(SHOP)
    clock.now += MIN_PAUSE
    assert pool.wait() is None
    trial = pool.choose(SHOP)
    assert trial.trial
    with pytest.raises(EgressUnavailable):
        pool.choose(SHOP)  # one request at a time
    trial.record_success(SHOP)
    assert pool.wait() is None
    assert not pool.choose(SHOP).trial
    await pool.close()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["fail", "succeed", "wait"]), st.floats(0.0, 100.0)), max_size=60))
def test_trouble_ends_with_a_success_and_pauses_stay_bounded(events: list[tuple[str, float]]) -> None:
    trouble, now, row = CircuitTrouble(5), 0.0, 0
    for event, seconds in events:
        now += seconds
        if event == "succeed":
            trouble.succeed()
            row = 0
        elif event == "fail" and trouble.until(now) is None:
            trial = trouble.start_trial(now)
            assert trial == (row >= 5)
            trouble.fail("broken", now, trial=trial)
            row += 1
        until = trouble.until(now)
        assert (trouble.since is not None) == (row >= 5)
        assert until is None or 0 < until - now <= MAX_PAUSE


async def test_another_tor_that_does_not_answer_is_waited_for(socks: SocksServer) -> None:
    await socks.stop()
    pool = pool_of(socks.port, alone=False)
    await pool.start()
    wait = pool.wait()
    assert wait is not None
    assert wait.why.startswith(f"tor at 127.0.0.1:{socks.port} does not answer: connect")
    socks.names = False
    await socks.start()
    await eventually(lambda: "takes no user names" in (pool.wait() or wait).why)
    socks.names = True
    await pool.tor.wait_until_usable(30.0)
    assert pool.tor.trouble is None
    await pool.close()


async def test_a_tor_that_dies_in_mid_response_is_a_failure_of_the_way(socks: SocksServer, site: RawSite) -> None:
    async def hang(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        await asyncio.sleep(60)

    site.answers["/hang"] = hang
    pool, fetcher = pool_of(socks.port, circuits=1), HttpFetcher(connections=4, user_agent="shoal")
    await pool.start()
    identity = pool.choose(SHOP)
    fetching = asyncio.create_task(fetcher.fetch(Request(url=site.url("/hang", SHOP)), identity=identity))
    await site.until(lambda: site.targets == ["/hang"])
    await socks.stop()
    with pytest.raises(Transient) as raised:
        await fetching
    judged = await identity.judge(raised.value)
    assert isinstance(judged, ExitFailed)
    with pytest.raises(EgressUnavailable, match="does not answer"):
        pool.choose(SHOP)
    await socks.start()
    await pool.tor.wait_until_usable(30.0)
    again = pool.choose(SHOP)
    assert again.key != identity.key
    assert isinstance(await again.judge(Transient("the site broke off")), Transient)
    assert not isinstance(await again.judge(Transient("the site broke off")), ExitFailed)
    await fetcher.close()
    await pool.close()


# Workers


@pytest.fixture(params=["sqlite", "postgres"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerHarness]:
    if request.param == "sqlite":
        async with sqlite_harness(tmp_path / "ledger.db") as harness:
            yield harness
        return
    url = request.getfixturevalue("postgres_url")
    await prepare_template(url)
    async with postgres_harness(url) as harness:
        yield harness


async def test_workers_have_places_of_their_own_and_an_operator_can_rest_them(
    lab: LedgerHarness, socks: SocksServer
) -> None:
    ledger = lab.ledger
    pools = [pool_of(socks.port, alone=False, circuits=2) for _ in range(2)]
    workers = [await lab.worker() for _ in pools]
    for pool in pools:
        await pool.start()
    for _ in range(2):
        for pool, worker in zip(pools, workers, strict=True):
            await pool.sync(ledger, worker)
    places = [{pool.choose(SHOP).exit.label for _ in range(4)} for pool in pools]
    assert sorted(places, key=min) == [{"circuit 1", "circuit 2"}, {"circuit 3", "circuit 4"}]
    listed = (await ledger.exits.list("onion")).rows
    assert {exit_.label for exit_ in listed} == places[0] | places[1]
    # Failures never ban a place: its next circuit is another one.
    for _ in range(30):
        pools[0]._identity(next(iter(pools[0].health.records.values())), trial=False).record_failure("broken")
    await pools[0].sync(ledger, workers[0])
    assert {exit_.state for exit_ in (await ledger.exits.list("onion")).rows} == {ExitState.GOOD}
    for exit_ in listed:
        await ledger.exits.rest("onion", exit_.key, None, by="ann")
    await pools[1].sync(ledger, workers[1])
    wait = pools[1].wait()
    assert wait is not None
    assert wait.why == "all 2 circuits of onion that this worker has are resting"
    await ledger.workers.stop(workers[0])
    for _ in range(2):
        await pools[1].sync(ledger, workers[1])
    assert sorted(exit_.label for exit_ in (await ledger.exits.list("onion")).rows) == ["circuit 1", "circuit 2"]
    for pool in pools:
        await pool.close()


# A real tor without a network


@pytest.fixture
def torrc(tmp_path: Path) -> Path:
    try:
        find_tor()
    except UsageError as error:
        missing(str(error))
    file = tmp_path / "more.torrc"
    # Its only authority is a port of this machine that nobody has, and it can speak to nobody else.
    file.write_text(
        "TestingTorNetwork 1\nOutboundBindAddress 127.0.0.1\n"
        f"DirAuthority nobody orport=1 v3ident={'E' * 40} 127.0.0.1:1 {'F' * 40}\n"
    )
    return file


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def tor_pids(folder: Path) -> list[int]:
    """The tor processes with data below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if command[0].endswith(b"tor") and any(str(folder).encode() in word for word in command):
                found.append(int(entry.name))
    return found


@pytest.mark.process
async def test_a_managed_tor_is_private_started_again_and_gone_at_the_end(
    torrc: Path, private_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.egress.tor_process.MIN_BACKOFF", 0.05)
    monkeypatch.setenv("SHOAL_TEST_SECRET", "hunter2-hunter2")
    config = EgressConfig(name="onion", kind="tor", torrc=str(torrc))
    pool = TorPool(config, log=LOG)
    await pool.start()
    try:
        await eventually(lambda: pool.tor.address is not None)
        wait = pool.wait()
        assert wait is not None
        assert wait.why.startswith("tor is bootstrapping: ")
        [folder] = private_tmp.glob("shoal-tor-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "data").stat().st_mode & 0o777 == 0o700
        [pid] = tor_pids(folder)
        assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
        (folder / "data" / "keepsake").touch()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: pool.tor.generation == 2)
        assert (folder / "data" / "keepsake").exists()
        assert tor_pids(folder) not in ([], [pid])
    finally:
        await pool.close()
    assert tor_pids(private_tmp) == []
    assert list(private_tmp.glob("shoal-tor-*")) == []


_OWNER = """
import asyncio, sys
from pathlib import Path
from shoal.egress.tor_process import ManagedTor
from shoal.observe.logs import open_logs
async def main():
    log = open_logs(format="console", level="error", file=None, stream=None).log
    tor = ManagedTor(log, program="", torrc=Path(sys.argv[1]), circuit_seconds=600)
    await tor.start()
    while tor.address is None:
        await asyncio.sleep(0.01)
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("shell_too", [False, True])
async def test_no_tor_outlives_a_killed_worker(torrc: Path, private_tmp: Path, *, shell_too: bool) -> None:
    """Law 8: kill -9 leaves neither process nor data; if even the shell is killed, the next start removes the data."""
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OWNER, str(torrc)),
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(private_tmp)},
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"up\n"
    [folder] = private_tmp.glob("shoal-tor-*")
    [pid] = tor_pids(folder)
    if shell_too:
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    owner.kill()
    await owner.wait()
    await eventually(lambda: not tor_pids(folder))
    if not shell_too:
        await eventually(lambda: not folder.exists())
        return
    assert folder.exists()
    os.utime(folder, (0, 0))
    tor = ManagedTor(LOG, program="", torrc=torrc, circuit_seconds=600)
    await tor.start()
    assert not folder.exists()
    await tor.close()


@pytest.mark.process
async def test_what_can_never_work_is_one_sentence(tmp_path: Path, torrc: Path, private_tmp: Path) -> None:
    def managed(torrc: Path, program: str = "") -> ManagedTor:
        return ManagedTor(LOG, program=program, torrc=torrc, circuit_seconds=600)

    with pytest.raises(UsageError, match="The setting tor is no-such-tor") as raised:
        await managed(torrc, "no-such-tor").start()
    assert "apt install tor" in raised.value.remedy
    assert "socks" in raised.value.remedy
    with pytest.raises(UsageError, match="There is no file"):
        await managed(tmp_path / "nothing").start()
    torrc.write_text("NoSuchOption 1\n")
    with pytest.raises(UsageError, match="NoSuchOption"):
        await managed(torrc).start()
    assert list(private_tmp.glob("shoal-tor-*")) == []


# The private network


SHOP_CODE = """
    shop = Scraper("shop", robots=True)

    @shop.stage(egress="onion", concurrency=4, rate="20/s", retries=5)
    async def product(page: Page):
        yield {"url": page.url}
"""
ROUNDS = 5 if LONG else 1
ITEMS = 40 * ROUNDS


def test_a_run_goes_out_through_tor_only_and_loses_nothing(tor_network: TorNetwork, tmp_path: Path) -> None:
    """Exits rotate; tor is killed, circuits are cut; not one packet goes out directly (S1.10)."""
    before = tor_network.counts()
    with (
        Site(host=tor_network.host) as site,
        Project(tmp_path, entry=tor_network.entry) as project,
    ):
        project.write(SHOP_CODE)
        (tmp_path / "shoal.toml").write_text(
            f'[egress.onion]\nkind = "tor"\ntorrc = "{tor_network.torrc}"\ncircuits = 4\nrotate_after = 2\n'
        )
        urls = [f"http://shop.example:{site.port}/slow/0.05/{number}" for number in range(ITEMS)]
        urls += [f"http://shop.example:{site.port}/status/403/then-ok/1/{number}" for number in range(3)]
        # When circuits are cut, the service loses its own, too: its page comes first.
        urls.insert(0, f"http://{tor_network.onion_service(site.port)}/page/1")
        run = project.start("run", "shop.py", "--urls-file", project.urls(urls))
        site.wait_until(lambda visits: any(visit.path == "/page/1" for visit in visits), timeout=120)
        while project.items()[0].state != "done":
            time.sleep(0.02)
        for number in range(1, ROUNDS + 1):
            pages = ITEMS * (2 * number - 1) // (2 * ROUNDS + 1)
            site.wait_until(_has_pages(pages), timeout=120)
            # It may be starting again just now, because its circuits were cut.
            [pid] = until(lambda: tor_pids(tmp_path), lambda pids: len(pids) == 1, "tor does not run")
            os.kill(pid, signal.SIGKILL)
            run.wait_until_it_says("tor ended and is started again")
            pages = ITEMS * 2 * number // (2 * ROUNDS + 1)
            site.wait_until(_has_pages(pages), timeout=120)
            tor_network.cut_circuits()
            try:
                while run.stderr.count("tor has no circuit") < number:
                    assert not run.is_over, run.stderr
                    time.sleep(0.02)
            finally:
                tor_network.mend_circuits()
        assert run.wait(timeout=180) == 0, run.stderr
        counts = project.counts()
        attempts = project.attempts()
        visits = site.visits()
    unlucky = {path: each[-1].error for path, each in attempts.items() if each[-1].outcome != "done"}
    assert (counts.done, unlucky) == (len(urls), {})
    # No failure of tor was charged. Only the new onion service may be hard to find on a busy machine.
    charged = {path for path, each in attempts.items() if any(one.outcome == "transient" for one in each)}
    assert charged <= {"/page/1"}
    assert tor_network.counts() == before
    peers = {visit.peer.rpartition(":")[0] for visit in visits}
    assert peers <= {*EXITS, ONION_SERVICE}
    assert len(peers - {ONION_SERVICE}) >= 2
    assert ONION_SERVICE in peers
    names = {(each[-1].detail or {})["egress"] for each in attempts.values()}
    assert names <= {f"onion circuit {number}" for number in range(1, 5)}
    blocked = [visit for visit in visits if "/then-ok/" in visit.path]
    assert sorted(visit.status for visit in blocked) == [200] * 3 + [403] * 3
    assert list(tmp_path.glob("shoal-tor-*")) == []


def _has_pages(count: int) -> Callable[[list[Visit]], bool]:
    return lambda visits: sum(visit.path.startswith("/slow/") for visit in visits) >= count


def test_the_counters_see_what_goes_out_directly(tor_network: TorNetwork) -> None:
    """What the test above relies on."""
    script = """
import socket
for name in ("192.0.2.80", "shop.example"):
    try:
        socket.create_connection((name, 9), timeout=1)
    except OSError:
        pass
"""
    before = tor_network.counts()
    with subprocess.Popen([*tor_network.entry, sys.executable, "-c", script]) as direct:
        while any(tor_network.counts()[kind] <= before[kind] for kind in ("direct", "names")):
            assert direct.poll() is None
            time.sleep(0.02)
        direct.kill()
