"""Groups of commands that are loaded when one of them is asked for: `shoal --help` pays for none of them."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


def lazy_group(module: str, help: str) -> typer.Typer:
    """A group for `add_typer` whose commands are those of `app` in this module."""

    class LazyGroup(TyperGroup):
        _loaded: MutableMapping[str, Any] | None = None

        @property
        def commands(self) -> MutableMapping[str, Any]:
            if self._loaded is None:
                app: typer.Typer = import_module(module).app
                app.rich_markup_mode = None  # as for all of Shoal's help
                loaded: Any = typer.main.get_command(app)
                self._loaded = loaded.commands
            return self._loaded

        @commands.setter
        def commands(self, _: MutableMapping[str, Any]) -> None:
            """Typer sets what it found at once, which is nothing."""

    return typer.Typer(cls=LazyGroup, help=help, no_args_is_help=True, rich_markup_mode=None)
