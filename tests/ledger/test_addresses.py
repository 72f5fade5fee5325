"""A PostgreSQL named in every way that libpq knows is that PostgreSQL, and never a file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from shoal.config import load_settings
from shoal.errors import LedgerError, ShoalError
from shoal.ledger.postgres.ledger import PostgresLedger
from shoal.wiring import connect_ledger
from tests.support.server import free_port


class Server:
    """The parts of a test database's address."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.host = address.hostname or parse_qs(address.query)["host"][0]
        self.port = str(address.port or parse_qs(address.query)["port"][0])
        self.user = unquote(address.username or "")
        self.password = unquote(address.password or "")
        self.database = address.path[1:]
        self.login = {"PGUSER": self.user, "PGPASSWORD": self.password}


async def test_every_spelling_leads_to_the_database(postgres_url: str, tmp_path: Path) -> None:
    it = Server(postgres_url)
    where = {"PGHOST": it.host, "PGPORT": it.port}
    nobody = free_port()
    (tmp_path / "services").write_text(f"[prod]\nhost={it.host}\nport={it.port}\ndbname={it.database}\n")
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:{it.user}:{it.password}\n")
    passfile.chmod(0o600)
    spellings: list[tuple[str, dict[str, str]]] = [
        (f"postgresql:///{it.database}", where | it.login),
        ("postgresql://", where | it.login | {"PGDATABASE": it.database}),
        (f"postgres://{it.host}:{it.port}/{it.database}", it.login),
        (f"host={it.host} port={it.port} dbname={it.database} user={it.user} password='{it.password}'", {}),
        (f"dbname={it.database}", where | it.login),
        (f"postgresql://{it.host}:{nobody},{it.host}:{it.port}/{it.database}", it.login),
        ("service=prod", it.login | {"PGSERVICEFILE": "services"}),
        (f"postgresql://{it.user}@/{it.database}?passfile={passfile}&connect_timeout=5", where),
    ]
    for address, variables in spellings:
        settings = load_settings({"ledger": address}, environ=variables, folder=tmp_path)
        ledger = await connect_ledger(settings)
        try:
            assert isinstance(ledger, PostgresLedger), address
            assert await ledger.db.value("select current_database()") == it.database, address
        finally:
            await ledger.close()


@pytest.mark.parametrize(
    "address",
    ["postgresql://", "postgresql:/shoal", "postgresql:shoal", "file:x.db", "http://x/y.db", "a=b", "me:pw@host/db"],
)
async def test_what_looks_like_an_address_makes_no_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ({"SHOAL_LEDGER": address}, {}):
        if not given:
            (tmp_path / "shoal.toml").write_text(f'ledger = "{address}"\n')
        with pytest.raises(ShoalError) as caught:
            await connect_ledger(load_settings({}, environ=given, folder=tmp_path))
        assert caught.value.exit_code == 2
        assert "pw" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["shoal.toml"]


async def test_a_server_that_is_not_there_is_no_file_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(
        {"ledger": "postgresql:///shoal", "patience": "1"},
        environ={"PGHOST": "127.0.0.1", "PGPORT": str(free_port()), "PGPASSWORD": "s3cret"},
        folder=tmp_path,
    )
    with pytest.raises(LedgerError) as caught:
        await connect_ledger(settings)
    assert "127.0.0.1" in caught.value.message
    assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
