"""What the faults of a campaign strike: the workers of all runs on all nodes, the database, the pooler, the server."""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Self

from tests.chaos.hostile_site import MAX_BODY
from tests.chaos.side_runs import Proxies, TorSide
from tests.chaos.site_log import Disturbance
from tests.support.node_lab import Fleet
from tests.support.nodes import Node
from tests.support.project import Command, Project
from tests.support.server import free_port


class Team:
    """The workers of one run: one in each place, replaced when it has ended, as a pool would."""

    def __init__(self, name: str, run_id: str, places: Iterable[Project], *options: str, slots: int) -> None:
        """`slots`: of each worker."""
        self.name = name
        self.run_id = run_id
        self.is_finished = False
        self.restarts = 0
        self.places = list(places)
        self._options = (*options, "-j", str(slots))
        self.slots = slots * len(self.places)
        self._workers: dict[int, Command] = {}
        self._started: dict[int, float] = {}

    def keep(self) -> None:
        for number, project in enumerate(self.places):
            worker = self._workers.get(number)
            if self.is_finished or (worker is not None and not worker.is_over):
                continue
            self.restarts += worker is not None
            command = ("worker", f"{self.name}.py", "--run-id", self.run_id, "-q", *self._options)
            self._workers[number] = project.start(*command)
            self._started[number] = time.monotonic()

    def workers(self, project: Project | None = None) -> list[Command]:
        """Those that live; of one project, if given."""
        return [
            worker
            for number, worker in self._workers.items()
            if not worker.is_over and (project is None or self.places[number] is project)
        ]

    def place_of(self, worker: Command) -> Project:
        return next(self.places[number] for number, each in self._workers.items() if each is worker)

    def has_worker_since(self, seconds: float) -> bool:
        """Whether one of them has been running for so long."""
        latest = time.monotonic() - seconds
        return any(not worker.is_over and self._started[number] <= latest for number, worker in self._workers.items())


class Scene:
    """Use it as a context: it starts workers and a server, and stops them."""

    def __init__(
        self,
        fleet: Fleet,
        teams: dict[str, Team],
        *,
        lease: float,
        proxies: Proxies | None = None,
        tor: TorSide | None = None,
    ) -> None:
        self.fleet = fleet
        self.teams = teams
        self.lease = lease
        self.proxies = proxies
        self.tor = tor
        self.server: Command | None = None
        self.pooler_crashes = 0
        self.disturbances: list[Disturbance] = []
        # When the exits of a team were last in trouble, by its name.
        self.egress_trouble_at: dict[str, float] = {}
        self._server_port = free_port()
        # The logs of each node are on a small disk, which can be filled.
        self.disks = [fleet.disk(number, "16m") for number in range(len(fleet.nodes))]

    @staticmethod
    def settings(lease: float) -> tuple[str, ...]:
        """What each worker is started with."""
        chosen = {"lease": f"{lease:g}", "command_timeout": "3", "log_dir": "disk", "max_body": str(MAX_BODY)}
        return tuple(word for name, value in chosen.items() for word in ("--set", f"{name}={value}"))

    def __enter__(self) -> Self:
        self.keep_workers()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def main(self) -> Team:
        return self.teams["shop"]

    def keep_workers(self) -> None:
        """Start a worker wherever one is missing, and the server; also a pooler that crashed.

        PgBouncer 1.18 sometimes does, when many clients cancel their queries while PostgreSQL does not answer.
        """
        if self.fleet.lab.bouncer.has_crashed:
            self.pooler_crashes += 1
            self.fleet.lab.bouncer.stop()
            self.fleet.lab.bouncer.start()
        for team in self.teams.values():
            team.keep()
        if self.server is None or self.server.is_over:
            self.server = self.fleet.operator.start("serve", "--port", str(self._server_port), "-q")

    def server_answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._server_port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def workers(self) -> list[Command]:
        return [worker for team in self.teams.values() for worker in team.workers()]

    def any_worker(self, rng: random.Random) -> tuple[Command, Node | None]:
        """A worker, and its node; None for the one that has only Tor."""
        found = [(worker, team) for team in self.teams.values() for worker in team.workers()]
        worker, team = rng.choice(found)
        project = team.place_of(worker)
        if project not in self.fleet.nodes:
            return worker, None
        return worker, self.fleet.lab.nodes[self.fleet.nodes.index(project)]

    def any_node(self, rng: random.Random) -> tuple[int, Node]:
        number = rng.randrange(len(self.fleet.lab.nodes))
        return number, self.fleet.lab.nodes[number]

    def workers_of(self, node: int) -> list[Command]:
        return [worker for team in self.teams.values() for worker in team.workers(self.fleet.nodes[node])]

    def mend(self) -> None:
        """Undo what a fault has left that did not come to its end."""
        lab = self.fleet.lab
        lab.mend()
        lab.site_node.mend()
        for node in lab.nodes:
            node.unfilter()
        lab.postgres.thaw()

    @contextlib.contextmanager
    def disturbing(self, *nodes: Node) -> Iterator[None]:
        """Note that what these nodes send, also through proxies, is kept meanwhile; without a node: of all."""
        began = time.time()
        try:
            yield
        finally:
            remotes = [node.address for node in nodes]
            if self.proxies is not None and any(self._uses_proxies(node) for node in nodes):
                remotes += self.proxies.addresses
            self.disturbances.append(Disturbance(began, time.time(), remotes))

    def _uses_proxies(self, node: Node) -> bool:
        """Whether a worker whose requests come from the addresses of the proxies is on this node."""
        project = self.fleet.nodes[self.fleet.lab.nodes.index(node)]
        return project in self.teams["homes"].places

    @contextlib.contextmanager
    def disturbing_egress(self, team: str) -> Iterator[None]:
        """Note that the exits of a team are in trouble until now."""
        self.egress_trouble_at[team] = time.monotonic()
        try:
            yield
        finally:
            self.egress_trouble_at[team] = time.monotonic()

    def stop(self) -> None:
        commands = [*self.workers, *([self.server] if self.server is not None else [])]
        for command in commands:
            if not command.is_over:
                command.tell(signal.SIGTERM)
        for command in commands:
            with contextlib.suppress(AssertionError):
                command.wait(60)
            command.kill()
