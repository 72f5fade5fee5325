"""A worker's share of a budget: calls that it has taken ahead, has made, and gives back. Pure rules.

All times are seconds of one monotonic clock, passed as `now`; `LedgerTime` has them in the ledger's clock.
"""

from __future__ import annotations

import math

from shoal.model.egress import BudgetCorrection, BudgetGrant, BudgetPolicy, GrantRequest, GrantUse, SiteBudget

# A share is enough for so many seconds, and for more of them the more workers there are.
SHARE_SECONDS = 2.0
SECONDS_PER_MEMBER = 0.1
MAX_SHARE_SECONDS = 10.0
MIN_SHARE = 5
MAX_SHARE = 1_000
# A share may be used for so long, or for this part of the window.
LIFETIME_SECONDS = 30.0
LIFETIME_PART = 0.05
MIN_LIFETIME = 0.5
# The next share is asked for so long before this one is used up or has ended.
AHEAD_SECONDS = 0.5
# How fast the measured rate forgets.
_RATE_SECONDS = 2.0
# A budget that was not used for so long is given back.
IDLE_SECONDS = 10.0
# A call whose answer has not come so long after its share has ended: it failed, and nobody said so.
UNANSWERED_SECONDS = 60.0
_MAX_WORDS = 32

Settlement = tuple[tuple[GrantUse, ...], BudgetCorrection | None]


def share_size(rate: float, left: int | None, members: int, waiting: int = 0) -> int:
    """How many calls to take, given the calls per second of this worker, and how many wait for one.

    Never more than half of this worker's part of what is left, so that the last calls of a window are spread evenly.
    """
    seconds = min(MAX_SHARE_SECONDS, SHARE_SECONDS + SECONDS_PER_MEMBER * members)
    wanted = min(MAX_SHARE, max(MIN_SHARE, waiting, math.ceil(rate * seconds)))
    return wanted if left is None else max(1, min(wanted, left // (2 * max(1, members))))


def share_seconds(policy: BudgetPolicy | None) -> float:
    """How long a share may be used."""
    if policy is None:
        return LIFETIME_SECONDS
    return max(MIN_LIFETIME, min(LIFETIME_SECONDS, policy.seconds * LIFETIME_PART))


class LedgerTime:
    """The ledger's clock as this process knows it: a time of ours is between `earliest` and `latest` there."""

    def __init__(self) -> None:
        self._low = 0.0
        self._high = 0.0
        self._learned_at = -math.inf

    @property
    def is_known(self) -> bool:
        return self._learned_at > -math.inf

    def learn(self, asked: float, now: float, at: float) -> None:
        """The ledger's clock said `at` between the two times."""
        # A newer measurement replaces one that is more exact after a minute: clocks drift.
        if now - asked <= self._high - self._low or now - self._learned_at > 60.0:
            self._low, self._high, self._learned_at = at - now, at - asked, now

    def earliest(self, at: float) -> float:
        return at + self._low

    def latest(self, at: float) -> float:
        return at + self._high


class Call:
    """One call of a share. `is_counted`: the ledger was told the numbers that the site wrote after counting it."""

    __slots__ = ("answered_at", "is_counted", "said", "sent_at", "share")

    def __init__(self, share: Share | None, sent_at: float) -> None:
        self.share = share
        self.sent_at = sent_at
        self.answered_at: float | None = None
        self.said: SiteBudget | None = None
        self.is_counted = False


class Share:
    """A grant of the ledger. `ended`: no further call of it will be made."""

    __slots__ = ("calls", "ended", "grant", "made", "reported", "until")

    def __init__(self, grant: int, calls: int, until: float) -> None:
        self.grant = grant
        self.calls = calls
        self.until = until
        self.made: list[Call] = []
        self.ended = False
        self.reported = False

    def is_done(self, now: float) -> bool:
        return self.ended or len(self.made) >= self.calls or now >= self.until

    def is_answered(self, now: float) -> bool:
        """Whether all calls have their answers, or never will."""
        return now > self.until + UNANSWERED_SECONDS or all(call.answered_at is not None for call in self.made)


class SharedBudget:
    """What this worker has of one budget. `rests_until`: nothing can be taken before; `why`: for what reason.

    `waiting`: requests that wait for a call.
    """

    def __init__(self, policy: BudgetPolicy | None) -> None:
        self.policy = policy
        self.why = ""
        self.used_at = -math.inf
        self.waiting = 0
        self._rests_until = -math.inf
        self._stopped_until = -math.inf
        self._shares: list[Share] = []
        self._words: list[Call] = []
        self._untold: Settlement | None = None
        self._left = None if policy is None else policy.calls
        self._rate = 0.0
        self._rated_at = -math.inf
        self._asked: Share | None = None
        # The end of the window that the site told as a time of day, and between which of our times it must be.
        self._reset: tuple[float, float] | None = None

    @property
    def rests_until(self) -> float:
        return max(self._rests_until, self._stopped_until)

    def calls_left(self, now: float) -> int:
        return sum(share.calls - len(share.made) for share in self._shares if not share.is_done(now))

    def is_resting(self, now: float) -> bool:
        return self.rests_until > now

    def spend(self, now: float) -> Call | None:
        """One call of a share, which is about to be sent; None when there is none."""
        for share in self._shares:
            if not share.is_done(now):
                call = Call(share, now)
                share.made.append(call)
                self._rate = self.rate(now) + 1 / _RATE_SECONDS
                self._rated_at = self.used_at = now
                return call
        return None

    def rate(self, now: float) -> float:
        """Calls per second of late."""
        return self._rate * math.exp((self._rated_at - now) / _RATE_SECONDS) if self._rate else 0.0

    def needs_more(self, now: float) -> bool:
        """Whether the shares are used up soon, or end soon."""
        if self._asked is not None or self.is_resting(now):
            return False
        wanted = self.rate(now) * AHEAD_SECONDS
        # A slow worker rather waits a moment than hold two shares of what others want, too.
        ends = now + min(AHEAD_SECONDS, share_seconds(self.policy) / 2) if wanted > MIN_SHARE else now
        return self.calls_left(ends) <= wanted

    def ask(self, grant: int, members: int, now: float) -> GrantRequest:
        """The request for the next share; `receive` or `fail` follows."""
        self._asked = Share(grant, 0, now)
        calls = share_size(self.rate(now), self._left, members, self.waiting)
        return GrantRequest(grant=grant, calls=calls, seconds=share_seconds(self.policy), policy=self.policy)

    def receive(self, granted: BudgetGrant, now: float) -> None:
        """The answer to what was asked; the time that it gives counts from then."""
        share, self._asked = self._asked, None
        assert share is not None
        self._left = granted.left
        if granted.calls:
            share.calls, share.until = granted.calls, share.until + granted.seconds
            share.ended = now < self._stopped_until
            self._shares.append(share)
            self._rests_until = -math.inf
        else:
            self.rest(now + granted.seconds, "asked to pause" if granted.resting else "spent")

    def fail(self, until: float, why: str) -> None:
        """What was asked got no answer. If the ledger has granted it, it counts as made."""
        self._asked = None
        self.rest(until, why)

    def rest(self, until: float, why: str) -> None:
        """Take nothing before. Calls that were taken already may be made."""
        self._rests_until = until
        if until >= self._stopped_until:
            self.why = why

    def stop(self, until: float, why: str) -> None:
        """Make no call before: the site says so."""
        self._stopped_until, self.why = max(until, self._stopped_until), why
        self.end_shares()

    def answer(self, call: Call, said: SiteBudget | None, now: float) -> None:
        """The answer to a call is there, with what the site says about this budget."""
        if call.answered_at is not None:
            return
        call.answered_at = now
        if said is not None and (said.remaining is not None or said.limit is not None):
            call.said = said
            self._words.append(call)
            del self._words[:-_MAX_WORDS]

    def end_shares(self) -> None:
        """Give back what is not used."""
        for share in self._shares:
            share.ended = True

    def has_news(self, now: float) -> bool:
        """Whether the ledger should be told something."""
        return (
            bool(self._words)
            or self._untold is not None
            or any(share.is_done(now) and (share.is_answered(now) or not share.reported) for share in self._shares)
        )

    def settlement(self, time: LedgerTime, now: float) -> Settlement:
        """What to tell the ledger; the same again until `settled` says that it was told.

        The times of calls and the site's numbers belong together, so nobody may ask for another one meanwhile.
        """
        if self._untold is None:
            word = self._best_word(now)
            said = None if word is None else self._correction(word, time)
            if word is not None and said is not None and said.remaining is not None:
                word.is_counted = True
            used: list[GrantUse] = []
            for share in [share for share in self._shares if share.is_done(now)]:
                share.ended = True
                if share.is_answered(now):
                    self._shares.remove(share)
                    answered = tuple(
                        0.0 if call.is_counted else time.latest(call.answered_at or now) for call in share.made
                    )
                    used.append(GrantUse(grant=share.grant, made=len(share.made), answered=answered))
                elif not share.reported:
                    share.reported = True
                    used.append(GrantUse(grant=share.grant, made=len(share.made)))
            self._words.clear()
            self._untold = tuple(used), said
        return self._untold

    def settled(self) -> None:
        self._untold = None

    def _best_word(self, now: float) -> Call | None:
        """The newest numbers; of requests that were under way at the same time, those that leave the most.

        All of them are true. They differ in how many of our calls are certain to be in them. That nothing is left needs
        no such care, and must be told.
        """
        if not self._words:
            return None
        spent = [call for call in self._words if call.said is not None and call.said.remaining == 0]
        if spent and now < self._stopped_until:
            return max(spent, key=lambda call: call.sent_at)
        newest = max(self._words, key=lambda call: call.sent_at)
        answered = [call.answered_at for share in self._shares for call in share.made if call.answered_at is not None]

        def leaves(word: Call) -> float:
            if word.said is None or word.said.remaining is None:
                return -math.inf
            return word.said.remaining - sum(at > word.sent_at for at in answered)

        at_once = [word for word in self._words if (word.answered_at or 0.0) >= newest.sent_at]
        return max(at_once or [newest], key=leaves)

    def _correction(self, call: Call, time: LedgerTime) -> BudgetCorrection:
        said = call.said
        assert said is not None
        assert call.answered_at is not None
        reset_at = reset_from = None
        if said.reset_seconds is not None:
            # The site wrote its answer between these times.
            reset_at = time.latest(call.answered_at + said.reset_seconds)
            reset_from = time.earliest(call.sent_at + said.reset_seconds - said.reset_slack)
            if self._reset is not None and reset_from <= self._reset[1] and self._reset[0] <= reset_at:
                # The same window: all that was said about its end is true.
                reset_from, reset_at = max(reset_from, self._reset[0]), min(reset_at, self._reset[1])
            self._reset = reset_from, reset_at
        return BudgetCorrection(
            sent_at=time.earliest(call.sent_at),
            remaining=said.remaining,
            limit=said.limit,
            reset_at=reset_at,
            reset_from=reset_from,
        )
