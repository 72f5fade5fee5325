"""deploy/logrotate/shoal with the real program: a log that is open for appending goes on in the same file."""

from __future__ import annotations

import getpass
import grp
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support import missing_optional
from tests.support.deployments import DEPLOY


def test_a_log_is_rotated_while_it_is_open(tmp_path: Path) -> None:
    program = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        missing_optional("logrotate")
    owner = f"su {getpass.getuser()} {grp.getgrgid(os.getgid()).gr_name}"
    text = re.sub(
        "su shoal shoal", owner, (DEPLOY / "logrotate/shoal").read_text().replace("/srv/shoal", str(tmp_path))
    )
    rules, log = tmp_path / "rules", tmp_path / "logs" / "gated_worker_0.log"
    rules.write_text(text)
    rules.chmod(0o644)
    log.parent.mkdir()
    with log.open("a") as file:
        file.write("before\n")
        file.flush()
        command = [program, "--force", "--state", str(tmp_path / "state"), str(rules)]
        rotated = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (rotated.returncode, rotated.stderr) == (0, "")
        file.write("after\n")
    assert log.read_text() == "after\n"
    assert (log.parent / f"{log.name}.1").read_text() == "before\n"
