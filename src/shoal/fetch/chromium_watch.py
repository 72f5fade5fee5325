"""Ends the browsers of a worker that was killed, and removes their folders.

It runs as a process of its own, without Shoal: `python -I -S chromium_watch.py FOLDER`. The worker holds the other end
of its standard input, which the kernel closes with the worker, however that ends. Each line of FOLDER/browsers is a
browser: its process group, the process of its driver, its profile folder.
"""

import os
import shutil
import signal
import sys
import time

# Browser and driver notice by themselves that their pipes are closed.
GRACE_SECONDS = 2.0
PROFILE_PREFIX = "playwright_"


def read_browsers(folder: str) -> list[tuple[int, int, str]]:
    """The browsers of a worker: process group, driver, profile."""
    found = []
    try:
        with open(os.path.join(folder, "browsers")) as file:
            for line in file:
                group, driver, profile = line.rstrip("\n").split(" ", 2)
                found.append((int(group), int(driver), profile))
    except (OSError, ValueError):
        pass
    return found


def remove_folders(folder: str) -> None:
    """Remove the worker's folder and the profiles of its browsers."""
    for _, _, profile in read_browsers(folder):
        if os.path.basename(profile).startswith(PROFILE_PREFIX):
            shutil.rmtree(profile, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(group: int, driver: int, profile: str) -> list[int]:
    """The processes of a browser that still run: its own process group, and its driver."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, of_group, session = file.read().rpartition(b") ")[2].split()[:4]
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if state in (b"Z", b"X"):
            continue
        # A process id may have been given to another program since: the command line tells.
        is_browser = int(of_group) == int(session) == group and (b"--type=" in command or profile.encode() in command)
        if is_browser or (int(name) == driver and b"run-driver" in command):
            found.append(int(name))
    return found


def end_processes(folder: str) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        left = [found for browser in read_browsers(folder) for found in processes_of(*browser)]
        if not left:
            return
        if time.monotonic() > deadline:
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except OSError:
                    continue
        time.sleep(0.05)


def main() -> None:
    folder = sys.argv[1]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    end_processes(folder)
    remove_folders(folder)


if __name__ == "__main__":
    main()
