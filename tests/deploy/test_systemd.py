"""The systemd units."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import EXIT_INTERRUPTED
from tests.support import missing_optional
from tests.support.deployments import unit, units

SERVICES = units("*.service")


def test_systemd_has_nothing_against_them(tmp_path: Path) -> None:
    """By its own verifier. The program that is only there after the installation is replaced."""
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        missing_optional("systemd-analyze")
    program = str(Path(sys.executable).with_name("shoal"))
    for file in units():
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace("/opt/shoal/bin/shoal", program))
    said = subprocess.run(
        [verifier, "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    about_ours = [line for line in said.stderr.splitlines() if "shoal" in line]
    assert about_ours == []


def test_services_run_the_program_of_the_installation() -> None:
    for file in units():
        assert ("/opt/shoal/bin/shoal" in file.read_text()) == (file.suffix == ".service")


@pytest.mark.parametrize("file", SERVICES, ids=[file.name for file in SERVICES])
def test_a_stop_is_not_a_failure(file: Path) -> None:
    service = unit(file)["Service"]
    assert service["SuccessExitStatus"] == str(EXIT_INTERRUPTED)
    # systemd would kill the pools of a server, which are to go on; other children have a parent that stops them.
    assert service["KillMode"] == ("process" if file.stem == "shoal-serve" else "mixed")
    assert "KillSignal" not in service  # SIGTERM is what drains


@pytest.mark.parametrize("file", SERVICES, ids=[file.name for file in SERVICES])
def test_nothing_secret_is_in_a_unit(file: Path) -> None:
    service = unit(file)["Service"]
    assert service["User"] == "shoal"
    assert service["EnvironmentFile"].endswith("/etc/shoal/shoal.env")
    assert "Environment" not in service


def test_the_timer_starts_a_run() -> None:
    (timer,) = units("*.timer")
    assert timer.with_suffix(".service") in SERVICES
    assert unit(timer)["Timer"]["Persistent"] == "yes"  # a night that the machine slept through is made up for
