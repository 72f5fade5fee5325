"""`shoal` with a stopwatch for very many calls: each claim and commit is a line of a file, so memory stays what it is.

`python -m bench.volume_worker FILE ARGUMENT...` is `shoal ARGUMENT...`, but for the file. A line is the kind, the end
by the monotonic clock, the seconds and the items.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.fleet_worker import Call, time_calls
from shoal.cli.main import main


class CallFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def append(self, call: Call, /) -> None:
        self._file.write(f"{call.kind} {call.ended:.3f} {call.seconds:.6f} {call.items}\n")


def read_calls(path: Path) -> list[Call]:
    """What a file has, of a worker that may still be at work: its last line may be cut short."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    fields = (line.split() for line in whole)
    return [Call(kind, float(end) - float(took), float(end), int(items)) for kind, end, took, items in fields]


if __name__ == "__main__":
    time_calls(CallFile(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
