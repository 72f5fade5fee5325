"""Addresses of ledgers: every form that libpq reads is a PostgreSQL, a path is a file, the rest is refused."""

from pathlib import Path

import pytest

from shoal.config import Settings, load_settings
from shoal.errors import BadLedgerUrl, InvalidSetting
from shoal.model.ledger_url import PostgresAddress, ledger_address, secrets_of, split_connect_timeout, without_password


def load(folder: Path, ledger: str, **environ: str) -> Settings:
    return load_settings({}, environ={"SHOAL_LEDGER": ledger, **environ}, folder=folder)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("postgresql:///shoal", "postgresql:///shoal"),
        ("postgres://h/db", "postgresql://h/db"),
        ("POSTGRESQL://h/db", "postgresql://h/db"),
        ("postgresql://me:p@ss@h/db", "postgresql://me:p%40ss@h/db"),
        ("postgresql://a:1,b:2/db?target_session_attrs=primary", None),
        ("postgresql://a,b:2/db", None),
        ("postgresql://[::1]:5/db", None),
        ("postgresql://%2Frun%2Fpg/db", "postgresql:///db?host=/run/pg"),
        ("postgresql://me@:5/db?host=/run/pg", "postgresql://me@/db?host=/run/pg&port=5"),
        ("postgresql://h/db?user=me&password=a%20b", "postgresql://me:a%20b@h/db"),
        ("host=h dbname=db", "postgresql://h/db"),
        ("dbname = db host = /run/pg port=5 user=me", "postgresql://me@/db?host=/run/pg&port=5"),
        (r"host=h dbname='my db' password='a \'b\' c'", "postgresql://:a%20%27b%27%20c@h/my%20db"),
        ("host=a,b port=1,2 dbname=db sslmode=require", "postgresql://a:1,b:2/db?sslmode=require"),
    ],
)
def test_what_libpq_reads_is_a_postgresql(text: str, url: str | None) -> None:
    found = ledger_address(text)
    assert isinstance(found, PostgresAddress)
    assert found.url == (url or text)
    again = ledger_address(found.url)
    assert isinstance(again, PostgresAddress)
    assert again.url == found.url, "the one spelling is read as itself"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("ledger.db", "ledger.db"),
        ("a folder/ledger.db", "a folder/ledger.db"),
        ("./a=b.db", "a=b.db"),
        ("./file:x.db", "file:x.db"),
        ("/data/host=1.db", "/data/host=1.db"),
        ("sqlite:///data/l.db", "/data/l.db"),
        ("C:\\ledger.db", "C:\\ledger.db"),
    ],
)
def test_a_path_is_a_file(text: str, file: str) -> None:
    assert ledger_address(text) == Path(file)


@pytest.mark.parametrize(
    "text",
    [
        "file:x.db",
        "sqlite:x.db",
        "sqlite://x.db",
        ":memory:",
        "postgresql:/shoal",
        "postgresql:",
        "postgresql//me:s3cret@h/db",
        "postgres:me:s3cret@h/db",
        "me:s3cret@h/db",
        "mysql://me:s3cret@h/db",
        "a=b.db",
        "host=h nonsense=1 password=s3cret",
        "host=h password='s3cret",
        "postgresql://me:s3cret@h:port/db",
        "postgresql://me:s3c/ret@h/db",
        'postgresql://me:s3c"ret x@h:port/db',
        "postgresql://${HOST}/db",
        "postgresql://a,b/db?port=1,2,3",
        "postgresql://h/db?channel_binding=require",
        "host=h hostaddr=10.0.0.1",
        "postgresql://h/db?connect_timeout=soon",
    ],
)
def test_the_rest_is_refused_in_one_sentence_without_its_password(text: str) -> None:
    with pytest.raises(BadLedgerUrl) as caught:
        ledger_address(text)
    assert "s3c" not in str(caught.value)
    assert caught.value.message.endswith(".")
    assert caught.value.exit_code == 2


def test_what_an_address_leaves_out_comes_from_the_variables_of_libpq(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PGHOST=db.internal\nPGPORT=6543\nPGPASSFILE=/run/pgpass\n")
    ledger = load(tmp_path, "postgresql:///shoal", PGUSER="me").ledger
    assert ledger == "postgresql://me@db.internal:6543/shoal?passfile=/run/pgpass"
    own = load(tmp_path, "postgresql://you@elsewhere:1/shoal?passfile=/mine", PGUSER="me").ledger
    assert own == "postgresql://you@elsewhere:1/shoal?passfile=/mine"
    assert load(tmp_path, "host=h", PGDATABASE="shoal").ledger == "postgresql://h:6543/shoal?passfile=/run/pgpass"


def test_an_address_whose_variable_was_empty_names_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="names neither a host nor a database"):
        load(tmp_path, "postgresql://")
    assert load(tmp_path, "postgresql://", PGHOST="h", PGDATABASE="db").ledger == "postgresql://h/db"


def test_a_service(tmp_path: Path) -> None:
    (tmp_path / "services").write_text(
        "[prod]\nhost=db\nport=6543\ndbname=shoal\nuser=me\npassword=pa%ss\nsslmode=require\n"
    )
    by_address = load(tmp_path, "postgresql://?service=prod", PGSERVICEFILE="services")
    assert by_address.ledger == "postgresql://me:pa%25ss@db:6543/shoal?sslmode=require"
    assert "pa%ss" in by_address.secrets()
    assert load(tmp_path, "postgresql:///mine", PGSERVICE="prod", PGSERVICEFILE="services").ledger == (
        "postgresql://me:pa%25ss@db:6543/mine?sslmode=require"
    )
    with pytest.raises(InvalidSetting, match="has no service 'none'"):
        load(tmp_path, "service=none", PGSERVICEFILE="services")
    with pytest.raises(InvalidSetting, match="missing: No such file"):
        load(tmp_path, "service=prod", PGSERVICEFILE="missing")


def test_passwords_are_known_and_left_out_of_what_is_pasted() -> None:
    pairs = "host=h dbname=db user=me password='p w' sslpassword=other"
    assert set(secrets_of(pairs)) == {"p w", "p%20w", "other"}
    assert without_password(pairs) == "postgresql://me@h/db"
    assert without_password("a.db") == "a.db"


def test_a_login_may_take_as_long_as_the_address_says() -> None:
    assert split_connect_timeout("postgresql://h/db?connect_timeout=30&sslmode=require") == (
        "postgresql://h/db?sslmode=require",
        30.0,
    )
    assert split_connect_timeout("postgresql://h/db") == ("postgresql://h/db", None)


@pytest.mark.parametrize("name", ["store", "log_dir", "member_output"])
def test_an_address_is_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSetting, match="on this machine"):
        load_settings({name: "s3://bucket/pages"}, environ={}, folder=tmp_path)
