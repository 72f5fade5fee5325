"""`shoal run --dry-run`: what would be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.session import Session

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.define.stage import AnyStage
    from shoal.enqueue.begin import Plan
    from shoal.enqueue.urlfile import UrlFile

COUNTED = 100_000


def print_plan(session: Session, scraper: Scraper, settings: Settings, choice: str, urls: UrlFile | None) -> None:
    """Say which run it would be, on which ledger, with how many items to start from. Writes nothing."""
    plan, seeds = session.wait(_look(scraper, settings, choice, urls))
    facts = {
        "scraper": scraper.name,
        "mode": settings.mode,
        "ledger": settings.shown()["ledger"],
        "run": f"{plan.run.id} ({plan.left} items left)" if plan is not None and plan.run is not None else "a new one",
        "starts from": f"{seeds} items" if seeds < COUNTED else f"{COUNTED} items and more",
        "at once": settings.concurrency,
        "user agent": settings.agent,
        "robots.txt": "obeyed" if (settings.robots if scraper.robots is None else scraper.robots) else "ignored",
        "store": settings.store or "none",
    }
    if session.json:
        session.record({**facts, "stages": [_stage(stage) for stage in scraper.stages.values()]})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        session.data(f"{name.ljust(width)}  {value}")
    rows = [list(_stage(stage).values()) for stage in scraper.stages.values()]
    session.data("")
    session.table([name.upper() for name in _stage(scraper.first_stage)], rows)


def _stage(stage: AnyStage) -> dict[str, object]:
    policy = stage.policy
    lane = policy.lane()
    return {
        "stage": stage.name,
        "lane": "host" if stage.by_host else "own",
        "at once": lane.limit,
        "delay": f"{lane.delay_min:g}-{lane.delay_max:g} s" if lane.delay_max else "none",
        "timeout": f"{policy.timeout:g} s",
        "retries": policy.retries,
    }


async def _look(scraper: Scraper, settings: Settings, choice: str, urls: UrlFile | None) -> tuple[Plan | None, int]:
    from shoal.enqueue.begin import Choice, plan_run
    from shoal.errors import LedgerNotMigrated
    from shoal.wiring import opened

    plan = None
    try:
        async with opened(settings, migrate=False) as ledger:
            plan = await plan_run(ledger, scraper, Choice(choice))
    except LedgerNotMigrated:
        if settings.mode == "distributed":
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
