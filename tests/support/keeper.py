"""A script that runs a server and ends it when the process that asked for it is gone.

`keeper.py SIGNAL UID GID FOLDER COMMAND...` starts COMMAND (as UID and GID unless they are -1), prints its
process id and waits. If its own standard input closes before the command ends, it ends the command by SIGNAL
and deletes FOLDER. The kernel closes that pipe when the process that holds the other end dies, however it
dies, so that a `kill -9` of the tests leaves nothing behind. A parent-death signal would not do: it is bound
to the *thread* that started the child, and tests restart servers from short-lived threads.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading

_GRACE_SECONDS = 10.0


def keep(farewell: signal.Signals, uid: int, gid: int, folder: str, command: list[str]) -> int:
    """Run the command until it ends, or until we are alone; return its exit code."""
    server = subprocess.Popen(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=None if uid < 0 else uid,
        group=None if gid < 0 else gid,
        extra_groups=None if uid < 0 else [],
    )
    print(server.pid, flush=True)
    alone, ended = threading.Event(), threading.Event()

    def end_when_alone() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        alone.set()
        server.send_signal(farewell)
        if not ended.wait(_GRACE_SECONDS):
            server.kill()

    threading.Thread(target=end_when_alone, daemon=True).start()
    code = server.wait()
    ended.set()
    if alone.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    _, farewell_name, uid_text, gid_text, server_folder, *server_command = sys.argv
    sys.exit(keep(signal.Signals[farewell_name], int(uid_text), int(gid_text), server_folder, server_command))
