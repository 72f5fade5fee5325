"""Pools of Tor circuits: `[egress.NAME]` with kind = "tor".

A pool has as many circuits at once as `circuits` says. Tor builds one for each SOCKS user name, so a new name is a new
circuit at once: after a block, after a failure, after `rotate_after` requests or `rotate_every` seconds. The ledger
knows the places of circuits, not circuits: the first worker has circuit 1 to 8, the second 9 to 16.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from shoal.config.egress import EgressConfig
from shoal.egress.health import LocalExit
from shoal.egress.pool import TRIAL_SECONDS, BasePool, ExitIdentity, UsedExit
from shoal.egress.tor_process import ExternalTor, ManagedTor, Tor
from shoal.errors import EgressUnavailable, ExitFailed, Transient
from shoal.ledger.protocols import Ledger
from shoal.model.egress import EgressWait, Exit, PoolKind, ProxyAddress, exit_key
from shoal.model.log import Log

# A try has no worker that would wait for tor.
READY_SECONDS = 120.0
# Between two tries of one request while circuits fail.
MIN_PAUSE, MAX_PAUSE = 2.0, 60.0
# An item looks again after so long while tor cannot be used; usually it is claimed again when it can.
_LOOK_AGAIN = 5.0
_NO_BAN = 1_000_000_000


class Circuit:
    """A user name that Tor has a circuit for. `generation`: of the tor that has it."""

    __slots__ = ("began", "generation", "is_retired", "key", "proxy", "requests")

    def __init__(self, place: str, address: tuple[str, int], generation: int, now: float) -> None:
        name = secrets.token_hex(8)
        self.key = f"{place}-{name}"
        self.proxy = ProxyAddress("socks5h", *address, username=f"shoal-{name}", password=secrets.token_hex(8))
        self.generation = generation
        self.began = now
        self.requests = 0
        self.is_retired = False


class CircuitIdentity(UsedExit):
    """A circuit in use by one attempt. After a block or a failure nobody uses it any more."""

    __slots__ = ("_circuit", "_pool")

    def __init__(self, exit_: Exit, circuit: Circuit, pool: TorPool, *, trial: bool) -> None:
        super().__init__(exit_, trial=trial, health=pool.health, now=pool.now)
        self.key = circuit.key
        self.proxy = circuit.proxy
        self._circuit = circuit
        self._pool = pool

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        if self._circuit.generation != self._pool.tor.generation or self._pool.tor.address is None:
            # Another program may have the port now.
            raise ExitFailed("tor has ended, and its circuits with it")
        self._circuit.requests += 1
        return await super().before_request(url, hop)

    async def judge(self, error: Transient) -> Transient:
        self._circuit.is_retired = True
        if isinstance(error, ExitFailed):
            return error
        why = await self._pool.tor.way_failed(self._circuit.generation, self._circuit.proxy.username)
        return error if why is None else ExitFailed(f"{why}: {error.message}")

    def record_success(self, host: str) -> None:
        super().record_success(host)
        self._pool.trouble.succeed()

    def record_block(self, host: str, why: str) -> None:
        super().record_block(host, why)
        self._circuit.is_retired = True
        self._pool.trouble.succeed()

    def record_failure(self, why: str) -> None:
        super().record_failure(why)
        self._circuit.is_retired = True
        self._pool.record_failure(why, trial=self.trial)


class CircuitTrouble:
    """Decides from failures alone whether tor has circuits: so many in a row, whatever the circuit, mean none.

    Then one request at a time tries again, after a pause that grows. All times are of one monotonic clock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._row = 0
        self._began = 0.0
        self._pause = 0.0
        self._until = 0.0
        self.why = ""

    @property
    def since(self) -> float | None:
        """When the failures began; None while circuits work."""
        return self._began if self._pause else None

    def until(self, now: float) -> float | None:
        """When the next request may be sent; None for now."""
        return self._until if self._pause and now < self._until else None

    def succeed(self) -> None:
        self._row, self._pause = 0, 0.0

    def fail(self, why: str, now: float, *, trial: bool) -> None:
        self._row += 1
        if self._row == 1:
            self._began = now
        if self._pause and not trial:
            return  # sent before the pause
        if trial or self._row >= self._limit:
            self.why = why
            self._pause = min(max(MIN_PAUSE, 2 * self._pause), MAX_PAUSE)
            self._until = now + self._pause

    def start_trial(self, now: float) -> bool:
        """A request is sent: whether it is the one that tries whether there are circuits again."""
        if not self._pause:
            return False
        self._until = now + TRIAL_SECONDS
        return True


class TorPool(BasePool):
    """Circuits of a tor that this process starts, or of one that somebody else runs (`socks`)."""

    kind: PoolKind = "tor"
    noun: ClassVar[str] = "circuits"
    one: ClassVar[str] = "circuit"

    def __init__(
        self,
        config: EgressConfig,
        *,
        log: Log,
        program: str = "",
        alone: bool = False,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.trouble = CircuitTrouble(config.ban_after)
        # A place for circuits is never banned: after a failure it has another circuit.
        super().__init__(msgspec.structs.replace(config, ban_after=_NO_BAN), log=log, alone=alone, now=now, rng=rng)
        self.now = now
        self.tor = _build_tor(config, program, self._log)
        self._generation = 0
        self._circuits: list[Circuit | None] = [None] * config.circuits
        self._places: dict[str, int] = {}

    async def start(self) -> None:
        """Start tor, or look whether it answers; bootstrapping goes on beside. Raises UsageError for want of tor."""
        await self.tor.start()
        self._list_places(1)
        # Another's tor that does not answer is not waited for: `shoal try` says so at once.
        if self._alone and self._config.socks is None:
            await self.tor.wait_until_usable(READY_SECONDS)

    async def close(self) -> None:
        await self.tor.close()

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> ExitIdentity:
        wait = self._tor_wait()
        if wait is not None:
            raise EgressUnavailable(wait.why, retry_after=_LOOK_AGAIN)
        return super().choose(host, sticky=sticky, avoid=avoid)

    def wait(self) -> EgressWait | None:
        return self._tor_wait() or super().wait()

    def record_failure(self, why: str, *, trial: bool) -> None:
        """A request failed on its way to the site."""
        if self.tor.trouble is None and self._generation == self.tor.generation:
            self.trouble.fail(why, self.now(), trial=trial)
        self.tor.check()

    def _identity(self, record: LocalExit, *, trial: bool) -> ExitIdentity:
        now = self.now()
        place = self._places[record.key]
        circuit = self._circuits[place]
        if circuit is None or self._is_over(circuit, now):
            assert self.tor.address is not None
            circuit = self._circuits[place] = Circuit(record.key, self.tor.address, self.tor.generation, now)
        is_trial = self.trouble.start_trial(now)
        return CircuitIdentity(record.exit, circuit, self, trial=trial or is_trial)

    def _is_over(self, circuit: Circuit, now: float) -> bool:
        rotate_after = self._config.rotate_after
        return (
            circuit.is_retired
            or circuit.generation != self.tor.generation
            or now - circuit.began >= self._config.rotate_every
            or (rotate_after is not None and circuit.requests >= rotate_after)
        )

    def _tor_wait(self) -> EgressWait | None:
        """Why no circuit can be had, whatever the ledger says."""
        now = self.now()
        problem = self.tor.trouble
        if problem is not None:
            return EgressWait(stage="", pool=self.name, why=problem.why, since=max(0.0, now - problem.since))
        if self._generation != self.tor.generation:
            self._generation = self.tor.generation
            self.trouble.succeed()
        since, until = self.trouble.since, self.trouble.until(now)
        if since is None or until is None:
            return None
        why = f"tor has no circuit: {self.trouble.why}"
        return EgressWait(stage="", pool=self.name, why=why, since=now - since, until=until - now)

    # Which places this worker has.

    def _list_places(self, workers: int) -> None:
        """As many places for circuits as all workers have together."""
        total = workers * len(self._circuits)
        if total != len(self.health.records):
            keys = ((exit_key("tor", str(number)), f"circuit {number}") for number in range(1, total + 1))
            self._list_exits([Exit(pool=self.name, key=key, label=label) for key, label in keys])

    async def _register(self, ledger: Ledger, worker: str) -> None:
        """How many places there are is known once this worker is a member."""
        if worker not in self._members:
            await ledger.exits.register(worker, self.name, self.kind, (), complete=False)
            changes = await ledger.exits.changes(worker, self.name, None)
            self._list_places(len({*changes.members, worker}))
        await super()._register(ledger, worker)

    async def _share(self, members: tuple[str, ...], worker: str) -> None:
        self._list_places(len(members))
        first = members.index(worker) * len(self._circuits)
        keys = list(self.health.records)[first : first + len(self._circuits)]
        self._worker = worker
        if self._part is None or self._part.keys != frozenset(keys):
            self._set_part(keys)

    def _set_part(self, keys: Sequence[str], start: int = 0) -> None:
        super()._set_part(keys, start)
        self._places = {key: number for number, key in enumerate(keys)}


def _build_tor(config: EgressConfig, program: str, log: Log) -> Tor:
    if config.socks is not None:
        control = None if config.control is None else _host_and_port(config.control)
        return ExternalTor(*_host_and_port(config.socks), log, control=control)
    torrc = None if config.torrc is None else Path(config.torrc).expanduser()
    return ManagedTor(log, program=program, torrc=torrc, circuit_seconds=config.rotate_every)


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
