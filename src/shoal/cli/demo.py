"""`shoal demo`: scrape a shop that comes with Shoal, and let the shop's own log say how it went."""

from __future__ import annotations

import os
import shlex
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.scrapers import command_line
from shoal.service.records import run_record

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.demo.scraper import ScrapeCheck
    from shoal.demo.shop import RunningShop
    from shoal.ledger.protocols import Ledger

# Slow enough to be watched, fast enough to be waited for.
LATENCY = (0.03, 0.09)
# With --serve a run lasts some minutes, so that there is time to look at it.
SERVED_LATENCY = (1.0, 3.0)
SAMPLE = 3
RESULTS_PAGE = 1_000


@with_options
def demo(
    session: Session,
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the dashboard up: one slow run after another, until Ctrl-C.")
    ] = False,
) -> None:
    """Scrape a bundled local shop of 1,259 products with all kinds of faults, and compare with the truth.

    The dashboard is served meanwhile. It uses a fresh SQLite ledger in a temporary folder, unless --ledger, --db-... or
    SHOAL_LEDGER names one.
    """
    from shoal.cli.serve import serving_beside

    settings = _demo_settings(session.settings)
    for name in [name for name in os.environ if name.upper().endswith("_PROXY")]:
        del os.environ[name]  # the shop is on this machine
    hint = "" if serve else f"while the demo runs; `{command_line()} demo --serve` keeps it up"
    nobody_looks = (session.quiet or session.json) and not serve
    with nullcontext() if nobody_looks else serving_beside(session, settings, required=serve, hint=hint):
        code = session.wait(_demo_served(session, settings) if serve else _demo(session, settings), fast=True)
    _print_next(session, settings)
    if code:
        raise typer.Exit(code)


def _demo_settings(settings: Settings) -> Settings:
    """Never a project's own ledger by accident: only one that was named for this very command or shell."""
    import msgspec

    origin = settings.origins["ledger"]
    if not (origin.kind == "flag" or (origin.name == "SHOAL_LEDGER" and origin.kind == "environment")):
        folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
        settings = msgspec.structs.replace(settings, ledger=str(folder / "ledger.db"), log_dir=str(folder / "logs"))
    return settings.for_scraper("shop")


async def _demo(session: Session, settings: Settings) -> int:
    from shoal.cli.render.run import exit_code, print_summary
    from shoal.demo.scraper import check_scrape, shop_scraper
    from shoal.demo.shop import Shop
    from shoal.service.begin import FillProgress, RunChoice, plan_run
    from shoal.service.run import RunRequest, begin_run, execute_run, make_report
    from shoal.wiring import ledger_context

    async with ledger_context(settings) as ledger:
        with (
            Shop(latency=LATENCY).serving() as shop,
            session.console() as console,
        ):
            _introduce(session, settings, shop)
            scraper, request, host = shop_scraper(shop.url), RunRequest(by="shoal demo"), console.host()
            plan = await plan_run(ledger, scraper, RunChoice.FRESH)
            run = await begin_run(ledger, scraper, plan, request, host)
            summary = await execute_run(ledger, scraper, settings, plan, run, request, FillProgress(), host)
            report = await make_report(ledger, settings, run.id, work=summary)
            records = await _records(ledger, run.id)
            check = check_scrape(shop, records)
        if session.json:
            session.record({**run_record(report.run, report.counts), "checks": check})
        else:
            _title(session, f"{SAMPLE} of the {report.counts.results} records")
            shown = records[:SAMPLE]
            session.table([name.upper() for name in shown[0]] if shown else [], [list(r.values()) for r in shown])
            session.data("")
            print_summary(session, report, None)
            _print_check(session, check)
        return exit_code(report) or (1 if check.problems else 0)


async def _demo_served(session: Session, settings: Settings) -> int:
    """One run after another, each of a shop where every fault is still to come, until the operator stops it."""
    from shoal.demo.scraper import shop_scraper
    from shoal.demo.shop import Shop
    from shoal.service.begin import FillProgress, RunChoice, plan_run
    from shoal.service.run import RunRequest, begin_run, execute_run
    from shoal.wiring import ledger_context

    port = 0
    async with ledger_context(settings) as ledger:
        with session.console() as console:
            host, request = console.host(), RunRequest(by="shoal demo")
            while not host.stop.count:
                with Shop(latency=SERVED_LATENCY, port=port).serving() as shop:
                    if not port:
                        _introduce(session, settings, shop)
                        session.note("It is slow on purpose. Ctrl-C ends the demo.")
                    port = int(shop.url.rpartition(":")[2])
                    scraper = shop_scraper(shop.url)
                    plan = await plan_run(ledger, scraper, RunChoice.FRESH)
                    run = await begin_run(ledger, scraper, plan, request, host)
                    await execute_run(ledger, scraper, settings, plan, run, request, FillProgress(), host)
    return 0


def _introduce(session: Session, settings: Settings, shop: RunningShop) -> None:
    facts = shop.facts()
    faults = facts.fault_counts
    session.note(f"A shop at {shop.url} with {len(facts.products)} products and {len(facts.dead)} dead links.")
    session.note("The robots.txt of its outlet asks for a crawl-delay.")
    counts = ", ".join(f"{fault.value} ({n})" for fault, n in faults.items())
    session.note(f"{sum(faults.values())} pages have a fault: {counts}.")
    session.note(f"Ledger: {settings.shown()['ledger']}")


async def _records(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    import msgspec

    records: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await ledger.reads.results(run_id, cursor=cursor, limit=RESULTS_PAGE)
        records += [msgspec.json.decode(row.record, type=dict[str, Any]) for row in page.rows]
        cursor = page.cursor
        if cursor is None:
            return records


def _print_check(session: Session, seen: ScrapeCheck) -> None:
    from shoal.demo.scraper import OUTLET_DELAY, TOLERANCE_SECONDS

    problems = f": something went wrong ({', '.join(seen.problems)})" if seen.problems else ""
    _title(session, f"What the shop says{problems}")
    session.data(
        f"  {seen.found} of {seen.products} products were found, {len(seen.twice)} twice, {len(seen.wrong)} wrong"
    )
    session.data(f"  {seen.visits} visits; {seen.again} of pages that had been given out well before")
    session.data(f"  at most {seen.most_at_once} visitors at once (16 allowed)")
    if seen.closest_at_outlet is not None:
        session.data(
            f"  visits of the outlet arrived at least {seen.closest_at_outlet:.3f} s apart "
            f"({OUTLET_DELAY:g} s asked for; up to {TOLERANCE_SECONDS:g} s is jitter on the way)"
        )


def _print_next(session: Session, settings: Settings) -> None:
    shown, origin = settings.shown()["ledger"], settings.origins["ledger"]
    flag = "" if origin.kind == "environment" else f" --ledger {shlex.quote(shown)}"
    shoal = command_line()
    session.note("\nNext:")
    for command in (
        "export latest -o shop.parquet",
        "results coverage latest",
        "items ls latest --state dead",
        "status latest",
        "serve",
    ):
        session.note(f"  {shoal} {command}{flag}")
    session.note(f"  {shoal} init my-project   # a project of your own")


def _title(session: Session, text: str) -> None:
    session.data("\n" + session.styled(text, BOLD))
