"""One contender on one site: a program in a process and a folder of its own, and what it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.scrape_site import FastSite

REPOSITORY = Path(__file__).parents[1]
URLS, OUT, STORED = "urls.txt", "out.jsonl", "stored.txt"
POLL_SECONDS = 0.1
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Program:
    """What to run. It finds its URLs in URLS and leaves its records in OUT, as JSON lines; `files` lie beside them.

    A program may write the moment when all its records were safe into STORED, if that was before OUT was there.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """`seconds`: from its first request until its records were safe. `exported`: until they were in a file of JSON
    lines, too. `process`: from start to end. `safe_at`: from its start until its records were safe. `busy`: the
    processor time of the program, `server_busy` that of the site. `course`: seconds since the start and megabytes, now
    and then. `waited`: how long of `seconds` its main thread waited for a core.
    """

    pages: int
    seconds: float
    exported: float
    process: float
    safe_at: float
    busy: float
    server_busy: float
    course: tuple[tuple[float, float], ...]
    waited: float = 0.0

    @property
    def rate(self) -> float:
        return self.pages / self.seconds

    @property
    def rate_alone(self) -> float:
        """Pages per second without the time in which its event loop waited for a core."""
        return self.pages / max(self.seconds - self.waited, 1e-9)

    @property
    def peak(self) -> float:
        """The most memory it was seen to use, children included, in MB."""
        return max(megabytes for _, megabytes in self.course)


def python(module: str, *arguments: object) -> list[str]:
    """The command of a program of this package."""
    return [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]


def attempt(site: FastSite, program: Program, urls: Sequence[str], pages: int) -> Trial:
    """Run the program on these URLs. Raises RuntimeError unless it left exactly one record of each of the pages."""
    with tempfile.TemporaryDirectory(prefix="shoal-scrape-") as name:
        folder = Path(name)
        (folder / URLS).write_text("".join(f"{url}\n" for url in urls))
        for file, text in program.files.items():
            (folder / file).write_text(text)
        before, busy_before = site.visitors(), site.seconds_used()
        started = time.time()
        course, busy, waits = _watched(program, folder)
        ended = time.time()
        _check(folder / OUT, pages)
        first = site.first_visit(before)
        exported = _last_write(folder)
        stored = folder / STORED
        safe = float(stored.read_text()) if stored.exists() else exported
        return Trial(
            pages=pages,
            seconds=safe - first,
            exported=exported - first,
            process=ended - started,
            safe_at=safe - started,
            busy=busy,
            server_busy=site.seconds_used() - busy_before,
            course=course,
            waited=_between(waits, first, safe),
        )


def _watched(
    program: Program, folder: Path
) -> tuple[tuple[tuple[float, float], ...], float, list[tuple[float, float]]]:
    """Run to the end; the course of its memory, the processor time it used, and its waits for a core so far."""
    with (folder / "said.log").open("wb") as said:
        running = subprocess.Popen(
            program.command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    started = time.monotonic()
    course: list[tuple[float, float]] = []
    busy, waits = 0.0, list[tuple[float, float]]()
    process = psutil.Process(running.pid)
    try:
        while running.poll() is None:
            try:
                if megabytes := _megabytes(process):  # nothing is left of one that has just ended
                    course.append((time.monotonic() - started, megabytes))
                waits.append((time.time(), _waited(running.pid)))
                times = process.cpu_times()
                busy = times.user + times.system + times.children_user + times.children_system
            except psutil.NoSuchProcess:
                break
            try:
                running.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()
    if running.returncode != 0:
        end = (folder / "said.log").read_text(errors="replace")[-2_000:]
        raise RuntimeError(f"{' '.join(program.command)} ended with {running.returncode}:\n{end}")
    return tuple(course), busy, waits


def _waited(pid: int) -> float:
    """How long the main thread of a process has waited for a core, in seconds; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _between(waits: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """What was waited from `begin` to `end`."""
    within = [waited for at, waited in waits if begin <= at <= end]
    return within[-1] - within[0] if within else 0.0


def _megabytes(process: psutil.Process) -> float:
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_info().rss / _MEGABYTE
        except psutil.NoSuchProcess:
            continue
    return total


def _last_write(folder: Path) -> float:
    """When the last of its files was changed, by the wall clock."""
    own = (path for path in (folder, *folder.rglob("*")) if path.name not in ("said.log", STORED))
    return max(path.stat().st_mtime for path in own if path.is_file())


def _check(out: Path, pages: int) -> None:
    """A scraper that loses pages is fast, but it is none."""
    records = [json.loads(line) for line in out.read_text().splitlines()]
    urls = {record["url"] for record in records}
    wrong = [r for r in records if r["title"] not in (None, f"Page {r['url'].rpartition('/')[2]}")]
    if len(records) != pages or len(urls) != pages or wrong:
        raise RuntimeError(f"{len(records)} records of {len(urls)} pages, {len(wrong)} wrong; {pages} were wanted")
