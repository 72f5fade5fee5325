"""The tor that circuits go through: one that this process starts and owns, or one that somebody else runs.

A managed tor lies below a small shell, which holds a pipe from this process. When the pipe closes, however this process
ended, the shell kills tor and removes its folder. Should the shell be gone too, tor ends by itself, because its
controller's connection is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from shoal.errors import UsageError
from shoal.model.log import Log

INSTALL_REMEDY = "Install it (apt install tor), name its program by SHOAL_TOR, or use somebody else's with `socks`."
MIN_BACKOFF, MAX_BACKOFF = 1.0, 60.0
# After so long a tor that ends is started again at once.
STABLE_SECONDS = 60.0
# A busy machine is slow, and a tor that does not answer for so long is of no use.
ANSWER_SECONDS = 60.0
CHECK_SECONDS = 15.0
# Of another's tor that does not answer.
MIN_CHECK_SECONDS, MAX_CHECK_SECONDS = 0.5, 10.0
_CONNECT_SECONDS = 10.0
# So many circuits in a row, over so long, that could not be built: tor has none.
_MANY_CIRCUITS, _FAILING_SECONDS = 5, 2.0
# So many in a row explain the failure of a request.
_SOME_CIRCUITS = 2
# Circuits of these kinds are for requests; those of onion services fail with the service.
_OF_REQUESTS = ("GENERAL", "CONFLUX")
_ENDED_WELL = ("FINISHED", "REQUESTED", "NONE", "")
_MAX_BROKEN = 1_000
_LOG_SECONDS = 1.0
_COOKIE_BYTES = 32
_FOLDER_PREFIX = "shoal-tor-"
# Left behind only if both this process and the shell were killed; a folder this young may not have its lock yet.
_STALE_SECONDS = 60.0
_PATH = ":/usr/sbin:/usr/local/sbin"
# Reads "keep" before tor is started again on the same data; the end of input means that this process has ended.
_SHELL = """
folder=$1; shift
"$@" </dev/null &
tor=$!
exec >/dev/null 2>&1
read -r word
kill -9 "$tor"
wait "$tor"
[ "$word" = keep ] || rm -rf -- "$folder"
"""
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_LOG_LINE = re.compile(r"\[(debug|info|notice|warn|err)\] (.*)")


class TorTrouble(msgspec.Struct, frozen=True):
    """Why tor cannot be used: a clause such as "tor is bootstrapping: 45 % (...)", and since when, by monotonic()."""

    why: str
    since: float


class Tor:
    """A tor with a SOCKS port. `generation` changes when it was started anew and has lost its circuits.

    `address`: host and port, while they are known. `trouble`: None while circuits can be had.
    """

    def __init__(self, log: Log, *, address: tuple[str, int] | None = None, trouble: str | None = None) -> None:
        self.address = address
        self.generation = 0
        self.trouble = None if trouble is None else TorTrouble(trouble, time.monotonic())
        self._log = log
        self._usable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to start or to check it. Raises UsageError for one that can never work."""
        raise NotImplementedError

    def check(self) -> None:
        """A request failed on its way: find out soon whether tor is the reason."""

    async def way_failed(self, generation: int, user: str) -> str | None:
        """Find out now why a request failed, if tor of that generation or the circuit of that user name broke."""
        raise NotImplementedError

    async def wait_until_usable(self, seconds: float) -> None:
        """Wait until there is no trouble, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._usable.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _set_trouble(self, why: str | None) -> None:
        """None: there is none any more. It began when there was none before."""
        if why is None:
            self.trouble = None
            self._usable.set()
        else:
            self.trouble = TorTrouble(why, time.monotonic() if self.trouble is None else self.trouble.since)
            self._usable.clear()


def find_tor(chosen: str = "") -> Path:
    """The program: the chosen one (the setting `tor`), or `tor` in the PATH. Raises UsageError."""
    found = shutil.which(chosen or "tor", path=os.environ.get("PATH", os.defpath) + _PATH)
    if found is None:
        what = f"The setting tor is {chosen}, which is no program" if chosen else "There is no tor on this machine"
        raise UsageError(f"{what}.", remedy=INSTALL_REMEDY)
    return Path(found)


class ManagedTor(Tor):
    """A tor of this process, in a private folder that goes with it. Started again, after a pause, when it ends."""

    def __init__(
        self,
        log: Log,
        *,
        program: str,
        torrc: Path | None,
        circuit_seconds: float,
    ) -> None:
        """`program`: tor, if not that of the PATH. `torrc`: its further options. `circuit_seconds`: how long a circuit
        is meant to be used.
        """
        super().__init__(log, trouble="tor is starting")
        self._torrc = torrc
        self._circuit_seconds = circuit_seconds
        self._chosen = program
        self._program = Path("tor")
        self._folder: Path | None = None
        self._lock = -1
        self._shell: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._control: TorControl | None = None
        self._last_words = ""
        self._bootstrap = (0, "")
        self._problem = ""
        self._has_circuit = False
        self._no_circuit_why = ""
        self._failed_circuits = 0
        self._failing_since = 0.0
        self._broken: dict[str, str] = {}
        self._logged_at = -math.inf

    async def start(self) -> None:
        if self._torrc is not None and not self._torrc.is_file():
            raise UsageError(f"There is no file {self._torrc}, which torrc names.", remedy="Correct the path.")
        self._program = find_tor(self._chosen)
        await asyncio.to_thread(_remove_stale_folders)
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._lock = _lock_folder(self._folder)
        try:
            self._write_torrc(self._folder)
            await self._verify()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._run(), name="shoal-tor")

    async def way_failed(self, generation: int, user: str) -> str | None:
        control = self._control
        if generation == self.generation and control is not None:
            with suppress(EOFError, TimeoutError, ValueError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    # What it says about circuits comes before this answer.
                    await control.ask("GETINFO version")
                    return self._circuit_problem(user)
        return "tor has ended"

    def _circuit_problem(self, user: str) -> str | None:
        if self.trouble is not None:
            return self.trouble.why
        if self._failed_circuits >= _SOME_CIRCUITS:
            return "tor cannot build circuits"
        reason = self._broken.get(user)
        return None if reason is None else f"the circuit broke ({reason})"

    async def close(self) -> None:
        await super().close()
        await self._end(keep=False)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _write_torrc(self, folder: Path) -> None:
        """What Shoal needs; it outranks the author's file, which tor reads as the defaults."""
        options = {
            "DataDirectory": _quoted(folder / "data"),
            "ClientOnly": "1",
            "RunAsDaemon": "0",
            "AvoidDiskWrites": "1",
            "Log": "notice stdout",
            "SocksPort": "127.0.0.1:auto IsolateSOCKSAuth KeepAliveIsolateSOCKSAuth ExtendedErrors",
            # A circuit ends when Shoal takes a new user name, not before.
            "MaxCircuitDirtiness": str(max(600, round(2 * self._circuit_seconds))),
            "ControlPort": "127.0.0.1:auto",
            "ControlPortWriteToFile": _quoted(folder / "control-port"),
            "CookieAuthentication": "1",
            "CookieAuthFile": _quoted(folder / "cookie"),
            "__OwningControllerProcess": str(os.getpid()),
        }
        (folder / "data").mkdir(mode=0o700)
        (folder / "torrc").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        (folder / "defaults").write_bytes(b"" if self._torrc is None else self._torrc.read_bytes())

    @property
    def _command(self) -> list[str]:
        assert self._folder is not None
        return [
            str(self._program),
            "--defaults-torrc",
            str(self._folder / "defaults"),
            "-f",
            str(self._folder / "torrc"),
        ]

    @property
    def _variables(self) -> dict[str, str]:
        """No secrets of ours for tor, nor for transports that it starts."""
        return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}

    async def _verify(self) -> None:
        """Raises UsageError for options that tor refuses."""
        checking = await asyncio.create_subprocess_exec(
            *self._command,
            "--verify-config",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._variables,
        )
        said = (await checking.communicate())[0].decode(errors="replace")
        if checking.returncode != 0:
            lines = [found[2] for found in _LOG_LINE.finditer(said) if found[1] in ("warn", "err")]
            reason = next((line for line in lines if "config" in line), lines[-1] if lines else said.strip()[-500:])
            where = self._torrc or self._program
            raise UsageError(f"tor refuses to start: {reason}", remedy=f"Correct {where}.")

    async def _run(self) -> None:
        """Keep a tor running."""
        backoff = MIN_BACKOFF
        while True:
            began = time.monotonic()
            try:
                why = await self._run_once()
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                why = f"it did not start ({str(error) or type(error).__name__})"
            self.address, self._has_circuit, self._bootstrap, self._problem = None, False, (0, ""), ""
            if time.monotonic() - began > STABLE_SECONDS:
                backoff = MIN_BACKOFF
            self._set_trouble(f"tor ended and is started again ({why})")
            self._log.warning("tor ended", why=why, again_in=backoff)
            await self._end(keep=True)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)

    async def _run_once(self) -> str:
        """Start tor, and follow it to its end; why it ended."""
        assert self._folder is not None
        port_file, cookie_file = self._folder / "control-port", self._folder / "cookie"
        for file in (port_file, cookie_file):
            file.unlink(missing_ok=True)
        self._last_words = ""
        # Never cancelled half-way: the shell would be killed before it could end tor.
        self._shell = asyncio.create_task(self._start_shell())
        shell = await asyncio.shield(self._shell)
        assert shell.stdout is not None
        reading = asyncio.create_task(self._read_log(shell.stdout))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while not (_size(port_file) and _size(cookie_file) >= _COOKIE_BYTES) and not reading.done():
                    await asyncio.wait((reading,), timeout=0.02)
                if reading.done():
                    return self._last_words or "it said nothing"
                await self._take_control(port_file.read_text(), cookie_file.read_bytes())
            assert self._control is not None
            while not reading.done():
                await asyncio.wait((reading, self._control.ended), timeout=CHECK_SECONDS, return_when="FIRST_COMPLETED")
                if self._control.ended.done():
                    break
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._control.ask("GETINFO version")
                    if self._bootstrap[0] == 100 and not self._has_circuit:
                        with suppress(ValueError):  # it knows no way at all
                            await self._control.ask("EXTENDCIRCUIT 0")
            return self._last_words or "its process ended"
        except TimeoutError:
            return f"it did not answer for {ANSWER_SECONDS:g} s"
        finally:
            reading.cancel()
            if self._control is not None:
                self._control.close()
                self._control = None

    async def _start_shell(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("sh", "-c", _SHELL, "sh", str(self._folder)),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._variables,
            start_new_session=True,
        )

    async def _take_control(self, port_line: str, cookie: bytes) -> None:
        host, _, port = port_line.strip().removeprefix("PORT=").rpartition(":")
        control = self._control = await TorControl.connect(host, int(port), self._on_event)
        await control.ask(f"AUTHENTICATE {cookie.hex()}")
        await control.ask("TAKEOWNERSHIP")
        await control.ask("SETEVENTS STATUS_CLIENT CIRC")
        (listener,) = await control.ask("GETINFO net/listeners/socks")
        socks_host, _, socks_port = listener.partition('="')[2].partition('"')[0].rpartition(":")
        if not socks_port:
            raise ValueError("it opens no SOCKS port; does torrc have DisableNetwork?")
        (phase,) = await control.ask("GETINFO status/bootstrap-phase")
        (established,) = await control.ask("GETINFO status/circuit-established")
        self.generation += 1
        self.address = (socks_host, int(socks_port))
        self._has_circuit = established.endswith("=1")
        self._on_event("STATUS_CLIENT " + phase.partition("=")[2])

    def _on_event(self, event: str) -> None:
        kind, _, rest = event.partition(" ")
        fields = {name: quoted or plain for name, quoted, plain in _FIELD.findall(rest)}
        action = rest.split(" ", 2)[1] if " " in rest else ""
        if kind == "CIRC":
            self._on_circuit(action, fields)
        elif action == "BOOTSTRAP":
            self._on_bootstrap(int(fields.get("PROGRESS", 0)), fields.get("SUMMARY", ""))
            self._problem = fields.get("WARNING", "")
        elif action in ("CIRCUIT_ESTABLISHED", "CIRCUIT_NOT_ESTABLISHED"):
            self._has_circuit = action == "CIRCUIT_ESTABLISHED"
            self._no_circuit_why = fields.get("REASON", "")
        percent, phase = self._bootstrap
        if percent < 100:
            problem = f"; {self._problem}" if self._problem else ""
            self._set_trouble(f"tor is bootstrapping: {percent} % ({phase.lower()}){problem}")
        elif not self._has_circuit:
            why = f" ({self._no_circuit_why.replace('_', ' ').lower()})" if self._no_circuit_why else ""
            self._set_trouble(f"tor has no circuit{why}")
        else:
            self._set_trouble(None)

    def _on_bootstrap(self, percent: int, phase: str) -> None:
        now = time.monotonic()
        if (percent, phase) != self._bootstrap and (percent == 100 or now - self._logged_at >= _LOG_SECONDS):
            self._logged_at = now
            self._log.info("tor is bootstrapping", percent=percent, phase=phase)
        self._bootstrap = percent, phase

    def _on_circuit(self, action: str, fields: Mapping[str, str]) -> None:
        """Tor itself does not say that it has lost its circuits: that none can be built any more does."""
        user, reason = fields.get("SOCKS_USERNAME"), fields.get("REASON", "")
        if user and action in ("CLOSED", "FAILED") and reason not in _ENDED_WELL:
            self._broken[user] = reason.replace("_", " ").lower()
            if len(self._broken) > _MAX_BROKEN:
                del self._broken[next(iter(self._broken))]
        if "ONEHOP_TUNNEL" in fields.get("BUILD_FLAGS", "") or not fields.get("PURPOSE", "").startswith(_OF_REQUESTS):
            return
        if action == "BUILT":
            self._failed_circuits = 0
            self._has_circuit = True
        elif action == "FAILED":
            now = time.monotonic()
            self._failed_circuits += 1
            if self._failed_circuits == 1:
                self._failing_since = now
            if self._failed_circuits >= _MANY_CIRCUITS and now - self._failing_since >= _FAILING_SECONDS:
                self._has_circuit, self._no_circuit_why = False, reason

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        with suppress(ValueError):  # a line without end
            while line := await stream.readline():
                found = _LOG_LINE.search(line.decode(errors="replace"))
                if found is not None and found[1] in ("warn", "err"):
                    self._log.debug("tor says", line=found[2].strip())
                    if found[1] == "err":
                        self._last_words = found[2].strip()

    async def _end(self, *, keep: bool) -> None:
        """End tor. `keep`: its folder stays for the next one."""
        starting, self._shell = self._shell, None
        if starting is None:
            return
        try:
            shell = await starting
        except OSError:
            return
        assert shell.stdin is not None
        with suppress(OSError):
            if keep:
                shell.stdin.write(b"keep\n")
            shell.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await shell.wait()


class TorControl:
    """A control connection: commands are answered in order, events come in between."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._asked: deque[asyncio.Future[list[str]]] = deque()
        self.ended = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, host: str, port: int, on_event: Callable[[str], None]) -> TorControl:
        return cls(*await asyncio.open_connection(host, port), on_event)

    async def ask(self, command: str) -> list[str]:
        """The lines of the reply without their codes and without the final OK.

        Raises ValueError for a refusal, EOFError when tor has ended.
        """
        if self.ended.done():
            raise EOFError("tor closed its control connection")
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._writer.write(f"{command}\r\n".encode())
        lines = await answer
        if not lines[-1].startswith("250"):
            raise ValueError(f"tor refused {command.partition(' ')[0]}: {lines[-1][4:]}")
        return [line[4:] for line in lines[:-1]]

    def close(self) -> None:
        self.ended.cancel()
        self._writer.close()

    async def _read(self) -> None:
        """Until the connection ends."""
        lines: list[str] = []
        try:
            while raw := await self._reader.readline():
                line = raw.decode(errors="replace").rstrip("\r\n")
                lines.append(line)
                if line[3:4] == "+":
                    while (await self._reader.readline()).rstrip(b"\r\n") not in (b".", b""):
                        pass
                if line[3:4] != " ":
                    continue
                if line.startswith("650"):
                    self._on_event(lines[0][4:])
                elif self._asked:
                    answer = self._asked.popleft()
                    if not answer.done():
                        answer.set_result(lines)
                lines = []
        except OSError:
            pass
        finally:
            for answer in self._asked:
                if not answer.done():
                    answer.set_exception(EOFError("tor closed its control connection"))


class ExternalTor(Tor):
    """A tor that somebody else runs. It is asked now and then whether it answers; no circuit is built for that.

    `control`: host and port of its control port, if it may be asked there how far its bootstrap is.
    """

    def __init__(self, host: str, port: int, log: Log, *, control: tuple[str, int] | None = None) -> None:
        super().__init__(log, address=(host, port))
        self._control_address = control
        self._suspected = asyncio.Event()

    async def start(self) -> None:
        await self._check_now()
        self._task = asyncio.create_task(self._run(), name="shoal-tor")

    def check(self) -> None:
        self._suspected.set()

    async def way_failed(self, generation: int, user: str) -> str | None:
        await self._check_now()
        self._suspected.set()
        return None if self.trouble is None else self.trouble.why

    async def _run(self) -> None:
        pause = MIN_CHECK_SECONDS
        while True:
            if self.trouble is None:
                pause = MIN_CHECK_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._suspected.wait()
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_CHECK_SECONDS)
            self._suspected.clear()
            await self._check_now()

    async def _check_now(self) -> None:
        assert self.address is not None
        host, port = self.address
        problem = await socks_problem(host, port)
        if problem is None and self._control_address is not None:
            phase = await bootstrap_problem(*self._control_address)
            if phase is not None:
                self._set_trouble(f"tor at {host}:{port} {phase}")
                return
        if problem is None:
            if self.trouble is not None:
                self._log.info("tor answers again", at=f"{host}:{port}")
            self._set_trouble(None)
            return
        if self.trouble is None:
            self._log.warning("tor does not answer", at=f"{host}:{port}", why=problem)
        self._set_trouble(f"tor at {host}:{port} does not answer: {problem}")


async def bootstrap_problem(host: str, port: int) -> str | None:
    """How far the bootstrap of the tor with this control port is; None when it is done, or when tor does not say.

    Tor says it to those who may authenticate without a password, or with its cookie file. What answers there may be
    another machine, so nothing but a file that can be such a cookie is read and sent.
    """
    control = None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            control = await TorControl.connect(host, port, lambda _: None)
            words = " ".join(await control.ask("PROTOCOLINFO 1"))
            cookie = re.search(r'COOKIEFILE="((?:[^"\\]|\\.)*)"', words)
            needs_cookie = re.search(r"METHODS=\S*NULL", words) is None
            secret = await asyncio.to_thread(_read_cookie, cookie[1]) if needs_cookie and cookie is not None else b""
            await control.ask(f"AUTHENTICATE {secret.hex()}".rstrip())
            (phase,) = await control.ask("GETINFO status/bootstrap-phase")
    except (OSError, EOFError, TimeoutError, ValueError):
        return None
    finally:
        if control is not None:
            control.close()
    fields = {name: quoted or plain for name, quoted, plain in _FIELD.findall(phase)}
    done = int(fields.get("PROGRESS", "100"))
    return None if done >= 100 else f"is bootstrapping: {done} % ({fields.get('SUMMARY', '').lower()})"


async def socks_problem(host: str, port: int) -> str | None:
    """Why there is no SOCKS proxy with user names at an address; None when there is one."""
    writer = None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"\x05\x01\x02")
            answer = await reader.readexactly(2)
    except TimeoutError:
        return f"it is silent for {_CONNECT_SECONDS:g} s"
    except asyncio.IncompleteReadError:
        return "it closes the connection"
    except OSError as error:
        # The event loop of asyncio has a text of its own in strerror.
        return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)).lower()
    finally:
        if writer is not None:
            writer.close()
    if answer[:1] != b"\x05":
        return "what answers there is no SOCKS proxy"
    return None if answer == b"\x05\x02" else "it takes no user names, by which circuits are told apart"


def _read_cookie(path: str) -> bytes:
    """The cookie in a file that a control port names; empty when there is no regular file of its size there."""
    try:
        facts = os.stat(path)
        # Checked before it is opened: a device may have no end, and a FIFO without a writer blocks.
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != _COOKIE_BYTES:
            return b""
        with open(path, "rb") as file:
            return file.read(_COOKIE_BYTES)
    except (OSError, ValueError):
        return b""


def _size(file: Path) -> int:
    """0 for one that does not exist."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lock_folder(folder: Path) -> int:
    """Shows others that this process uses the folder; the system ends the lock with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove_stale_folders() -> None:
    """Remove what processes left behind that were killed together with their shells."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):
            facts = folder.lstat()
            if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < _STALE_SECONDS:
                continue
            descriptor = _lock_folder(folder)
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
