"""The recipe as a project of a user, its modules, and its server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from shoal.demo.recipe import write_environment
from shoal.demo.stand_in import RunningStandIn
from shoal.model.item import NewItem
from shoal.model.json_text import record_text
from shoal.model.outcome import DONE, AttemptDecision, DecisionKind, FinishedAttempt, OutcomeClass
from shoal.recipes import find_project
from shoal.recipes.subtitles.stand_in import VideoSite
from shoal.templates import write_project
from shoal.testing.harness import LedgerHarness
from tests.support.project import Project
from tests.support.served import ServedProject

URL = "https://videos.example/@boats"
HOSTILE = "<script>window.__ran.push(1)</script><img src=x onerror=window.__ran.push(2)>"
MODULES = ("captions", "extract", "subtitles", "api")
PROJECT = Path(str(import_module("shoal.recipes.subtitles").__file__)).parent / "project"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the project, imported as in its folder, and forgotten afterwards."""
    monkeypatch.syspath_prepend(PROJECT)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)


@contextmanager
def served_subtitles(project: Project, site: RunningStandIn[VideoSite], **variables: str) -> Iterator[ServedProject]:
    """`shoal serve` in a project as `shoal init --recipe subtitles` makes it.

    An attempt has far longer than a page takes, however busy the machine is; a late answer takes longer still.
    """
    write_project(project.folder, dict(find_project("subtitles").files()))
    defaults = {"REQUESTS_PER_HOST": "500/s", "BACKOFF_FACTOR": "1", "VIDEO_TIMEOUT": "15"}
    write_environment(project.folder, {**defaults, **variables})
    with ServedProject(project) as served:
        yield served


async def do_the_work(harness: LedgerHarness) -> None:
    """What workers do: list the channel, then end one video of four as done, one as dead and one as skipped."""
    ledger = harness.ledger
    worker = await harness.worker()
    (listing,) = await harness.claim(worker, 10)
    titles = {"v1": "One", "v2": HOSTILE, "v4": "Four", "v3": "Three"}
    videos = tuple(
        NewItem(
            url=f"https://videos.example/watch/{video}",
            key=f"{listing.partition} {video}",
            stage="video",
            partition=listing.partition,
            payload={"title": title, "channel": listing.partition, "video_id": video},
        )
        for video, title in titles.items()
    )
    name = record_text({"channel": listing.partition, "url": URL, "name": "Boats"})
    ended = FinishedAttempt(lease=listing.lease, decision=DONE, records=(name,), follow_ups=videos)
    await ledger.commits.commit(worker, [ended])
    first, second, third = await harness.claim(worker, 3)
    record = {
        "channel": first.partition,
        "video_id": "v1",
        "url": first.url,
        "title": "One",
        "language": "en",
        "auto": False,
        "file": "v1_One.txt",
        "text": f"Words\n{HOSTILE}",
    }
    dead = AttemptDecision(DecisionKind.DEAD, OutcomeClass.PERMANENT, 0.0, "Private video")
    skipped = AttemptDecision(DecisionKind.SKIPPED, OutcomeClass.SKIPPED, 0.0, "robots.txt forbids it")
    await ledger.commits.commit(
        worker,
        [
            FinishedAttempt(lease=first.lease, decision=DONE, records=(record_text(record),)),
            FinishedAttempt(lease=second.lease, decision=dead),
            FinishedAttempt(lease=third.lease, decision=skipped),
        ],
    )
    await ledger.workers.stop(worker)
