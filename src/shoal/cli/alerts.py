"""`shoal alerts`: what went wrong and who was told; a test of the addresses; a watch that stands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.config.alerts import Addresses
    from shoal.ledger.protocols import Ledger
    from shoal.notify.watch import RaisedAlert

app = typer.Typer()


@app.command()
@with_options
def ls(
    session: Session,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, `latest`, or `latest:SCRAPER`.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many, newest first.")] = 20,
) -> None:
    """List alerts, newest first, and whether somebody was told."""
    found = ask(session, lambda ledger: _raised(ledger, run, limit))
    if session.json:
        for one in found:
            alert = one.alert
            session.record(
                {
                    "at": one.at,
                    "kind": alert.kind,
                    "run": alert.run,
                    "scraper": alert.scraper,
                    "title": alert.title,
                    "body": alert.body,
                    "told": one.delivery,
                }
            )
    elif found:
        from shoal.observe.formatting import format_time

        session.table(
            ["WHEN", "KIND", "RUN", "SCRAPER", "TOLD", "WHY"],
            [
                (
                    format_time(one.at),
                    one.alert.kind,
                    one.alert.run,
                    one.alert.scraper,
                    one.delivery,
                    _why(one.alert.body),
                )
                for one in found
            ],
        )
    else:
        session.note("There are no alerts.")


@app.command()
@with_options
def test(session: Session) -> None:
    """Send a message to every address of `notify`, and say which of them took it. One did not: exit 1."""
    addresses = _all_addresses(session.settings)
    if not addresses:
        raise UsageError("There is no address to send to.", remedy="Set notify, for example by SHOAL_NOTIFY.")
    from shoal.notify.delivery import send_text

    text = "This is a test of Shoal's alerts. If you can read it, alerts will reach you."
    reasons = session.wait(send_text(addresses.urls, "Shoal: a test", text))
    for number, (shown, reason) in enumerate(zip(addresses.shown(), reasons, strict=True), 1):
        if session.json:
            session.record({"number": number, "address": shown, "ok": not reason, "reason": reason or None})
        else:
            session.data(f"{number} {shown}: {reason or 'ok'}")
    if any(reasons):
        raise typer.Exit(1)


@app.command()
@with_options
def watch(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Look once, tell what is to be told, and end.")] = False,
) -> None:
    """Watch all runs of the ledger and raise alerts, also when no worker is left to do it. Ctrl-C ends it."""
    from shoal.cli.alerts_watch import watch_alone

    session.wait(watch_alone(session, session.settings, once=once))


async def _raised(ledger: Ledger, name: str | None, limit: int) -> list[RaisedAlert]:
    from shoal.notify.watch import list_alerts

    run_id = None if name is None else (await find_run(ledger, name)).id
    return await list_alerts(ledger, run_id, limit=limit)


def _all_addresses(settings: Settings) -> Addresses:
    """Those of the process and those of scrapers' tables, each once."""
    from shoal.config.alerts import Addresses

    tables = [table.values.get("notify", Addresses()) for table in settings.scrapers.values()]
    return Addresses(tuple(dict.fromkeys(url for one in (settings.notify, *tables) for url in one.urls)))


def _why(body: str) -> str:
    return body.partition("\n")[0]
