"""What requests go out as: pools of exits (proxies, API tokens, Tor circuits), their health, and their budgets.

The ledger knows an exit by a key, which is a fingerprint, and by a label without secrets.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Literal

import msgspec

PoolKind = Literal["proxies", "tokens", "tor"]
ProxyScheme = Literal["http", "https", "socks5", "socks5h"]
# How many exits one item may try, without being charged, before it counts as blocked.
MAX_SWITCHES = 3
# Why a token is banned that the site has refused.
BAD_TOKEN = "401: bad credentials"


class ProxyAddress(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A proxy, with its credentials. Host names of sites are always resolved by the proxy, never by this machine."""

    scheme: ProxyScheme
    host: str
    port: int
    username: str = ""
    password: str = ""

    @property
    def is_socks(self) -> bool:
        return self.scheme.startswith("socks")

    @property
    def address(self) -> str:
        """`socks5://host:port`, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"ProxyAddress({self.address})"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """One way out of a pool. `token`: the value of an API token; only its key and label leave the process."""

    pool: str
    key: str
    label: str
    proxy: ProxyAddress | None = None
    token: str = ""

    @property
    def name(self) -> str:
        """How attempts and logs name it."""
        return f"{self.pool} {self.label}"

    def __repr__(self) -> str:
        return f"Exit({self.name})"


def exit_key(*parts: str) -> str:
    """The fingerprint by which the ledger knows an exit: 12 hexadecimal digits.

    Of a proxy these are scheme, host, port and user name, without the password; of a token its value.
    """
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=6, person=b"shoal exit").hexdigest()


class ExitState(StrEnum):
    """GOOD: used. BANNED: it failed too often, or an operator banned it. RESTING: an operator rests it. TRIAL: its ban
    is over; one worker tries it with one request.
    """

    GOOD = "good"
    BANNED = "banned"
    RESTING = "resting"
    TRIAL = "trial"


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """When exits of a pool are banned.

    `ban_after` failures of the way in a row ban an exit everywhere for `ban_for` seconds; `block_after` blocks in a row
    by a host keep it from this host for `block_for` seconds.
    """

    ban_after: int = 10
    ban_for: float = 3_600.0
    block_after: int = 3
    block_for: float = 600.0


class ExitSpec(msgspec.Struct, frozen=True):
    """An exit as the ledger gets to know it."""

    key: str
    label: str


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a host answered to requests through an exit. `blocks_in_row`: blocks since the last page that was no block.

    `succeeded`: it answered at all and did not block, whatever the status.
    """

    host: str
    succeeded: int = 0
    blocked: int = 0
    blocks_in_row: int = 0
    error: str = ""


class ExitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an exit in this worker since its last report.

    `failed`: failures of the way (refused, reset, 407, time-out in CONNECT); `failures_in_row`: those since the last
    success. `trial`: the report of a trial after a ban.
    """

    key: str
    succeeded: int = 0
    failed: int = 0
    failures_in_row: int = 0
    error: str = ""
    trial: bool = False
    hosts: tuple[HostReport, ...] = ()

    @property
    def answered(self) -> int:
        """How often a host answered, with a block or without: so often the way worked."""
        return self.succeeded + sum(host.succeeded + host.blocked for host in self.hosts)


class ExitHealth(msgspec.Struct, frozen=True, kw_only=True):
    """An exit's state that workers need. `until`: seconds until it changes; None: until an operator changes it.

    In the state TRIAL these are the seconds that another worker has for its trial; 0: nobody tries it.
    """

    key: str
    state: ExitState
    until: float | None = None
    why: str = ""


class ExitBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A host that blocks an exit, for so many seconds more; 0: no longer."""

    key: str
    host: str
    seconds: float


class PoolChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in a pool. `at`: the time of the last change, to ask from there the next time. `members`: the ids of
    the workers that use the pool, sorted.
    """

    at: float
    exits: tuple[ExitHealth, ...] = ()
    blocks: tuple[ExitBlock, ...] = ()
    members: tuple[str, ...] = ()


class HostHealth(msgspec.Struct, frozen=True, kw_only=True):
    """An exit at one host. `blocked_seconds`: it is kept from this host for so long; 0: it is not."""

    host: str
    succeeded: int
    blocked: int
    blocks_in_row: int
    blocked_seconds: float = 0.0
    error: str = ""


class ExitView(msgspec.Struct, frozen=True, kw_only=True):
    """An exit in the ledger. `until`, `why` as in `ExitHealth`; `by`: the operator who set its state, or empty.

    `used_seconds`: since its last report, None before the first. `listed`: a pool that runs has it in its list.
    """

    pool: str
    kind: PoolKind
    key: str
    label: str
    state: ExitState
    until: float | None = None
    why: str = ""
    by: str = ""
    succeeded: int = 0
    failed: int = 0
    failures_in_row: int = 0
    error: str = ""
    used_seconds: float | None = None
    listed: bool = True
    hosts: tuple[HostHealth, ...] = ()
    budgets: tuple[BudgetView, ...] = ()


class BlockedCell(msgspec.Struct, frozen=True, kw_only=True):
    """An exit at a host that has blocked it. `until`: seconds for which it is still blocked there, or None."""

    host: str
    blocked: int
    succeeded: int
    until: float | None


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """An exit with the hosts that have blocked it."""

    key: str
    label: str
    state: ExitState
    cells: tuple[BlockedCell, ...]


class EgressMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Exits of a pool and the hosts that block them, the most blocked first. `complete`: none was left out."""

    pool: str
    hosts: tuple[str, ...]
    exits: tuple[MatrixRow, ...]
    complete: bool


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in the ledger: its exits by state (only listed ones), and how many workers use it.

    `first_back`: seconds until the first banned or resting exit comes back. `budgets`: summed over its exits that
    are neither banned nor resting, by resource; `reset_seconds` until all are full again.
    """

    pool: str
    kind: PoolKind
    exits: int = 0
    good: int = 0
    banned: int = 0
    resting: int = 0
    trial: int = 0
    members: int = 0
    first_back: float | None = None
    budgets: tuple[BudgetView, ...] = ()


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """A budget of calls of one kind (`resource`). `left` includes what workers have taken ahead and not yet spent;
    `free` does not.

    `reset_seconds`: until it is full again; None when it is full. `from_site`: the site told these numbers. `resting`:
    the site asked for a pause, which ends after `reset_seconds`. `per_minute`: calls granted per minute of late; None
    when none were. `empty_in_seconds`: when it runs out at this pace; None when it is full again before that.
    """

    resource: str
    capacity: int
    left: int
    free: int = 0
    reset_seconds: float | None = None
    from_site: bool = False
    resting: bool = False
    per_minute: float | None = None
    empty_in_seconds: float | None = None


class BudgetPolicy(msgspec.Struct, frozen=True):
    """So many calls in each window of so many seconds."""

    calls: int
    seconds: float


class BudgetKey(msgspec.Struct, frozen=True):
    """Which budget: of an exit (`key`) and a kind of call. An empty resource stands for all of the exit."""

    pool: str
    key: str
    resource: str


class BudgetGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that a worker may make within `seconds`; with 0 calls, `seconds` until it is worth asking again.

    `left`: what others can still take; None when nobody has said how large the budget is. `at`: the ledger's clock.
    `resting`: there are no calls because the site asked for a pause.
    """

    calls: int = 0
    seconds: float = 0.0
    left: int | None = None
    at: float = 0.0
    resting: bool = False


class BudgetStop(msgspec.Struct, frozen=True, kw_only=True):
    """No call of this kind is accepted for so many seconds, as the site said. An empty resource: none of the exit."""

    key: str
    resource: str
    seconds: float


class GrantUse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a grant. `made`: no more calls of it were made, or ever will be; the others return to the budget.

    `answered`: for each call that was made, when its answer was there, by the ledger's clock and rather too late; 0 for
    the call whose answer is reported with it. None: some calls have no answer yet.
    """

    grant: int
    made: int
    answered: tuple[float, ...] | None = None


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to take ahead, to be made within at most so many seconds. `grant`: a random id of the caller's.

    `policy`: None when nobody has said how large the budget is.
    """

    grant: int
    calls: int
    seconds: float
    policy: BudgetPolicy | None = None


class SiteBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What a site said about a budget in a response. None: it did not say. `retry_after`: it asked to wait so long.

    The reset is at most `reset_slack` seconds earlier than `reset_seconds` says, and never later.
    """

    remaining: int | None = None
    limit: int | None = None
    reset_seconds: float | None = None
    reset_slack: float = 0.0
    retry_after: float | None = None
    resource: str | None = None


class BudgetCorrection(msgspec.Struct, frozen=True, kw_only=True):
    """What a site said in the response to a request, in times of the ledger's clock.

    `sent_at`: the request left after this. The window ends between `reset_from` and `reset_at`. `rests_until`: the site
    asked for a pause until then.
    """

    sent_at: float
    remaining: int | None = None
    limit: int | None = None
    reset_at: float | None = None
    reset_from: float | None = None
    rests_until: float | None = None


class SharedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that all workers use as one identity. `content`: encrypted by them. `age`: seconds since it began."""

    version: int
    age: float
    content: bytes


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the ledger. `age`: seconds since it began."""

    scraper: str
    identity: str
    version: int
    age: float


class EgressWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why items of a stage wait for egress, as a worker reports it: a sentence without a full stop.

    `since`: for so many seconds. `until`: seconds until it may end, if that is known.
    """

    stage: str
    pool: str
    why: str
    since: float = 0.0
    until: float | None = None
