"""Sessions at sites that all workers share."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import InvalidSetting
from shoal.ledger.coordination import MAX_SESSION_BYTES
from shoal.testing.harness import LedgerHarness

# Encrypted content has every byte.
CONTENT = bytes(range(256))


class SessionsConformance:
    async def test_a_session_is_read_as_it_was_stored(self, harness: LedgerHarness) -> None:
        sessions = harness.ledger.sessions
        assert await sessions.get("shop", "direct") is None
        assert await sessions.put("shop", "direct", CONTENT, before=0) == 1
        second = await harness.open_again()
        try:
            found = await second.sessions.get("shop", "direct")
        finally:
            await second.close()
        assert found is not None
        assert (found.version, found.content) == (1, CONTENT)
        assert 0 <= found.age < 60
        assert await sessions.get("shop", "another") is None
        assert await sessions.get("another", "direct") is None

    async def test_only_who_has_seen_the_newest_session_replaces_it(self, harness: LedgerHarness) -> None:
        sessions = harness.ledger.sessions
        assert await sessions.put("shop", "direct", b"first", before=0) == 1
        assert await sessions.put("shop", "direct", b"late", before=0) is None
        assert await sessions.put("shop", "direct", b"late", before=2) is None
        assert await sessions.put("shop", "direct", b"second", before=1) == 2
        assert await sessions.put("shop", "direct", b"late", before=1) is None
        found = await sessions.get("shop", "direct")
        assert found is not None
        assert (found.version, found.content) == (2, b"second")

    async def test_one_of_many_stores_a_session(self, harness: LedgerHarness) -> None:
        second = await harness.open_again()
        try:
            for before in (0, 1):
                answers = await asyncio.gather(
                    *(
                        ledger.sessions.put("shop", "direct", b"x", before=before)
                        for ledger in [harness.ledger, second] * 4
                    )
                )
                assert sorted(answers, key=str) == [before + 1] + [None] * 7
        finally:
            await second.close()

    async def test_a_removed_session_is_gone_and_its_version_does_not_come_back(self, harness: LedgerHarness) -> None:
        sessions = harness.ledger.sessions
        assert not await sessions.remove("shop", "direct")
        assert await sessions.put("shop", "direct", b"first", before=0) == 1
        assert await sessions.remove("shop", "direct")
        assert not await sessions.remove("shop", "direct")
        assert await sessions.get("shop", "direct") is None
        assert await sessions.put("shop", "direct", b"late", before=1) is None
        version = await sessions.put("shop", "direct", b"second", before=0)
        assert version is not None
        assert version > 1
        found = await sessions.get("shop", "direct")
        assert found is not None
        assert (found.version, found.content) == (version, b"second")

    async def test_sessions_are_listed_without_their_content(self, harness: LedgerHarness) -> None:
        sessions = harness.ledger.sessions
        for scraper, identity in (("shop", "b"), ("shop", "a"), ("other", "a"), ("shop", "c")):
            assert await sessions.put(scraper, identity, CONTENT, before=0) == 1
        await sessions.remove("shop", "c")
        assert [(one.scraper, one.identity, one.version) for one in await sessions.list()] == [
            ("other", "a", 1),
            ("shop", "a", 1),
            ("shop", "b", 1),
        ]
        found = await sessions.list(scraper="shop", limit=1)
        assert [(one.identity, 0 <= one.age < 60) for one in found] == [("a", True)]

    async def test_a_session_has_a_bounded_size(self, harness: LedgerHarness) -> None:
        with pytest.raises(InvalidSetting, match="are allowed"):
            await harness.ledger.sessions.put("shop", "direct", bytes(MAX_SESSION_BYTES + 1), before=0)
