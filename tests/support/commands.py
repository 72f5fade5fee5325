"""The commands of `shoal`, as the real command line has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from shoal.cli.main import app


def commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its words: `run`, `items ls`, `serve token add`."""
    found: Any = group or typer.main.get_command(app)
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command
