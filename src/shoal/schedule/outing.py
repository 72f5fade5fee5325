"""The process of one slot: a `shoal run` or `shoal enqueue` of its own, with a log of its own."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from shoal.fleet.child import Child, start_tied
from shoal.schedule.slots import Slot

# Beyond the seconds that running items get to end, so long may a run take to say goodbye.
FAREWELL_SECONDS = 10.0
MOST_READ = 1 << 20


class Outcome(msgspec.Struct, frozen=True):
    """How the process ended, and what it said about the run (the last JSON value it wrote)."""

    code: int
    report: Mapping[str, Any] = {}


class Outing:
    """The processes of one slot, one after another. `drain`: seconds that what runs gets when it is to end."""

    def __init__(self, slot: Slot, action: str, environment: Mapping[str, str], logs: Path, drain: float) -> None:
        self._arguments = (action, slot.schedule, "--occasion", slot.occasion, "--json")
        self._environment = environment
        self._drain = drain
        self._child: Child | None = None
        self._orders = 0
        self.log_file = logs / slot.schedule / slot.log_name
        self.stopped = asyncio.Event()

    async def run(self) -> Outcome:
        """One process from its start to its end. Raises OSError when it cannot be started."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as said, self.log_file.open("ab") as log:
            self._child = await start_tied(
                self._arguments,
                self._environment,
                stdout=said,
                stderr=log,
                patience=self._drain + FAREWELL_SECONDS,
            )
            if self.stopped.is_set():  # it was told to stop while its process was being made
                self._child.tell(signal.SIGTERM)
            try:
                code = await self._child.wait()
            finally:
                self._child = None
            return Outcome(code, _last_value(said))

    def stop(self) -> None:
        """What runs is finished, the rest goes back; told again, what runs goes back too; in the end it is killed."""
        self._orders += 1
        self.stopped.set()
        if self._child is None:
            return
        # Both are counted alike, but two of the same kind that come close together would arrive as one.
        self._child.tell(signal.SIGTERM if self._orders == 1 else signal.SIGINT)
        if self._orders == 1:
            asyncio.get_running_loop().call_later(self._drain + FAREWELL_SECONDS, self._kill, self._child)

    def _kill(self, child: Child) -> None:
        if child is self._child:
            child.tell(signal.SIGKILL)


def _last_value(said: IO[bytes]) -> Mapping[str, Any]:
    size = said.seek(0, 2)
    said.seek(max(0, size - MOST_READ))
    for line in reversed(said.read().splitlines()):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            return value
    return {}
