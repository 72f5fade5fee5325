"""`shoal sinks`: how sinks stand, deliver what they have not got, dead letters, start again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import Yes, confirm, with_options
from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.observe.sinks import SinkStatus
    from shoal.service.sinks import RetryReport

app = typer.Typer()


class ResetTarget(StrEnum):
    """Where a sink is set to."""

    BEGINNING = "beginning"
    END = "end"


SinkName = Annotated[str, typer.Argument(metavar="SINK", help="The name of a sink in shoal.toml.")]


@app.command()
@with_options
def ls(session: Session) -> None:
    """List the sinks, what each has got, how far it is behind and why."""
    from shoal.service.records import sink_record
    from shoal.service.sinks import find_sinks, list_sinks

    find_sinks(session.settings, ())
    found = session.with_ledger(lambda ledger: list_sinks(ledger, session.settings))
    if session.json:
        for status in found:
            session.record(sink_record(status))
    else:
        print_sinks(session, found)


def print_sinks(session: Session, found: Sequence[SinkStatus]) -> None:
    """A table of sinks, and the errors of those that fail."""
    from shoal.observe.formatting import format_duration, format_time

    session.table(
        ["SINK", "KIND", "STATE", "DELIVERED", "BEHIND", "OLDEST", "REFUSED", "LAST DELIVERY"],
        [
            (
                status.name,
                status.kind,
                status.state,
                status.delivered,
                f"{status.behind}{'+' if status.at_least else ''}",
                format_duration(status.lag_seconds) if status.behind else "",
                status.dead_letters,
                "" if status.delivered_at is None else format_time(status.delivered_at),
            )
            for status in found
        ],
    )
    for status in found:
        if status.error and status.failing_since is not None:
            session.data(f"Sink {status.name} fails since {format_time(status.failing_since)}: {status.error}")


@app.command()
@with_options
def deliver(
    session: Session,
    sinks: Annotated[list[str] | None, typer.Argument(metavar="[SINK]...", help="Names; all by default.")] = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Deliver as records come, until Ctrl-C: a service beside a fleet.")
    ] = False,
) -> None:
    """Deliver the records that the sinks have not got yet. Some are left: exit 1."""
    left = session.wait(_deliver(session, sinks or [], forever=forever))
    if left and not forever:
        raise typer.Exit(1)


async def _deliver(session: Session, names: list[str], *, forever: bool) -> bool:
    from shoal.observe.sinks import read_sinks
    from shoal.service.sinks import deliver_forever, deliver_now, delivered_text, deliverer_of, find_sinks
    from shoal.service.work import open_run_logs
    from shoal.wiring import ledger_context

    settings = session.settings
    chosen = [sink.name for sink in find_sinks(settings, names)]
    logs = open_run_logs(settings, "sinks", session.console().host())
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        async with ledger_context(settings, migrate=False, on_waiting=session.note) as ledger:
            if forever:
                session.note(f"Delivering to {', '.join(chosen)}; Ctrl-C ends it.")
            work = deliver_forever if forever else deliver_now
            delivered = await work(settings, names, stop, log=logs.log)
            statuses = [status for status in await read_sinks(ledger, settings) if status.name in chosen]
            if session.json:
                for status in statuses:
                    session.record({"sink": status.name, "delivered": delivered[status.name], "behind": status.behind})
            else:
                session.note(f"Delivered: {delivered_text(delivered)}.")
                for status in statuses:
                    by = await deliverer_of(ledger, status.name) if status.behind else None
                    if by is not None:
                        session.note(f"Sink {status.name}: another process ({by}) delivers to it.")
                    elif status.behind:
                        session.complain(f"{status.sentence}.")
            return any(status.behind for status in statuses)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        logs.close()


@app.command()
@with_options
def dead(
    session: Session,
    sink: SinkName,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 50,
) -> None:
    """List the records that a sink refused, with the reasons."""
    from shoal.service.sinks import list_dead_letters

    page = session.with_ledger(lambda ledger: list_dead_letters(ledger, session.settings, sink, limit=limit))
    if session.json:
        for letter in page.rows:
            ref = letter.ref
            session.record(
                {
                    "record_id": str(ref),
                    "run_id": ref.run_id,
                    "item_id": ref.item,
                    "n": ref.n,
                    "at": letter.at,
                    "reason": letter.reason,
                }
            )
    elif page.rows:
        from shoal.observe.formatting import format_time

        session.table(
            ["RECORD", "WHEN", "REASON"],
            [(str(letter.ref), format_time(letter.at), letter.reason) for letter in page.rows],
        )
        session.note(f"`shoal sinks retry {sink}` delivers them once more.")
    else:
        session.note(f"{sink} has refused no record.")


@app.command()
@with_options
def retry(session: Session, sink: SinkName) -> None:
    """Deliver the records that a sink refused once more. Some are refused again: exit 1."""
    report = session.wait(_retry(session, sink))
    if session.json:
        session.record(report)
    else:
        from shoal.observe.formatting import pluralize

        session.note(f"{pluralize(report.delivered, 'record')} delivered, {report.refused} refused again.")
    if report.refused:
        raise typer.Exit(1)


async def _retry(session: Session, sink: str) -> RetryReport:
    from shoal.service.sinks import retry_dead_letters
    from shoal.service.work import open_run_logs
    from shoal.wiring import ledger_context

    logs = open_run_logs(session.settings, "sinks", session.console().host())
    try:
        async with ledger_context(session.settings, migrate=False) as ledger:
            return await retry_dead_letters(ledger, session.settings, sink, log=logs.log)
    finally:
        logs.close()


@app.command()
@with_options
def reset(
    session: Session,
    sink: SinkName,
    to: Annotated[
        ResetTarget, typer.Option("--to", help="Every record again, or only what is stored from now on.")
    ] = ResetTarget.BEGINNING,
    yes: Yes = False,
) -> None:
    """Set a sink back to the beginning of the ledger, or forward to its end."""
    from shoal.service.sinks import find_sinks, reset_sink

    find_sinks(session.settings, [sink])
    what = "gets every record again" if to is ResetTarget.BEGINNING else "does not get what it has not got yet"
    confirm(session, f"The sink {sink} {what}.", yes=yes)
    status = session.with_ledger(
        lambda ledger: reset_sink(ledger, session.settings, sink, to_end=to is ResetTarget.END)
    )
    if session.json:
        session.record({"sink": sink, "behind": status.behind})
    else:
        session.note(f"{sink} is at the {to.value}; {status.behind_text} to be delivered.")
