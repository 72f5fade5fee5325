"""`shoal alerts`: list alerts and their delivery, test the addresses, raise alerts without a worker."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import OptionalRunName, with_options
from shoal.cli.render.session import Session
from shoal.service.records import alert_record

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.model.log import Log

app = typer.Typer()


@app.command()
@with_options
def ls(
    session: Session,
    run: OptionalRunName = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many, newest first.")] = 20,
) -> None:
    """List alerts, newest first, and whether they were delivered."""
    from shoal.service.alerts import list_raised_alerts

    found = session.with_ledger(lambda ledger: list_raised_alerts(ledger, run=run, limit=limit))
    if session.json:
        for raised in found:
            session.record(alert_record(raised))
    elif found:
        from shoal.observe.formatting import format_time

        session.table(
            ["WHEN", "KIND", "RUN", "SCRAPER", "TOLD", "WHY"],
            [
                (
                    format_time(raised.at),
                    raised.alert.kind,
                    raised.alert.run,
                    raised.alert.scraper,
                    raised.delivery,
                    raised.alert.body.partition("\n")[0],
                )
                for raised in found
            ],
        )
    else:
        session.note("There are no alerts.")


@app.command()
@with_options
def test(session: Session) -> None:
    """Send a message to every address of `notify`, and say which of them accepted it. One did not: exit 1."""
    from shoal.service.alerts import send_test_message

    tests = session.wait(send_test_message(session.settings))
    for number, each in enumerate(tests, 1):
        if session.json:
            ok = each.reason is None
            session.record({"number": number, "address": each.address, "ok": ok, "reason": each.reason})
        else:
            session.data(f"{number} {each.address}: {each.reason or 'ok'}")
    if any(each.reason for each in tests):
        raise typer.Exit(1)


@app.command()
@with_options
def watch(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Check once, deliver what is due, and end.")] = False,
) -> None:
    """Watch all runs of the ledger and raise alerts, also when no worker is left to do it. Ctrl-C ends it."""
    session.wait(_watch(session, session.settings, once=once))


async def _watch(session: Session, settings: Settings, *, once: bool) -> None:
    """Check once or until a signal. The ledger must exist."""
    from shoal.notify.delivery import check_addresses
    from shoal.service.alerts import check_alerts_once
    from shoal.service.work import open_run_logs
    from shoal.wiring import ledger_context

    await check_addresses(settings)
    logs = open_run_logs(settings, "alerts", session.console().host())
    try:
        async with ledger_context(settings, migrate=False, on_waiting=None if once else session.note) as ledger:
            if once:
                await check_alerts_once(settings, ledger, log=logs.log)
                return
        await _watch_until_signal(session, settings, logs.log)
    finally:
        logs.close()


async def _watch_until_signal(session: Session, settings: Settings, log: Log) -> None:
    from shoal.service.alerts import watch_alerts

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        session.note(f"Watching {settings.shown()['ledger']}; Ctrl-C ends it.")
        await watch_alerts(settings, stop, log=log)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
