"""Real nodes on one machine: each has a network, a host name and mounts of its own, joined by a switch.

A node is a set of Linux namespaces that a waiting process holds open; nothing has a name outside of them, so test
processes cannot collide, and when whoever made the nodes is gone, however it went, the kernel removes them. Root makes
them directly, everybody else inside a user namespace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.support import MissingPartError
from tests.support.account import Account
from tests.support.server import Host

_PROGRAMS: Final = ("unshare", "nsenter", "ip", "tc")
_PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_NETWORK: Final = "10.77.0"
_FIRST_ADDRESS: Final = 2
_FILTER: Final = "faults"
_UNHINDERED: Final = ("root", "pfifo", "limit", "1000")
# Its standard input is our promise to be there: it closes when we end, and with it the holder and the namespaces.
_HOLD: Final = "import socket, sys; socket.sethostname(sys.argv[1]); print(flush=True); sys.stdin.read()"
# PostgreSQL refuses root, which a plain user is inside the user namespace: one more makes somebody else of it.
_ANYBODY: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


class Namespaces:
    """Namespaces of their own, held open by a process until `close`."""

    def __init__(self, name: str, *command: str) -> None:
        """`command` makes the namespaces and runs what is put behind it."""
        self._holder = subprocess.Popen(
            [*command, sys.executable, "-I", "-S", "-c", _HOLD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": _PATH},
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            _, complaint = self._holder.communicate()
            raise MissingPartError(f"nodes need Linux namespaces: {complaint.decode().strip()}")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def entry(self, *which: str) -> tuple[str, ...]:
        """What is put before a command to run it in there. It keeps its process id."""
        user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        return ("nsenter", f"--target={self.pid}", *user, *which)

    def close(self) -> None:
        self._holder.communicate()


class Node:
    """A machine as its processes see it. `address` is known to all nodes of the switch, the name is only its own."""

    def __init__(self, name: str, address: str, places: Namespaces, switch: Switch) -> None:
        self.name = name
        self.address = address
        self._places = places
        self._switch = switch

    @property
    def pid(self) -> int:
        """Of the process that holds the node open."""
        return self._places.pid

    @property
    def entry(self) -> tuple[str, ...]:
        """What is put before a command to run it here, with the files and in the folder of whoever runs it."""
        return (*self._places.entry("--net", "--uts"), "--")

    @property
    def entry_with_disks(self) -> tuple[str, ...]:
        """The same, with the disks of this node."""
        return (*self._places.entry("--net", "--uts", "--mount"), "--")

    @property
    def host(self) -> Host:
        """This node as a place for a server that runs as the user we are."""
        return Host(self.address, self.entry)

    def database_host(self, sockets: Path) -> Host:
        """This node as a place for servers that refuse root; whoever is elsewhere finds their sockets in the folder."""
        account = Account.unprivileged()
        if account.uid is None:
            return Host(self.address, (*self.entry, *_ANYBODY), sockets)
        become = (f"--setuid={account.uid}", f"--setgid={account.gid}", "--")
        return Host(self.address, (*self._places.entry("--net", "--uts"), *become), sockets)

    def mount_disk(self, folder: Path, size: str) -> Path:
        """Mount a small disk that only this node has; return the way to it from outside."""
        _run(*self.entry_with_disks, "mount", "-t", "tmpfs", "-o", f"size={size}", "disk", str(folder))
        return self.seen_from_outside(folder)

    def unmount_disk(self, folder: Path) -> None:
        _run(*self.entry_with_disks, "umount", "--lazy", str(folder))

    def seen_from_outside(self, path: Path) -> Path:
        return Path(f"/proc/{self._places.pid}/root{path}")

    def add_address(self, address: str) -> None:
        """Give the node one more address on the switch, if it has not got it yet."""
        if f" {address}/" not in _run(*self.entry, "ip", "-4", "addr", "show", "dev", "eth0"):
            _run(*self.entry, "ip", "addr", "add", f"{address}/24", "dev", "eth0")

    def filter(self, *, incoming: str = "", outgoing: str = "") -> None:
        """Apply nftables rules, as in "ip saddr 10.77.0.2 drop", to what the node hears and says; until `unfilter`."""
        chains = [
            f"chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}\n"
            for hook, rule in (("input", incoming), ("output", outgoing))
            if rule
        ]
        _run(*self.entry, "nft", f"table inet {_FILTER} {{\n{''.join(chains)}}}\n")

    def unfilter(self) -> None:
        _run(*self.entry, "nft", f"table inet {_FILTER} {{ }}\ndelete table inet {_FILTER}\n")

    def cut_off(self) -> None:
        """Pull its cable: what is sent vanishes, on both ends, and nobody is told."""
        self._switch.ip("link", "set", self.name, "down")

    def mend(self) -> None:
        self._switch.ip("link", "set", self.name, "up")

    def slow_down(self, rate: str) -> None:
        """Let the node hear and speak no faster than this, as in "1mbit"; until `speed_up`."""
        limits = ("root", "tbf", "rate", rate, "burst", "8kb", "latency", "400ms")
        self._switch.run("tc", "qdisc", "replace", "dev", self.name, *limits)
        _run(*self.entry, "tc", "qdisc", "replace", "dev", "eth0", *limits)

    def speed_up(self) -> None:
        self._switch.run("tc", "qdisc", "replace", "dev", self.name, *_UNHINDERED)
        _run(*self.entry, "tc", "qdisc", "replace", "dev", "eth0", *_UNHINDERED)


class Switch:
    """What the nodes are plugged into. Use it as a context; at its end the nodes are gone."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._nodes = 0

    def __enter__(self) -> Self:
        for program in _PROGRAMS:
            if shutil.which(program, path=_PATH) is None:
                raise MissingPartError(f"nodes need {program}: install util-linux and iproute2")
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        with self._stack as stack:
            self._places = Namespaces("switch", "unshare", *user, "--net", "--uts", "--")
            stack.callback(self._places.close)
            self.ip("link", "add", "name", "switch", "type", "bridge")
            self.ip("link", "set", "switch", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def node(self, name: str) -> Node:
        """Plug in a new node. Its name must fit a network card: at most 15 characters."""
        address = f"{_NETWORK}.{_FIRST_ADDRESS + self._nodes}"
        self._nodes += 1
        places = Namespaces(name, *self._places.entry(), "--", "unshare", "--net", "--uts", "--mount", "--")
        self._stack.callback(places.close)
        node = Node(name, address, places, self)
        self.ip("link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(places.pid))
        self.ip("link", "set", name, "master", "switch", "up")
        for change in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run(*node.entry, "ip", *change.split())
        return node

    def ip(self, *arguments: str) -> None:
        self.run("ip", *arguments)

    def run(self, *command: str) -> None:
        _run(*self._places.entry("--net"), "--", *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, env={"PATH": _PATH}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or signal.strsignal(-done.returncode)}")
    return done.stdout
