"""Chromium as a process: where it is found, how it is started, how much memory it takes, and that it ends with us.

Every browser has a Playwright driver of its own, so a driver that fails takes one browser with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ClientMissing
from shoal.fetch import chromium_watch

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Playwright

EXECUTABLE_VARIABLE = "SHOAL_CHROMIUM"
SYSTEM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FOLDER_PREFIX = "shoal-browser-"
_LAUNCH_SECONDS = 60.0
_CLOSE_SECONDS = 10.0
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--dns-prefetch-disable",
    # Without this, a page could learn the address of this machine, whatever the proxy.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # A window that a page opens belongs to no attempt, and may keep the page that opened it from loading to its end.
    "--block-new-web-contents",
    # All frames of a page are in one process: its frames are announced before their requests.
    "--disable-site-isolation-trials",
)
# A browser needs nothing else of our environment, which may contain secrets; proxies are set per profile.
_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LANG", "LANGUAGE", "LC_ALL", "TZ", "TMPDIR", "DISPLAY", "WAYLAND_DISPLAY"),
    *("LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "FONTCONFIG_PATH", "FONTCONFIG_FILE"),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BrowserMissing(ClientMissing):
    remedy = (
        "Install the package chromium-headless-shell or chromium of your system, or run `playwright install chromium`, "
        f"or set {EXECUTABLE_VARIABLE} to the program."
    )


def check_playwright() -> None:
    """Raises ClientMissing when the library is missing."""
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        raise ClientMissing(
            'A stage with client="browser" needs Playwright.', remedy="Install it: pip install 'shoal[browser]'."
        ) from None


def find_chromium(chosen: str, own: str) -> str | None:
    """The program to start; None: Playwright's `own`. Raises BrowserMissing.

    The order: `chosen`, Playwright's own, the system's headless shell, the system's Chromium.
    """
    if chosen:
        found = shutil.which(os.path.expanduser(chosen))
        if found is None:
            raise BrowserMissing(
                f"The setting chromium is {chosen}, which is no program.",
                remedy=f"Correct it ({EXECUTABLE_VARIABLE}), or leave it out to use that of Playwright or the system.",
            )
        return found
    if own and os.path.exists(own):
        return None
    for name in SYSTEM_NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise BrowserMissing("No Chromium was found.")


async def find_browser(chosen: str) -> str:
    """The program that a worker here would start, for a check. Raises ClientMissing without it or Playwright."""
    check_playwright()
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        own = driver.chromium.executable_path
        return find_chromium(chosen, own) or own


async def check_browser(chosen: str) -> None:
    """Raises UsageError when a worker here could not start a browser."""
    check_playwright()
    try:
        find_chromium(chosen, "")
    except BrowserMissing:
        # Only Playwright's driver knows where its own is, and takes a second to say it.
        await find_browser(chosen)


class ChromiumHome:
    """The private folder of this process's browsers, and the process that ends them when this one is killed.

    What workers that were killed together with their watch have left behind is removed when it is created.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        for old in parent.glob(f"{_FOLDER_PREFIX}*"):
            _remove_stale(old)
        # It gets its name once it is locked: nobody takes it for one that was left behind.
        unnamed = Path(tempfile.mkdtemp(prefix=f".{_FOLDER_PREFIX}"))
        self._lock = os.open(unnamed / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.folder = unnamed.rename(parent / unnamed.name[1:])
        self._browsers: dict[int, tuple[int, int, str]] = {}
        self._watch = subprocess.Popen(
            [sys.executable, "-I", "-S", chromium_watch.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def new_folder(self) -> Path:
        """Where a browser keeps files that pages download."""
        return Path(tempfile.mkdtemp(prefix="files-", dir=self.folder))

    def add(self, process: int) -> None:
        """Have this browser ended with us."""
        found = _origin(process)
        if found is not None:
            self._browsers[process] = found
            self._write()

    def remove(self, process: int) -> None:
        """It has ended; what is left of it is killed."""
        found = self._browsers.pop(process, None)
        for each in () if found is None else chromium_watch.processes_of(*found):
            with suppress(OSError):
                os.kill(each, signal.SIGKILL)
        self._write()

    def close(self) -> None:
        """Remove the folder; browsers that still run are ended."""
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        try:
            self._watch.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._watch.kill()
            self._watch.wait()
        os.close(self._lock)

    def _write(self) -> None:
        temporary = self.folder / "browsers.new"
        lines = (f"{group} {driver} {profile}\n" for group, driver, profile in self._browsers.values())
        temporary.write_text("".join(lines))
        temporary.replace(self.folder / "browsers")


class Chromium:
    """A running browser. `session`: talks to the browser as a whole, in the DevTools protocol."""

    def __init__(
        self, home: ChromiumHome, driver: Playwright, browser: Browser, session: CDPSession, files: Path
    ) -> None:
        self._home = home
        self._driver = driver
        self.browser = browser
        self.session = session
        self.files = files
        self.process = 0

    @classmethod
    async def start(cls, home: ChromiumHome, *, executable: str, sandbox: bool) -> Chromium:
        """Raises ClientMissing when it does not start."""
        from playwright.async_api import Error, async_playwright

        driver = await async_playwright().start()
        try:
            program = find_chromium(executable, driver.chromium.executable_path)
            files = home.new_folder()
            try:
                browser = await driver.chromium.launch(
                    executable_path=program,
                    args=list(_FLAGS),
                    ignore_default_args=["--disable-popup-blocking"],
                    # Root cannot use Chromium's sandbox.
                    chromium_sandbox=sandbox and os.geteuid() != 0,
                    artifacts_dir=files,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    # Ctrl-C drains the worker; it ends the browser itself.
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                    timeout=_LAUNCH_SECONDS * 1000,
                )
            except Error as error:
                raise _launch_error(program, str(error)) from error
            session = await browser.new_browser_cdp_session()
            chromium = cls(home, driver, browser, session, files)
            info = await session.send("SystemInfo.getProcessInfo")
            chromium.process = next(each["id"] for each in info["processInfo"] if each["type"] == "browser")
            home.add(chromium.process)
        except BaseException:
            await _stop(driver)
            raise
        return chromium

    async def processes(self) -> dict[int, str]:
        """The processes of the browser with their types: browser, renderer, GPU, utility."""
        info = await self.session.send("SystemInfo.getProcessInfo")
        return {each["id"]: each["type"] for each in info["processInfo"]}

    async def close(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.browser.close()
        await _stop(self._driver)
        self._home.remove(self.process)
        shutil.rmtree(self.files, ignore_errors=True)


def resident_bytes(process: int) -> tuple[int, int]:
    """Memory that a process has for itself, and memory that it shares with others; 0 when it has ended."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return (int(resident) - int(shared)) * _PAGE_BYTES, int(shared) * _PAGE_BYTES


def total_bytes(processes: Mapping[int, str]) -> int:
    """Memory of all processes together; what they share counts once."""
    sizes = [resident_bytes(process) for process in processes]
    return sum(own for own, _ in sizes) + max((shared for _, shared in sizes), default=0)


async def _stop(driver: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await driver.stop()


def _launch_error(executable: str | None, text: str) -> ClientMissing:
    program = executable or "Playwright's Chromium"
    if "sandbox" in text.lower() and "No usable sandbox" in text:
        return ClientMissing(
            f"{program} cannot start: this system gives it no sandbox.",
            remedy="Allow user namespaces, or set browser_sandbox = false if you trust the pages or the container.",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no reason given")
    return ClientMissing(
        f"{program} does not start: {reason[:300]}.",
        remedy=f"Start it by hand to see why, or set {EXECUTABLE_VARIABLE} to another one.",
    )


def _origin(process: int) -> tuple[int, int, str] | None:
    """The process group of a browser, the driver that has started it, and its profile folder; None if it has gone."""
    option = b"--user-data-dir="
    try:
        words = _command(process)
        group = os.getpgid(process)
        # There may be a script of the system between the driver and the browser.
        driver = process
        while driver > 1 and b"run-driver" not in _command(driver):
            driver = int(Path(f"/proc/{driver}/stat").read_text().rpartition(") ")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return group, driver, next((word[len(option) :].decode() for word in words if word.startswith(option)), "?")


def _command(process: int) -> list[bytes]:
    return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")


def _remove_stale(folder: Path) -> None:
    """Remove the folder of a process that is gone: nobody holds its lock."""
    try:
        if folder.stat().st_uid != os.geteuid():
            return
        lock = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        chromium_watch.end_processes(str(folder))
        chromium_watch.remove_folders(str(folder))
    except OSError:
        return
    finally:
        os.close(lock)
