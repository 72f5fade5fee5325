"""The faults of the campaign, by name: what each does to the scene, and which run must go on afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

import asyncpg

from tests.chaos.scene import Scene

# How often a transaction is tried that PostgreSQL ends because of a deadlock with a worker.
LOCK_TRIES = 5


class Fault(NamedTuple):
    """A fault by name. `strike` returns when it is over; `team`: whose items must be done again afterwards."""

    name: str
    strike: Callable[[Scene, random.Random], None]
    team: str = "shop"


# Processes


def _kill_worker(scene: Scene, rng: random.Random) -> None:
    scene.any_worker(rng)[0].kill()


def _kill_node(scene: Scene, rng: random.Random) -> None:
    """All workers of a node at once, as when the machine loses power."""
    number, _ = scene.any_node(rng)
    for worker in scene.workers_of(number):
        worker.kill()


def _freeze_worker(scene: Scene, rng: random.Random) -> None:
    """Longer than its lease: what it finishes afterwards is refused."""
    worker, node = scene.any_worker(rng)
    with scene.disturbing(*([node] if node is not None else [])):
        worker.tell(signal.SIGSTOP)
        time.sleep(scene.lease * rng.uniform(1.2, 2.0))
        worker.tell(signal.SIGCONT)


def _stop_worker(scene: Scene, rng: random.Random) -> None:
    scene.any_worker(rng)[0].tell(signal.SIGTERM)


def _kill_server(scene: Scene, _: random.Random) -> None:
    """Over when the one that is started in its place answers."""
    if scene.server is None:
        return
    scene.server.kill()
    deadline = time.monotonic() + 60
    while not scene.server_answers():
        scene.keep_workers()
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not answer a minute after it was started again")
        time.sleep(0.1)


# The database


def _terminate_all(scene: Scene, _: random.Random) -> None:
    """Every connection to the database is ended by the server."""
    scene.fleet.lab.postgres.terminate_backends(scene.fleet.database)


def _crash_database(scene: Scene, _: random.Random) -> None:
    scene.fleet.lab.postgres.restart_immediate()


def _restart_pooler(scene: Scene, rng: random.Random) -> None:
    scene.fleet.lab.bouncer.stop()
    time.sleep(rng.uniform(0.2, 3.0))
    scene.fleet.lab.bouncer.start()


def _hang_database(scene: Scene, rng: random.Random) -> None:
    """It accepts and answers nothing: connections swallow what is sent."""
    scene.fleet.lab.postgres.freeze()
    time.sleep(rng.uniform(1.0, scene.lease * 0.8))
    scene.fleet.lab.postgres.thaw()


async def _execute(scene: Scene, statement: str, hold: float = 0.0) -> None:
    """A statement of somebody else in a transaction that stays open for so long.

    Workers lock the same in another order now and then: then PostgreSQL ends one of them. If that is this transaction,
    it is tried again.
    """
    person = await asyncpg.connect(scene.fleet.operator.ledger)
    try:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                async with person.transaction():
                    await person.execute(statement)
                    await asyncio.sleep(hold)
            except asyncpg.DeadlockDetectedError:
                if not tries_left:
                    raise
            else:
                return
    finally:
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            await person.close()


def _lock_tables(scene: Scene, rng: random.Random) -> None:
    """Somebody holds a lock on the tables of leases and ready items for some seconds."""
    asyncio.run(_execute(scene, "lock table shoal.lease, shoal.ready in exclusive mode", rng.uniform(1.0, 4.0)))


def _lock_rows(scene: Scene, rng: random.Random) -> None:
    """Somebody holds the rows of all lanes and workers, for longer than a command may take."""
    statement = "select 1 from shoal.lane order by id for update; select 1 from shoal.worker order by no for update"
    asyncio.run(_execute(scene, statement, rng.uniform(3.5, 5.0)))


def _make_due(scene: Scene, _: random.Random) -> None:
    """Every delayed item becomes due at once."""
    asyncio.run(_execute(scene, "update shoal.delayed set due_at = shoal.clock()"))


def _block_all_hosts(scene: Scene, rng: random.Random) -> None:
    """All hosts ask to wait until the same moment: then everything is due at once."""
    seconds = rng.uniform(2.0, 4.0)
    block = "select shoal.block_lane(0, l.key, {}, 'all at once', 'campaign') from shoal.lane l where l.run = 0"
    asyncio.run(_execute(scene, block.format(f"{seconds:.1f}")))
    time.sleep(seconds)


# Operators


def _command(scene: Scene, *arguments: str) -> None:
    """A command of an operator; it fails when the run has finished just now."""
    scene.fleet.operator.start(*arguments).wait()


def _pause_run(scene: Scene, rng: random.Random) -> None:
    _command(scene, "runs", "pause", scene.main.run_id, "-q")
    time.sleep(rng.uniform(0.5, 3.0))
    _command(scene, "runs", "resume", scene.main.run_id, "-q")


def _release_leases(scene: Scene, _: random.Random) -> None:
    """An operator returns what was claimed more than a second ago, though it is being worked on."""
    _command(scene, "release", "--older-than", "1", "--run", scene.main.run_id, "-q")


# Lines


def _cut_node(scene: Scene, rng: random.Random) -> None:
    """Its cable is pulled: a partition from everything."""
    _, node = scene.any_node(rng)
    with scene.disturbing(node):
        node.cut_off()
        time.sleep(scene.lease * rng.uniform(0.3, 2.0))
        node.mend()


def _part_node(scene: Scene, rng: random.Random) -> None:
    """It reaches the site, but not the database: a partition beyond its lease."""
    _, node = scene.any_node(rng)
    database = scene.fleet.lab.database_address
    with scene.disturbing(node):
        node.filter(incoming=f"ip saddr {database} drop", outgoing=f"ip daddr {database} drop")
        time.sleep(scene.lease * rng.uniform(1.2, 2.0))
        node.unfilter()


def _swallow(scene: Scene, rng: random.Random) -> None:
    """What it sends arrives, and every answer is swallowed: no connection is told."""
    _, node = scene.any_node(rng)
    with scene.disturbing(node):
        node.filter(incoming="meta iifname != lo drop")
        time.sleep(scene.lease * rng.uniform(0.3, 2.0))
        node.unfilter()


def _reset(scene: Scene, rng: random.Random) -> None:
    """All connections of the node are cut: each gets a reset, new ones too."""
    _, node = scene.any_node(rng)
    with scene.disturbing(node):
        node.filter(outgoing="meta oifname != lo meta l4proto tcp reject with tcp reset")
        time.sleep(rng.uniform(0.5, 2.0))
        node.unfilter()


def _slow_node(scene: Scene, rng: random.Random) -> None:
    _, node = scene.any_node(rng)
    with scene.disturbing(node):
        node.slow_down("512kbit")
        time.sleep(rng.uniform(2.0, 6.0))
        node.speed_up()


def _cut_site(scene: Scene, rng: random.Random) -> None:
    with scene.disturbing():
        scene.fleet.lab.site_node.cut_off()
        time.sleep(rng.uniform(1.0, 4.0))
        scene.fleet.lab.site_node.mend()


def _fill_disk(scene: Scene, rng: random.Random) -> None:
    """The disk that a node's logs are on has no room."""
    number, _ = scene.any_node(rng)
    ballast = scene.disks[number] / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    time.sleep(rng.uniform(1.0, 4.0))
    ballast.unlink(missing_ok=True)


# Exits


def _kill_proxy(scene: Scene, rng: random.Random) -> None:
    assert scene.proxies is not None
    _kill_proxies(scene, [rng.choice(scene.proxies.addresses)], rng.uniform(1.0, 4.0))


def _kill_all_proxies(scene: Scene, rng: random.Random) -> None:
    assert scene.proxies is not None
    _kill_proxies(scene, scene.proxies.addresses, rng.uniform(3.0, 8.0))


def _kill_proxies(scene: Scene, addresses: list[str], seconds: float) -> None:
    assert scene.proxies is not None
    with scene.disturbing_egress("homes"):
        for address in addresses:
            scene.proxies.kill(address)
        time.sleep(seconds)
        for address in addresses:
            scene.proxies.start(address)


def _kill_tor(scene: Scene, _: random.Random) -> None:
    assert scene.tor is not None
    with scene.disturbing_egress("onion"):
        for worker in scene.teams["onion"].workers():
            scene.tor.kill_tor(worker)


def _cut_circuits(scene: Scene, rng: random.Random) -> None:
    assert scene.tor is not None
    with scene.disturbing_egress("onion"):
        scene.tor.network.cut_circuits()
        time.sleep(rng.uniform(2.0, 6.0))
        scene.tor.network.mend_circuits()


FAULTS = (
    Fault("kill -9 of a worker", _kill_worker),
    Fault("kill -9 of a node", _kill_node),
    Fault("SIGSTOP beyond the lease", _freeze_worker),
    Fault("SIGTERM of a worker", _stop_worker),
    Fault("kill -9 of the dashboard's server", _kill_server),
    Fault("all database connections ended", _terminate_all),
    Fault("crash of the database", _crash_database),
    Fault("restart of the pooler", _restart_pooler),
    Fault("database hangs", _hang_database),
    Fault("tables locked", _lock_tables),
    Fault("rows of lanes and workers locked", _lock_rows),
    Fault("all retries due at once", _make_due),
    Fault("all hosts closed, then due at once", _block_all_hosts),
    Fault("run paused and resumed", _pause_run),
    Fault("leases returned by an operator", _release_leases),
    Fault("node cut off", _cut_node),
    Fault("node cut off from the database only", _part_node),
    Fault("answers swallowed", _swallow),
    Fault("connections reset", _reset),
    Fault("node on a slow line", _slow_node),
    Fault("site cut off", _cut_site),
    Fault("full disk", _fill_disk),
    Fault("kill -9 of a proxy", _kill_proxy, "homes"),
    Fault("kill -9 of all proxies", _kill_all_proxies, "homes"),
    Fault("kill -9 of tor", _kill_tor, "onion"),
    Fault("Tor circuits cut", _cut_circuits, "onion"),
)
