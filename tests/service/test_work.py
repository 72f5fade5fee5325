"""What a worker says while it works: progress of the run for a display, plain lines otherwise."""

from pathlib import Path

import pytest

from shoal import Item, Permanent, Scraper
from shoal.config import load_settings
from shoal.model.worker import Scope
from shoal.service import work as work_module
from shoal.service.events import Event, Host, Notice, RunEnded, RunProgress
from shoal.service.lookup import configure
from shoal.service.run import enqueue
from shoal.service.work import work


def scraper_of(items: int) -> Scraper:
    scraper = Scraper("people")

    @scraper.stage(retries=0)
    async def page(item: Item) -> dict[str, str]:
        import asyncio

        await asyncio.sleep(0.02)
        if item.key == "bad":
            raise Permanent("nobody has this name")
        return {"key": item.key or ""}

    scraper.start(page.item(key=key) for key in ("bad", *map(str, range(items))))
    return scraper


@pytest.mark.parametrize("shows_progress", [False, True])
async def test_a_worker_shows_that_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows_progress: bool
) -> None:
    monkeypatch.setattr(work_module, "LINE_SECONDS", 0.1)
    monkeypatch.setattr(work_module, "FOLLOW_SECONDS", 0.05)
    scraper = scraper_of(60)
    flags = {"ledger": str(tmp_path / "ledger.db"), "log_dir": ""}
    settings = configure(scraper, load_settings(flags, environ={}, folder=tmp_path))
    events: list[Event] = []
    host = Host(on_event=events.append)
    stored = await enqueue(scraper, settings, host)
    scope = Scope(scraper="people", stages=("page",))
    summary = await work(scraper, settings, scope, host, shows_progress=shows_progress, min_concurrency=None)
    assert (summary.done, summary.dead) == (60, 1)
    (failure,) = summary.failures
    assert failure.text == "nobody has this name x 1 dead, last: bad"
    lines = [event.text for event in events if isinstance(event, Notice)]
    progress = [event for event in events if isinstance(event, RunProgress)]
    assert not any("no run is open" in line for line in lines)
    if shows_progress:
        assert {event.run_id for event in progress} == {stored.run_id}
        assert progress[-1].reading.failures in ((), summary.failures)
        assert any(isinstance(event, RunEnded) for event in events)
    else:
        assert progress == []
        assert any(f"{summary.worker}: done " in line and "/min running " in line for line in lines), lines
