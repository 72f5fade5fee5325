"""Six jobs in Shoal, Scrapy and Crawlee: how much code each takes, and what is left after `kill -9` and a second start.

Each program is killed when half of the requests of an undisturbed run have been answered, and then started again with
the same command, as somebody would who finds it dead in the morning.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import msgspec

from bench.figures import Report
from bench.session import Effort, Session
from shoal.demo.shop import Shop
from shoal.demo.shop.search import API_KEY
from shoal.demo.shop.serving import RunningShop
from tests.support.brokers import RabbitServer

JOBS = ("crawl", "api", "form", "download", "pipeline", "broker")
FRAMEWORKS = ("shoal", "scrapy", "crawlee")
PER_CATEGORY: dict[Effort, int] = {"quick": 24, "full": 104}
# One file, which arrives at once on loopback: tests/fetch/test_download.py kills larger ones.
NOT_KILLED = ("download",)
PRODUCTS = 100
# A program that does not end within this time is reported as such. Crawlee waits five minutes for the locks of a
# killed process.
TIMEOUT: dict[Effort, float] = {"quick": 60.0, "full": 600.0}
FOLDER = Path(__file__).parent / "jobs"


class Outcome(msgspec.Struct, frozen=True):
    """What a program left: its records by what identifies them, and how many requests the shop saw."""

    records: Counter[str]
    requests: int


class ProgramFailed(Exception):
    """A program did not end, or not well."""

    def __init__(self, summary: str, log: str) -> None:
        super().__init__(f"{summary}: {log}")
        self.summary = summary


class JobBench:
    """Runs the programs with one database and one broker, each on a shop of its own, whose faults are still to come."""

    def __init__(self, database: str, broker: str, per_category: int, timeout: float = TIMEOUT["quick"]) -> None:
        self._database = database
        self._broker = broker
        self._per_category = per_category
        self._timeout = timeout

    def run(self, job: str, framework: str, *, kill_after: int | None = None) -> Outcome:
        """Run a program to its end; with `kill_after`, kill it after so many requests and start it again."""
        serving = Shop(per_category=self._per_category).serving()
        with tempfile.TemporaryDirectory() as name, serving as shop:
            folder = Path(name)
            program = shutil.copy(FOLDER / f"{job}_{framework}.py", folder)
            settings = FOLDER / f"{job}_{framework}.toml"
            if settings.exists():
                shutil.copy(settings, folder / "shoal.toml")
            asyncio.run(self._prepare(job, framework, shop))
            command = self._command(job, framework, Path(program).name)
            if kill_after is not None:
                self._start(command, shop, folder, kill_after=kill_after)
            self._start(command, shop, folder)
            return Outcome(asyncio.run(self._records(job, framework, folder)), _requests(shop))

    def _start(self, command: list[str], shop: RunningShop, folder: Path, *, kill_after: int | None = None) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")},
            "SHOP": shop.url,
            "OUT": "out.jsonl",
            "DATABASE": self._database,
            "BROKER": self._broker,
            "FEED": f"{self._broker}?queue=urls_shoal",
            "SHOP_API_KEY": API_KEY,
        }
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            ends_at = time.monotonic() + self._timeout
            while process.poll() is None and time.monotonic() < ends_at:
                if kill_after is not None and _requests(shop) >= kill_after:
                    break
                time.sleep(0.005)
            killed = process.poll() is None
            if killed:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if kill_after is None and (killed or process.returncode != 0):
            summary = f"did not end within {self._timeout:.0f} s" if killed else f"exit {process.returncode}"
            raise ProgramFailed(summary, (folder / "log.txt").read_text()[-2000:])

    @staticmethod
    def _command(job: str, framework: str, program: str) -> list[str]:
        if framework != "shoal":
            return [sys.executable, program]
        shoal = str(Path(sys.executable).with_name("shoal"))
        if job == "broker":
            return [shoal, "feed", "--url-env", "FEED", program, "--work", "--idle", "1", "-q"]
        output = ["-o", "out.jsonl"] if job != "pipeline" else []
        return [shoal, "run", program, *output, "-q"]

    async def _prepare(self, job: str, framework: str, shop: RunningShop) -> None:
        if job == "pipeline":
            connection = await asyncpg.connect(self._database)
            await connection.execute(f"drop table if exists products_{framework}")
            await connection.close()
        if job == "broker":
            links = [product.url for product in shop.facts().products.values()][:PRODUCTS]
            rabbit = await aio_pika.connect(self._broker)
            channel = await rabbit.channel()
            for queue in (f"urls_{framework}", f"results_{framework}"):
                await channel.queue_delete(queue)
                await channel.declare_queue(queue, durable=True)
            for link in links:
                message = aio_pika.Message(link.encode(), delivery_mode=2)
                await channel.default_exchange.publish(message, f"urls_{framework}")
            await rabbit.close()

    async def _records(self, job: str, framework: str, folder: Path) -> Counter[str]:
        if job == "pipeline":
            connection = await asyncpg.connect(self._database)
            try:
                rows = await connection.fetch(f"select sku, title, price from products_{framework}")
            finally:
                await connection.close()
            return Counter(row["sku"] for row in rows)
        if job == "broker":
            return await self._queued(f"results_{framework}")
        out = folder / "out.jsonl"
        records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return Counter(_identity(record) for record in records)

    async def _queued(self, name: str) -> Counter[str]:
        connection = await aio_pika.connect(self._broker)
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        found: Counter[str] = Counter()
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            found[_identity(json.loads(message.body))] += 1
        await connection.close()
        return found


def _requests(shop: RunningShop) -> int:
    return sum(visit.path != "/robots.txt" for visit in shop.log())


def _identity(record: dict[str, Any]) -> str:
    if isinstance(delivered := record.get("record"), dict):  # the message of a sink
        record = delivered
    return str(record.get("sku") or record.get("title") or record.get("url") or record.get("file_urls"))


@contextmanager
def job_bench(database: str, per_category: int, timeout: float) -> Iterator[JobBench]:
    with RabbitServer() as broker:
        yield JobBench(database, broker.url(), per_category, timeout)


def code_lines(job: str, framework: str) -> int:
    """Lines of code, with the settings and without blank lines."""
    files = [FOLDER / f"{job}_{framework}{suffix}" for suffix in (".py", ".toml")]
    return sum(bool(line.strip()) for file in files if file.exists() for line in file.read_text().splitlines())


def run(session: Session) -> Report:
    report = Report(
        "killed_jobs",
        "What is lost and what is stored twice when a job is killed half-way and started again?",
        {"products_per_category": session.size(PER_CATEGORY)},
    )
    per_category, timeout = session.size(PER_CATEGORY), session.size(TIMEOUT)
    with session.postgres.fresh() as database, job_bench(database, per_category, timeout) as bench:
        for job in JOBS:
            for framework in FRAMEWORKS:
                clean = bench.run(job, framework)
                _add(report, f"{job}: {framework}", clean, code_lines(job, framework))
                if job in NOT_KILLED:
                    continue
                try:
                    killed = bench.run(job, framework, kill_after=max(1, clean.requests // 2))
                except ProgramFailed as failed:
                    report.notes.append(f"{job}: {framework} after kill -9: {failed.summary}.")
                    if framework == "shoal":
                        raise
                else:
                    _add_killed(report, f"{job}: {framework}", clean, killed)
    return report


def _add(report: Report, name: str, clean: Outcome, lines: int) -> None:
    report.add(f"{name}, code", "lines", [lines])
    report.add(f"{name}, undisturbed", "records", [clean.records.total()])


def _add_killed(report: Report, name: str, clean: Outcome, killed: Outcome) -> None:
    lost = sum((clean.records - killed.records).values())
    twice = sum((killed.records - clean.records).values())
    report.add(f"{name}, lost after kill -9", "records", [lost])
    report.add(f"{name}, stored twice after kill -9", "records", [twice])
    report.add(f"{name}, requests of both starts", "of an undisturbed run", [killed.requests / clean.requests])
    if "shoal" in name:
        report.target(f"{name}: lost", lost, at_most=0)
        report.target(f"{name}: stored twice", twice, at_most=0)
