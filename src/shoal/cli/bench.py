"""`shoal bench`: how fast Shoal is on this machine, beside what the machine can do at best."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

ROUNDS = 3
LEDGER_ITEMS = 10_000


@with_options
def bench(
    session: Session,
    pages: Annotated[int, typer.Option(min=100, max=100_000, help="Pages to fetch in each lap.")] = 4_000,
) -> None:
    """Measure pages a second of a bare loop and of Shoal, and what the ledger can take. Needs no network.

    Both visit a local server in a process of its own, with the same concurrency, and read the title of each page. The
    ledger is the one that the settings name: a SQLite file gets a new one beside it, a PostgreSQL a run that is removed
    at the end.
    """
    facts = session.wait(_measure(session, pages), fast=True)
    if session.json:
        session.record(facts)
        return
    session.table(
        ["WHAT", "A SECOND", "RATIO"],
        [
            ("pages, bare aiohttp loop", round(facts["bare_pages_per_second"]), "1.00"),
            ("pages, Shoal on SQLite", round(facts["shoal_pages_per_second"]), f"{facts['ratio']:.2f}"),
            (f"claims and commits on {facts['ledger']}", round(facts["ledger_items_per_second"]), ""),
        ],
    )
    session.note(
        f"{facts['pages']} pages a lap, {facts['concurrency']} at once, best of {ROUNDS}; {facts['cores']} cores, "
        f"Python {facts['python']}."
    )


async def _measure(session: Session, pages: int) -> dict[str, Any]:
    import platform
    from tempfile import TemporaryDirectory

    from shoal.cli.bench_laps import bare_seconds, ledger_seconds, shoal_seconds

    settings = session.settings
    _warn_when_busy(session)
    bare, shoal = [], []
    with _site() as site, TemporaryDirectory(prefix="shoal-bench-") as place:
        await bare_seconds(site, pages // 10, settings.concurrency, Path(place) / "warm-up.jsonl")
        # In turns, so that a busy moment of the machine does not fall on one of them alone.
        for lap in range(ROUNDS):
            folder = Path(place) / str(lap)
            folder.mkdir()
            bare.append(await bare_seconds(site, pages, settings.concurrency, folder / "records.jsonl"))
            session.note(f"bare loop   {pages / bare[-1]:>8.0f} pages/s")
            shoal.append(await shoal_seconds(site, pages, settings, folder))
            session.note(f"Shoal       {pages / shoal[-1]:>8.0f} pages/s")
    ledger = await ledger_seconds(settings, LEDGER_ITEMS)
    return {
        "pages": pages,
        "concurrency": settings.concurrency,
        "bare_pages_per_second": round(pages / min(bare), 1),
        "shoal_pages_per_second": round(pages / min(shoal), 1),
        "ratio": round(min(bare) / min(shoal), 3),
        "ledger": settings.shown()["ledger"],
        "ledger_items_per_second": round(LEDGER_ITEMS / ledger, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


@contextmanager
def _site() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.bench_site"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()  # that is its sign to end


def _warn_when_busy(session: Session) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        session.note(f"The machine is busy (load {load:.1f} on {cores} cores): the figures will be too low.")
