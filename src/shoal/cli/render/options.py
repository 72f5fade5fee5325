"""The options that every command has, added in one place."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shoal.cli.render.session import Session
from shoal.errors import UsageError

Text = str | None


def _refuse_password(given: Text) -> Text:
    """S1.7: the old worker took it. Here it is refused by name, and never repeated."""
    if given is not None:
        raise UsageError(
            "--db-password is refused: a command line can be read by everybody on the machine.",
            remedy="Set PGPASSWORD (or DB_PASSWORD, or DB_PASSWORD_FILE) instead.",
        )
    return None


_LEDGER_OPTIONS: dict[str, Any] = {
    "ledger": Annotated[Text, typer.Option(help="The ledger: a path, sqlite:///... or postgresql://...")],
    "db_host": Annotated[Text, typer.Option(help="PostgreSQL by parts: its host (the password by PGPASSWORD).")],
    "db_port": Annotated[Text, typer.Option(help="Its port.")],
    "db_name": Annotated[Text, typer.Option(help="Its database.")],
    "db_user": Annotated[Text, typer.Option(help="Its user.")],
    "db_password": Annotated[Text, typer.Option(hidden=True, is_eager=True, callback=_refuse_password)],
    "set": Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Any other setting; may be repeated.")],
}
_OUTPUT_OPTIONS: dict[str, Any] = {
    "json": Annotated[bool, typer.Option("--json", help="Write JSON, one value a line.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No notes, only data and errors.")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks of errors.")],
    "no_input": Annotated[bool, typer.Option("--no-input", help="Never ask; what would need a yes is refused.")],
}


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command of typer's from a function that takes a Session and its own options.

    The common options are put behind the function's own; what they were given is found in the session.
    """
    shared = {**_LEDGER_OPTIONS, **_OUTPUT_OPTIONS}
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(ctx: typer.Context, **given: Any) -> None:
        session = ctx.find_object(Session) or Session()
        session.options_typed = _typed(ctx)
        for name in _OUTPUT_OPTIONS:
            setattr(session, name, given.pop(name))
        overrides = dict(_name_and_value(text) for text in given.pop("set") or [])
        session.flags = {name: given.pop(name) for name in _LEDGER_OPTIONS if name != "set"} | overrides
        try:
            function(session, **given)
        except KeyboardInterrupt:
            session.complain("Interrupted.")
            raise typer.Exit(130) from None

    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(annotation), annotation=annotation)
            for name, annotation in shared.items()
        ),
    ]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _typed(ctx: typer.Context) -> dict[str, str]:
    """The options that stand on the command line, by the names of their parameters, as they are typed."""
    found = {}
    for option in ctx.command.params:
        name = option.name or ""
        source = ctx.get_parameter_source(name)
        if option.param_type_name != "option" or source is None or source.name != "COMMANDLINE":
            continue
        value, flag = ctx.params[name], option.opts[-1]
        values = value if isinstance(value, list | tuple) else [value]
        if name == "set":
            # Their passwords are blotted out, so they cannot be typed again; the ledger is named by its own option.
            values = [each for each in values if each.partition("=")[0].strip() not in ("ledger", "notify")]
        if not values:
            continue
        found[name] = flag if value is True else " ".join(f"{flag} {shlex.quote(str(each))}" for each in values)
    return found


def _default(annotation: Any) -> Any:
    kind = annotation.__origin__
    return False if kind is bool else None if kind == Text else []


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{name!r} has no value: write --set NAME=VALUE.", param_hint="--set")
    return name.strip().replace("-", "_"), value
