"""Very many items enqueued, worked off by real workers and exported; memory and claims meanwhile.

The stage needs no request, so that what is seen is Shoal and the ledger: each item becomes one record. Enqueueing,
working and exporting are the commands that a user types, each a process whose memory is looked at from outside.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from bench.figures import Lines, Report, percentile
from bench.fleet_crew import Desk, Watcher, desk
from bench.fleet_worker import Call
from bench.places import PostgresPlace
from bench.probe import Probe
from bench.session import Effort, Session
from bench.volume_worker import read_calls

SCRAPER = """\
from shoal import Item, Scraper

pages = Scraper("pages", robots=False)


@pages.stage(lane=None)
async def page(item: Item):
    yield {"url": item.url, "number": int(item.url.rpartition("/")[2])}
"""
WORKERS = 2
CONCURRENCY = 50
BATCH = 200
LOOK_SECONDS = 1.0
REPORT_SECONDS = 60.0
# The course of the work is cut into so many parts; the first shows caches that fill, the last a queue that ends.
PARTS = 20
# The fastest tenth tells of the ledger, the others also of whatever else the machine does.
PERCENTS = (10, 50, 95)
# Flat: the median of the last third against that of the first third, both without their outermost part.
FLAT_MEMORY, FLAT_CLAIMS, FLAT_COST = 1.15, 1.5, 1.25


@dataclass(frozen=True)
class Sizes:
    items: int


SIZES: dict[Effort, Sizes] = {"quick": Sizes(100_000), "full": Sizes(10_000_000)}


@dataclass
class Course:
    """One command while it runs. `memory`: (seconds since its start, MB of its largest process). `used`: (seconds since
    its start, processor seconds of the database so far). `peak`: MB of the largest process by the kernel, which counts
    what it was forked from too: for a command that was over before anybody looked.
    """

    seconds: float = 0.0
    database: float = 0.0
    wal: int = 0
    processor: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)
    used: list[tuple[float, float]] = field(default_factory=list)
    peak: float = 0.0


def run(session: Session) -> Report:
    return measure(session.postgres, session.size(SIZES))


def measure(place: PostgresPlace, sizes: Sizes) -> Report:
    items = sizes.items
    report = Report(
        "volume",
        "Do memory and claims stay the same while very many items are enqueued, worked off and exported?",
        {"items": items, "workers": WORKERS, "concurrency": CONCURRENCY, "batch": BATCH},
    )
    with place.fresh() as ledger, desk(ledger, SCRAPER) as at, Watcher(ledger) as watcher, Probe(ledger) as probe:
        _write_urls(at.folder / "urls.txt", items)
        look = _Look(watcher, probe)
        enqueue = look.at([_shoal(at, "enqueue", "pages.py", "--urls-file", "urls.txt")])
        (at.folder / "urls.txt").unlink()
        _say(f"enqueued {items:,} in {enqueue.seconds:.0f} s")
        began = time.monotonic()
        work = look.at([_worker(at, number) for number in range(WORKERS)], on_look=_Progress(watcher))
        _say(f"worked off in {work.seconds:.0f} s")
        tables = probe.table_bytes()
        export = look.at([_shoal(at, "export", "latest", "-o", "records.jsonl")])
        _say(f"exported in {export.seconds:.0f} s")
        exported = _count_lines(at.folder / "records.jsonl")
        if exported != items:
            raise RuntimeError(f"{exported} records of {items} items were exported")
        claims = _claims(at)
    _tell(report, items, enqueue, work, export)
    _tell_tables(report, items, tables)
    _judge(report, work, claims, began)
    report.notes.append(
        f"{WORKERS} real `shoal worker` processes, {CONCURRENCY} items at once each, claims of up to {BATCH}; a stage "
        f"without a request, one record an item. All {items:,} records were in the exported file."
    )
    return report


class _Look:
    """Runs commands to their end, looks at their memory meanwhile, and says what they and the database took."""

    def __init__(self, watcher: Watcher, probe: Probe) -> None:
        self._watcher = watcher
        self._probe = probe

    def at(self, commands: Sequence[subprocess.Popen[bytes]], on_look: Callable[[], object] = int) -> Course:
        course = Course()
        database, wal, began = self._watcher.seconds_used(), self._probe.wal_bytes(), time.monotonic()
        processes = [psutil.Process(command.pid) for command in commands]
        used = [0.0] * len(processes)
        try:
            while not all(_is_over(command, course) for command in commands):
                sizes = []
                for number, process in enumerate(processes):
                    try:
                        times = process.cpu_times()
                        used[number] = times.user + times.system
                        sizes.append(process.memory_info().rss / 2**20)
                    except psutil.NoSuchProcess:
                        continue
                if sizes and max(sizes) > 0:
                    course.memory.append((time.monotonic() - began, max(sizes)))
                course.used.append((time.monotonic() - began, self._watcher.seconds_used() - database))
                on_look()
                time.sleep(LOOK_SECONDS)
        finally:
            for command in commands:
                if command.poll() is None:
                    command.kill()
                command.wait()
        if any(command.returncode for command in commands):
            raise RuntimeError(f"{commands[0].args!r} ended with {[command.returncode for command in commands]}")
        course.seconds, course.processor = time.monotonic() - began, sum(used)
        course.database = self._watcher.seconds_used() - database
        course.wal = self._probe.wal_bytes() - wal
        return course


def _is_over(command: subprocess.Popen[bytes], course: Course) -> bool:
    """As `command.poll()`, which would throw away how large the process was."""
    if command.returncode is None:
        pid, status, usage = os.wait4(command.pid, os.WNOHANG)
        if pid != 0:
            command.returncode = os.waitstatus_to_exitcode(status)
            course.peak = max(course.peak, usage.ru_maxrss / 1024)
    return command.returncode is not None


def _write_urls(path: Path, items: int) -> None:
    with path.open("w") as file:
        file.writelines(f"https://example.com/catalogue/page/{number}\n" for number in range(items))


def _shoal(at: Desk, *arguments: str) -> subprocess.Popen[bytes]:
    return _start(at, arguments[0], [str(Path(sys.executable).with_name("shoal")), *arguments])


def _worker(at: Desk, number: int) -> subprocess.Popen[bytes]:
    options = ("--concurrency", str(CONCURRENCY), "--batch-size", str(BATCH))
    calls = str(at.folder / f"calls-{number}.txt")
    return _start(
        at, f"worker-{number}", [sys.executable, "-m", "bench.volume_worker", calls, "worker", "pages.py", *options]
    )


def _start(at: Desk, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    with (at.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=at.folder, env=at.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


class _Progress:
    """A line a minute, because the whole takes long."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._said_at = -REPORT_SECONDS

    def __call__(self) -> None:
        if time.monotonic() - self._said_at < REPORT_SECONDS:
            return
        self._said_at = time.monotonic()
        (run,) = self._watcher.ask(lambda ledger: ledger.runs.list(limit=1)).rows
        _say(f"{self._watcher.ask(lambda ledger: ledger.reads.stats(run.id)).remaining:,} items left")


def _say(text: str) -> None:
    print(f"        volume: {text}", flush=True)


def _claims(at: Desk) -> list[Call]:
    """All claims of all workers that found something."""
    calls = (call for number in range(WORKERS) for call in read_calls(at.folder / f"calls-{number}.txt"))
    return [call for call in calls if call.kind == "claim" and call.items]


def _tell(report: Report, items: int, enqueue: Course, work: Course, export: Course) -> None:
    for name, course in {"enqueue": enqueue, "work": work, "export": export}.items():
        report.add(name, "s", [course.seconds])
        report.add(name, "items/s", [items / course.seconds])
        report.add(name, "microseconds of the database's processor an item", [1e6 * course.database / items])
        report.add(name, "microseconds of its own processor an item", [1e6 * course.processor / items])
        report.add(name, "bytes of WAL an item", [course.wal / items])
        largest = max((size for _, size in course.memory), default=course.peak)
        report.add(f"{name}: largest process", "MB", [largest])


def _tell_tables(report: Report, items: int, tables: dict[str, int]) -> None:
    for name, size in sorted(tables.items(), key=lambda pair: -pair[1]):
        if size / items >= 1:
            report.add(f"table {name}, indexes included", "bytes an item", [size / items])
    report.add("all tables", "bytes an item", [sum(tables.values()) / items])


def _judge(report: Report, work: Course, claims: Sequence[Call], began: float) -> None:
    memory = _parts(work.memory, work.seconds)
    claim_parts = _parts([(call.ended - began, 1000 * call.seconds) for call in claims], work.seconds)
    taken = _parts([(call.ended - began, float(call.items)) for call in claims], work.seconds)
    sizes = [statistics.median(part) for part in memory]
    report.target("work: memory of a worker, last third / first third", _growth(sizes), at_most=FLAT_MEMORY)
    series = []
    for percent in PERCENTS:
        course = [percentile(part, percent) for part in claim_parts]
        report.add(f"claim p{percent}, along the way", "ms", course)
        report.target(f"work: claim p{percent}, last third / first third", _growth(course), at_most=FLAT_CLAIMS)
        series.append((f"p{percent}", tuple((100 * n / len(course), ms) for n, ms in enumerate(course))))
    report.add("memory of the larger worker, along the way", "MB", sizes)
    rates = [sum(part) / (work.seconds / PARTS) for part in taken]
    report.add("work, along the way", "items/s", rates)
    if len(work.used) > 2 * PARTS:  # of a shorter run there are too few looks
        costs = _costs(work, claims, began)
        report.add("work: the database's processor, along the way", "microseconds an item", costs)
        report.target("work: database's processor an item, last third / first third", _growth(costs), at_most=FLAT_COST)
    report.plots.append(
        Lines("Claims while very many items are worked off", "percent of the time", "ms", tuple(series))
    )
    line = tuple((100 * n / len(sizes), size) for n, size in enumerate(sizes))
    report.plots.append(Lines("Memory of the larger of two workers", "percent of the time", "MB", (("worker", line),)))


def _costs(work: Course, claims: Sequence[Call], began: float) -> list[float]:
    """Processor time of the database for an item, in parts of equally many items: it does not depend on other load."""
    each = sum(call.items for call in claims) / PARTS
    edges, done = [0.0], 0
    for call in sorted(claims, key=lambda call: call.ended):
        done += call.items
        if done >= each * len(edges):
            edges.append(call.ended - began)
    spent = [max((used for at, used in work.used if at <= edge), default=0.0) for edge in edges]
    return [1e6 * (after - before) / each for before, after in pairwise(spent)]


def _parts(samples: Sequence[tuple[float, float]], seconds: float) -> list[list[float]]:
    """The samples by the part of the time that they fall into; parts without one are left out."""
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for at, value in samples:
        parts[min(PARTS - 1, int(PARTS * at / seconds))].append(value)
    return [part for part in parts if part]


def _growth(course: Sequence[float]) -> float:
    """The last third of the course against its first, without the part at either end."""
    inner = course[1:-1] if len(course) > 4 else course
    third = max(1, len(inner) // 3)
    return statistics.median(inner[-third:]) / statistics.median(inner[:third])
