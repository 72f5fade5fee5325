"""Commands that are loaded when one of them is asked for: `shoal --help` pays for none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class Verb:
    """Where a command is and what the list of commands says about it.

    The module holds `app`, a group of commands, or a function that has the module's own name.
    """

    def __init__(self, module: str, help: str) -> None:
        self.module = module
        self.help = help

    def load(self, name: str) -> Any:
        """The command itself, with all of its options."""
        module = import_module(self.module)
        group = getattr(module, "app", None)
        if group is None:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name)(getattr(module, self.module.rpartition(".")[2]))
            return typer.main.get_command(alone)
        group.info.help, group.info.no_args_is_help = self.help, True
        group._add_completion, group.rich_markup_mode = False, None  # as for all of Shoal's help
        return typer.main.get_group(group)


def lazy_commands(verbs: Mapping[str, Verb]) -> type[TyperGroup]:
    """The class of a group whose commands are these."""

    class LazyCommands(TyperGroup):
        _loading = _Commands(verbs)

        @property
        def commands(self) -> MutableMapping[str, Any]:
            return self._loading

        @commands.setter
        def commands(self, _: MutableMapping[str, Any]) -> None:
            """Typer sets what it found at once, which is nothing."""

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, verb.help) for name, verb in verbs.items()])

    return LazyCommands


class _Commands(MutableMapping[str, Any]):
    """Knows all names at once and each command from its first use on."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._verbs[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)
