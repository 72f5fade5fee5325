"""Access: tokens and browser sessions of `shoal serve`."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from shoal.errors import InvalidSetting
from shoal.model.access import Role
from shoal.testing.harness import LedgerHarness

DAY = 86_400.0


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class AccessConformance:
    async def test_a_token_is_found_by_its_digest_alone(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        assert not await access.has_token()
        added = await access.add_token("grafana", Role.VIEWER, digest("a"), by="cli@here")
        assert added is not None
        assert (added.name, added.role, added.created_by, added.expires_at) == (
            "grafana",
            Role.VIEWER,
            "cli@here",
            None,
        )
        assert (added.used_at, added.expired) == (None, False)
        found = await access.find_token(digest("a"))
        assert found is not None
        assert (found.token_id, found.name, found.role) == (added.id, "grafana", Role.VIEWER)
        assert (found.expires_at, found.idle_seconds) == (None, None)
        assert await access.find_token(digest("b")) is None
        assert await access.tokens() == [added]
        assert await access.has_token()
        events = (await harness.ledger.reads.events()).rows
        assert [(event.actor, event.action, event.subject) for event in events] == [
            ("cli@here", "token.added", "grafana")
        ]

    async def test_a_name_is_given_once(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        second = await harness.open_again()
        answers = await asyncio.gather(
            *(
                ledger.access.add_token("ops", Role.OPERATOR, digest(f"{number}"))
                for number, ledger in enumerate([harness.ledger, second] * 3)
            )
        )
        assert sum(answer is not None for answer in answers) == 1
        assert len(await access.tokens()) == 1
        assert await access.remove_token("ops")
        assert not await access.remove_token("ops")
        assert await access.add_token("ops", Role.VIEWER, digest("new")) is not None

    async def test_a_token_expires_by_the_clock_of_the_ledger(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        added = await access.add_token("ops", Role.OPERATOR, digest("a"), seconds=DAY)
        assert added is not None
        assert added.expires_at is not None
        assert (added.expires_at - added.created_at).total_seconds() == pytest.approx(DAY, abs=1)
        started = await access.start_session(added.id, digest("s"), seconds=7 * DAY, idle_seconds=7 * DAY)
        assert started is not None
        assert started.expires_at == added.expires_at
        await harness.advance_clock(DAY + 1)
        assert await access.find_token(digest("a")) is None
        assert await access.find_session(digest("s")) is None
        assert await access.start_session(added.id, digest("t"), seconds=DAY, idle_seconds=DAY) is None
        assert not await access.has_token()
        assert [token.expired for token in await access.tokens()] == [True]

    async def test_a_session_ends_after_its_time_or_without_use(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        token = await access.add_token("ops", Role.OPERATOR, digest("a"))
        assert token is not None
        for name in ("used", "unused"):
            assert await access.start_session(token.id, digest(name), seconds=DAY, idle_seconds=3_600) is not None
        for _ in range(23):
            await harness.advance_clock(3_000)
            found = await access.find_session(digest("used"))
            assert found is not None
            assert (found.name, found.role) == ("ops", Role.OPERATOR)
            await access.record_use(token.id, digest("used"))
        assert await access.find_session(digest("unused")) is None
        await harness.advance_clock(3_000 * 6)
        await access.record_use(token.id, digest("used"))
        assert await access.find_session(digest("used")) is None
        assert await access.find_token(digest("a")) is not None

    async def test_use_is_recorded_once_a_minute(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        token = await access.add_token("ops", Role.OPERATOR, digest("a"))
        assert token is not None
        await access.record_use(token.id)
        first = (await access.tokens())[0].used_at
        assert first is not None
        await harness.advance_clock(30)
        await access.record_use(token.id)
        assert (await access.tokens())[0].used_at == first
        await harness.advance_clock(31)
        await access.record_use(token.id)
        later = (await access.tokens())[0].used_at
        assert later is not None
        assert (later - first).total_seconds() > 60

    async def test_removing_a_token_ends_its_sessions_for_every_process(self, harness: LedgerHarness) -> None:
        access, second = harness.ledger.access, (await harness.open_again()).access
        kept = await access.add_token("kept", Role.VIEWER, digest("k"))
        gone = await access.add_token("gone", Role.VIEWER, digest("g"))
        assert kept is not None
        assert gone is not None
        for token, name in ((kept, "1"), (gone, "2"), (gone, "3")):
            assert await access.start_session(token.id, digest(name), seconds=DAY, idle_seconds=DAY) is not None
        assert await second.find_session(digest("2")) is not None
        assert await access.remove_token("gone", by="cli@here")
        assert [await second.find_session(digest(name)) is None for name in "123"] == [False, True, True]
        assert await second.find_token(digest("g")) is None
        assert await second.start_session(gone.id, digest("4"), seconds=DAY, idle_seconds=DAY) is None

    async def test_a_session_can_be_ended(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        token = await access.add_token("ops", Role.OPERATOR, digest("a"))
        assert token is not None
        assert await access.start_session(token.id, digest("s"), seconds=DAY, idle_seconds=DAY, by="ops@1") is not None
        assert await access.end_session(digest("s"), by="ops@1")
        assert not await access.end_session(digest("s"))
        assert await access.find_session(digest("s")) is None
        actions = [event.action for event in (await harness.ledger.reads.events()).rows]
        assert actions == ["session.ended", "session.started", "token.added"]

    async def test_nonsense_is_refused(self, harness: LedgerHarness) -> None:
        access = harness.ledger.access
        with pytest.raises(InvalidSetting, match="32 bytes"):
            await access.add_token("ops", Role.VIEWER, b"short")
        for seconds in (0, -1, 1e12, float("nan")):
            with pytest.raises(InvalidSetting, match="valid for"):
                await access.add_token("ops", Role.VIEWER, digest("a"), seconds=seconds)
