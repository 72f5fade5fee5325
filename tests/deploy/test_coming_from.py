"""What docs/coming-from.md says old commands have become is there, and what it calls missing is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from shoal.cli.main import app
from tests.deploy.described import ROOT

TEXT = (ROOT / "docs" / "coming-from.md").read_text()
COMMANDS = sorted(set(re.findall(r"`(?:docker run \.\.\. )?shoal ([a-z][^`]*)`", TEXT)))


def find(command: str) -> tuple[Any, list[str]]:
    """The command itself, and the words behind it."""
    found: Any = typer.main.get_command(app)
    words = command.split()
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    return found, words


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_and_its_options_exist(command: str) -> None:
    found, words = find(command)
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_what_is_called_missing_is_missing() -> None:
    """When REST has been built, the page must say so."""
    assert "*Not yet*, none of it" in TEXT
    with pytest.raises(KeyError):
        find("serve")
