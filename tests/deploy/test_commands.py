"""Every `shoal` command in the deployment files is one that the command line takes."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from shoal.cli.main import app
from shoal.config import Settings
from shoal.define.load import load_scraper
from tests.support.deployments import DEPLOY, ShoalCommand, compose, documents, ecs, shoal_commands, unit, units

COMMANDS = list(shoal_commands())
LEAST_SPARE_SECONDS = 10


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What the command line makes of it, without doing it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("shoal", list(arguments))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    given: dict[str, Any] = context.params
    return given


@pytest.mark.parametrize("command", COMMANDS, ids=[command.place for command in COMMANDS])
def test_the_command_line_takes_it(command: ShoalCommand) -> None:
    given = parsed(command.arguments)
    stages = given.get("stage") or []
    if stages:
        scraper = load_scraper(str(given["scraper"]), {}, DEPLOY / "scrapers")
        assert set(stages) <= set(scraper.stages)
    if urls := given.get("urls_file"):
        assert (DEPLOY / "scrapers" / urls).exists()


def test_a_renamed_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="--no-such-option"):
        parsed(["worker", "people.py", "--no-such-option"])


def test_every_kind_of_file_has_commands() -> None:
    places = {command.place.partition("/")[0].partition(" ")[0] for command in COMMANDS}
    assert places == {"compose.yaml", "kubernetes", "ecs", "systemd", "deploy.md"}


def test_all_give_running_items_time_to_end() -> None:
    """Whoever stops a worker must wait longer than the worker waits for its items."""
    least = Settings().drain + LEAST_SPARE_SECONDS
    workers = [service for service in compose()["services"].values() if service.get("command", [""])[0] == "worker"]
    assert len(workers) == 4
    assert all(float(service["stop_grace_period"].removesuffix("s")) >= least for service in workers)
    for stage in ("username", "profile", "social"):
        deployment = documents(f"{stage}.yaml")[0]
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= least
    assert ecs("task-definition.json")["containerDefinitions"][0]["stopTimeout"] >= least
    for file in units("*.service"):
        assert float(unit(file)["Service"]["TimeoutStopSec"]) >= least
