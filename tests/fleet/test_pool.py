"""`shoal pool` as a user has it: real processes, killed, stopped, scaled and replaced."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import asyncpg

from shoal.demo.shop import Shop
from shoal.model.worker import WorkerView
from tests.support.pools import ARGUMENTS, GATED, all_done_once, busy, gated_pool, is_alive, open_gate, until, workers
from tests.support.project import Project
from tests.support.proxies import MicroSocks
from tests.support.server import free_port

KEEPING = ("pool", "gated.py", "--workers", "2", "--stagger", "0", "--yes", "--only", "--partition")


def test_two_workers_for_a_test(either: Project) -> None:
    """S3.7, S3.9, S3.11, S3.14: the plan, a log file for each and one for the pool, what each did."""
    either.write(GATED, "gated.py")
    open_gate(either)
    said = either.shoal("pool", "gated.py", "--test", "--workers", "2", "--stagger", "0", "--json")
    records = [json.loads(line) for line in said.stdout.splitlines()]
    assert [record["check"] for record in records if record.get("ok")] == [
        "settings",
        "scraper",
        "ledger",
        "logs",
        "run",
        "partitions",
    ]
    planned = [record for record in records if "partitions" in record]
    assert sorted(name for worker in planned for name in worker["partitions"]) == ["a", "b", "c"]
    assert sum(worker["remaining"] for worker in planned) == 30
    ended = [record for record in records if "restarts" in record]
    assert [worker["number"] for worker in ended] == [0, 1]
    assert sum(worker["done"] for worker in ended) == 30
    assert sorted(file.name for file in (either.folder / "logs").iterdir()) == [
        "gated_pool.log",
        "gated_worker_0.log",
        "gated_worker_1.log",
    ]
    assert "worker stopped" in (either.folder / "logs" / "gated_worker_0.log").read_text()
    assert all_done_once(either)


def test_attempts_that_are_repeated_count_in_the_summary(project: Project) -> None:
    project.write("""
    shop = Scraper("shop", retries=2, backoff_cap=0.01)

    @shop.stage(lane=None)
    async def page(item: Item):
        if item.tries == 0:
            raise Transient("try again")
        yield {"key": item.key}

    shop.start(page.item(key=str(n)) for n in range(6))
    """)
    said = project.shoal("pool", "shop.py", "--workers", "1", "--yes")
    assert "6 done, 0 dead, 0 left" in said.stdout
    assert "12 attempts here" in said.stdout


def done_by_partition(project: Project) -> dict[str, dict[str, int]]:
    """How many items of each partition each worker has done."""
    done: dict[str, Counter[str]] = {}
    for key, attempts in project.attempts().items():
        for attempt in attempts:
            done.setdefault(key.partition("-")[0], Counter())[attempt.worker or ""] += attempt.outcome == "done"
    return {name: dict(workers) for name, workers in done.items()}


def test_a_test_runs_workers_0_and_1_of_the_full_plan_on_their_own_partitions(either: Project) -> None:
    """S3.7: what worker 2 owns is not touched; the pool ends with its partitions, and the suggested command goes on."""
    either.write(GATED, "gated.py")
    open_gate(either)
    said = either.shoal("pool", "gated.py", "--test", "--workers", "3", "--stagger", "0", "--json")
    planned = [record for line in said.stdout.splitlines() if "partitions" in (record := json.loads(line))]
    own = {worker["number"]: worker["partitions"] for worker in planned}
    assert own == {0: ["a"], 1: ["b"]}
    assert sum(worker["remaining"] for worker in planned) == 20
    done = done_by_partition(either)
    assert {name: sum(workers.values()) for name, workers in done.items()} == {"a": 10, "b": 10}
    assert all(len(workers) == 1 for workers in done.values()), "a worker took what is not its own"
    assert (either.counts().done, either.counts().remaining) == (20, 10)
    (suggested,) = re.findall(r"Continue with: \S*shoal (.*)", said.stderr)
    assert suggested.endswith(" --workers 3 --stagger 0")
    either.shoal(*suggested.split(), "--yes")
    assert all_done_once(either)


def test_without_a_terminal_a_name_that_is_no_scraper_is_said_first(project: Project) -> None:
    unknown = project.shoal("pool", "ls", code=5)
    assert "There is no scraper 'ls'." in unknown.stdout
    assert "--yes" not in unknown.stdout + unknown.stderr
    project.write("""
    shop = Scraper("shop")

    @shop.stage
    def page(page: Page):
        yield {}

    shop.start("http://127.0.0.1:1/")
""")
    unconfirmed = project.shoal("pool", "shop.py", code=2).stderr
    assert "the plan cannot be confirmed" in unconfirmed
    assert "Add --yes" in unconfirmed


def test_a_pool_may_keep_to_some_partitions(project: Project) -> None:
    project.write(GATED, "gated.py")
    open_gate(project)
    assert "The run has no items of x" in project.shoal(*KEEPING, "x", code=2).stdout
    named = ("--states", "b, a", "--dry-run", "--json")
    plan = [json.loads(line) for line in project.shoal(*KEEPING[:-1], *named).stdout.splitlines()]
    assert [worker["partitions"] for worker in plan if "partitions" in worker] == [["a"], ["b"]]
    assert "it names no partition" in project.shoal(*KEEPING[:-1], "--states", ",", code=2).stderr
    said = project.shoal(*KEEPING, "c", "--partition", "later").stdout
    assert "(no items of later in the run)" in said
    assert re.search(r"^ +0 +1 +10 +- +c$", said, re.MULTILINE)
    assert {name: sum(workers.values()) for name, workers in done_by_partition(project).items()} == {"c": 10}
    assert (project.counts().done, project.counts().remaining) == (10, 20)


def test_workers_that_keep_to_their_own_get_the_partitions_of_one_that_leaves(project: Project) -> None:
    """Nobody takes over from others, so those whose partitions change are replaced."""
    pool = gated_pool(project, "--workers", "3", "--only")
    busy(project, 3)
    project.shoal("pool", "scale", "gated.py", "2")
    pool.wait_until_it_says("From now on 2 workers.")
    open_gate(project)
    assert pool.wait() == 0
    assert all_done_once(project)


def test_own_partitions_first_then_those_of_others(project: Project) -> None:
    """S3.3, S3.22: as assigned; who has nothing left of its own takes over."""
    project.write(
        """
        from pathlib import Path

        uneven = Scraper("uneven")

        @uneven.stage
        async def one(item: Item):
            # However late the other worker comes: there is something left when it has done its own.
            while item.key.startswith("large") and len(list(Path().glob("small-*"))) < 4:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
            if item.key.startswith("small"):
                Path(item.key).touch()

        uneven.start(one.item(key=f"large-{n}", partition="large") for n in range(80))
        uneven.start(one.item(key=f"small-{n}", partition="small") for n in range(4))
        """,
        "uneven.py",
    )
    (project.folder / "who.txt").write_text("[0] large\n[1] small\n")
    project.shoal(
        *("pool", "uneven.py", "--assign", "who.txt", "--yes", "--stagger", "0"),
        *("--set", "concurrency=2", "--set", "batch_size=2"),
    )
    by_worker = {key: attempt.worker for key, (attempt,) in project.attempts().items()}
    (of_small,) = {worker for key, worker in by_worker.items() if key.startswith("small")}
    assert len({worker for key, worker in by_worker.items() if key.startswith("large")} | {of_small}) == 2
    assert of_small in {worker for key, worker in by_worker.items() if key.startswith("large")}


def test_a_killed_worker_is_replaced_and_its_items_run_at_once(either: Project) -> None:
    """S3.19, S3.20: long before its lease would have ended; everything is stored once."""
    pool = gated_pool(either, "--workers", "2")
    before = busy(either, 2)
    os.kill(before[0].pid, signal.SIGKILL)
    pool.wait_until_it_says("was killed by signal 9; restart 1 of 5")
    after = busy(either, 2)
    assert len({worker.pid for worker in (*before, *after)}) == 3
    open_gate(either)
    assert pool.wait() == 0
    assert all_done_once(either)
    assert [line.split()[4] for line in pool.stdout.splitlines() if line.endswith("nothing left to do")].count("1") == 1


def test_workers_exit_when_the_pool_is_killed(project: Project) -> None:
    """They give back what they hold, as if they had been told to stop."""
    pool = gated_pool(project, "--workers", "2", "--set", "drain=0.2")
    before = busy(project, 2)
    pool.kill()
    until(lambda: [w.pid for w in before if is_alive(w.pid)], lambda alive: not alive, "workers live on")
    assert workers(project) == []
    counts = project.counts()
    assert (counts.ready, counts.leased) == (30, 0)


def test_a_stop_lets_running_items_end(fleet: Project) -> None:
    """S3.12: nothing stays leased, nothing is half done, and another pool goes on."""
    pool = gated_pool(fleet, "--workers", "2")
    until(lambda: len(list(fleet.folder.glob("began-*"))), lambda begun: begun == 8, "not all places are taken")
    pool.tell(signal.SIGTERM)
    pool.wait_until_it_says("Stopping")
    until(lambda: sum(w.leased for w in workers(fleet)), lambda leased: leased == 8, "not just what runs is held")
    assert not pool.is_over
    open_gate(fleet)
    assert pool.wait() == 130
    counts = fleet.counts()
    assert (counts.leased, counts.done + counts.ready, counts.dead) == (0, 30, 0)
    assert counts.done == 8
    assert sum(int(line.split()[1]) for line in pool.stdout.splitlines() if line.endswith("  stopped")) == 8
    assert f"pool gated.py --run-id {fleet.run().id}" in pool.stderr
    fleet.shoal("pool", "gated.py", "--run-id", fleet.run().id, *ARGUMENTS)
    assert all_done_once(fleet)


def test_a_second_signal_gives_back_what_runs(project: Project) -> None:
    pool = gated_pool(project, "--workers", "2")
    busy(project, 2)
    pool.tell(signal.SIGINT)
    pool.wait_until_it_says("Stopping")
    pool.tell(signal.SIGINT)
    assert pool.wait() == 130
    counts = project.counts()
    assert (counts.leased, counts.ready, counts.done) == (0, 30, 0)


def test_a_pool_grows_and_shrinks(fleet: Project) -> None:
    """More and fewer workers while it runs; the first one stays."""
    pool = gated_pool(fleet, "--workers", "1", "--set", "drain=0.2")
    (first,) = busy(fleet, 1)
    fleet.shoal("pool", "scale", "gated.py", "3")
    busy(fleet, 3)
    fleet.shoal("pool", "scale", "gated.py", "1")
    assert [worker.pid for worker in busy(fleet, 1)] == [first.pid]
    open_gate(fleet)
    assert pool.wait() == 0
    assert all_done_once(fleet)


SHARING = f"""
    import os
    import sys
    from pathlib import Path

    Path(f"place-{{os.getpid()}}").write_text(" ".join(word for word in sys.argv if word.startswith("--place=")))
{GATED.replace("@gated.stage", '@gated.stage(egress="homes", lane=None)')}
"""


def test_a_pool_that_grows_replaces_workers_whose_part_of_the_proxies_becomes_smaller(project: Project) -> None:
    """S3.17: parts never overlap: all are divided by one number, and no further worker starts with a proxy in use."""
    with MicroSocks() as proxy:
        shared_list(project, proxy, 7)
        pool = gated_pool(project, "--workers", "2", "--set", "drain=0.2", code=SHARING)
        before = busy(project, 2)
        assert places(project, before) == ["0/2", "1/2"]
        project.shoal("pool", "scale", "gated.py", "4")
        grown = until(
            lambda: workers(project),
            lambda found: len(found) == 4 and not {w.pid for w in found} & {w.pid for w in before},
            "workers were not replaced",
        )
        assert places(project, grown) == ["0/4", "1/4", "2/4", "3/4"]
        log = (project.folder / "logs" / "gated_pool.log").read_text()
        started = [int(number) for number in re.findall(r"worker started.*?\bworker\W+(\d+)", log)]
        assert started == [0, 1, 0, 1, 2, 3]
        project.shoal("pool", "scale", "gated.py", "1")
        (first,) = busy(project, 1)
        project.shoal("pool", "scale", "gated.py", "2")
        kept = busy(project, 2)
        assert places(project, kept) == ["0/4", "1/4"]
        assert first.pid in {worker.pid for worker in kept}
        open_gate(project)
        assert pool.wait() == 0
    assert "restart 1 of" not in pool.stderr
    assert all_done_once(project)


def shared_list(project: Project, proxy: MicroSocks, more: int) -> None:
    """A list of proxies that workers have fixed parts of; only the first answers."""
    dead = "".join(f"socks5://127.0.0.{n}:{free_port()}\n" for n in range(2, 2 + more))
    (project.folder / "proxies.txt").write_text(f"{proxy.url}\n{dead}")
    (project.folder / "shoal.toml").write_text(
        '[egress.homes]\nkind = "proxies"\nfile = "proxies.txt"\nshare = "fixed"\n'
    )


def test_a_pool_whose_proxies_another_pool_has_is_refused(either: Project) -> None:
    """S3.17: fixed parts go by the numbers of the workers, which begin with 0 in each pool."""
    with MicroSocks() as proxy:
        shared_list(either, proxy, 1)
        pool = gated_pool(either, "--workers", "2", code=SHARING)
        present = busy(either, 2)
        either.write(SHARING.replace("gated", "other"), "other.py")
        second = ("pool", "other.py", *ARGUMENTS, "--workers", "2")
        for command in (second, (*second, "--dry-run")):
            said = either.shoal(*command, code=2).stdout
            assert any(worker.id in said for worker in present)
            assert "of another pool has proxies of homes" in said
            assert 'share = "split"' in said
        (either.folder / "shoal.toml").write_text((either.folder / "shoal.toml").read_text().replace("fixed", "split"))
        assert "exits" not in either.shoal(*second, "--dry-run").stdout
        open_gate(either)
        assert pool.wait() == 0


def test_pools_with_lines_of_their_own_in_the_assignment_have_proxies_of_their_own(fleet: Project) -> None:
    """S3.17, S3.23: a worker keeps the number of its line, on whatever machine its pool is."""
    (fleet.folder / "who.txt").write_text("[0] a\n[1] b\n[2] c\n")
    with MicroSocks() as proxy:
        shared_list(fleet, proxy, 2)
        part = ("--assign", "who.txt", "--only", "--partition")
        first = gated_pool(fleet, *part, "a", code=SHARING)
        run = busy(fleet, 1)[0].scope.run_ids[0]
        later = ("pool", "gated.py", *ARGUMENTS, "--run-id", run, *part)
        second = fleet.start(*later, "b,c", "--log-dir", "logs2")
        both = busy(fleet, 3)
        assert places(fleet, both) == ["0/3", "1/3", "2/3"]
        assert "of another pool has proxies" in fleet.shoal(*later, "b", code=2).stdout
        fleet.shoal("pool", "scale", "gated.py", "2")  # c would go to number 0
        second.wait_until_it_says("Nothing was changed: Worker")
        assert places(fleet, workers(fleet)) == ["0/3", "1/3", "2/3"]
        open_gate(fleet)
        assert [first.wait(), second.wait()] == [0, 0]


def places(project: Project, found: list[WorkerView]) -> list[str]:
    """What the workers were told about their number."""
    return sorted((project.folder / f"place-{worker.pid}").read_text().removeprefix("--place=") for worker in found)


def test_workers_are_replaced_on_sighup(project: Project) -> None:
    """S3.27: newcomers read the settings and the assignment anew; none of that counts as a crash."""
    (project.folder / "who.txt").write_text("[0] a\n[1] b, c\n")
    pool = gated_pool(project, "--assign", "who.txt", "--set", "drain=0.2")
    before = busy(project, 2)
    (project.folder / "who.txt").write_text("[0] a\n[1] b\n[2] c\n")
    pool.tell(signal.SIGHUP)
    old = {worker.pid for worker in before}
    found = until(
        lambda: workers(project),
        lambda found: len(found) == 3 and all(w.leased and w.pid not in old for w in found),
        "workers were not replaced",
    )
    assert sorted(worker.scope.partitions for worker in found) == [("a",), ("b",), ("c",)]
    (project.folder / "who.txt").write_text("[0] a, b\n")
    pool.tell(signal.SIGHUP)
    pool.wait_until_it_says("Nothing was changed: c is assigned to nobody.")
    open_gate(project)
    assert pool.wait() == 0
    assert "restart 1 of" not in pool.stderr
    assert all_done_once(project)


BREAKS = """
    import os
    if "--partition=a" in sys.argv:
        os._exit(9)
"""


def test_a_worker_that_always_crashes_is_given_up(project: Project) -> None:
    """S3.19: after so many restarts, while the others go on and take its items over."""
    (project.folder / "who.txt").write_text("[0] a\n[1] b, c\n")
    pool = gated_pool(project, "--assign", "who.txt", "--max-restarts", "1", code=BREAKS + GATED)
    pool.wait_until_it_says("Worker 0 is given up after 1 restart")
    open_gate(project)
    assert pool.wait() == 0
    assert all_done_once(project)
    workers = [line.split() for line in pool.stdout.splitlines() if line.endswith(("gave up", "nothing left to do"))]
    assert [line[:6] for line in workers] == [
        ["0", "0", "0", "0", "1", "gave"],
        ["1", "30", "0", "0", "0", "nothing"],
    ]


def test_a_pool_whose_workers_all_crash_fails(project: Project) -> None:
    project.write(BREAKS + GATED, "gated.py")
    (project.folder / "who.txt").write_text("[0] a, b, c\n")
    said = project.shoal("pool", "gated.py", "--assign", "who.txt", *ARGUMENTS, "--max-restarts", "1", code=1)
    assert "crashed (exit 9); restart 1 of 1" in said.stderr
    assert "Worker 0 is given up after 1 restart; its log is logs/gated_worker_0.log." in said.stderr
    assert "The run has not ended: 1 worker failed." in said.stderr
    assert project.counts().ready == 30


def test_a_crash_after_the_end_of_the_run_delays_nothing(project: Project) -> None:
    """A worker that is to be started again is no longer needed when the run has ended."""
    (project.folder / "who.txt").write_text("[0] a\n[1] b, c\n")
    pool = gated_pool(project, "--assign", "who.txt", "--max-restarts", "9", code=BREAKS + GATED)
    pool.wait_until_it_says("restart 3 of 9 in 2 s")
    open_gate(project)
    assert pool.wait() == 0
    assert "restart 5 of 9" not in pool.stderr
    assert all_done_once(project)


def test_a_worker_whose_handler_always_fails_is_not_restarted(project: Project) -> None:
    project.write(GATED.replace('yield {"key": item.key}', "yield 1 / 0"), "gated.py")
    open_gate(project)
    said = project.shoal("pool", "gated.py", *ARGUMENTS, "--workers", "1", code=1)
    assert "Worker 0 exits: the scraper's code fails every time; its log is logs/gated_worker_0.log." in said.stderr
    assert "restart" not in said.stderr
    assert project.counts().dead < 30


def test_workers_that_leave_an_upgraded_ledger_have_not_crashed(either: Project) -> None:
    """Its workers finish what they hold; nothing is restarted, and the pool says in one sentence why it ends."""
    pool = gated_pool(either, "--workers", "2")
    busy(either, 2)
    pretend_upgrade(either)
    for number in (0, 1):
        log = either.folder / "logs" / f"gated_worker_{number}.log"
        until(log.read_text, lambda text: "newer schema in ledger" in text, "the worker was not told")
    open_gate(either)
    assert pool.wait() == 3
    assert "Worker 0 exits: the ledger was upgraded." in pool.stderr
    assert "Worker 1 exits: the ledger was upgraded." in pool.stderr
    assert "crashed" not in pool.stderr
    assert "restart" not in pool.stderr
    said = [line for line in pool.stderr.splitlines() if "the newest that this Shoal knows" in line]
    assert len(said) == 1
    assert "Upgrade Shoal on this machine" in said[0]


def pretend_upgrade(project: Project) -> None:
    """The ledger has the version of a later release from now on."""
    if project.ledger.startswith("postgres"):

        async def insert() -> None:
            connection = await asyncpg.connect(project.ledger)
            await connection.execute("insert into shoal.migration (version, name) values (999, 'future')")
            await connection.close()

        asyncio.run(insert())
    else:
        with closing(sqlite3.connect(project.folder / project.ledger, isolation_level=None, timeout=60)) as connection:
            connection.execute("pragma user_version = 999")


def process_started_at(pid: int) -> float:
    """In seconds since boot."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def test_workers_start_one_after_another(project: Project) -> None:
    """S3.10: with a pause between two starts, drawn from the range given."""
    pool = gated_pool(project, "--workers", "2", "--stagger", "3-3.2")
    first, second = sorted(process_started_at(worker.pid) for worker in busy(project, 2))
    assert 2.9 < second - first < 15
    open_gate(project)
    assert pool.wait() == 0


def test_two_workers_on_the_demo_shop(project: Project) -> None:  # S3.7
    with Shop().serving() as shop:
        (project.folder / "shoal.toml").write_text(f'[scrapers.shop.settings]\nurl = "{shop.url}"\n')
        said = project.shoal("pool", "shoal.demo.scraper:shop", "--test", "--yes", "--stagger", "0", timeout=90)
    assert "nothing left to do" in said.stdout
    assert "1259 records" in said.stdout
    shares = re.findall(r"^ +([01]) +(\d+) +\d+ +\d+ +0  nothing left", said.stdout, re.MULTILINE)
    assert [number for number, _ in shares] == ["0", "1"]
    assert all(int(done) for _, done in shares)
    assert len({item.partition for item in project.items()}) == 13  # the home page's, and twelve categories


def test_logs_may_be_emptied_while_they_are_written(project: Project) -> None:
    """What `copytruncate` of logrotate does: all files are open for appending, so none has a hole."""
    pool = gated_pool(project, "--workers", "2")
    busy(project, 2)
    logs = sorted((project.folder / "logs").iterdir())
    assert [log.name for log in logs] == ["gated_pool.log", "gated_worker_0.log", "gated_worker_1.log"]
    for log in logs:
        assert log.stat().st_size > 0
        os.truncate(log, 0)
    open_gate(project)
    assert pool.wait() == 0
    for log in logs:
        written = log.read_bytes()
        assert b"stopped" in written
        assert b"started" not in written
        assert b"\0" not in written
