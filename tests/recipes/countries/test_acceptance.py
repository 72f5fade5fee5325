"""The acceptance of S1: workers with browsers behind exits that stop in the middle; compared with the site's log.

Small in `make test`; ten workers, more URLs and a million of them in `make chaos`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import shoal
from shoal.demo.stand_in import Visit
from shoal.ledger.postgres.ledger import open_postgres
from shoal.model.worker import Scope, WorkerSpec
from shoal.recipes.countries.exits import NETWORK, local_exits
from shoal.recipes.countries.stand_in import ADDRESS_PATH, PriceRegisters
from shoal.testing.harness import dead
from tests.recipes.countries.conftest import Countries
from tests.recipes.countries.site_process import SiteProcess
from tests.support import LONG
from tests.support.account import Account
from tests.support.postgres import PostgresServer
from tests.support.project import Command, migrate
from tests.support.tor_network import EXITS, SITE, TorNetwork

FAULTS = ("blocks", "resets", "gone")
WORKERS = 10 if LONG else 3
PAGES = 400 if LONG else 24
GONE = sum(number % 100 == 13 for number in range(1, PAGES + 1))
TOR_WORKERS = 10 if LONG else 2
TOR_PAGES = 200 if LONG else 16
MANY = 1_000_000 if LONG else 20_000
STATUSES = "SELECT status, COUNT(*) FROM url_work_queue GROUP BY status"
PATIENCE = 600.0 if LONG else 240.0


def pages_of(visits: Iterable[Visit], country: str) -> list[Visit]:
    return [visit for visit in visits if visit.path.startswith(f"/{country}/drug/")]


def given_out(visits: Iterable[Visit], country: str) -> Counter[str]:
    """How often each page was given out well."""
    return Counter(visit.path for visit in pages_of(visits, country) if visit.status == 200)


def expected(country: str, count: int, truth: PriceRegisters) -> dict[str, float]:
    """The prices that must be stored; pages that end in 13 are gone."""
    return {
        f"{truth.address(country)}/{country}/drug/{number}": truth.facts(country, number).price
        for number in range(1, count + 1)
        if number % 100 != 13
    }


def stored(project: Countries, run: str) -> dict[str, float]:
    records = project.export(run)
    found = {record["url"]: record["price"] for record in records}
    assert len(found) == len(records), "a URL was stored twice"
    return found


def queued(command: Command) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(command.stdout)
    return answer


def homes_of_browsers(folder: Path) -> list[Path]:
    """One for each browser that runs."""
    return list(folder.glob("shoal-browser-*"))


def browser_folders(folder: Path) -> list[Path]:
    """What browsers of workers leave in their temporary folder: homes and profiles."""
    return [path for pattern in ("shoal-browser-*", "playwright_*") for path in folder.glob(pattern)]


def eventually(condition: Any, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_lose_nothing_when_their_exits_stop_and_one_is_killed(
    countries: Countries,
) -> None:  # S1.10, S1.13, S1.16
    """Browsers behind exits, a single scraper beside; exits stop, a worker is killed; no visit is direct."""
    slow, quick = (0.8, 1.2), (0.01, 0.05)
    with PriceRegisters(latency=slow, faults=FAULTS).serving() as site, ExitStack() as exits:
        port = exits.enter_context(local_exits())
        countries.configure(
            site.url,
            TOR_SOCKS_PORT=str(port),
            WORKER_LEASE_SECONDS="3",
            WORKER_CONCURRENCY="2",
            PAGE_TIMEOUT_SECONDS="6",
        )
        lists = {
            name: countries.urls(site.site.urls(name, PAGES), f"urls/{name}.txt") for name in ("india", "argentina")
        }
        answer = queued(countries.shoal("start", "india", "--urls-file", lists["india"]))
        assert (answer["status"], answer["enqueued"], site.log()) == ("queued", PAGES, [])
        work = ("worker", "--scraper", "india", "--run-id", answer["run_id"], "--batch-size", "10")
        workers = [countries.start(*work) for _ in range(WORKERS)]
        beside = countries.start("start", "argentina", "--urls-file", lists["argentina"])
        eventually(lambda: len(homes_of_browsers(countries.folder)) == WORKERS, PATIENCE)
        eventually(lambda: len(given_out(site.log(), "india")) >= PAGES // 4, PATIENCE)
        for worker in workers:
            worker.tell(signal.SIGSTOP)  # so that none has finished its pages before the exits are gone
        assert len(given_out(site.log(), "india")) < PAGES - GONE
        workers[0].kill()
        exits.close()  # no request can leave
        before = len(site.log())
        for worker in workers[1:]:
            worker.tell(signal.SIGCONT)
        for worker in workers[1:]:
            worker.wait_until_it_says("does not answer")
        paused = len(site.log())
        assert paused - before <= 4 * WORKERS, "visits that had begun"
        site.site.latency = quick
        exits.enter_context(local_exits(port))
        assert [worker.wait(PATIENCE) for worker in workers[1:]] == [0] * (WORKERS - 1)
        assert beside.wait(PATIENCE) == 0
        visits = site.log()
        direct = [visit.path for visit in visits if not visit.peer.startswith(NETWORK)]
        assert direct == []
        assert stored(countries, answer["run_id"]) == expected("india", PAGES, site.site)
        assert stored(countries, "latest:argentina") == expected("argentina", PAGES, site.site)
        assert {visit.status for visit in visits} >= {200, 403, 404, 0}
        counts = countries.counts(answer["run_id"]).by_status()
    assert counts == {
        "pending": 0,
        "claimed": 0,
        "completed": PAGES - GONE,
        "failed": GONE,
        "remaining": 0,
        "total": PAGES,
    }
    failed = json.loads(
        countries.shoal("items", "ls", answer["run_id"], "--state", "dead", "--json").stdout.splitlines()[0]
    )
    assert (failed["url"].rpartition("/")[2], failed["error"]) == ("13", "404 Not Found")  # S1.18
    # S1.10: nothing of a browser is left, not even of the worker that was killed.
    eventually(lambda: browser_folders(countries.folder) == [])


@pytest.mark.xdist_group("tor")
def test_each_worker_has_a_tor_and_a_browser_of_its_own(tor_network: TorNetwork, tmp_path: Path) -> None:  # S1.10
    """On a private Tor network: every tor is killed once; not a packet reaches the site but through an exit."""
    # The database is outside of the network, and reached through a socket file.
    sockets = Account.unprivileged().scratch_folder("shoal-sockets-")
    before = tor_network.counts()
    with (
        contextlib.closing(_Folder(sockets)),
        PostgresServer(settings={"unix_socket_directories": str(sockets)}) as server,
        SiteProcess(SITE, tor_network.entry, *FAULTS) as site,
    ):
        migrate(server.url("postgres"))
        password = server.url("postgres").partition("://")[2].partition("@")[0]
        ledger = f"postgresql://{password}@/postgres?host={sockets}&port={server.port}"
        with Countries(tmp_path, ledger, tor_network.entry) as countries:
            countries.configure(site.url, TOR_OPTIONS_FILE=str(tor_network.torrc), PAGE_TIMEOUT_SECONDS="15")
            urls = countries.urls(site.truth.urls("india", TOR_PAGES), "urls/india.txt")
            run = queued(countries.shoal("start", "india", "--urls-file", urls))["run_id"]
            workers = [countries.start("worker", "india", "--run-id", run) for _ in range(TOR_WORKERS)]
            eventually(lambda: len(_tors(tmp_path)) == TOR_WORKERS, PATIENCE)
            assert len(list(tmp_path.glob("shoal-tor-*"))) == TOR_WORKERS, "each has a folder of its own"
            site.wait_until(lambda visits: len(given_out(visits, "india")) >= TOR_PAGES // 4, PATIENCE)
            tors = _tors(tmp_path)
            assert len(tors) == TOR_WORKERS
            for tor in tors:
                os.kill(tor, signal.SIGKILL)
            assert [worker.wait(PATIENCE) for worker in workers] == [0] * TOR_WORKERS
            assert any("tor ended" in worker.stderr for worker in workers)
            assert stored(countries, run) == expected("india", TOR_PAGES, site.truth)
        visits = site.log()
    assert {visit.peer for visit in visits} <= set(EXITS)
    assert len({visit.peer for visit in visits}) >= 2
    assert tor_network.counts() == before
    eventually(lambda: [*browser_folders(tmp_path), *tmp_path.glob("shoal-tor-*")] == [])


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        shutil.rmtree(self._path)


def _tors(folder: Path) -> list[int]:
    """The processes of tor with their data below this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else [b""]
        except OSError:
            continue
        if words[0].endswith(b"tor") and any(str(folder).encode() in word for word in words):
            found.append(int(entry.name))
    return found


async def test_the_old_queries_run_on_the_database_as_they_are(countries: Countries) -> None:  # S1.6, S1.9, S1.20-S1.24
    """A long list is loaded; the unqualified queries of the old system find it; Python counts and releases."""
    with PriceRegisters().serving() as site:
        countries.configure(site.url, TOR_SOCKS_PORT="1")
        urls = countries.urls(site.site.urls("russia", MANY), "urls/russia.txt")
        began = time.monotonic()
        answer = queued(countries.shoal("start", "russia", "--urls-file", urls, timeout=PATIENCE))
        print(f"{MANY} URLs stored in {time.monotonic() - began:.1f} s")
    assert answer["enqueued"] == MANY
    person = await asyncpg.connect(countries.ledger)
    try:
        run = answer["run_id"]
        depth = await person.fetch(
            f"SELECT status, COUNT(*) FROM url_work_queue WHERE run_id = '{run}' GROUP BY status"
        )
        assert [tuple(row) for row in depth] == [("pending", MANY)]
        url = await person.fetchval(f"SELECT url FROM url_work_queue WHERE run_id = '{run}' ORDER BY id LIMIT 1")
        assert url == f"{site.site.address('russia')}/russia/drug/1"
        gone, held = await claim_two_and_fail_one(countries.ledger, run)
        workers = "SELECT worker_id, COUNT(*) FROM url_work_queue WHERE status = 'claimed' GROUP BY worker_id"
        assert [tuple(row) for row in await person.fetch(workers)] == [("node-1-abc", 1)]
        failed = (
            f"SELECT url, error_message, retry_count FROM url_work_queue WHERE run_id = '{run}' AND status = 'failed'"
        )
        assert [tuple(row) for row in await person.fetch(failed)] == [(gone, "404 Not Found", 0)]
        claimed = "SELECT url FROM url_work_queue WHERE status = 'claimed'"
        assert await person.fetchval(claimed) == held
        async with shoal.connect(countries.ledger) as fleet:
            counts = (await fleet.stats("russia", run)).by_status()
            assert counts == {
                "pending": MANY - 2,
                "claimed": 1,
                "completed": 0,
                "failed": 1,
                "remaining": MANY - 1,
                "total": MANY,
            }
            await person.execute("update shoal.lease set claimed_at = claimed_at - interval '6 minutes'")
            assert (await fleet.release(older_than=300)).released == 1
        assert await person.fetchval(claimed) is None
    finally:
        await person.close()


async def claim_two_and_fail_one(place: str, run: str) -> tuple[str | None, str | None]:
    """What a worker does; returns the URL that failed and the one that it holds."""
    ledger = await open_postgres(place)
    try:
        await ledger.workers.register(WorkerSpec(id="node-1-abc", node="node", pid=1))
        first, second = await ledger.claims.claim("node-1-abc", Scope(run_ids=(run,)), 2)
        await ledger.commits.commit("node-1-abc", [dead(first, "404 Not Found")])
        return first.url, second.url
    finally:
        await ledger.close()


def test_preflight_compares_the_exit_with_this_machine(countries: Countries) -> None:  # S1.10
    with PriceRegisters().serving() as site, local_exits() as port:
        countries.configure(site.url, TOR_SOCKS_PORT=str(port))
        said = [json.loads(line) for line in countries.shoal("doctor", "india", "--json").stdout.splitlines()]
        checks = {check["check"]: check for check in said}
        assert {"ledger", "egress.tor", "egress.tor.address", "browser"} <= checks.keys()
        assert "this machine is 127.0.0.1" in checks["egress.tor.address"]["text"]
        assert {check["severity"] for check in said} <= {"info", "warning"}
        assert {visit.path for visit in site.log()} == {ADDRESS_PATH}
    wrong = countries.shoal("doctor", "india", "--json", code=1).stdout.splitlines()
    severities = {check["check"]: check["severity"] for check in map(json.loads, wrong)}
    assert severities["egress.tor"] == "critical"


def test_argentina_alone_has_the_views_too(countries: Countries) -> None:  # S1.20, S1.26
    """On PostgreSQL, where no distributed scraper has run."""
    with PriceRegisters().serving() as site, local_exits() as port:
        countries.configure(site.url, TOR_SOCKS_PORT=str(port))
        urls = countries.urls(site.site.urls("argentina", 3), "urls/argentina.txt")
        countries.shoal("start", "argentina", "--urls-file", urls)

    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(countries.ledger)
        try:
            await connection.execute("set search_path = public")  # the user's own schema may be Shoal's
            return [tuple(row) for row in await connection.fetch(STATUSES)]
        finally:
            await connection.close()

    assert asyncio.run(ask()) == [("completed", 3)]


def test_argentina_needs_no_postgresql(tmp_path: Path) -> None:  # S1.2, S1.26
    with PriceRegisters().serving() as site, local_exits() as port, Countries(tmp_path, "postgresql://x/y") as project:
        (tmp_path / ".env").write_text(f"TOR_SOCKS_PORT={port}\n")
        urls = project.urls(site.site.urls("argentina", 5), "urls/argentina.txt")
        assert "views" not in project.shoal("start", "argentina", "--urls-file", urls).stderr
        refused = project.shoal("start", "india", "--urls-file", urls, code=2)
        assert "needs PostgreSQL" in refused.stderr
        project.shoal("export", "latest", "-o", "out.jsonl", "-q")
        records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {record["url"]: record["price"] for record in records} == expected("argentina", 5, site.site)
    ledger = sqlite3.connect(tmp_path / ".shoal/ledger.db")
    assert ledger.execute(STATUSES).fetchall() == [("completed", 5)]
    ledger.close()
