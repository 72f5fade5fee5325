"""Where sessions are kept: files that only this user can read, and, encrypted, the ledger."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from shoal.errors import LedgerError, LoginBroken, SecretMissing, UsageError
from shoal.fetch.session import SessionState, decode_session
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log

SESSION_KEY = "SHOAL_SESSION_KEY"
# Processes of one scraper on one machine that keep sessions; further ones keep theirs in memory only.
MAX_PLACES = 1_000
KEPT_DAYS = 90
# A worker whose login failed keeps others from trying for this long at most: it may be killed, and the code corrected.
MAX_HELD_SECONDS = 300.0
LOCK_SECONDS = 15.0
_NONCE_BYTES = 12
_MAX_FILE_BYTES = 16 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class SessionFile(NamedTuple):
    """A session in a file. `identity`: as it is in the file's name. `age`: seconds since it began."""

    path: Path
    scraper: str
    login: str
    identity: str
    age: float


def list_session_files(folder: Path, scraper: str | None = None) -> list[SessionFile]:
    """The sessions that are kept in files, by scraper."""
    own = folder if scraper is None else folder / file_name(scraper)
    found = []
    for path in sorted(own.rglob("*.json")):
        login, _, identity = path.stem.partition("-")
        with suppress(OSError):  # it was removed meanwhile
            age = max(0.0, time.time() - path.stat().st_mtime)
            found.append(SessionFile(path, path.parent.parent.name, login, identity, age))
    return found


class SessionFiles:
    """Sessions of one worker of a scraper: a file for each identity, mode 0600, in a folder of mode 0700.

    Workers that run at the same time have folders of their own (1, 2, ...), so no two of them use one session. Such a
    folder is locked while its worker lives, and the next worker continues with it.
    """

    def __init__(self, folder: Path, scraper: str, log: Log) -> None:
        self._folder = folder
        self._scraper = scraper
        self._log = log
        self._place: Path | None = None
        self._lock: int | None = None
        self._warned = False

    def load(self, login: str, identity: str) -> SessionState | None:
        """The session that was kept last; None when there is none. Never raises."""
        path = self._path(login, identity)
        if path is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                os.fchmod(descriptor, 0o600)
                state = decode_session(file.read(_MAX_FILE_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        if state is None:
            self._log.warning("a kept session cannot be read; logging in", file=str(path))
        return state

    def save(self, login: str, identity: str, state: SessionState) -> None:
        """Keep a session, in place of the one before. A session that cannot be kept is only logged."""
        path = self._path(login, identity)
        if path is None:
            return
        try:
            # It is created with the mode 0600.
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            try:
                with open(descriptor, "wb") as file:
                    file.write(state.encode())
                os.replace(temporary, path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self._place = None

    def _path(self, login: str, identity: str) -> Path | None:
        if self._place is None and not self._warned:
            try:
                self._place = self._lock_place()
            except OSError as error:
                self._warn(error)
        return None if self._place is None else self._place / f"{login}-{file_name(identity)}.json"

    def _lock_place(self) -> Path:
        for folder in (self._folder, own := self._folder / file_name(self._scraper)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        for number in range(1, MAX_PLACES + 1):
            place = own / str(number)
            place.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock = lock
            _tidy(place)
            return place
        raise OSError(f"{MAX_PLACES} workers keep sessions in {own}")

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror or str(error) or type(error).__name__
            self._log.warning(
                "sessions are not kept; the next start logs in again", folder=str(self._folder), error=reason
            )


def _tidy(place: Path) -> None:
    """Remove what a killed worker was writing, and sessions of identities that are long gone."""
    for file in place.iterdir():
        is_old = time.time() - file.stat().st_mtime > KEPT_DAYS * 86_400
        if file.name.startswith(".writing-") or (file.suffix == ".json" and is_old):
            file.unlink(missing_ok=True)


class SessionCipher:
    """Encrypts sessions for the ledger, with AES-GCM. `place`: what a session belongs to; it is authenticated too."""

    def __init__(self, key: str) -> None:
        """Raises UsageError when the key is none, or the library is missing."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise UsageError(
                'sessions="shared" needs the library cryptography.', remedy="Install it: pip install 'shoal[sessions]'."
            ) from None
        try:
            secret = b64decode(key.strip().replace("-", "+").replace("_", "/"), validate=True)
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise UsageError(
                f"{SESSION_KEY} is not a key: it must be 32 bytes in base64.",
                remedy="Make one with `openssl rand -base64 32`, and give it to every worker.",
            )
        self._cipher = AESGCM(secret)

    def encrypt(self, state: SessionState, place: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, state.encode(), place.encode())

    def decrypt(self, content: bytes, place: str) -> SessionState | None:
        """The session; None for one in a format that this version does not know. Raises LoginBroken for another key."""
        from cryptography.exceptions import InvalidTag

        try:
            plain = self._cipher.decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            raise LoginBroken(
                f"The session of {place} in the ledger cannot be decrypted: {SESSION_KEY} is not the key that another "
                "worker encrypted it with.",
                remedy="Give every worker the same key; after a change of the key, `shoal sessions forget` removes "
                "sessions of the old one.",
            ) from None
        return decode_session(plain)


def session_cipher(find_secret: Callable[[str], str]) -> SessionCipher:
    """The cipher with the key from the environment. Raises UsageError when it is missing or none."""
    try:
        key = find_secret(SESSION_KEY)
    except SecretMissing:
        raise UsageError(
            f'sessions="shared" keeps sessions in the ledger, encrypted with {SESSION_KEY}, which is not set.',
            remedy="Make a key with `openssl rand -base64 32`, and give it to every worker.",
        ) from None
    return SessionCipher(key)


class FoundSession(NamedTuple):
    """A session from the ledger. `age`: in seconds."""

    version: int
    age: float
    state: SessionState


class SharedSessions:
    """Sessions that all workers of a scraper share: in the ledger, encrypted; one worker logs in at a time.

    `name`: of a session, by its login and identity.
    """

    def __init__(self, ledger: Ledger, scraper: str, cipher: SessionCipher) -> None:
        self._ledger = ledger
        self._scraper = scraper
        self._cipher = cipher
        self._process = uuid4().hex
        self._seen: dict[str, int] = {}
        self._held: set[str] = set()

    async def get(self, name: str) -> FoundSession | None:
        """The newest session. Raises LoginBroken when it has another key."""
        found = await self._ledger.sessions.get(self._scraper, name)
        self._seen[name] = 0 if found is None else found.version
        if found is None:
            return None
        state = self._cipher.decrypt(found.content, self._place(name))
        return None if state is None else FoundSession(found.version, found.age, state)

    async def put(self, name: str, state: SessionState) -> int | None:
        """Store a session in place of the one that `get` returned last. None when another one is there by now."""
        content = self._cipher.encrypt(state, self._place(name))
        return await self._ledger.sessions.put(self._scraper, name, content, before=self._seen.get(name, 0))

    async def acquire(self, name: str) -> bool:
        """Whether this process may log in. It must do so within `renewing`, else its lock expires."""
        if not await self._ledger.locks.acquire(self._lock(name), self._process, LOCK_SECONDS):
            return False
        self._held.add(name)
        return True

    @asynccontextmanager
    async def renewing(self, name: str) -> AsyncIterator[None]:
        """Keep the lock while a login runs; that of a process that is killed expires soon."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(LOCK_SECONDS / 3)
                with suppress(LedgerError):
                    await self._ledger.locks.renew(self._lock(name), self._process, LOCK_SECONDS)

        task = asyncio.create_task(renew(), name="login lock")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def release(self, name: str, *, after: float = 0.0) -> None:
        """Let another worker log in: now, or after so many seconds, or when this one leaves."""
        if after > 0:
            await self._ledger.locks.renew(self._lock(name), self._process, min(after, MAX_HELD_SECONDS))
        else:
            self._held.discard(name)
            await self._ledger.locks.release(self._lock(name), self._process)

    async def close(self) -> None:
        for name in list(self._held):
            with suppress(LedgerError):  # the lock expires
                await self.release(name)

    def _place(self, name: str) -> str:
        return f"{self._scraper} {name}"

    def _lock(self, name: str) -> str:
        return f"login {self._place(name)}"


def file_name(identity: str) -> str:
    """A name for a file, unique for each identity."""
    plain = _UNSAFE.sub("-", identity)[:60]
    if plain == identity and not plain.startswith("."):
        return plain
    return f"{plain.lstrip('.')}-{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"
