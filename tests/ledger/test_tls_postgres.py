"""TLS on the way to PostgreSQL: what the address demands is demanded, and a failure says what to do. S0.15"""

from __future__ import annotations

import ssl
from pathlib import Path

import asyncpg
import pytest

from shoal.config import Settings, load_settings
from shoal.errors import LedgerError, LedgerUnreachable
from shoal.ledger.postgres.errors import tls_error
from shoal.wiring import connect_ledger


async def refusal(url: str) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        await connect_ledger(Settings(ledger=url, patience=1))
    return caught.value


async def test_a_server_without_tls_is_refused_when_tls_is_demanded(postgres_url: str) -> None:
    """The servers of the tests have TLS off: were sslmode not handed on, this would connect."""
    error = await refusal(f"{postgres_url}?sslmode=require")
    assert isinstance(error, LedgerUnreachable)
    assert "does not support TLS" in error.message
    assert "sslmode" in error.remedy
    await (await connect_ledger(Settings(ledger=f"{postgres_url}?sslmode=prefer"))).close()


@pytest.mark.parametrize("query", ["sslmode=verify-full", "sslmode=verify-full&sslrootcert=/no/such.pem"])
async def test_a_certificate_authority_that_is_not_there(
    postgres_url: str, query: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    error = await refusal(f"{postgres_url}?{query}")
    assert "certificate file of its authority does not exist" in error.message
    assert "sslrootcert=FILE" in error.remedy


def test_a_server_that_is_not_who_it_says() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed")
    told = tls_error(error, "postgresql://h/db", "postgresql://h/db")
    assert told is not None
    assert "is not trusted" in told.message
    assert tls_error(ConnectionRefusedError(), "postgresql://h/db", "postgresql://h/db") is None
    assert tls_error(asyncpg.PostgresConnectionError(), "postgresql://h/db", "postgresql://h/db") is None


def test_tls_by_variables(tmp_path: Path) -> None:
    """In the environment or in `.env`, beside parts and beside an address; what the address says itself wins."""
    (tmp_path / ".env").write_text("PGSSLMODE=verify-full\nPGSSLROOTCERT=/etc/rds ca.pem\n")

    def ledger(**variables: str) -> str:
        return load_settings({}, folder=tmp_path, environ=variables).ledger

    wanted = "sslmode=verify-full&sslrootcert=/etc/rds%20ca.pem"
    assert ledger(DB_HOST="db", DB_NAME="shoal", DB_USER="me") == f"postgresql://me@db/shoal?{wanted}"
    assert ledger(SHOAL_LEDGER="postgresql://me@db/shoal?connect_timeout=5").endswith(f"?connect_timeout=5&{wanted}")
    own = "postgresql://me@db/shoal?sslmode=disable&sslrootcert=/mine.pem"
    assert ledger(SHOAL_LEDGER=own) == own
    assert ledger(SHOAL_LEDGER="a.db") == "a.db"
