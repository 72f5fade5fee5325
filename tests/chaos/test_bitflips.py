"""Bits flipped in the file of a SQLite ledger: commands say so, none hangs, none takes it for a bug of Shoal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support import LONG

REPOSITORY = Path(__file__).parents[2]
LEDGERS = 300 if LONG else 6
# A command that waits in vain looks at the file after ten seconds.
SECONDS_FOR_ONE = 60.0


def test_damage_is_never_taken_for_a_bug(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    first_seed = time.time_ns() // 1_000_000 % 1_000_000 if LONG else 0
    log = tmp_path / "calls.jsonl"
    with log.open("w") as out, (tmp_path / "stderr").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.bitflips", str(tmp_path), str(first_seed), str(LEDGERS)],
            cwd=REPOSITORY,
            stdout=out,
            stderr=err,
        )
        try:
            _watch(process, log)
        finally:
            process.kill()
            process.wait()
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [call for call in calls if "code" in call]
    assert process.returncode == 0, (tmp_path / "stderr").read_text()
    assert len(ended) == LEDGERS * 7
    for call in ended:
        assert call["code"] in (0, 1, 2, 3, 5), call
        assert "Traceback" not in call["err"], call
        assert "bug in Shoal" not in call["err"], call
        assert call.get("unseen", []) == [], call
    damaged = [call for call in ended if "is damaged" in call["err"]]
    assert damaged, "not one command met the damage"
    assert [call for call in damaged if "backup" not in call["err"]] == []
    record_property("calls", len(ended))
    record_property("said that the ledger is damaged", len(damaged))


def _watch(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for its end. A call that takes too long is named."""
    seen, since = "", time.monotonic()
    while process.poll() is None:
        lines = log.read_text().splitlines()
        now = lines[-1] if lines else ""
        if now != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() - since < SECONDS_FOR_ONE, f"this hangs: {seen}"
        time.sleep(0.1)
