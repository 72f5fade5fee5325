"""A run that was interrupted loses nothing: later runs get what it left, whatever was read of the listing."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.model.item import ItemState
from shoal.model.run import RunState
from tests.support.newspapers import ChangingSite, cards, paged, write_paper
from tests.support.project import Project

PAGES = {"type": "pagination", "url_template": "/news/{num}", "batch_size": 2}
STORIES = [f"/story/{n}" for n in range(1, 7)]


@contextmanager
def interrupted(project: Project, *arguments: str, done: int, wait: int = 3600) -> Iterator[ChangingSite]:
    """A site, and a run of it that is stopped when its listing has ended and `done` stories are stored.

    The others are answered with an error that is tried again after `wait` seconds.
    """
    with ChangingSite(paged(3), dict.fromkeys(STORIES[done:], 503)) as site:
        write_paper(project.folder, site.url, PAGES, retry_seconds=wait, retries=100)
        command = project.start(*arguments)
        deadline = time.monotonic() + 60
        while not has_left(project, 6 - done):
            assert not command.is_over, command.stderr
            assert time.monotonic() < deadline, command.stderr
        command.tell(signal.SIGINT)
        command.wait()
        site.errors = {}
        yield site


def has_left(project: Project, stories: int) -> bool:
    try:
        items = project.items()
    except Exception:  # there is no ledger yet, or no run
        return False
    listed = [item.state is ItemState.DONE for item in items if item.stage == "listing"]
    waiting = [item for item in items if item.stage == "article" and item.state is ItemState.DELAYED]
    finished = [item for item in items if item.stage == "article" and item.state is ItemState.DONE]
    return bool(listed) and all(listed) and (len(waiting), len(finished)) == (stories, 6 - stories)


def stored(project: Project) -> list[str]:
    with (project.folder / "data/fiji/times/news.csv").open(newline="") as lines:
        return sorted(row["url"][-1] for row in csv.DictReader(lines))


def test_a_new_run_gets_what_an_interrupted_one_left(either: Project) -> None:
    with interrupted(either, "run", "configs/fiji/times.yaml", "-o", "data/", done=2) as site:
        assert stored(either) == ["1", "2"]
        assert json.loads((either.folder / "data/fiji/times/metadata.json").read_text())["read_behind"] == []
        site.asked.clear()
        either.shoal("run", "configs/fiji/times.yaml", "--fresh", "-o", "data/")
        assert site.stories() == ["3", "4", "5", "6"]
        assert stored(either) == ["1", "2", "3", "4", "5", "6"]
        site.asked.clear()
        either.shoal("run", "configs/fiji/times.yaml", "-o", "data/")
        assert (site.stories(), site.listed()) == ([], ["/news/1", "/news/2"]), "the second one has read everything"


def test_what_an_interrupted_run_left_need_not_be_listed_any_more(either: Project) -> None:
    with interrupted(either, "run", "configs/fiji/times.yaml", done=4) as site:
        site.pages |= {"/news/1": cards([1]), "/news/2": cards([]), "/news/3": cards([])}
        site.asked.clear()
        either.shoal("run", "configs/fiji/times.yaml", "--fresh")
        assert site.stories() == ["5", "6"]
        assert sorted(record["url"][-1] for record in either.export()) == ["5", "6"]


@pytest.mark.parametrize("target", [("configs/fiji/times.yaml",), ("configs/", "--all")])
def test_another_period_is_refused_while_a_run_is_unfinished(project: Project, target: tuple[str, ...]) -> None:
    """A plain command resumes it, and so does --resume, with what it was begun with."""
    with interrupted(project, "run", *target, done=2, wait=5) as site:
        for asked in (("--since", "2024-06-01"), ("--from-scratch",)):
            refused = project.shoal("run", *target, *asked, code=2)
            assert f"begun without a period, and not from scratch; {' '.join(asked)}" in refused.stderr
            assert "--resume resumes it as it was begun, --fresh starts a new one." in refused.stderr
        site.asked.clear()
        project.shoal("run", *target, "--resume", "--since", "2024-06-06")
        assert site.stories() == ["3", "4", "5", "6"], "its own period has them"


@pytest.mark.parametrize("again", [(), ("--since", "2024-06-05")])
def test_a_run_of_a_period_is_resumed_with_its_period(project: Project, again: tuple[str, ...]) -> None:
    with interrupted(project, "run", "configs/", "--all", "--since", "2024-06-05", done=2, wait=5) as site:
        refused = project.shoal("run", "configs/", "--all", "--since", "2024-06-04", code=2)
        assert "begun with --since 2024-06-05; --since 2024-06-04 cannot change that" in refused.stderr
        project.shoal("run", "configs/", "--all", *again)
        assert project.run().state is RunState.FINISHED
        site.asked.clear()
        project.shoal("run", "configs/", "--all")
        assert len(site.listed()) >= 3, "the period has not read the listing to its end"


def test_a_new_ledger_gets_what_an_interrupted_run_left(project: Project) -> None:
    with interrupted(project, "run", "configs/fiji/times.yaml", "-o", "data/", done=4):
        project.shoal("run", "configs/fiji/times.yaml", "-o", "data/", "--ledger", str(project.folder / "second.db"))
    assert stored(project) == ["1", "2", "3", "4", "5", "6"]


def test_a_new_run_of_a_collection_gets_what_an_interrupted_one_left(project: Project) -> None:
    with interrupted(project, "run", "configs/", "--all", "-o", "data/", done=4):
        project.shoal("run", "configs/", "--all", "-o", "data/", "--fresh")
    assert stored(project) == ["1", "2", "3", "4", "5", "6"]
