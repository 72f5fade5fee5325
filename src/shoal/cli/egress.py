"""`shoal proxies` and `shoal tokens`: see the exits that requests go out through, test them, rest or ban them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import RED, Session
from shoal.cli.render.tables import print_facts
from shoal.errors import InvalidSetting
from shoal.service import records
from shoal.service.lookup import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.ledger.protocols import Ledger
    from shoal.model.egress import ExitView, PoolKind, PoolView
    from shoal.service.egress import ExitCheck

proxies = typer.Typer()
tokens = typer.Typer()

WAYS: tuple[PoolKind, ...] = ("proxies", "tor")
TOKENS: tuple[PoolKind, ...] = ("tokens",)

ExitName = Annotated[str, typer.Argument(metavar="EXIT", help="A key or a label of `ls`, host:port, or POOL/KEY.")]
PoolName = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Only this pool, [egress.NAME].")]
StateName = Annotated[
    str | None, typer.Option("--state", metavar="STATE", help="Only those: good, banned, resting or trial.")
]
ForTime = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="For so long, such as 30m or 2h; else until it is freed.")
]


@proxies.command("ls")
@with_options
def ls_proxies(session: Session, pool: PoolName = None, state: StateName = None) -> None:
    """List proxies and Tor circuits with their health, as all workers know it."""
    _list(session, WAYS, pool, state, "No worker has used a proxy yet.")


@proxies.command("show")
@with_options
def show_proxy(session: Session, exit_: ExitName) -> None:
    """Show everything about one proxy or circuit, with the hosts that blocked it."""
    _show(session, exit_, WAYS)


@proxies.command("test")
@with_options
def check_all(
    session: Session,
    pool: PoolName = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Fetch this page through each; else only the proxy is asked.")
    ] = None,
) -> None:
    """Try every proxy of the configured lists from this machine. One that does not work: exit 1."""
    from shoal.service.egress import check_proxies

    def show(check: ExitCheck) -> None:
        if session.json:
            session.record(records.exit_check_record(check))
        else:
            mark = "ok   " if check.ok else session.styled("wrong", RED)
            took = f"{check.seconds * 1000:.0f} ms"
            session.data(f"{mark}  {check.pool}/{check.exit}  {check.label}  {check.text}  {took}")

    def warn(problem: str) -> None:
        session.note(f"Left out: {problem}.")

    checks = session.wait(check_proxies(session.settings, pool=pool, url=url, on_check=show, on_problem=warn))
    failed = sum(not check.ok for check in checks)
    if not checks:
        session.note("shoal.toml has no pool of proxies.")
    elif failed:
        session.note(f"{failed} of {len(checks)} do not work from here.")
        raise typer.Exit(1)


@proxies.command()
@with_options
def rest(session: Session, exit_: ExitName, for_: ForTime = None) -> None:
    """Use a proxy no more for a while, on all machines."""
    from shoal.service.egress import rest_exit

    seconds = _seconds(for_)
    _change(session, lambda ledger: rest_exit(ledger, exit_, WAYS, seconds=seconds, by=operator()))


@proxies.command()
@with_options
def ban(
    session: Session,
    exit_: ExitName,
    for_: ForTime = None,
    why: Annotated[str, typer.Option(help="The reason, for whoever looks later.")] = "banned by an operator",
) -> None:
    """Ban a proxy on all machines; it is tried with one request before it is used again."""
    from shoal.service.egress import ban_exit

    seconds = _seconds(for_)
    _change(session, lambda ledger: ban_exit(ledger, exit_, WAYS, seconds=seconds, why=why, by=operator()))


@proxies.command()
@with_options
def free(
    session: Session,
    exit_: Annotated[
        str,
        typer.Argument(
            metavar="EXIT|POOL", help="A key or a label of `ls`, host:port, or POOL/KEY; a pool: all that it has."
        ),
    ],
) -> None:
    """Use a banned or resting proxy again at once, at every host; or all of a pool."""
    from shoal.observe.egress import count_text
    from shoal.service.egress import free_exit, free_pool

    found = session.with_ledger(lambda ledger: free_pool(ledger, exit_, WAYS, by=operator()))
    if found is None:
        _change(session, lambda ledger: free_exit(ledger, exit_, WAYS, by=operator()))
        return
    pool, freed = found
    if session.json:
        for view in freed:
            session.record(records.exit_record(view))
    else:
        session.data(f"{count_text(pool.kind, len(freed))} of {pool.pool} freed.")


@tokens.command("ls")
@with_options
def ls_tokens(session: Session, pool: PoolName = None, state: StateName = None) -> None:
    """List API tokens by the names of their variables, with what is left of their budgets."""
    _list(session, TOKENS, pool, state, "No worker has used a token yet.")


@tokens.command("show")
@with_options
def show_token(session: Session, exit_: ExitName) -> None:
    """Show everything about one token."""
    _show(session, exit_, TOKENS)


def _list(session: Session, kinds: tuple[PoolKind, ...], pool: str | None, state: str | None, empty: str) -> None:
    from shoal.model.egress import ExitState
    from shoal.observe.egress import budget_text, pool_text, state_text
    from shoal.service.egress import list_exits, list_pools

    if state is not None and state not in tuple(ExitState):
        raise InvalidSetting(f"There is no state {state!r}; there are {', '.join(ExitState)}.")

    async def read(ledger: Ledger) -> tuple[list[ExitView], list[PoolView]]:
        exits = [view async for view in list_exits(ledger, kinds, pool=pool, state=state, details=kinds == TOKENS)]
        return exits, [view for view in await list_pools(ledger) if view.kind in kinds and pool in (None, view.pool)]

    exits, pools = session.with_ledger(read)
    if session.json:
        for view in exits:
            session.record(records.exit_record(view))
        return
    if not exits:
        session.note(empty if not pools else "There are none in this state.")
        return
    if kinds == TOKENS:
        session.table(
            ["POOL", "KEY", "TOKEN", "STATE", "BUDGET", "WHY"],
            [
                (
                    view.pool,
                    view.key,
                    view.label,
                    state_text(view),
                    "; ".join(budget_text(budget, several=len(view.budgets) > 1) for budget in view.budgets),
                    view.why,
                )
                for view in exits
            ],
        )
    else:
        session.table(
            ["POOL", "KEY", "PROXY", "STATE", "OK", "FAILED", "IN A ROW", "WHY"],
            [
                (
                    *(view.pool, view.key, view.label, state_text(view)),
                    *(view.succeeded, view.failed, view.failures_in_row),
                    view.why or (view.error if view.failures_in_row else ""),
                )
                for view in exits
            ],
        )
    for each in pools:
        failing = sum(
            view.pool == each.pool and view.state is ExitState.GOOD and view.failures_in_row > 0 for view in exits
        )
        session.note(f"{pool_text(each)}{f' ({failing} failed when last used)' if failing else ''}.")


def _show(session: Session, name: str, kinds: tuple[PoolKind, ...]) -> None:
    from shoal.service.egress import find_exit

    _change(session, lambda ledger: find_exit(ledger, name, kinds))


def _change(session: Session, call: Callable[[Ledger], Coroutine[Any, Any, ExitView]]) -> None:
    view = session.with_ledger(call)
    if session.json:
        session.record(records.exit_record(view))
    else:
        _print(session, view)


def _print(session: Session, view: ExitView) -> None:
    from shoal.observe.egress import budget_text, clock_text, state_text
    from shoal.observe.formatting import format_duration

    facts: dict[str, object] = {
        "exit": f"{view.pool}/{view.key}",
        "label": view.label,
        "kind": view.kind,
        "state": state_text(view),
        "why": view.why,
        "set by": view.by,
        "succeeded": view.succeeded,
        "failed": f"{view.failed}, {view.failures_in_row} in a row",
        "last error": view.error,
        "last used": "" if view.used_seconds is None else f"{format_duration(view.used_seconds)} ago",
        "listed": "" if view.listed else "no worker has it in its list now",
    }
    for budget in view.budgets:
        facts[f"budget {budget.resource}"] = budget_text(budget)
    print_facts(session, {name: value for name, value in facts.items() if value not in ("", None)})
    if view.hosts:
        session.table(
            ["HOST", "OK", "BLOCKED", "IN A ROW", "KEPT AWAY", "WHY"],
            [
                (
                    *(host.host, host.succeeded, host.blocked, host.blocks_in_row),
                    f"until {clock_text(host.blocked_seconds)}" if host.blocked_seconds else "",
                    host.error,
                )
                for host in view.hosts
            ],
        )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    from shoal.config.egress import parse_duration

    seconds = parse_duration(text)
    if seconds is None:
        raise InvalidSetting(f"{text!r} is not a time: write 90s, 30m, 2h or a number of seconds.")
    return seconds
