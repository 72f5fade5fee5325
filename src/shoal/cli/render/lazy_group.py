"""A command group that imports a command when it is used; `shoal --help` imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from inspect import signature
from types import UnionType
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperGroup


class Verb:
    """The module of a command and its line in the list of commands.

    The module has a group of commands, `app` or one named like the command, or a function named like the command or,
    for `try` and such, like the module.
    """

    def __init__(self, module: str, help: str) -> None:
        self.module = module
        self.help = help

    def load(self, name: str) -> Any:
        """Import the module and return the command with all of its options."""
        module = import_module(self.module)
        named = getattr(module, name, None)
        group = named if isinstance(named, typer.Typer) else getattr(module, "app", None)
        if group is None:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(name)(named or getattr(module, self.module.rpartition(".")[2]))
            command: Any = typer.main.get_command(single)
            _convert_only_if_needed(command)
            return command
        group.info.help, group.info.no_args_is_help = self.help, True
        group._add_completion, group.rich_markup_mode = False, None  # plain help, without rich
        loaded: Any = typer.main.get_group(group)
        for command in _with_commands(loaded):
            _convert_only_if_needed(command)
        return loaded


def _with_commands(command: Any) -> Iterator[Any]:
    """The command and, of a group, all commands in it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _with_commands(inner)


def lazy_commands(verbs: Mapping[str, Verb]) -> type[TyperGroup]:
    """Return the class of a group with these commands."""

    class LazyCommands(TyperGroup):
        _lazy = _Commands(verbs)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            _convert_only_if_needed(self)

        @property
        def commands(self) -> MutableMapping[str, Any]:
            return self._lazy

        @commands.setter
        def commands(self, _: MutableMapping[str, Any]) -> None:
            """Typer sets the commands it registered itself: none."""

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, verb.help) for name, verb in verbs.items()])

    return LazyCommands


class _Commands(MutableMapping[str, Any]):
    """Names of all commands; a command is loaded on its first use."""

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


def _convert_only_if_needed(command: Any) -> None:
    """Let the parameters of a command or group convert only values that do not have their type yet.

    Typer converts every value, absent ones too, by a validator of pydantic's; importing pydantic and building the
    validators takes as long as the rest of a short command.
    """
    get_params = command.get_params
    changed: set[int] = set()

    def get_quick_params(ctx: Any) -> list[Any]:
        annotations = signature(command.callback).parameters if command.callback is not None else {}
        parameters: list[Any] = get_params(ctx)
        for parameter in parameters:
            if id(parameter) not in changed:
                changed.add(id(parameter))
                annotation = annotations[parameter.name].annotation if parameter.name in annotations else bool
                kind = getattr(annotation, "__origin__", annotation)  # of Annotated
                parameter.process_value = partial(_process_value, parameter, parameter.process_value, kind)
        return parameters

    command.get_params = get_quick_params


def _process_value(parameter: Any, convert: Any, kind: Any, ctx: Any, value: Any) -> Any:
    """What click's `Parameter.process_value` does, without a conversion of what has its type."""
    if value is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif not _has_type(value, kind):
        return convert(ctx, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _has_type(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is UnionType:
        return any(_has_type(value, each) for each in get_args(kind))
    if origin is list:
        return isinstance(value, list | tuple) and all(_has_type(each, get_args(kind)[0]) for each in value)
    return isinstance(kind, type) and isinstance(value, kind)
