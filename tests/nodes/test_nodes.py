"""The nodes are what the other tests take them for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import MissingPartError, missing
from tests.support.fork_server import at
from tests.support.nodes import Node, Switch
from tests.support.site import Site

REPOSITORY = Path(__file__).parents[2]
GET = """
import sys, time, urllib.request
began = time.monotonic()
urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2])).read()
print(time.monotonic() - began)
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    try:
        with Switch() as switch:
            yield switch.node("here"), switch.node("there")
    except MissingPartError as error:
        missing(str(error))


def seconds_to_get(node: Node, url: str, timeout: float = 30) -> float:
    """How long a page takes from there; infinite if it cannot be had."""
    command = [*node.entry, sys.executable, "-c", GET, url, str(timeout)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(asked.stdout) if asked.returncode == 0 else float("inf")


def test_cables_can_be_pulled_and_slowed(pair: tuple[Node, Node]) -> None:
    here, there = pair
    with Site(host=there.host) as site:
        page, megabyte = f"{site.url}/page/1", f"{site.url}/big/1"
        assert seconds_to_get(here, page) < 30
        here.cut_off()
        assert seconds_to_get(here, page, timeout=1) == float("inf")
        here.mend()
        assert seconds_to_get(here, page) < 30
        here.slow_down("4mbit")
        slow = seconds_to_get(here, megabyte)
        assert 1.5 < slow < 30
        here.speed_up()
        assert seconds_to_get(here, megabyte) < slow
        assert {visit.peer.partition(":")[0] for visit in site.visits()} == {here.address}


def test_a_node_has_a_name_and_a_disk_of_its_own(pair: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = pair
    disk = here.mount_disk(tmp_path, "1m")
    (disk / "file").write_text("here")
    assert shutil.disk_usage(disk).total == 1 << 20
    for node, found in ((here, "here"), (there, "there")):
        said = subprocess.run(
            [*at(node.entry_with_disks, tmp_path), "sh", "-c", "hostname; ls"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.split() == ([found, "file"] if node is here else [found])
    assert not (tmp_path / "file").exists()
    here.unmount_disk(tmp_path)


def test_nothing_is_left_when_the_owner_is_killed(pair: tuple[Node, Node]) -> None:
    code = (
        "import sys, time\nfrom tests.support.nodes import Switch\n"
        "with Switch() as switch:\n    print(switch.node('here').pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        holder = int(owner.stdout.readline())
        assert Path(f"/proc/{holder}").exists()
        owner.kill()
    deadline = time.monotonic() + 50
    while Path(f"/proc/{holder}").exists():
        assert time.monotonic() < deadline, "the node lives on"
        time.sleep(0.02)
