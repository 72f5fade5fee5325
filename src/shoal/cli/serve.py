"""`shoal serve`: the dashboard, REST and WebSocket; `shoal serve token`: who may use them from other machines."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import overrule
from shoal.errors import ClientMissing, ShoalError

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.control.server import Listening
    from shoal.observe.logs import Logs

LOG_NAME = "serve"
# Notes say the same in a sentence.
LEDGER_EVENTS = ("ledger away", "ledger back")


class _StartUnlessGiven(TyperGroup):
    """`shoal serve` is `shoal serve start`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_StartUnlessGiven)
token = typer.Typer(no_args_is_help=True, help="Add, list and remove the tokens that other machines need.")
app.add_typer(token, name="token")


@app.command()
@with_options
def start(
    session: Session,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; other than 127.0.0.1 it needs a token.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="The port; 0 takes a free one.")] = None,
    root_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="The sub-path at which a reverse proxy serves it: /shoal.")
    ] = None,
    trust_proxy: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="A proxy whose X-Forwarded-For is believed; may be repeated."),
    ] = [],  # noqa: B006
    allow_host: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A name by which browsers reach it; may be repeated."),
    ] = [],  # noqa: B006
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Also requests from this machine need a token.")
    ] = False,
    jobs: Annotated[
        str | None,
        typer.Option(metavar="SCRAPER", help="The scraper of the paths /jobs; by default the only one of the project."),
    ] = None,
) -> None:
    """Serve the dashboard and the API until Ctrl-C. `shoal serve` means the same.

    On 127.0.0.1 whoever can reach it on this machine is an operator.
    """
    overrule(
        session,
        {
            "serve_host": host,
            "serve_port": port,
            "serve_root_path": root_path,
            "serve_trust_proxy": " ".join(trust_proxy) or None,
            "serve_allow_host": " ".join(allow_host) or None,
            "serve_require_token": "true" if require_token else None,
            "serve_jobs": jobs,
        },
    )
    server = _server_module()
    settings = session.settings
    options = server.options_from(settings)
    refused = server.check_jobs(settings, options)

    def announce(listening: Listening) -> None:
        if session.json:
            session.record({"url": listening.url, "host": listening.host, "port": listening.port, "pid": os.getpid()})
            sys.stdout.flush()
        session.note(f"Dashboard: {listening.url}  (Ctrl-C stops it)")
        session.note(f"Ledger: {settings.shown()['ledger']}")
        if not (server.is_loopback(listening.host) or options.allow_host):
            session.note("Other machines reach it by an address of this one; for a name, add --allow-host NAME.")
        for text in refused:
            session.note(text)

    with _logs(session, settings, skips=LEDGER_EVENTS) as logs:
        session.wait(
            server.serve(settings, options, log=logs.log, on_listening=announce, on_change=session.note), fast=True
        )
    session.note("Stopped.")


@token.command()
@with_options
def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what it is for, such as grafana.")],
    role: Annotated[str, typer.Option(help="viewer (sees everything, changes nothing) or operator.")] = "viewer",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it is valid: 90d, 12h; without it, until removed.")
    ] = None,
) -> None:
    """Add a token and print it. It is shown this once: the ledger has only its hash."""
    from shoal.config.egress import parse_duration
    from shoal.model.access import Role
    from shoal.service.access import add_token

    if role not in set(Role):
        raise typer.BadParameter("it is viewer or operator.", param_hint="--role")
    seconds = None if expires is None else parse_duration(expires)
    if expires is not None and seconds is None:
        raise typer.BadParameter(f"{expires!r} is no time of at most a year, such as 90d.", param_hint="--expires")
    made = session.with_ledger(
        lambda ledger: add_token(ledger, name, Role(role), seconds=seconds, by=_actor()), create=True
    )
    if session.json:
        # Not by `record`, which would redact it.
        import msgspec

        session.json_text(msgspec.json.encode({**_token_record(made.token), "token": made.secret}).decode())
        return
    session.note(f"The token of {name} ({role}); keep it, it is not shown again:")
    print(made.secret)


@token.command()
@with_options
def ls(session: Session) -> None:
    """List the tokens, when they expire and when they were last used."""
    from shoal.observe.formatting import format_time
    from shoal.service.access import list_tokens

    found = session.with_ledger(list_tokens)
    if session.json:
        for each in found:
            session.record(_token_record(each))
    elif found:
        session.table(
            ["NAME", "ROLE", "CREATED", "EXPIRES", "LAST USED"],
            [
                (
                    each.name,
                    each.role.value,
                    format_time(each.created_at),
                    "expired" if each.expired else format_time(each.expires_at),
                    format_time(each.used_at),
                )
                for each in found
            ],
        )
    else:
        session.note("There are no tokens; `shoal serve token add NAME` makes one.")


@token.command()
@with_options
def rm(session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token.")]) -> None:
    """Remove a token. Whoever uses it, or is logged in with it, is refused from now on."""
    from shoal.service.access import remove_token

    session.with_ledger(lambda ledger: remove_token(ledger, name, by=_actor()))
    if session.json:
        session.record({"name": name, "removed": True})
    else:
        session.note(f"Removed the token {name}, and ended its sessions.")


@contextmanager
def serving_beside(
    session: Session, settings: Settings, *, required: bool = True, hint: str = ""
) -> Iterator[Listening | None]:
    """Serve the dashboard beside other work of this process, for the length of a block, and print its link and a hint.

    Not `required`: without the extra, or when it cannot start, the work goes on without it.
    """
    try:
        server = _server_module()
    except ClientMissing:
        if required:
            raise
        yield None
        return
    with _logs(session, settings) as logs:
        thread = server.ServerThread(settings, server.options_from(settings), log=logs.log)
        try:
            listening = thread.start()
        except ShoalError as error:
            if required:
                raise
            session.note(f"No dashboard: {error.message}")
            yield None
            return
        session.note(f"Dashboard: {listening.url}{hint and f'  ({hint})'}")
        try:
            yield listening
        finally:
            thread.stop()


def _server_module() -> Any:
    try:
        import prometheus_client  # noqa: F401 - /metrics imports it on first use

        from shoal.control import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "shoal":
            raise
        raise ClientMissing(
            f"`shoal serve` needs {error.name}, which is not installed.", remedy="pip install 'shoal[serve]'"
        ) from None
    return server


@contextmanager
def _logs(session: Session, settings: Settings, *, skips: Collection[str] = ()) -> Iterator[Logs]:
    from shoal.observe.logs import open_logs

    folder = settings.log_dir
    stream = None if session.quiet else sys.stderr
    logs = open_logs(
        format=settings.log_format,
        level="warning" if settings.origins["log_level"].kind == "default" else settings.log_level,
        file=Path(folder).expanduser() / f"{LOG_NAME}.log" if folder else None,
        stream=stream,
        secrets=settings.secrets(),
        stream_skips=skips,
    )
    try:
        yield logs
    finally:
        logs.close()


def _token_record(found: Any) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(found)
    del fields["id"]
    return fields


def _actor() -> str:
    """Who runs the command, for the audit: NAME@MACHINE."""
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
