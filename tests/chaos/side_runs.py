"""Small runs beside the large one whose requests must go out through proxies, or through Tor, and never directly."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.chaos.logged_site import PLAIN_CONFIG, PORT, PROXIED_DELAY, with_priority
from tests.chaos.report import TorReport
from tests.chaos.site_log import Excuses, Rules, judge, read_visits
from tests.support.account import Account
from tests.support.binaries import proxy_program
from tests.support.nginx import is_listening, nginx
from tests.support.node_lab import Fleet
from tests.support.nodes import Node
from tests.support.postgres import child_processes
from tests.support.project import Command, Project
from tests.support.server import Host, ServerProcess
from tests.support.tor_network import EXITS, SITE, TorNetwork

PROXIES = 4
TOR_DELAY = 1.0
_PROXY_PORT = 1080
_FIRST_ADDRESS = 151
HOMES = f"""
    homes = Scraper("homes", retries=200, backoff_factor=1.5, backoff_cap=3)

    @homes.stage(egress="homes", delay={PROXIED_DELAY}, concurrency=4)
    async def page(page: Page):
        yield {{"title": page.css("h1::text").get()}}
"""
HOMES_SETTINGS = """
[egress.homes]
kind = "proxies"
file = "proxies.txt"
ban_after = 3
ban_for = "5s"
"""
ONION = f"""
    onion = Scraper("onion", retries=200, backoff_factor=1.5, backoff_cap=3)

    @onion.stage(egress="onion", delay={TOR_DELAY}, concurrency=4)
    async def page(page: Page):
        yield {{"title": page.css("h1::text").get()}}
"""
ONION_SETTINGS = """
[egress.onion]
kind = "tor"
torrc = "{torrc}"
circuits = 4
rotate_after = 10
"""


class Proxies:
    """SOCKS proxies on a node, each with an address of its own. Use it as a context; each may be killed and started."""

    def __init__(self, node: Node) -> None:
        self._node = node
        network = node.address.rpartition(".")[0]
        self.addresses = [f"{network}.{_FIRST_ADDRESS + number}" for number in range(PROXIES)]
        self._running: dict[str, ServerProcess] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            for address in self.addresses:
                self._node.add_address(address)
                stack.callback(self.kill, address)
                self.start(address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def list(self) -> str:
        """As a file of proxies."""
        return "".join(f"socks5://{address}:{_PROXY_PORT}\n" for address in self.addresses)

    def start(self, address: str) -> None:
        program = str(proxy_program("microsocks"))
        folder = Account().scratch_folder("shoal-proxy-")
        process = ServerProcess(
            [*with_priority(self._node.host).entry, program, "-i", address, "-p", str(_PROXY_PORT), "-b", address],
            account=Account(),
            folder=folder,
            farewell=signal.SIGKILL,
        )
        process.wait_until(lambda: is_listening(Host(address, self._node.entry), _PROXY_PORT))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._running[address] = process

    def kill(self, address: str) -> None:
        if address in self._running:
            self._running.pop(address).stop(signal.SIGKILL)


class TorSide:
    """A private Tor network, a site in it, and a project whose workers are there. Use it as a context."""

    def __init__(self, network: TorNetwork, fleet: Fleet, folder: Path) -> None:
        self.network = network
        self._fleet = fleet
        self._folder = folder / "tor"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._folder.mkdir()
            ledger = self._fleet.lab.socket_url(self._fleet.database)
            self.project = stack.enter_context(Project(self._folder, ledger, self.network.entry))
            config = PLAIN_CONFIG.replace("PORT", str(PORT))
            site = stack.enter_context(nginx(config, port=PORT, host=with_priority(self.network.host)))
            self._log = site / "visits.log"
            self.network.wait_until_ready()
            self._before = self.network.counts()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def urls(self) -> str:
        return f"http://shop.example:{PORT}"

    @property
    def settings(self) -> str:
        return ONION_SETTINGS.format(torrc=self.network.torrc)

    def kill_tor(self, worker: Command) -> bool:
        """Kill the tor that a worker has started; False if it has none now."""
        for pid in child_processes(worker.pid):
            try:
                is_tor = Path(f"/proc/{pid}/comm").read_text().strip() == "tor"
                if is_tor:
                    os.kill(pid, signal.SIGKILL)
                    return True
            except OSError:
                continue
        return False

    def judge(self) -> TorReport:
        """By the log of the site in there, and by the counters of packets that did not go through Tor."""
        found = judge(read_visits(self._log), Rules({}, {}, {SITE: EXITS}), Excuses())
        now = self.network.counts()
        packets = sum(now[name] - self._before[name] for name in now)
        return TorReport(visits=found.visits, direct=found.direct + packets, examples=found.examples)


def enqueue(project: Project, name: str, urls: Iterable[str], *options: str) -> str:
    """A run of the scraper in this file over these URLs; its id."""
    file = project.urls(urls, f"{name}.txt")
    answer = project.shoal("enqueue", f"{name}.py", "--urls-file", file, *options, timeout=300)
    return str(json.loads(answer.stdout)["run_id"])
