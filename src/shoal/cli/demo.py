"""`shoal demo`: scrape a site that comes with Shoal, and compare with the site's own log."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import threading
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.scrapers import command_line
from shoal.errors import EXIT_INTERRUPTED
from shoal.service.records import run_record

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport
    from shoal.demo.scraper import ScrapeCheck
    from shoal.demo.shop import RunningShop
    from shoal.demo.stand_in import RunningStandIn
    from shoal.ledger.protocols import Ledger
    from shoal.service.client import Fleet

# Slow enough to be watched, fast enough to be waited for.
LATENCY = (0.03, 0.09)
# With --serve a run lasts some minutes, so that there is time to look at it.
SERVED_LATENCY = (1.0, 3.0)
SAMPLE = 3
RESULTS_PAGE = 1_000


@with_options
def demo(
    session: Session,
    recipe: Annotated[
        str,
        typer.Argument(metavar="[RECIPE]", help="A recipe (docs/recipes) to show instead of the shop."),
    ] = "shop",
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the dashboard up: one slow run after another, until Ctrl-C.")
    ] = False,
) -> None:
    """Scrape a bundled local shop of 1,259 products with all kinds of faults, and compare with the truth.

    With RECIPE: make the project of that recipe in a temporary folder, and run its commands against a stand-in of its
    site. The dashboard is served meanwhile. It uses a fresh SQLite ledger in a temporary folder, unless --ledger,
    --db-... or SHOAL_LEDGER names one.
    """
    if recipe != "shop":
        _demo_recipe(session, recipe, serve=serve)
        return
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


def _demo_recipe(session: Session, name: str, *, serve: bool) -> None:
    """Run the commands of a recipe in a project of its own, and print what its stand-in says."""
    from shoal.cli.serve import serving_beside
    from shoal.demo.recipe import child_environment, run_steps, was_interrupted, write_environment
    from shoal.recipes import find_demo, find_project
    from shoal.service.client import Fleet
    from shoal.templates import write_project

    shown = find_demo(name)
    ledger = session.settings.ledger if _ledger_was_named(session.settings) else None
    folder = Path(tempfile.mkdtemp(prefix=f"shoal-demo-{name}-"))
    texts = dict(find_project(name).files())
    write_project(folder, texts)
    environ = child_environment(os.environ, ledger, texts)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[0] = str(Path(sys.argv[0]).absolute())  # commands that are suggested name it
    os.chdir(folder)
    nobody_looks = (session.quiet or session.json) and not serve
    with shown.serving(folder) as site:
        write_environment(folder, shown.environment(site))
        session.note(f"{shown.about}\nThe project is in {folder}, its stand-in site at {site.url}/")
        session.flags = {}
        settings = session.read_settings()
        run = partial(
            run_steps,
            folder=folder,
            environ=environ,
            announce=lambda step: _announce(session, step),
            output=2 if session.json else None,
        )
        steps = shown.steps(site)
        results = run([step for step in steps if step.prepares])
        with nullcontext() if nobody_looks else serving_beside(session, settings, required=serve):
            if not was_interrupted(results) and not any(result.failed for result in results):
                results += run([step for step in steps if not step.prepares])
            said = session.wait(_site_report(shown, site, Fleet(settings)))
            if serve and not was_interrupted(results):
                session.note("\nThe dashboard stays up. Ctrl-C ends the demo.")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
    interrupted = was_interrupted(results)
    problems = list(said.problems)
    if not interrupted:
        problems += said.unreached
        problems += [f"`{result.step.shown}` ended with {result.code}" for result in results if result.failed]
    if session.json:
        session.record(
            {"recipe": name, "folder": str(folder), "said": said.lines, "problems": problems} | dict(said.figures)
        )
    else:
        until = ", up to the interruption" if interrupted else ""
        _title(session, f"What the stand-in says{until}" + (": something went wrong" if problems else ""))
        for line in [*said.lines, *(f"PROBLEM: {problem}" for problem in problems)]:
            session.data(f"  {line}")
        commands = "".join(f"\n  {command_line()} {arguments}" for arguments in shown.next_commands())
        session.note(f"\nNext:\n  cd {folder}{commands}")
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if problems:
        raise typer.Exit(1)


async def _site_report(shown: RecipeDemo, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
    async with fleet:
        return await shown.site_report(site, fleet)


def _announce(session: Session, step: DemoStep) -> None:
    if step.about:
        session.note(f"\n# {step.about}")
    session.note(session.styled(f"$ {step.shown}", BOLD, sys.stderr))


def _ledger_was_named(settings: Settings) -> bool:
    """Never a project's own ledger by accident: only one that was named for this very command or shell."""
    origin = settings.origins["ledger"]
    return origin.kind == "flag" or (origin.name == "SHOAL_LEDGER" and origin.kind == "environment")


def _demo_settings(settings: Settings) -> Settings:
    import msgspec

    if not _ledger_was_named(settings):
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
