"""The site of the campaign on a node of its own: an nginx and a hostile server, whose logs say who came when."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.chaos import hostile_site
from tests.chaos.site_log import Rules, Visit, read_visits
from tests.support.account import Account
from tests.support.nginx import is_listening, nginx
from tests.support.nodes import Node
from tests.support.server import Host, ServerProcess

PORT, EXACT_PORT = 8080, 8081
FAST, PACED, NARROW = 6, 3, 2
_FIRST_ADDRESS = 101
# As the stage of the scraper says.
PER_HOST = 40
# As an operator sets for the paced and the narrow hosts, and the scraper behind proxies for its host.
DELAY, NARROW_LIMIT, PROXIED_DELAY = 0.25, 4, 0.4
_REPOSITORY = Path(__file__).parents[2]
# Where the kernel groups processes by session, the group needs the priority, too.
_FIRST = '{ echo -15 > /proc/self/autogroup; } 2>/dev/null; exec nice -n -15 "$@"'
_LOG_FORMAT = """
log_format visits '$msec $request_time $status $server_addr $remote_addr $request_uri';
access_log FOLDER/visits.log visits buffer=64k flush=1s;
keepalive_requests 100000;
"""
_CONFIG = (
    _LOG_FORMAT
    + """
split_clients "$request_id" $unsteady { 20% 503; * 200; }
split_clients "$request_id throttled" $throttled { 2% 429; * 200; }
server {
  listen PORT reuseport backlog=1024;
  location = /robots.txt { return 404; }
  location /page/ { return 200 "<h1>$request_uri</h1>"; }
  location /unsteady/ { if ($unsteady = 503) { return 503; } return 200 "<h1>$request_uri</h1>"; }
  location /throttled/ {
    if ($throttled = 429) { add_header Retry-After 1 always; return 429; }
    return 200 "<h1>$request_uri</h1>";
  }
  location /moved/ { rewrite ^/moved/(.*)$ /page/moved-$1 redirect; }
  location /missing/ { return 404; }
}
"""
)


def with_priority(host: Host) -> Host:
    """The same place for a server that gets the processor first, because a real site has a machine of its own."""
    priority = ("setsid", "sh", "-c", _FIRST, "sh") if os.geteuid() == 0 else ()
    return Host(host.address, (*host.entry, *priority), host.sockets)


class LoggedSite:
    """Use it as a context. Its hosts are addresses: `fast`, `paced` (a delay), `narrow` (slow, few at once), `hostile`,
    and `proxied`, which may be visited through proxies only.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        network = node.address.rpartition(".")[0]
        addresses = [f"{network}.{_FIRST_ADDRESS + n}" for n in range(FAST + PACED + NARROW + 2)]
        self.fast, rest = addresses[:FAST], addresses[FAST:]
        self.paced, rest = rest[:PACED], rest[PACED:]
        self.narrow, (self.hostile, self.proxied) = rest[:NARROW], rest[NARROW:]
        self._addresses = addresses
        self._stack = ExitStack()
        self._logs: list[Path] = []

    def host(self, address: str) -> str:
        """The host of a URL, and the name of its lane."""
        return f"{address}:{PORT if address in self.fast else EXACT_PORT}"

    def url(self, address: str) -> str:
        return f"http://{self.host(address)}"

    def __enter__(self) -> Self:
        with self._stack as stack:
            for address in self._addresses:
                self._node.add_address(address)
            host = with_priority(self._node.host)
            folder = stack.enter_context(
                nginx(_CONFIG.replace("PORT", str(PORT)), port=PORT, host=host, connections=4_096)
            )
            exact_folder = Account().scratch_folder("shoal-hostile-")
            stack.callback(shutil.rmtree, exact_folder, ignore_errors=True)
            log = exact_folder / "visits.log"
            arguments = (str(EXACT_PORT), str(log))
            process = ServerProcess(
                [
                    *host.entry,
                    "env",
                    "-C",
                    str(_REPOSITORY),
                    sys.executable,
                    *("-m", hostile_site.__name__),
                    *arguments,
                ],
                account=Account(),
                folder=exact_folder,
                farewell=signal.SIGKILL,
            )
            stack.callback(process.stop, signal.SIGKILL)
            process.wait_until(lambda: is_listening(host, EXACT_PORT))
            self._logs = [folder / "visits.log", log]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def visits(self) -> list[Visit]:
        """What the logs say, when those who visit it have ended; nginx writes within a second."""
        time.sleep(1.5)
        return list(read_visits(*self._logs))

    def rules(self, exits: list[str]) -> Rules:
        """What the hosts allow; `exits`: the addresses of the proxies."""
        return Rules(
            delays={**dict.fromkeys(self.paced, DELAY), self.proxied: PROXIED_DELAY},
            limits={**dict.fromkeys(self.fast, PER_HOST), **dict.fromkeys(self.narrow, NARROW_LIMIT)},
            exits={self.proxied: exits},
        )

    @property
    def narrow_pages_per_second(self) -> float:
        """What the narrow hosts can serve, all together."""
        return len(self.narrow) * NARROW_LIMIT / hostile_site.SLOW_SECONDS


PLAIN_CONFIG = (
    _LOG_FORMAT
    + """
server {
  listen PORT;
  location = /robots.txt { return 404; }
  location / { return 200 "<h1>$request_uri</h1>"; }
}
"""
)
