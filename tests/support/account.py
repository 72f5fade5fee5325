"""The account that servers run under: PostgreSQL and PgBouncer refuse to run as root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_MEMORY: Final = "/dev/shm"
_ROOM_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Account:
    """Another user to become, or, without an id, the user we already are."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def unprivileged(cls) -> Self:
        """Ourselves, or `nobody` when we are root."""
        if os.geteuid() != 0:
            return cls()
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end as this account, with its output captured as one text.

        Raises PermissionError when the account cannot reach the program.
        """
        return subprocess.run(
            command,
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def can_run(self, program: Path) -> bool:
        """Try it: a private folder anywhere above the program, or its libraries, counts too."""
        try:
            return self.run([str(program), "--version"]).returncode == 0
        except OSError:
            return False

    def give(self, tree: Path) -> None:
        """Make the account the owner of a file, or of a folder and all that is in it."""
        if self.uid is None or self.gid is None:
            return
        for path in (tree, *tree.rglob("*")):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def scratch_folder(self, prefix: str, *, in_memory: bool = False) -> Path:
        """Create a private temporary folder that the account owns and can reach.

        With `in_memory` it needs no disk, if the machine has room for that.
        """
        parents = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
        if in_memory and _has_room(_MEMORY):
            parents.insert(0, _MEMORY)
        for parent in dict.fromkeys(parents):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self.give(folder)
            if self.run(["sh", "-c", 'cd "$0"', str(folder)]).returncode == 0:
                return folder
            shutil.rmtree(folder)
        raise PermissionError("no temporary folder is open to user 'nobody': set TMPDIR to one that is")


def _has_room(folder: str) -> bool:
    """Containers often have a tiny /dev/shm, or none."""
    try:
        return shutil.disk_usage(folder).free >= _ROOM_BYTES
    except OSError:
        return False
