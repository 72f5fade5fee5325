"""What every pool of exits can do, and what an attempt gets from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from shoal.fetch.page import Identity, Page
from shoal.ledger.protocols import Ledger
from shoal.model.egress import EgressWait, Exit, PoolKind


class ExitIdentity(Identity, Protocol):
    """An exit, as one attempt uses it. The attempt reports what happened; a fetcher sends through it.

    `trial`: this is the one request that tries an exit whose ban is over.
    """

    exit: Exit
    trial: bool

    def record_success(self, host: str) -> None:
        """The host answered, and did not block: whatever the status, exit and host did what they should."""

    def record_block(self, host: str, why: str) -> None:
        """The host refused this exit: a 403, a challenge, a soft block. Counts at this host only."""

    def record_failure(self, why: str) -> None:
        """The way failed before the site was reached. Counts everywhere."""

    def should_repeat(self, page: Page) -> bool:
        """Whether this answer is only about what the request went out as, such as a spent token, and another one can
        be used at once: the request is then sent again. Bounded by the identity.
        """

    @property
    def recently_good(self) -> bool:
        """Whether its exit has succeeded for another attempt within the last minute: then a failure may be the item's
        own, and is charged.
        """


class ExitPool(Protocol):
    """A pool in this process. All methods run in the worker's event loop; `choose` is called for each attempt."""

    name: str
    kind: PoolKind

    async def start(self) -> None:
        """Read the exits. Raises UsageError for a pool that can never work, such as a file that does not exist."""

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> ExitIdentity:
        """The exit for an attempt at this host; one whose key is in `avoid` only if there is no other.

        `sticky`: attempts with the same text get the same exit while it is good, if the pool chooses so. Raises
        EgressUnavailable, with the reason and when it may end, when no exit can be used: never anything else. Takes
        microseconds.
        """

    def wait(self) -> EgressWait | None:
        """Why no exit can be used at any host now, with an empty stage; None when one can."""

    async def sync(self, ledger: Ledger, worker: str) -> None:
        """Report health to the ledger and learn what others reported. Called once per heartbeat interval, and soon
        after `needs_sync` became true. Raises LedgerError.
        """

    @property
    def needs_sync(self) -> bool:
        """Whether others should know at once, because an exit was banned."""

    async def close(self) -> None: ...
