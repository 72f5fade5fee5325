"""`shoal run --dry-run`: what would be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.service.begin import RunPlan

COUNTED = 100_000


def print_plan(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    choice: str,
    urls: UrlFile | None,
    *,
    least: int | None = None,
) -> None:
    """Say which run it would be, on which ledger, with how many items to start from. Writes nothing."""
    plan, seeds = session.wait(_look(scraper, settings, choice, urls))
    facts = {
        "scraper": scraper.name,
        "mode": settings.mode,
        "ledger": settings.shown()["ledger"],
        "run": f"{plan.run.id} ({plan.remaining} items left)"
        if plan is not None and plan.run is not None
        else "a new one",
        "starts from": f"{seeds} items" if seeds < COUNTED else f"{COUNTED} items and more",
        "at once": settings.concurrency if least is None else f"{least} to {settings.concurrency}",
        "user agent": settings.agent,
        "robots.txt": "obeyed" if scraper.obeys_robots(settings.robots) else "ignored",
        "store": settings.store or "none",
    }
    if session.json:
        session.record({**facts, "stages": _stages(scraper)})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        session.data(f"{name.ljust(width)}  {value}")
    session.data("")
    stages = _stages(scraper)
    session.table([name.upper() for name in stages[0]], [list(stage.values()) for stage in stages])


def _stages(scraper: Scraper) -> list[dict[str, object]]:
    """Each stage with the lane that holds for it: stages that go by host share the strictest policy."""
    return [
        {
            "stage": stage.name,
            "lane": "host" if stage.by_host else "own",
            "at once": spec.lane.limit,
            "delay": _delay(spec.lane.delay_min, spec.lane.delay_max),
            "timeout": f"{stage.policy.timeout:g} s",
            "retries": stage.policy.retries,
            "backoff": f"{stage.policy.backoff_factor:g}^n, at most {stage.policy.backoff_cap:g} s",
        }
        for stage, spec in zip(scraper.stages.values(), scraper.run_spec().stages, strict=True)
    ]


def _delay(low: float, high: float) -> str:
    if high == 0:
        return "none"
    return f"{low:.3g} s" if low == high else f"{low:.3g}-{high:.3g} s"


async def _look(scraper: Scraper, settings: Settings, choice: str, urls: UrlFile | None) -> tuple[RunPlan | None, int]:
    from shoal.errors import LedgerNotMigrated
    from shoal.service.begin import RunChoice, plan_run
    from shoal.wiring import ledger_context, sqlite_path

    plan = None
    try:
        async with ledger_context(settings, migrate=False) as ledger:
            plan = await plan_run(ledger, scraper, RunChoice(choice))
    except LedgerNotMigrated:
        if sqlite_path(settings.ledger) is None:
            raise
    count = 0
    async for _ in scraper.seeds():
        count += 1
        if count >= COUNTED:
            return plan, count
    if urls is not None:
        async for _ in urls:
            count += 1
            if count >= COUNTED:
                break
    return plan, count
