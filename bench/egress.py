"""Pages through proxies, by Shoal and by a bare aiohttp loop, and what an exit costs that leads to no proxy."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from bench.figures import Report
from bench.rounds import paired_ratio
from bench.scrape import CONCURRENCY, Entrant, Opened, take_turns, tell_costs
from bench.scrape_shoal import shoal_program
from bench.scrape_site import FastSite, nginx_program
from bench.scrape_trial import OUT, URLS, Program, python
from bench.session import Effort, Session
from tests.support.account import Account
from tests.support.proxies import MicroSocksGroup, new_source
from tests.support.server import ServerProcess, free_port

PAGES: dict[Effort, int] = {"quick": 10_000, "full": 40_000}
PROXIES = 20
LIST = "proxies.txt"
TOKEN = "a-token-of-the-benchmark"
# One nginx, which listens on an address for each proxy and keeps connections to both sides.
_CONFIG = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream site {{ server 127.0.0.1:{site_port}; keepalive 512; keepalive_requests 1000000000; }}
  server {{
    {listen}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    location / {{ proxy_pass http://site; }}
  }}
}}
"""


def run(session: Session) -> Report:
    pages = session.size(PAGES)
    report = Report(
        "egress",
        "How many pages per second go through proxies, and what does an exit cost that leads to none?",
        {"pages": pages, "proxies": PROXIES, "concurrency": CONCURRENCY},
    )
    with FastSite() as site:
        entrants = {
            "bare aiohttp, 20 HTTP proxies": Entrant(_through(partial(_http_proxies, site.port), _bare), pages),
            "shoal, 20 HTTP proxies": Entrant(_through(partial(_http_proxies, site.port), _shoal), pages),
            "shoal, 20 SOCKS proxies": Entrant(_through(_socks_proxies, _shoal), pages),
            "shoal, no egress": Entrant(_plain(shoal_program(CONCURRENCY)), pages),
            "shoal, an exit without a proxy": Entrant(_with_token(), pages),
        }
        trials = take_turns(site, entrants, session.rounds)
    for name, of in trials.items():
        report.add(name, "pages/s", [trial.rate for trial in of])
    tell_costs(report, trials)

    def compare(ours: str, theirs: str, wanted: float) -> None:
        ratio = paired_ratio([trial.rate for trial in trials[ours]], [trial.rate for trial in trials[theirs]])
        report.target(f"{ours} / {theirs}", ratio, at_least=wanted)

    compare("shoal, 20 HTTP proxies", "bare aiohttp, 20 HTTP proxies", 0.6)
    compare("shoal, an exit without a proxy", "shoal, no egress", 0.95)
    report.bars(f"Pages of 1 KB, {CONCURRENCY} at once", "pages/s")
    return report


def _through(proxies: Callable[[], AbstractContextManager[list[str]]], make: Callable[[str], Program]) -> Opened:
    """A program beside a list of proxies, which start with it: kept connections would hide its first visit."""

    @contextmanager
    def opened() -> Iterator[Program]:
        with proxies() as urls:
            yield make("".join(f"{url}\n" for url in urls))

    return opened


def _bare(proxies: str) -> Program:
    return Program(python("scrape_bare", URLS, OUT, CONCURRENCY, LIST), files={LIST: proxies})


def _shoal(proxies: str) -> Program:
    toml = f'[egress.homes]\nkind = "proxies"\nfile = "{LIST}"\n'
    return _with_files(shoal_program(CONCURRENCY, egress="homes"), {LIST: proxies, "shoal.toml": toml})


def _with_token() -> Opened:
    """A pool of one token with a budget that is never spent: everything but the proxy."""
    toml = '[egress.api]\nkind = "tokens"\nenv = "BENCH_TOKEN"\nheader = "X-Token: {token}"\nbudget = "9000000/h"\n'
    program = _with_files(shoal_program(CONCURRENCY, egress="api"), {"shoal.toml": toml})
    return _plain(replace(program, environment={**program.environment, "BENCH_TOKEN": TOKEN}))


def _with_files(program: Program, files: Mapping[str, str]) -> Program:
    return replace(program, files={**program.files, **files})


def _plain(program: Program) -> Opened:
    return lambda: nullcontext(program)


@contextmanager
def _socks_proxies() -> Iterator[list[str]]:
    with MicroSocksGroup(PROXIES) as group:
        yield [address.address for address in group.addresses]


@contextmanager
def _http_proxies(site_port: int) -> Iterator[list[str]]:
    """The URLs of HTTP proxies that lead to the site."""
    account, port = Account.unprivileged(), free_port()
    folder = account.scratch_folder("shoal-proxies-")
    addresses = [new_source() for _ in range(PROXIES)]
    listen = " ".join(f"listen {address}:{port} backlog=1024;" for address in addresses)
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, site_port=site_port, listen=listen))
    account.give(folder)
    process = ServerProcess(
        [nginx_program(), "-c", str(config), "-p", str(folder), "-e", "stderr"],
        account=account,
        folder=folder,
        farewell=signal.SIGTERM,
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((addresses[-1], port)) == 0

    process.wait_until(listens)
    try:
        yield [f"http://{address}:{port}" for address in addresses]
    finally:
        process.stop(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)
