"""An item that hangs its process is named, the process ends itself, and the other items are not charged."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.outcome import OutcomeClass
from shoal.model.run import RunState
from tests.support import LONG
from tests.support.project import Command, Project
from tests.support.site import Site

QUICK_TO_GIVE_UP = ("--set", "lease=1", "--set", "drain=1")
HANGING = """
    import re, threading

    shop = Scraper("shop")

    @shop.stage(lane=None, timeout=1)
    async def work(item: Item):
        await asyncio.sleep(0.01)
        if item.key == "endless":
            while True:
                {block}
        yield {{"key": item.key}}

    shop.start(work.item(key=key) for key in ["1", "2", "endless", *map(str, range(3, 30))])
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path) as project:
        yield project


def hanging(project: Project, block: str, *options: str) -> Command:
    """A run whose event loop is blocked."""
    project.write(HANGING.format(block=block))
    return project.start("run", "shop.py", *QUICK_TO_GIVE_UP, *options)


def test_a_process_that_hangs_names_the_item_and_ends_by_itself(project: Project) -> None:
    command = hanging(project, "time.sleep(0.01)")
    assert command.wait() == 75
    assert "process exits" in command.stderr
    assert "work endless has blocked the event loop" in command.stderr
    assert "at shop.py:" in command.stderr
    assert project.counts().leased == 0
    # The others were given back, which is not counted as an attempt.
    assert [attempt.outcome for attempt in project.attempts().pop("endless")] == ["crashed"]
    others = [found for name, found in project.attempts().items() if name != "endless"]
    assert {attempt.outcome for found in others for attempt in found} <= {"done"}
    if not LONG:
        return
    codes = [75]
    while 0 not in codes and len(codes) < 8:
        codes.append(hanging(project, "time.sleep(0.01)").wait())
    assert codes[-1] == 0
    assert set(codes[:-1]) == {75}
    attempts = project.attempts()
    assert [attempt.outcome for attempt in attempts.pop("endless")][-1] == OutcomeClass.POISON
    assert [len(found) for found in attempts.values()] == [1] * 29
    assert project.run().state is RunState.FINISHED
    assert project.is_sound()


@pytest.mark.parametrize(
    ("block", "signals"),
    [
        ("time.sleep(0.01)", [signal.SIGINT, signal.SIGTERM]),
        # Inside of a library the main thread does not come to Python's own signal handlers.
        ("lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=30)", [signal.SIGTERM]),
    ],
)
def test_stop_signals_work_while_the_loop_is_blocked(
    project: Project, block: str, signals: list[signal.Signals]
) -> None:
    command = hanging(project, block, "--set", "lease=60")
    command.wait_until_it_says("event loop blocked by a handler")
    assert "work endless" in command.stderr
    for number in signals:
        command.tell(number)
    assert command.wait() == 130
    assert "work endless has blocked the event loop" in command.stderr
    assert project.counts().leased == 0
    assert not [attempt for attempt in project.attempts().get("endless", []) if attempt.outcome == "crashed"]


def test_code_that_holds_the_interpreter_lock_is_ended_by_the_system(project: Project) -> None:
    command = hanging(project, "re.match(r'(a|aa)*$', 'a' * 200 + 'b')")
    assert command.wait() == -signal.SIGPROF
    assert 'shop.py"' in command.stderr


def test_a_process_that_was_suspended_for_long_continues(project: Project) -> None:
    project.write(HANGING.format(block="break").replace("0.01", "0.2"))
    command = project.start("run", "shop.py", *QUICK_TO_GIVE_UP, "--set", "concurrency=2")
    command.wait_until_it_says("begins")
    command.tell(signal.SIGSTOP)
    try:
        command.wait(timeout=3)
        pytest.fail("it did not stop")
    except AssertionError:
        pass
    command.tell(signal.SIGCONT)
    assert command.wait() == 0
    assert "process exits" not in command.stderr


def test_pages_that_would_hang_a_parser_are_crawled(project: Project) -> None:
    """The original case: follow=True and css on very deeply nested pages."""
    project.write("""
        shop = Scraper("shop")

        @shop.stage(lane=None, follow=True, timeout=10, retries=0)
        async def page(page: Page):
            yield {"title": page.css("h1::text").get("")} if "parsed" in page.url else {"title": page.url}
    """)
    deep, wide = "<div>" * 400_000, "<p " + " ".join(f"a{n}" for n in range(100_000)) + ">"
    links = "<a href=/deep>1</a><a href=/wide>2</a><a href=/deep-parsed>3</a><a href=/wide-parsed>4</a>"
    pages = {"/all": links, "/deep": f"{deep}<a href=/last>", "/wide": wide, "/last": "<p>last"}
    with Site(extra={**pages, "/deep-parsed": deep, "/wide-parsed": wide}) as site:
        command = project.start(
            "run", "shop.py", "--urls-file", project.urls([f"{site.url}/all"]), "--max-dead", "100%"
        )
        assert command.wait() == 0
    ended = {(item.url or "").rpartition("/")[2]: item for item in project.items()}
    assert {name: item.state.value for name, item in ended.items()} == {
        "all": "done",
        "deep": "done",
        "wide": "done",
        "last": "done",
        "deep-parsed": "dead",
        "wide-parsed": "dead",
    }
    assert "excessive depth" in (ended["deep-parsed"].error or "")
    assert "more than 500 attributes" in (ended["wide-parsed"].error or "")
