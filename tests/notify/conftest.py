"""Ledgers with a clock to move, projects to type commands in, and people who get messages."""

from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import either, fleet, migrated_postgres, migrated_template, project
from tests.ledger.conftest import either_lab, place, postgres_template
from tests.notify.sinks import Mailbox, Webhook

__all__ = [
    "either",
    "either_lab",
    "fleet",
    "migrated_postgres",
    "migrated_template",
    "place",
    "postgres_template",
    "project",
]


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as webhook:
        yield webhook
