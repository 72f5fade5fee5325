"""What tests of egress share."""

from __future__ import annotations

import pytest

from shoal.model import redaction


@pytest.fixture(autouse=True)
def no_secrets_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords of these tests must not be redacted in others."""
    monkeypatch.setattr(redaction, "_sent", [])
    monkeypatch.setattr(redaction, "_sent_by_beginning", {})
