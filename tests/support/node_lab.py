"""A small data centre: nodes with the database, the site and proxies, and those that the workers are on."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support import fork_server
from tests.support.account import Account
from tests.support.nodes import Node, Switch
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer, unique_name
from tests.support.project import Project, migrate
from tests.support.site import Site

WORKING_NODES = 3


class Lab:
    """Use it as a context. Workers speak to PgBouncer in transaction mode; the test has a line of its own.

    `fsync`: the database is on a disk, as in life, and slower for it.
    """

    def __init__(self, *, fsync: bool) -> None:
        self._fsync = fsync
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            switch = stack.enter_context(Switch())
            sockets = Account.unprivileged().scratch_folder("shoal-sockets-")
            stack.callback(shutil.rmtree, sockets)
            database = switch.node("database")
            self.database_address = database.address
            host = database.database_host(sockets)
            self.postgres = stack.enter_context(PostgresServer(fsync=self._fsync, host=host))
            self.bouncer = stack.enter_context(PgBouncer(self.postgres, host=host))
            self.site_node = switch.node("site")
            self.exit_node = switch.node("exits")
            self.nodes = [switch.node(f"node{number}") for number in range(1, WORKING_NODES + 1)]
            for node in self.nodes:
                fork_server.prepare(node.entry_with_disks)
            self._template = unique_name()
            self.postgres.create_database(self._template)
            address = self.postgres.url(self._template)
            migrate(address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def site(self, *, pages: int = 100, delay: float = 0.0) -> Site:
        return Site(pages=pages, delay=delay, host=self.site_node.host)

    def mend(self) -> None:
        """Undo whatever a test has done to the cables."""
        for node in self.nodes:
            node.mend()
            node.speed_up()

    def socket_url(self, database: str) -> str:
        """The database through PgBouncer for those who are in another network: by a socket file."""
        return self.postgres.url(database).replace(f"port={self.postgres.port}", f"port={self.bouncer.port}")

    def new_database(self) -> str:
        name = unique_name()
        self.postgres.create_database(name, self._template)
        return name


class Fleet:
    """A project that several nodes share: a folder on each, one ledger, and an operator who sees it directly."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder
        self._stack = ExitStack()
        self.database = lab.new_database()
        self._stack.callback(lab.postgres.drop_database, self.database)
        self._stack.callback(lab.mend)
        self.operator = self._project(None)
        self.nodes = [self._project(node) for node in lab.nodes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def write(self, code: str, name: str = "shop.py") -> None:
        """The scraper's file, the same on every node."""
        for project in (self.operator, *self.nodes):
            project.write(code, name)

    def enqueue(self, urls: list[str]) -> str:
        """A run of the scraper over these URLs; its id."""
        self.operator.shoal("enqueue", "shop.py", "--urls-file", self.operator.urls(urls))
        return self.operator.run().id

    def disk(self, number: int, size: str) -> Path:
        """Mount a small disk as the folder `disk` of one node's project; return the way to it from outside."""
        node, place = self.lab.nodes[number], self.nodes[number].folder / "disk"
        place.mkdir()
        outside = node.mount_disk(place, size)
        self._stack.callback(node.unmount_disk, place)
        return outside

    def _project(self, node: Node | None) -> Project:
        folder = self._folder / ("operator" if node is None else node.name)
        folder.mkdir()
        if node is None:
            project = Project(folder, self.lab.postgres.url(self.database))
        else:
            project = Project(folder, self.lab.bouncer.url(self.database), node.entry_with_disks)
        return self._stack.enter_context(project)
