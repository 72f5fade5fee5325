"""`Scraper.run()`: a run as a function call."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import Page, RunReport, Scraper
from shoal.errors import InvalidScraper, InvalidSetting, UsageError
from shoal.model.run import RunState
from shoal.worker.state import StopReason
from tests.support.project import Project, clean_environment
from tests.support.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)


def pages_scraper(site: Site, *numbers: int) -> Scraper:
    pages = Scraper("pages")

    @pages.stage(retries=0)
    async def page(page: Page):  # type: ignore[no-untyped-def]
        yield {"url": page.url, "status": page.status}

    pages.start(f"{site.url}/page/{number}" for number in numbers)
    return pages


def test_it_returns_counts_records_and_failures(site: Site) -> None:
    pages = pages_scraper(site, 1, 2)
    report = pages.run(quiet=True, urls=[f"{site.url}/status/404/gone"])
    assert (report.counts.done, report.counts.dead, report.finished) == (2, 1, True)
    assert sorted(record["url"] for record in report.records()) == [f"{site.url}/page/1", f"{site.url}/page/2"]
    assert [(group.items, group.outcome) for group in report.failures.groups] == [(1, "permanent")]
    assert report.work is not None
    assert report.work.stop_reason is StopReason.NOTHING_LEFT


def test_a_limited_run_is_resumed_by_the_next_call(site: Site) -> None:
    first = pages_scraper(site, 1, 2, 3).run(limit=1, concurrency=1, quiet=True)
    assert first.run.state is RunState.ACTIVE
    assert not first.ok
    second = pages_scraper(site, 1, 2, 3).run(quiet=True)
    assert (second.run_id, second.resumed, second.counts.done) == (first.run_id, True, 3)
    assert sum(visit.path.startswith("/page/") for visit in site.visits()) == 3


def test_fresh_starts_a_new_run(site: Site) -> None:
    first, second = pages_scraper(site, 1).run(quiet=True), pages_scraper(site, 1).run(fresh=True, quiet=True)
    assert first.run_id != second.run_id
    with pytest.raises(UsageError, match="exclude each other"):
        pages_scraper(site, 1).run(fresh=True, resume=True)


def test_a_run_of_an_idempotency_key_is_made_once(site: Site) -> None:
    first = pages_scraper(site, 1).run(idempotency_key="monday", quiet=True)
    second = pages_scraper(site, 1).run(idempotency_key="monday", quiet=True)
    assert (second.run_id, second.work, second.counts.done) == (first.run_id, None, 1)
    assert list(second.records()) == list(first.records())


async def test_it_works_inside_an_event_loop(site: Site) -> None:
    """As in a notebook, whose cells run in a loop."""
    report = pages_scraper(site, 1, 2).run(quiet=True)
    assert report.counts.done == 2
    assert len(list(report.records())) == 2


def test_it_works_in_a_thread(site: Site) -> None:
    reports: list[RunReport] = []
    thread = threading.Thread(target=lambda: reports.append(pages_scraper(site, 1).run(quiet=True)))
    thread.start()
    thread.join()
    assert [report.counts.done for report in reports] == [1]


def test_settings_are_given_by_name(site: Site, tmp_path: Path) -> None:
    report = pages_scraper(site, 1).run(ledger="elsewhere.db", max_dead="0", quiet=True)
    assert report.ok
    assert (tmp_path / "elsewhere.db").exists()
    with pytest.raises(InvalidSetting, match="concurrency"):
        pages_scraper(site, 1).run(concurrency=0)
    with pytest.raises(InvalidSetting, match="concurency"):
        pages_scraper(site, 1).run(concurency=4)


def test_max_dead_decides_whether_it_is_ok(site: Site) -> None:
    pages = pages_scraper(site)
    report = pages.run(urls=[f"{site.url}/status/404/gone"], max_dead="0", quiet=True)
    assert (report.finished, report.too_many_dead, report.ok) == (True, True, False)


def test_records_are_exported(site: Site, tmp_path: Path) -> None:
    report = pages_scraper(site, 1).run(output="pages.jsonl", quiet=True)
    assert report.export is not None
    assert (report.export.records, (tmp_path / "pages.jsonl").read_text().count("\n")) == (1, 1)
    with pytest.raises(UsageError):
        pages_scraper(site, 1).run(output=tmp_path / "missing" / "pages.jsonl", fresh=True)


def test_the_process_is_left_as_it_was(site: Site) -> None:
    before = gc.get_threshold(), gc.get_freeze_count(), signal.getsignal(signal.SIGINT)
    pages_scraper(site, 1).run(quiet=True)
    assert (gc.get_threshold(), gc.get_freeze_count(), signal.getsignal(signal.SIGINT)) == before


def test_nothing_to_start_from() -> None:
    empty = Scraper("empty")

    @empty.stage
    async def page(page: Page) -> None: ...

    with pytest.raises(UsageError, match="no items to start with"):
        empty.run(quiet=True)


SCRIPT = """
    pages = Scraper("pages")

    @pages.stage
    async def page(page: Page):
        yield {{"url": page.url}}

    pages.start(*[f"{url}/slow/{seconds}/{{n}}" for n in range({items})])

    def main():
        report = pages.run(concurrency=2)
        print(report.counts.done)

    async def cell():
        main()

    if __name__ == "__main__":
        main() if len(sys.argv) == 1 else asyncio.new_event_loop().run_until_complete(cell())
"""


def script(
    project: Project, site: Site, *, seconds: float, items: int, in_a_loop: bool = False
) -> subprocess.Popen[str]:
    project.write(SCRIPT.format(url=site.url, seconds=seconds, items=items), name="pages.py")
    return subprocess.Popen(
        [sys.executable, "pages.py", *(["loop"] if in_a_loop else [])],
        cwd=project.folder,
        env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_shows_progress_as_the_command_does(project: Project, site: Site) -> None:
    process = script(project, site, seconds=0, items=2)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "2\n"), err
    assert "of pages begins." in err
    assert "waiting: " in err


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_ctrl_c_drains_and_interrupts_the_script(project: Project, site: Site, in_a_loop: bool) -> None:
    """Inside an event loop, as in a notebook, the caller's thread gets the interrupt and passes it on."""
    process = script(project, site, seconds=0.3, items=200, in_a_loop=in_a_loop)
    site.wait_until(lambda visits: any("/slow/" in visit.path for visit in visits), timeout=60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130), err
    assert out == ""
    assert "KeyboardInterrupt" in err
    counts = project.counts()
    assert counts.leased == 0
    assert counts.done >= 1
    assert counts.done + counts.ready + counts.waiting == 200


def test_the_command_says_where_the_call_belongs(project: Project) -> None:
    project.write(
        """
        pages = Scraper("pages")

        @pages.stage
        async def page(page: Page): ...

        pages.start("http://127.0.0.1:1/")
        pages.run()
        """,
        name="pages.py",
    )
    said = project.shoal("run", "pages.py", code=2).stderr
    assert "pages.run() was called while its file is imported" in said
    assert '`if __name__ == "__main__":`' in said


def test_a_call_while_loading_is_refused(tmp_path: Path) -> None:
    from shoal.define.load import load_scraper

    (tmp_path / "early.py").write_text(
        "from shoal import Page, Scraper\nearly = Scraper('early')\n"
        "@early.stage\nasync def page(page: Page): ...\nearly.run()\n"
    )
    with pytest.raises(InvalidScraper, match="while its file is imported"):
        load_scraper("early.py", {}, tmp_path)
