"""Options and arguments that commands share, and the confirmation before a change that cannot be undone."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shoal.cli.render.session import Session
from shoal.errors import NotFound, UsageError

Text = str | None

RUN_HELP = "A run's id, `latest`, or `latest:SCRAPER`."
LATEST_HELP = "A run's id, `latest` (the default), or `latest:SCRAPER`."
MAX_ID_DIGITS = 18  # more than any ledger counts to
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def parse_item_id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"{text!r} is no item's number; name an item by its key or URL with --key {text!r}.")
    if len(text) > MAX_ID_DIGITS:
        raise NotFound(f"There is no item {text}.", remedy="`shoal items ls RUN` lists the items of a run.")
    return int(text)


RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]
OptionalRunName = Annotated[Text, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)]
LatestRunName = Annotated[str, typer.Argument(metavar="RUN", help=LATEST_HELP, show_default=False)]
ItemId = Annotated[
    int | None, typer.Argument(metavar="ITEM", help="The item's number.", show_default=False, parser=parse_item_id)
]
ItemKey = Annotated[Text, typer.Option("--key", help="The item by its key or URL instead.")]


def run_and_item(run: str, item: int | None) -> tuple[str, int | None]:
    """A single argument that is a number is an item of the newest run: no run has such an id."""
    if item is None and run.isascii() and run.isdigit():
        return "latest", parse_item_id(run)
    return run, item


def _refuse_password(given: Text) -> Text:
    """Refuse --db-password, which older systems accepted, without repeating its value."""
    if given is not None:
        raise UsageError(
            "--db-password is refused because everybody on the machine can read a command line:",
            remedy="set PGPASSWORD (or DB_PASSWORD, or DB_PASSWORD_FILE) instead.",
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
    "no_input": Annotated[bool, typer.Option("--no-input", help="Never ask; what needs a confirmation is refused.")],
}


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command from a function that takes a Session and its own options.

    The shared options follow the function's own; their values are set on the session.
    """
    shared = {**_LEDGER_OPTIONS, **_OUTPUT_OPTIONS}
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(ctx: typer.Context, **given: Any) -> None:
        session = ctx.find_object(Session) or Session()
        session.options_typed = _typed_options(ctx)
        for name in _OUTPUT_OPTIONS:
            setattr(session, name, given.pop(name))
        overrides = dict(_split_setting(text) for text in given.pop("set") or [])
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


def _typed_options(ctx: typer.Context) -> dict[str, str]:
    """The options given on the command line by parameter name, each as it would be typed again."""
    found = {}
    for option in ctx.command.params:
        name = option.name or ""
        source = ctx.get_parameter_source(name)
        if option.param_type_name != "option" or source is None or source.name != "COMMANDLINE":
            continue
        value, flag = ctx.params[name], option.opts[-1]
        values = value if isinstance(value, list | tuple) else [value]
        if name == "set":
            # These may hold passwords, which are never printed; the ledger is named by its own option.
            values = [each for each in values if each.partition("=")[0].strip() not in ("ledger", "notify")]
        if not values:
            continue
        found[name] = flag if value is True else " ".join(f"{flag} {shlex.quote(str(each))}" for each in values)
    return found


def _default(annotation: Any) -> Any:
    kind = annotation.__origin__
    return False if kind is bool else None if kind == Text else []


def _split_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{name!r} has no value: write --set NAME=VALUE.", param_hint="--set")
    return name.strip().replace("-", "_"), value


def confirm(session: Session, question: str, *, yes: bool) -> None:
    """Return after a yes, exit with 1 after a no. Raises UsageError with --no-input or without a terminal."""
    if not (yes or says_yes(session, question)):
        session.complain("Nothing was changed.")
        raise typer.Exit(1)


def says_yes(session: Session, question: str) -> bool:
    """As `confirm`, but return the answer: for callers that clean up after a no."""
    if session.no_input or not sys.stdin.isatty():
        raise UsageError(
            f"{question} stdin is not a terminal, so it cannot be confirmed.",
            remedy="Add --yes to do it without asking.",
        )
    print(session.redacted(f"{question} Continue? [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
