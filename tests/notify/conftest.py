"""Ledgers with a controlled clock, and sinks for alerts."""

from collections.abc import Iterator

import pytest

from tests.ledger.conftest import either_harness, place, postgres_template
from tests.support.alert_sinks import Mailbox, Webhook

__all__ = ["either_harness", "place", "postgres_template"]


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as webhook:
        yield webhook
