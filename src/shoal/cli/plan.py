"""`shoal plan`: how many workers, connections, database cores, bytes and hours a job needs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.service.plan import PlannedJob

WIDTH = 79
UNITS = ("", "K", "M", "G", "T", "P", "E")


@with_options
def plan(
    session: Session,
    pages: Annotated[str, typer.Option(help="Pages to fetch, such as 1e9 or 20M.")],
    latency: Annotated[float, typer.Option(help="Seconds until a page is there.")] = 0.5,
    size: Annotated[str, typer.Option(help="Bytes of a page.")] = "50KB",
    hosts: Annotated[
        str | None, typer.Option(help="Hosts that they are spread over; without it no host is a limit.")
    ] = None,
    delay: Annotated[float, typer.Option(help="Seconds between two pages of a host.")] = 1.0,
    per_host: Annotated[float, typer.Option(help="Pages of a host at once.")] = 1,
    concurrency: Annotated[float, typer.Option("--concurrency", "-j", help="Pages at once in a worker.")] = 16,
    hours: Annotated[float | None, typer.Option(help="Be ready in so many hours.")] = None,
    workers: Annotated[float | None, typer.Option(help="With so many workers (excludes --hours).")] = None,
    database_cores: Annotated[float, typer.Option(help="Cores of the PostgreSQL server.")] = 8,
    bandwidth: Annotated[
        str | None, typer.Option(help="Bits a second of all workers together, such as 10Gbit.")
    ] = None,
    record_size: Annotated[str, typer.Option(help="Bytes that are kept of a page.")] = "300B",
    store: Annotated[bool, typer.Option("--store", help="Pages are kept, as with `shoal run --store`.")] = False,
) -> None:
    """Say how many workers, connections, database cores, bytes and hours a job needs, and what limits it.

    Without --hours and --workers: as fast as hosts and one PostgreSQL allow. Computed from measured costs; needs no
    ledger and no network.
    """
    from shoal.model.capacity import CapacityJob
    from shoal.service.plan import parse_quantity, plan_job

    planned = plan_job(
        CapacityJob(
            pages=parse_quantity("--pages", pages, "1e9 or 20M"),
            latency=latency,
            size=parse_quantity("--size", size, "50KB", "bytes"),
            record_size=parse_quantity("--record-size", record_size, "300B", "bytes"),
            hosts=None if hosts is None else parse_quantity("--hosts", hosts, "1e6 or 1M"),
            delay=delay,
            per_host=per_host,
            concurrency=concurrency,
            hours=hours,
            workers=workers,
            database_cores=database_cores,
            bandwidth=None if bandwidth is None else parse_quantity("--bandwidth", bandwidth, "10Gbit", "bits"),
            store=store,
        )
    )
    if session.json:
        session.record(planned)
        return
    _show(session, planned)


def _show(session: Session, planned: PlannedJob) -> None:
    job, found = planned.job, planned.plan
    session.table(
        ["WHAT", "NEEDED", "DETAILS"],
        [
            ("hours", _number(found.hours), f"{_number(found.rate)} pages/s"),
            (
                "workers",
                f"{found.workers:,}",
                f"{job.concurrency:g} pages at once, {_number(found.worker_rate)} pages/s each",
            ),
            ("worker cores", _number(found.worker_cores), f"busy; memory {_bytes(found.worker_memory_bytes)}"),
            (
                "database cores",
                f"{found.database_cores:,}",
                f"{_number(found.database_load)} busy; {_number(found.calls_per_page)} claims and commits a page",
            ),
            (
                "connections",
                f"{found.connections:,}",
                "the pool of PgBouncer, at least" if found.pooled else "direct, at most",
            ),
            ("log of the database", f"{_bytes(found.log_bytes_per_second)}/s", "written by PostgreSQL (WAL)"),
            ("disk of the ledger", _bytes(found.ledger_bytes), f"of it {_bytes(found.record_bytes)} records"),
            *([("disk of the store", _bytes(found.store_bytes), "pages, compressed")] if job.store else []),
            ("network", f"{_units(found.network_bits_per_second)}bit/s", "of all workers"),
            ("enqueueing", f"{_number(found.enqueue_hours)} h", "by one process; workers may start at once"),
        ],
    )
    limits = ", ".join(
        f"{name} {_number(rate)}"
        for name, rate in found.limits.items()
        if rate is not None and (name != "pages" or found.bottleneck == "pages")
    )
    _paragraph(session, f"{planned.reason} Pages/s at most: {limits}.")
    for text in planned.advice:
        _paragraph(session, text, bullet="- ")
    _paragraph(
        session,
        f"Costs were measured on {planned.measured_on}. In the fleets that check the model, processor time of database "
        f"and workers and bytes of the log were off by up to a factor of {found.error:.2g}, with pages without latency "
        "by more; claims and commits a page, connections and disk are rougher. Your handlers, TLS and retries are not "
        "in it: measure a small run first.",
    )


def _paragraph(session: Session, text: str, bullet: str = "") -> None:
    lines = textwrap.wrap(text, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet))
    session.data("\n" + "\n".join(lines) if not bullet else "\n".join(lines))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _units(value: float) -> str:
    """`4.63 G`: three digits and the power of a thousand."""
    power = 0
    while value >= 999.5 and power < len(UNITS) - 1:
        value, power = value / 1_000, power + 1
    return f"{value:.3g} {UNITS[power]}"


def _bytes(value: float) -> str:
    return f"{_units(value)}B"
