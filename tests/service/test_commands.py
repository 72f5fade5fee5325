"""Every command that is offered for copying is one that the command line takes, with the same arguments."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import app
from shoal.config import Settings, load_settings
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter
from shoal.service.commands import Commands

RUN = "20260301_060000"


def parsed(line: str) -> dict[str, Any]:
    """The parameters of a command as the command line reads them; it is not run."""
    import typer.main

    words = shlex.split(line)
    assert words.pop(0) == "shoal"
    command: Any = typer.main.get_command(app)
    context = command.make_context("shoal", words, resilient_parsing=False)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(settings(tmp_path))


def settings(folder: Path, **flags: str) -> Settings:
    return load_settings(flags, environ={}, folder=folder)


def every_command(commands: Commands) -> dict[str, str]:
    which = ItemFilter(states=(ItemState.DEAD, ItemState.SKIPPED), stage="page", error="-1 'quoted' $HOME")
    return {
        "show": commands.runs("show", RUN),
        "work": commands.work("shop.py"),
        "work on a run": commands.work("shop.py", run=RUN),
        "pause": commands.runs("pause", RUN),
        "resume": commands.runs("resume", RUN),
        "seal": commands.runs("seal", RUN),
        "cancel": commands.runs("cancel", RUN),
        "rm": commands.runs("rm", RUN),
        "runs": commands.list_runs(scraper="shop", state="active"),
        "compare": commands.compare(RUN, "latest"),
        "status": commands.status(),
        "status of a run": commands.status(RUN),
        "items": commands.items("ls", RUN, which),
        "retry": commands.items("retry", RUN, which, limit=20),
        "retry one": commands.items("retry", RUN, ItemFilter(ids=(7,))),
        "cancel items": commands.items("cancel", RUN, ItemFilter(partition="CA", outcome="permanent")),
        "item": commands.item("show", RUN, 7),
        "why of an item": commands.item("why", RUN, 7),
        "replay": commands.replay(RUN, 7),
        "replay through": commands.replay(RUN, 7, egress="isp"),
        "why": commands.why(RUN),
        "lanes": commands.list_lanes(None),
        "lanes of a run": commands.list_lanes(RUN),
        "lane": commands.set_lane("shop.example", run=None, limit=2, delay=(0.5, 0.5)),
        "lane spread": commands.set_lane("-odd lane", run=RUN, delay=(1.0, 3.0)),
        "lane paused": commands.set_lane("shop.example", run=None, paused=True),
        "lane resumed": commands.set_lane("shop.example", run=None, paused=False),
        "block": commands.block_lane("shop.example", run=RUN, seconds=600, why="down"),
        "workers": commands.workers(),
        "all workers": commands.workers(present=False),
        "drain": commands.stop_worker("node1-4021-9f2c11aa"),
        "drain run": commands.stop_workers(RUN),
        "start pool": commands.start_pool("shop.py", 4),
        "start pool of a run": commands.start_pool("my shop; true.py", 4, run=RUN),
        "scale": commands.scale("shop", 4),
        "scale auto": commands.scale("shop", None),
        "exits": commands.list_exits("isp", "proxies", "banned"),
        "tokens": commands.list_exits("api", "tokens"),
        "exit": commands.show_exit("isp", "a1b2", "proxies"),
        "rest": commands.change_exit("rest", "isp", "a1b2", "proxies", seconds=1800),
        "ban": commands.change_exit("ban", "isp", "a1b2", "tor", why="old pages"),
        "free": commands.change_exit("free", "isp", "a1b2", "proxies"),
        "test": commands.check_proxies("isp", "https://shop.example/"),
        "sample": commands.sample(RUN, stage="page"),
        "coverage": commands.coverage(RUN),
        "export": commands.export(RUN, "shop.csv"),
        "alerts": commands.alerts(),
        "alerts of a run": commands.alerts(RUN),
        "test alerts": commands.test_alerts(),
        "collection": commands.run_collection("configs"),
        "schedule": commands.schedule("now", "shop"),
        "schedules": commands.schedule("ls"),
        "config": commands.show_config(),
    }


def test_the_command_line_takes_every_command(commands: Commands) -> None:
    for name, line in every_command(commands).items():
        assert parsed(line) is not None, name


def test_arguments_arrive_as_they_were_meant(commands: Commands) -> None:
    lines = every_command(commands)
    retried = parsed(lines["retry"])
    assert (retried["run"], retried["error"], retried["limit"]) == (RUN, "-1 'quoted' $HOME", 20)
    assert list(retried["states"]) == [ItemState.DEAD, ItemState.SKIPPED]
    spread = parsed(lines["lane spread"])
    assert (spread["lane"], spread["delay"], spread["run"]) == ("-odd lane", "1-3", RUN)
    assert parsed(lines["retry one"])["item"] == 7
    assert parsed(lines["rest"])["for_"] == "1800s"


def test_what_no_command_does_is_empty(commands: Commands) -> None:
    assert commands.items("retry", RUN, ItemFilter(ids=(1, 2))) == ""
    assert commands.change_exit("rest", "api", "a1b2", "tokens") == ""


def test_a_ledger_that_was_named_is_named_again_without_its_password(tmp_path: Path) -> None:
    line = Commands(settings(tmp_path, ledger="postgresql://me:secretsecret@db.example/shoal")).runs("pause", RUN)
    assert "secretsecret" not in line
    assert parsed(line)["ledger"] == "postgresql://me@db.example/shoal"
    assert "--ledger" not in Commands(settings(tmp_path)).runs("pause", RUN)
