"""A private Tor network in a network of its own, without a way out of it, and a counter of what does not go through it.

Three authorities, three exits, a tor with onion services, and a name server that only the exits know. Each has an
address of its own in 192.0.2.0/25, so that a site at 192.0.2.80 sees whence a request comes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from tests.support import MissingPartError
from tests.support.account import Account
from tests.support.nodes import Namespaces
from tests.support.server import Host, ServerProcess

AUTHORITIES: Final = 3
RELAYS: Final = 6
# Authorities are relays, too, and exits now and then.
EXITS: Final = tuple(f"192.0.2.{10 + number}" for number in range(RELAYS))
ONION_SERVICE: Final = "192.0.2.50"
SITE: Final = "192.0.2.80"
NAME_SERVER: Final = "192.0.2.53"
# Where everything else would go, such as a question to the machine's own name server.
_ELSEWHERE: Final = "192.0.2.254"
_OR_PORT, _DIRECTORY_PORT = 5000, 7000
_PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_READY_SECONDS: Final = 180.0
_SERVICE: Final = "service"
_COMMON: Final = """\
TestingTorNetwork 1
AssumeReachable 1
PathsNeededToBuildCircuits 0.67
ShutdownWaitLength 0
AvoidDiskWrites 1
SafeLogging 0
Log notice stdout
"""
_RELAY: Final = """\
Nickname relay{number}
Address {address}
OutboundBindAddress {address}
ORPort {address}:5000
SocksPort 0
ExitRelay 1
ExitPolicy accept *:*
ExitPolicyRejectPrivate 0
ServerDNSDetectHijacking 0
ServerDNSTestAddresses
ServerDNSResolvConfFile {folder}/resolv.conf
ContactInfo none
"""
_AUTHORITY: Final = """\
DirPort {address}:7000
AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
V3BandwidthsFile {folder}/bandwidths
MinMeasuredBWsForAuthToIgnoreAdvertised 0
TestingDirAuthVoteExit *
TestingDirAuthVoteHSDir *
TestingDirAuthVoteGuard *
AuthDirVoteStableGuaranteeMinUptime 0
AuthDirVoteStableGuaranteeMTBF 0
TestingV3AuthInitialVotingInterval 5
TestingV3AuthInitialVoteDelay 2
TestingV3AuthInitialDistDelay 2
V3AuthVotingInterval 10
V3AuthVoteDelay 2
V3AuthDistDelay 2
"""
# Counts what leaves for the site or for a name server from elsewhere than the exits, and what goes out of the network.
_COUNTERS: Final = f"""
table inet shoal {{
    set exits {{ type ipv4_addr; elements = {{ {", ".join((*EXITS, ONION_SERVICE))} }} }}
    counter direct {{ }}
    counter names {{ }}
    counter elsewhere {{ }}
    chain circuits {{ }}
    chain out {{
        type filter hook output priority 0;
        jump circuits
        ip daddr {SITE} ip saddr != @exits tcp flags syn / syn,ack counter name direct
        meta l4proto {{ tcp, udp }} th dport 53 ip daddr != {NAME_SERVER} counter name names
        ip daddr != {{ 127.0.0.0/8, 192.0.2.0/25 }} counter name elsewhere
        meta nfproto ipv6 ip6 daddr != ::1 counter name elsewhere
    }}
}}
"""


class TorNetwork:
    """Use it as a context; `wait_until_ready` before the first circuit. Commands behind `entry` run inside of it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._ready = False

    def __enter__(self) -> Self:
        for program in ("tor", "tor-gencert", "nft", "ip", "unshare", "nsenter"):
            if shutil.which(program, path=_PATH) is None:
                raise MissingPartError(f"{program} is not installed: run `make parts` as root")
        with self._stack as stack:
            self._folder = Account().scratch_folder("shoal-tornet-", in_memory=True)
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
            self._places = Namespaces("tor", "unshare", *user, "--net", "--uts", "--")
            stack.callback(self._places.close)
            self.entry = (*self._places.entry("--net", "--uts"), "--")
            # Before there is a route: tor would ask the machine's name server for its own name, and wait.
            self._make_relays()
            self._make_network()
            self._process = ServerProcess(
                [*self.entry, *("unshare", "--pid", "--fork", "--kill-child", "--"), "sh", "-c", self._script()],
                account=Account(),
                folder=self._folder,
                farewell=signal.SIGKILL,
            )
            stack.callback(self._process.stop, signal.SIGKILL)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """Of the process that holds its network open."""
        return self._places.pid

    @property
    def host(self) -> Host:
        """Where the site is."""
        return Host(SITE, self.entry)

    @property
    def torrc(self) -> Path:
        """What a client of this network needs to know."""
        return self._folder / "client.torrc"

    def wait_until_ready(self) -> None:
        """Until a client of it has circuits."""
        if self._ready:
            return
        self._process.wait_until(self._has_circuits, _READY_SECONDS)
        self._ready = True

    def counts(self) -> dict[str, int]:
        """Packets that did not go through Tor, by kind: `direct` to the site, `names` (DNS), and to `elsewhere`."""
        listed = json.loads(self._run("nft", "--json", "list", "counters"))["nftables"]
        return {each["counter"]["name"]: each["counter"]["packets"] for each in listed if "counter" in each}

    def cut_circuits(self) -> None:
        """Relays refuse all connections, and those that they have break: nobody has circuits."""
        self._run("nft", "add", "rule", "inet", "shoal", "circuits", f"tcp dport {_OR_PORT} reject with tcp reset")

    def mend_circuits(self) -> None:
        self._run("nft", "flush", "chain", "inet", "shoal", "circuits")

    def onion_service(self, port: int) -> str:
        """The name of a new onion service whose port 80 leads to this port of the site; clients can find it."""
        add = f"ADD_ONION NEW:ED25519-V3 Flags=DiscardPK,Detach Port=80,{SITE}:{port}"
        for timeout in (20, 40, 120):
            # First circuits may fail on a busy machine. A new service is tried at once, the old one after a while.
            with suppress(TimeoutError):
                reply = self._ask("SETEVENTS HS_DESC", add, until="HS_DESC UPLOADED", timeout=timeout)
                return str(re.findall(r"ServiceID=(\w+)", reply)[0]) + ".onion"
        raise TimeoutError("no onion service could be published")

    def _make_network(self) -> None:
        self._run("ip", "link", "set", "lo", "up")
        for address in (*EXITS, ONION_SERVICE, SITE, NAME_SERVER, _ELSEWHERE):
            self._run("ip", "addr", "add", f"{address}/32", "dev", "lo")
        # So that packets for elsewhere are counted; nobody receives them.
        self._run("ip", "route", "add", "default", "dev", "lo", "src", _ELSEWHERE)
        self._run("nft", "-f", "-", stdin=_COUNTERS)

    def _make_relays(self) -> None:
        (self._folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
        with ThreadPoolExecutor(max_workers=RELAYS) as threads:
            certificates = [threads.submit(self._make_certificate, number) for number in range(AUTHORITIES)]
            fingerprints = [each.result() for each in [threads.submit(self._fingerprint, n) for n in range(RELAYS)]]
            authorities = "".join(
                f"DirAuthority relay{number} orport={_OR_PORT} no-v2 v3ident={certificate.result()} "
                f"{EXITS[number]}:{_DIRECTORY_PORT} {fingerprints[number]}\n"
                for number, certificate in enumerate(certificates)
            )
        weights = "".join(f"node_id=${fingerprint} bw=10000\n" for fingerprint in fingerprints)
        (self._folder / "bandwidths").write_text(f"{int(time.time())}\n{weights}")
        for number, address in enumerate(EXITS):
            options = self._relay_options(number)
            if number < AUTHORITIES:
                options += _AUTHORITY.format(address=address, folder=self._folder)
            self._write_torrc(f"relay{number}", options + authorities)
        self._write_torrc(
            _SERVICE, f"{authorities}SocksPort 0\nOutboundBindAddress {ONION_SERVICE}\nControlSocket {self._control}\n"
        )
        self.torrc.write_text(_COMMON + authorities)

    def _relay_options(self, number: int) -> str:
        return _RELAY.format(number=number, address=EXITS[number], folder=self._folder)

    def _write_torrc(self, name: str, options: str) -> Path:
        folder = self._folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / "torrc"
        file.write_text(f"{_COMMON}{options}DataDirectory {folder}\n")
        return file

    def _make_certificate(self, number: int) -> str:
        """Make the long-lived keys of an authority; their fingerprint."""
        folder = self._folder / f"relay{number}" / "keys"
        folder.mkdir(mode=0o700, parents=True)
        subprocess.run(
            [
                *("tor-gencert", "--create-identity-key", "--passphrase-fd", "0", "-m", "2"),
                *("-a", f"{EXITS[number]}:{_DIRECTORY_PORT}", "-i", str(folder / "authority_identity_key")),
                *("-s", str(folder / "authority_signing_key"), "-c", str(folder / "authority_certificate")),
            ],
            input=f"{secrets.token_hex(8)}\n",
            text=True,
            capture_output=True,
            check=True,
            env={"PATH": _PATH},
        )
        [found] = re.findall(r"^fingerprint (\w+)", (folder / "authority_certificate").read_text(), re.MULTILINE)
        return str(found)

    def _fingerprint(self, number: int) -> str:
        """Make the keys of a relay; its fingerprint. The options must name an authority, and any one will do."""
        nobody = f"DirAuthority x orport=1 v3ident={'E' * 40} {_ELSEWHERE}:1 {'F' * 40}\n"
        file = self._write_torrc(f"relay{number}", self._relay_options(number) + nobody)
        said = self._run("tor", "--list-fingerprint", "--hush", "-f", str(file))
        return said.splitlines()[-1].split(maxsplit=1)[1].replace(" ", "")

    def _script(self) -> str:
        """The command that runs everything: what is below it ends with it, because it is the first of its processes."""
        commands = [["tor", "--hush", "-f", str(file)] for file in sorted(self._folder.glob("*/torrc"))]
        commands.append([sys.executable, "-I", "-S", "-c", _NAMES, NAME_SERVER, SITE])
        return f"export PATH={shlex.quote(_PATH)}; " + " & ".join(map(shlex.join, commands)) + " & wait"

    @property
    def _control(self) -> Path:
        return self._folder / _SERVICE / "control"

    def _has_circuits(self) -> bool:
        try:
            return "PROGRESS=100 " in self._ask("GETINFO status/bootstrap-phase")
        except OSError:
            return False

    def _ask(self, *commands: str, until: str = "closing connection", timeout: float = 120) -> str:
        """Ask the tor with the onion services; a socket file is reached from outside, too."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            client.connect(str(self._control))
            end = ["QUIT"] if until == "closing connection" else []
            client.sendall("".join(f"{command}\r\n" for command in ["AUTHENTICATE", *commands, *end]).encode())
            received = b""
            while until.encode() not in received and (part := client.recv(65_536)):
                received += part
        return received.decode()

    def _run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self.entry, *command], input=stdin, env={"PATH": _PATH}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
        return done.stdout


# Every name has the address of the site; there is no IPv6.
_NAMES: Final = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
while True:
    asked, client = server.recvfrom(4096)
    end = asked.index(0, 12) + 5
    is_a = asked[end - 4:end - 2] == bytes([0, 1])
    answer = bytes([192, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]) + socket.inet_aton(sys.argv[2]) if is_a else b""
    server.sendto(asked[:2] + bytes([129, 128, 0, 1, 0, is_a, 0, 0, 0, 0]) + asked[12:end] + answer, client)
"""
