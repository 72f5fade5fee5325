"""Every error that Shoal raises on purpose.

ShoalError
├── UsageError                 the caller's mistake; nothing was changed
│   ├── InvalidItem            an item that cannot be enqueued (URL, key, payload, delay ...)
│   ├── InvalidRecord          a result that cannot be stored
│   ├── InvalidSetting         a limit, a delay, a batch size out of range
│   ├── InvalidScraper         the author's code cannot be loaded, or asks for what Shoal cannot give
│   ├── UnknownStage           the run has no such stage
│   ├── ClientMissing          what a client needs, such as a browser, is not on this machine or does not start
│   └── WrongState             the run is finished, cancelled ...: the operation makes no sense now
├── NotAllowed                 another process holds it, such as a run in single mode
├── NotFound                   no such run, item, lane, worker
├── AttemptEnded               how an attempt ended; raised by authors and by the fetcher, never seen by a user
│   ├── Permanent              there is nothing to fetch: dead at once
│   │   ├── Unauthorized       a 401; while a login exists, the session has ended
│   │   ├── PageMissing        a 404 or a 410
│   │   └── RequestRefused     a 400, a 416 or a 422
│   ├── Skipped                it is not wanted, such as a page that robots.txt forbids: ends without being a failure
│   ├── Transient              may succeed later: retried
│   │   └── ExitFailed         the proxy, not the site, failed: retried through another exit
│   ├── Throttled              the site asks to wait: its lane is blocked until then, no attempt is charged
│   ├── EgressUnavailable      no exit of the pool can be used now: the item waits, no attempt is charged
│   │   └── LoginFailed        the login fails now: the item waits, no attempt is charged
│   ├── Blocked                the site refuses us: retried, with another identity where there is one
│   └── LoggedOut              the session has ended: logged in again, then retried
├── Dropped                    an on_record hook leaves a record out
├── OutputFailed               standard output cannot be written
├── StoreFailed                the page store cannot be written: a fault of this machine, not of the page
├── SinkFailed                 a sink does not take records now; they stay in the ledger, and it is tried again
├── StorageUnavailable         an object store gives no answer, or none that can be used, also after retries
├── SecretMissing              a request needs a secret that this process was not given
├── LoginBroken                a login can never work: its code is wrong, or the key of shared sessions
├── FeedUnavailable            the broker or folder that messages come from does not answer
├── WorkerLost                 this worker was declared dead; register again
└── LedgerError                the database
    ├── BadLedgerUrl           the address is not valid
    ├── LedgerUnreachable      there is no answer, or the password is wrong
    │   └── LedgerUnavailable  there is no answer now; the server may be restarting
    ├── LedgerNotMigrated      the schema is missing or older than this code
    ├── LedgerTooNew           the schema is newer than this code
    ├── LedgerReadOnly         the file or the server refuses writes
    ├── LedgerFull             no space left
    └── LedgerCorrupt          stored data cannot be read or violates a rule: it was damaged

Each has a remedy, one sentence that says what to do next. `exit_code` is the exit code of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Exit codes that no error has: a hung process (EX_TEMPFAIL: worth another try), a time-out, an interrupt.
EXIT_HUNG = 75
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130


class ShoalError(Exception):
    """Base of all errors that Shoal raises."""

    remedy = "Run the command again with -v and report what it printed."
    exit_code = 70

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


class UsageError(ShoalError):
    remedy = "Correct the call and try again; nothing was changed."
    exit_code = 2


class InvalidItem(UsageError):
    remedy = "Correct or drop the item; nothing was stored for it."


class InvalidRecord(UsageError):
    remedy = "Yield JSON-like values: str, int, float, bool, None, list, dict, dates, dataclasses, Structs."


class InvalidSetting(UsageError):
    remedy = "Choose a valid value; nothing was changed."


class InvalidScraper(UsageError):
    remedy = "Correct the scraper's code; nothing was started."


class UnknownStage(UsageError):
    remedy = "Name one of the stages the run was created with."


class WrongState(UsageError):
    remedy = "See `shoal db show` for the run's state."


class CheckFailed(UsageError):
    """A preflight function or a start hook of a scraper found a problem."""

    remedy = "Correct it and start the pool again; nothing was started."


class NotAllowed(ShoalError):
    remedy = "Wait until it is free, or join the run with `shoal worker`."
    exit_code = 4


class NotFound(ShoalError):
    remedy = "Check the name; `shoal db show` lists the runs."
    exit_code = 5


class WorkerLost(ShoalError):
    remedy = "Register again with a new worker id; the leases of the old one were released."


class OutputFailed(ShoalError):
    remedy = "The command was executed; only its output was lost. Free disk space, or redirect the output."
    exit_code = 1


class ClientMissing(UsageError):
    """What a client needs is not on this machine, or does not start: no item of its stages can be processed here."""

    remedy = "Install it, and start the worker again. Nothing is lost."


class StoreFailed(ShoalError):
    remedy = "Free disk space, or choose another folder with --store. Nothing is lost; unfinished items run again."
    exit_code = 3


class SinkFailed(ShoalError):
    """`retry_after`: seconds in which the sink does not want to be asked again."""

    remedy = "Its records stay in the ledger, and it is tried again."
    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class StorageUnavailable(ShoalError):
    remedy = "Check the endpoint and the network, and try again; nothing was changed."
    exit_code = 3


class SecretMissing(ShoalError):
    remedy = "Set the environment variable, or put it into .env, and resume the run. Nothing is lost."
    exit_code = 2


class LoginBroken(ShoalError):
    remedy = "Correct it, and resume the run. Nothing is lost."
    exit_code = 2


class FeedUnavailable(ShoalError):
    remedy = "Start it, or correct the address; unacknowledged messages are delivered again."
    exit_code = 3


class AttemptEnded(ShoalError):
    """How an attempt ended: raised by authors, and by the fetcher for a bad response.

    `retry_after`: the minimum delay of a retry, in seconds. `detail`: what Shoal's own stages store with the attempt.
    """

    remedy = ""
    detail: Mapping[str, Any] = {}

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or type(self).__name__)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


class Permanent(AttemptEnded):
    """There is nothing to fetch, now or later."""


class Unauthorized(Permanent):
    """The site answers 401: it asks for a login, or the session has ended."""


class PageMissing(Permanent):
    """The site answers 404 or 410: it has no such page."""


class RequestRefused(Permanent):
    """The site answers 400, 416 or 422: what it was asked for does not suit it, such as a page behind the last one."""


class Skipped(AttemptEnded):
    """The item is not wanted: it ends as skipped, which is neither a success nor a failure."""


class Transient(AttemptEnded):
    """The attempt failed and may succeed later."""


class Throttled(AttemptEnded):
    """The site asks to wait; `retry_after` is how many seconds, if it said so.

    `host`: the host that asked, if it may differ from the item's own.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None, host: str | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.host = host


class Blocked(AttemptEnded):
    """The site refuses us: a 403, a captcha, an empty page."""


class ExitFailed(Transient):
    """The way to the site failed: its proxy refused, closed the connection, wants other credentials, or is silent."""


class EgressUnavailable(AttemptEnded):
    """No exit of a pool can be used now. The item waits for `retry_after` seconds, and never goes out directly."""


class LoginFailed(EgressUnavailable):
    """The login of the identity fails. The item waits for `retry_after` seconds, uncharged."""


class LoggedOut(AttemptEnded):
    """The site no longer knows the session: the login runs again, and the item is retried."""


class Dropped(ShoalError):
    """Raised by an on_record hook: the record is left out, counted, and the message says why."""

    remedy = "Raise it in an on_record hook; a handler leaves a record out by not yielding it."

    def __init__(self, message: str = "no reason given") -> None:
        super().__init__(message)


class LedgerError(ShoalError):
    remedy = "Check the ledger with `shoal db check --deep`."
    exit_code = 3


class BadLedgerUrl(LedgerError):
    remedy = (
        "Use a path such as .shoal/ledger.db, sqlite:///absolute/path.db "
        "or postgresql://user@host:5432/database (the password by PGPASSWORD)."
    )
    exit_code = 2


class LedgerUnreachable(LedgerError):
    remedy = "Check that the database runs, the address is right and the password is valid."


class LedgerUnavailable(LedgerUnreachable):
    """There is no answer now, such as while a server restarts."""


class LedgerNotMigrated(LedgerError):
    remedy = "Run `shoal db migrate`."


class LedgerTooNew(LedgerError):
    remedy = "Upgrade Shoal on this machine, or point it at another ledger."


class LedgerReadOnly(LedgerError):
    remedy = "Give this user write access to the file and its folder, or use another ledger."


class LedgerFull(LedgerError):
    remedy = "Free disk space. Acknowledged writes are safe; this write was not made."


class LedgerCorrupt(LedgerError):
    remedy = "Stop the workers, copy the damaged database, and restore the last backup."
