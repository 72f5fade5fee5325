"""Logins in a worker: an identity is logged in before its first request, and again when its session has ended.

One attempt logs in, by its own requests, while the others of its identity wait. A login that fails is repeated later
and later; meanwhile the items wait, and none is charged.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shoal.define.author_code import error_summary, is_programming_error
from shoal.define.login import Login
from shoal.define.scraper import Scraper
from shoal.errors import (
    AttemptEnded,
    Blocked,
    ClientMissing,
    EgressUnavailable,
    ExitFailed,
    LedgerError,
    LoggedOut,
    LoginBroken,
    LoginFailed,
    Permanent,
    SecretMissing,
    Skipped,
    StoreFailed,
    Throttled,
    Transient,
    Unauthorized,
)
from shoal.fetch.session import BrowserProfile, SessionState
from shoal.model.egress import EgressWait
from shoal.model.log import Log
from shoal.model.redaction import redacted
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.providers import ProviderFailed
from shoal.worker.session_store import SessionFiles, SharedSessions

if TYPE_CHECKING:
    from shoal.define.context import Http
    from shoal.fetch.redirects import CookieJars
    from shoal.worker.attempt import Attempt

# The identity of requests that go out directly.
DIRECT = "direct"
# A login that failed is repeated after this long, and after twice as long each time. One that the author or the site
# refused for good counts for all identities: a wrong password that is sent often locks the account.
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
FIRST_REFUSED_SECONDS, MAX_REFUSED_SECONDS = 60.0, 3_600.0
# So many items that find themselves logged out right after a login say that the login does not help.
MAX_UNHELPFUL = 3
# How often an item is tried again at once after new logins before it is charged.
MAX_RERUNS = 3
# While another worker logs in, its session is waited for in the slot, then by the item.
SHARED_WAIT_SECONDS, SHARED_POLL_SECONDS = 5.0, 0.2
# Sessions that end so often are reported.
FREQUENT_LOGINS, FREQUENT_SECONDS = 5, 120.0
MAX_IDENTITIES = 10_000
# Tokens of more sessions than this are not searched for in texts, which would become slow.
MAX_HIDDEN_SESSIONS = 200

# What a login may raise that says nothing about the login.
_PASSED_ON = (ReleaseItem, StoreFailed, SecretMissing, ClientMissing, LoginBroken, LedgerError, EgressUnavailable)


class LoginValues(NamedTuple):
    """What built-in providers read for a login."""

    http: Http
    log: Log
    settings: Any


class LoginSession(msgspec.Struct, eq=False, kw_only=True):
    """A session, as attempts use it.

    `jar`: its cookies. Each session has a jar of its own, so that a late answer to a request of the one before changes
    nothing. `began`: on the monotonic clock. `version`: in the ledger. `fresh`: this process has logged in for it.
    `proven`: an item succeeded with it. `jars`: the clients that have its cookies. `profile`: the browser's, once it
    has its storage.
    """

    owner: IdentityLogin
    jar: str
    state: SessionState
    began: float
    version: int = 0
    fresh: bool
    proven: bool = False
    jars: list[CookieJars]
    profile: BrowserProfile | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return self.state.headers


class LoginBackoff:
    """When a login that failed may be repeated. `why`: what is waited for, a sentence; empty while it may run.

    `first`: until one login has succeeded, identities log in one after another, so that a wrong password is sent once.
    """

    def __init__(self) -> None:
        self.first: asyncio.Lock | None = asyncio.Lock()
        self._failures = 0
        self._retry_at = 0.0
        self._since = 0.0
        self.why = ""

    @property
    def seconds(self) -> float:
        """Seconds until it may run; 0 when it may."""
        return max(0.0, self._retry_at - time.monotonic()) if self.why else 0.0

    @property
    def since(self) -> float:
        """For how many seconds it has been failing."""
        return time.monotonic() - self._since

    def fail(self, why: str, first: float, most: float, *, at_least: float = 0.0) -> float:
        """Count a failure. Returns the seconds to wait."""
        now = time.monotonic()
        self._since = self._since if self._failures else now
        wait = max(at_least, min(most, first * 2.0 ** min(self._failures, 20)))
        self._failures += 1
        self.why, self._retry_at = why, now + wait
        return wait

    def wait(self, why: str, seconds: float) -> None:
        """Wait without a failure."""
        now = time.monotonic()
        self._since = self._since if self.why else now
        self.why, self._retry_at = why, now + seconds

    def clear(self, *, keep_count: bool = False) -> None:
        """It may run. `keep_count`: the next failure follows on those before."""
        self._failures, self.why = self._failures if keep_count else 0, ""


class IdentityLogin:
    """One login of one identity in this process."""

    def __init__(self, logins: Logins, login: Login, refused: LoginBackoff, identity: str, label: str) -> None:
        self._logins = logins
        self._log = logins.log.bind(login=login.name, **({} if identity == DIRECT else {"identity": label}))
        self._refused = refused
        self._identity = identity
        self._lock = asyncio.Lock()
        self._last: LoginSession | None = None
        self._count = 0
        self._unhelpful = 0
        self._ended_at: deque[float] = deque(maxlen=FREQUENT_LOGINS)
        self.login = login
        self.backoff = LoginBackoff()
        self.session: LoginSession | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it logs in now."""
        return self._lock.locked()

    async def begin(self, attempt: Attempt) -> LoginSession:
        """Log in, or wait until another attempt has. Raises LoginFailed while the login fails."""
        self._check_backoff()
        with attempt.paused_timeout(f"the login {self.login.where} ran"):
            async with self._lock:
                if self.session is None:
                    self._check_backoff()
                    shared = self._logins.shared if self.login.shared else None
                    if shared is None:
                        self.session = await self._own_session(attempt)
                    else:
                        self.session = await self._shared_session(attempt, shared)
                return self.session

    async def load_storage(self, session: LoginSession, attempt: Attempt) -> None:
        """Give the browser the storage of the session, if the attempt has one."""
        profile = attempt.browser_profile(session.jar, self.login)
        if profile is not None:
            async with self._lock:
                if session.profile is None:
                    await profile.load(session.state)
                    session.profile = profile

    def check_age(self) -> None:
        """End the session when it is too old."""
        session, max_age = self.session, self.login.max_age
        if session is not None and max_age is not None and time.monotonic() - session.began >= max_age:
            self._end(session, f"it is older than {max_age:g} s")

    def record_success(self, session: LoginSession) -> None:
        if session is self.session and not session.proven:
            session.proven = True
            self._unhelpful = 0
            self.backoff.clear()

    def record_logged_out(self, session: LoginSession, message: str, reruns: int) -> AttemptEnded | None:
        """How the attempt ends that found the session ended; None: it is run again at once."""
        if reruns >= MAX_RERUNS:
            return Transient(f"{message}, also after {reruns} new logins")
        if session is not self.session:
            return None  # the request was sent before the newest login
        if session.fresh and not session.proven:
            self._unhelpful += 1
            if self._unhelpful >= MAX_UNHELPFUL:
                self._end(session, message)
                self._fail(f"the site still answers {message!r} after a login that succeeded", self.backoff)
            # Another item may be luckier: the session stays, and only this item is charged.
            return Transient(f"{message}, right after a new login")
        self._end(session, message)
        self._count_end()
        return None

    def _end(self, session: LoginSession, why: str) -> None:
        self.session = None
        self._log.info("session ended; logging in again", why=redacted(why, self._logins.scraper.secrets))

    def _count_end(self) -> None:
        now = time.monotonic()
        self._ended_at.append(now)
        if len(self._ended_at) == FREQUENT_LOGINS and now - self._ended_at[0] < FREQUENT_SECONDS:
            self._ended_at.clear()
            hint = "" if self.login.shared else '; for a site that allows one session at a time: sessions="shared"'
            self._log.warning(f"sessions end soon after each login{hint}", logins=FREQUENT_LOGINS)

    def _check_backoff(self) -> None:
        for backoff in (self._refused, self.backoff):
            if (seconds := backoff.seconds) > 0:
                raise LoginFailed(backoff.why, retry_after=seconds)

    def _fail(self, error: str, backoff: LoginBackoff, *, at_least: float = 0.0) -> LoginFailed:
        first, most = FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
        if backoff is self._refused:
            first, most = FIRST_REFUSED_SECONDS, MAX_REFUSED_SECONDS
        error = redacted(error, self._logins.scraper.secrets)
        seconds = backoff.fail(f"the login {self.login.where} fails: {error}", first, most, at_least=at_least)
        self._log.warning("login failed; items wait", error=error, retry_in=round(seconds, 1))
        return LoginFailed(backoff.why, retry_after=seconds)

    async def _own_session(self, attempt: Attempt) -> LoginSession:
        files = None if self.login.shared else self._logins.files
        if files is not None and self._last is None:
            kept = files.load(self.login.name, self._identity)
            age = 0.0 if kept is None else max(0.0, time.time() - kept.at)
            if kept is not None and self._is_young(age) and self._logins.is_of_same_account(self.login, kept):
                self._log.info("session continued", age=round(age))
                return self._adopt(kept, attempt.cookie_jars, age=age)
        session = await self._log_in(attempt)
        if files is not None:
            files.save(self.login.name, self._identity, session.state)
        return session

    async def _shared_session(self, attempt: Attempt, shared: SharedSessions) -> LoginSession:
        """The session in the ledger if it is newer than the one that has ended, else one of a new login."""
        name, patience = f"{self.login.name} {self._identity}", time.monotonic() + SHARED_WAIT_SECONDS
        while True:
            if (session := await self._newer_session(shared, name, attempt.cookie_jars)) is not None:
                return session
            if await shared.acquire(name):
                session = await self._renew_shared(attempt, shared, name)
                if session is not None:
                    return session
            elif time.monotonic() > patience:
                self.backoff.wait(f"another worker runs the login {self.login.where}", SHARED_WAIT_SECONDS)
                raise LoginFailed(self.backoff.why, retry_after=SHARED_WAIT_SECONDS)
            await asyncio.sleep(SHARED_POLL_SECONDS * (0.5 + random.random()))

    async def _renew_shared(self, attempt: Attempt, shared: SharedSessions, name: str) -> LoginSession | None:
        """Log in while this process has the lock. None when another one has stored a session meanwhile."""
        held = 0.0
        try:
            if (session := await self._newer_session(shared, name, attempt.cookie_jars)) is not None:
                return session
            async with shared.renewing(name):
                session = await self._log_in(attempt)
            version = await shared.put(name, session.state)
            if version is None:
                return None
            session.version = version
            return session
        except AttemptEnded:
            # No worker logs in before this one would.
            held = max(self.backoff.seconds, self._refused.seconds)
            raise
        finally:
            await shared.release(name, after=held)

    async def _newer_session(self, shared: SharedSessions, name: str, jars: CookieJars | None) -> LoginSession | None:
        found = await shared.get(name)
        before = 0 if self._last is None else self._last.version
        if found is None or found.version <= before or not self._is_young(found.age):
            return None
        self._log.info("session of another worker used", age=round(found.age))
        return self._adopt(found.state, jars, age=found.age, version=found.version)

    def _is_young(self, age: float) -> bool:
        return self.login.max_age is None or age < self.login.max_age

    async def _log_in(self, attempt: Attempt) -> LoginSession:
        login, last, jar = self.login, self._last, self._next_jar()
        profile = attempt.browser_profile(jar, login) if login.uses_browser else None
        jars = attempt.cookie_jars if profile is None else profile.jars
        # What is left of the session before comes along, as in a browser: a site may know the device by it.
        if jars is not None and last is not None:
            jars.load(jar, jars.export(last.jar))
        if profile is not None and last is not None:
            await profile.load(msgspec.structs.replace(last.state, cookies=jars.export(jar) if jars else ()))
        began = time.monotonic()
        async with self._refused.first or nullcontext():
            self._check_backoff()
            secrets: set[str] = set()
            headers = await self._call(attempt, jar, secrets)
            self._refused.first = None
        state = SessionState(
            at=time.time(),
            cookies=() if jars is None else jars.export(jar),
            headers=headers,
            origins=[] if profile is None else await profile.origins(),
            secrets=tuple(sorted(secrets)),
            account=self._logins.account(login, sorted(secrets)),
        )
        self._log.info("logged in", seconds=round(time.monotonic() - began, 2))
        self._refused.clear()
        self.backoff.clear(keep_count=self._unhelpful > 0)
        session = LoginSession(owner=self, jar=jar, state=state, began=began, fresh=True, jars=[], profile=profile)
        return self._keep(session, jars)

    def _adopt(self, state: SessionState, jars: CookieJars | None, *, age: float, version: int = 0) -> LoginSession:
        jar = self._next_jar()
        if jars is not None:
            jars.load(jar, state.cookies)
        self.backoff.clear()
        began = time.monotonic() - age
        session = LoginSession(owner=self, jar=jar, state=state, began=began, version=version, fresh=False, jars=[])
        return self._keep(session, jars)

    def _keep(self, session: LoginSession, jars: CookieJars | None) -> LoginSession:
        if jars is not None:
            session.jars.append(jars)
        self._logins.hide(session.state)
        before, self._last = self._last, session
        if before is not None:
            for each in before.jars:
                each.drop(before.jar)
        return session

    def _next_jar(self) -> str:
        self._count += 1
        return f"login {self.login.name} {self._identity} {self._count}"

    async def _call(self, attempt: Attempt, jar: str, secrets: set[str]) -> dict[str, str]:
        """The headers that the author's function returns. Raises how the attempt ends when it fails.

        `secrets` gets the names of those that it sent.
        """
        login = self.login
        timeout = asyncio.timeout(login.timeout)
        try:
            async with timeout:
                return _headers(login, await attempt.call_login(login, jar, secrets))
        except _PASSED_ON:
            raise
        except AttemptEnded as error:
            if (ended := self._failure(attempt, error, error.message)) is error:
                raise
            raise ended from error
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                raise self._failure(attempt, error, f"it timed out after {login.timeout:g} s") from None
            cause = error.error if isinstance(error, ProviderFailed) else error
            text = str(error) if isinstance(error, ProviderFailed) else error_summary(error)
            if self._last is None and self._refused.first is not None and is_programming_error(cause):
                raise LoginBroken(
                    f"The login {login.where} does not work: {redacted(text, self._logins.scraper.secrets)}."
                ) from error
            raise self._failure(attempt, error, text) from error

    def _failure(self, attempt: Attempt, error: Exception, text: str) -> AttemptEnded:
        """How the attempt ends whose login failed."""
        if isinstance(error, Permanent | Skipped):
            return self._fail(text, self._refused)
        wait = (error.retry_after or 0.0) if isinstance(error, AttemptEnded) else 0.0
        failed = self._fail(text, self.backoff, at_least=wait)
        if isinstance(error, Throttled) or (isinstance(error, Blocked | ExitFailed) and attempt.identity is not None):
            return error  # the host's lane is closed; the item gets another identity
        return failed


class Logins:
    """The logins of a scraper in this process. `files`: where sessions are kept; `shared`: those in the ledger."""

    def __init__(
        self, scraper: Scraper, log: Log, *, files: SessionFiles | None = None, shared: SharedSessions | None = None
    ) -> None:
        self.scraper = scraper
        self.log = log
        self.files = files
        self.shared = shared
        self._refused = {login.name: LoginBackoff() for login in scraper.logins}
        self._identities: dict[tuple[str, str], IdentityLogin] = {}
        self._hidden = 0
        if shared is None and any(login.shared for login in scraper.logins):
            log.warning("without a ledger a login is not shared: it may end the session of running workers")

    async def session(self, attempt: Attempt, login: Login) -> LoginSession:
        """The session of the attempt's identity, which is logged in if needed. Raises LoginFailed while that fails."""
        identity = attempt.identity
        key = (login.name, DIRECT if identity is None else identity.key)
        owner = self._identities.get(key)
        if owner is None:
            self._drop_old()
            label = DIRECT if identity is None else identity.exit.name
            owner = self._identities[key] = IdentityLogin(self, login, self._refused[login.name], key[1], label)
        if login.max_age is not None:
            owner.check_age()
        session = owner.session
        if session is None:
            session = await owner.begin(attempt)
        jars = attempt.cookie_jars
        if jars is not None and not any(each is jars for each in session.jars):
            jars.load(session.jar, session.state.cookies)
            session.jars.append(jars)
        if session.state.origins and session.profile is None:
            await owner.load_storage(session, attempt)
        return session

    def record_end(self, session: LoginSession, error: BaseException | None, reruns: int) -> BaseException | None:
        """Report how an attempt with this session ended. Returns the error that it ends with; None: it is run again."""
        if error is None:
            session.owner.record_success(session)
        elif isinstance(error, Unauthorized | LoggedOut):
            return session.owner.record_logged_out(session, error.message, reruns)
        return error

    def waits(self) -> list[EgressWait]:
        """The stages that wait for a login that fails for all their identities."""
        found = []
        for login in self.scraper.logins:
            refused, direct = self._refused[login.name], self._identities.get((login.name, DIRECT))
            for name, stage in self.scraper.stages.items():
                if not login.is_for(name):
                    continue
                backoff = refused
                if not refused.seconds and direct is not None and stage.egress is None:
                    backoff = direct.backoff
                if until := backoff.seconds:
                    found.append(EgressWait(stage=name, pool="", why=backoff.why, since=backoff.since, until=until))
        return found

    def _drop_old(self) -> None:
        """Forget the oldest identities when there are very many, as those of circuits; they would log in again."""
        if len(self._identities) >= MAX_IDENTITIES:
            unused = [key for key, owner in self._identities.items() if not owner.is_busy]
            for key in unused[: MAX_IDENTITIES // 2]:
                del self._identities[key]

    def account(self, login: Login, secrets: Iterable[str]) -> str:
        """A fingerprint of what a login logs in with: its code, the settings, and these secrets. Raises SecretMissing.

        A session of another account is not continued.
        """
        scraper = self.scraper
        parts = [login.source, scraper.settings_text, *(scraper.reveal_secret(name) for name in secrets)]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def is_of_same_account(self, login: Login, state: SessionState) -> bool:
        try:
            return state.account == self.account(login, state.secrets)
        except SecretMissing:
            return False

    def hide(self, state: SessionState) -> None:
        """Redact the tokens of a session in all texts."""
        if state.headers and self._hidden < MAX_HIDDEN_SESSIONS:
            self._hidden += 1
            state.hide_headers()

    async def close(self) -> None:
        """Keep the sessions with the cookies that they have now, and let other workers log in."""
        if self.shared is not None:
            await self.shared.close()
        if self.files is None:
            return
        for (_, identity), owner in self._identities.items():
            session = owner.session
            if session is None or owner.login.shared or not session.jars:
                continue
            state = session.state
            origins = state.origins if session.profile is None else await session.profile.origins()
            state = msgspec.structs.replace(state, cookies=session.jars[0].export(session.jar), origins=origins)
            if state != session.state:
                self.files.save(owner.login.name, identity, state)
        self.files.close()


def _headers(login: Login, answer: Any) -> dict[str, str]:
    if answer is None:
        return {}
    if isinstance(answer, Mapping) and all(isinstance(part, str) for pair in answer.items() for part in pair):
        return dict(answer)
    raise LoginBroken(
        f"The login {login.where} returned a value of the type {type(answer).__name__}: it must return nothing, or the "
        "headers to send as a dict of texts."
    )
