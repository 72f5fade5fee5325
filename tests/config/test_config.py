"""Configuration: precedence of the sources, what is refused, and that no password is printed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import shoal
from shoal.config import NAMES, Origin, Settings, load_settings, redacted
from shoal.config.settings import SETTING_TYPES
from shoal.errors import InvalidSetting

SOURCES = ["pyproject.toml", "shoal.toml", ".env", "environment", "flag"]


def load(folder: Path, flags: Mapping[str, str | None] | None = None, **environ: str) -> Settings:
    return load_settings(flags or {}, environ=environ, folder=folder)


def refusal(folder: Path, flags: Mapping[str, str | None] | None = None, **environ: str) -> InvalidSetting:
    with pytest.raises(InvalidSetting) as caught:
        load(folder, flags, **environ)
    return caught.value


def test_defaults_need_nothing(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.ledger == ".shoal/ledger.db"
    assert set(settings.origins) == set(NAMES)
    assert set(settings.origins.values()) == {Origin("default")}


@pytest.mark.parametrize("highest", range(len(SOURCES)))
def test_the_higher_source_wins(tmp_path: Path, highest: int) -> None:
    """Every source up to `highest` gives another pool size; the last of them wins."""
    files = {
        "pyproject.toml": "[tool.shoal]\npool_size = 11\n",
        "shoal.toml": "pool_size = 12\n",
        ".env": "SHOAL_POOL_SIZE=13\n",
    }
    for place in SOURCES[: highest + 1]:
        if place in files:
            (tmp_path / place).write_text(files[place])
    environ = {"SHOAL_POOL_SIZE": "14"} if highest >= 3 else {}
    settings = load(tmp_path, {"pool_size": "15" if highest == 4 else None}, **environ)
    assert settings.pool_size == 11 + highest
    assert settings.origins["pool_size"].kind == SOURCES[highest]


def test_origins_name_the_source_to_correct(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("patience = 5\n")
    (tmp_path / ".env").write_text("SHOAL_BUSY_TIMEOUT=2\n")
    settings = load(tmp_path, {"ledger": "a.db", "pool_size": "2"}, SHOAL_COMMAND_TIMEOUT="3")
    named = {name: str(origin) for name, origin in settings.origins.items() if origin != Origin("default")}
    assert named == {
        "ledger": "--ledger",
        "pool_size": "--set pool_size",
        "patience": "patience in shoal.toml",
        "command_timeout": "SHOAL_COMMAND_TIMEOUT",
        "busy_timeout": "SHOAL_BUSY_TIMEOUT in .env",
    }


def test_settings_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        load(tmp_path).pool_size = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pool_size", "0"),
        ("pool_size", "101"),
        ("pool_size", "2.5"),
        ("pool_size", "many"),
        ("patience", "-1"),
        ("patience", "nan"),
        ("patience", "inf"),
        ("command_timeout", "0"),
        ("busy_timeout", "3601"),
        ("ledger", " "),
        ("ledger", "a\0b"),
        ("concurrency", "0"),
        ("concurrency", "10001"),
        ("batch_size", "10001"),
        ("lease", "0.5"),
        ("drain", "86401"),
        ("max_body", "1023"),
        ("max_body", "2147483649"),
        ("max_body", "9" * 5000),
        ("user_agent", "me\r\nX-Forged: 1"),
        ("user_agent", "m\xe9"),
        ("user_agent", "x" * 501),
        ("robots", "maybe"),
        ("robots", ""),
        ("max_dead", "101%"),
        ("max_dead", "-1"),
        ("max_dead", "0.5"),
        ("max_dead", "few"),
        ("store", "a\0b"),
        ("log_format", "xml"),
        ("log_level", "trace"),
        ("log_dir", "a\0b"),
    ],
)
def test_bad_values_name_their_origin_and_their_range(tmp_path: Path, name: str, value: str) -> None:
    error = refusal(tmp_path, {}, **{f"SHOAL_{name.upper()}": value})
    assert f"SHOAL_{name.upper()}" in error.message
    assert "it must be" in error.message
    assert error.exit_code == 2


def test_both_ends_of_every_range_are_allowed(tmp_path: Path) -> None:
    ranges = {name: bounds(kind) for name, kind in SETTING_TYPES.items() if bounds(kind)}
    assert len(ranges) > 20
    for name, ends in ranges.items():
        for end in ends:
            assert getattr(load(tmp_path, {name: f"{end:.10g}"}), name) == end


def bounds(kind: Any) -> tuple[Any, ...]:
    """The least and the greatest number that a type allows; nothing for other types."""
    info = msgspec.inspect.type_info(kind)
    info = info.type if isinstance(info, msgspec.inspect.Metadata) else info
    return (info.ge, info.le) if isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType) else ()


def test_the_error_has_the_whole_range(tmp_path: Path) -> None:
    error = refusal(tmp_path, SHOAL_MAX_BODY="12")
    assert error.message == (
        "max_body is '12' (from SHOAL_MAX_BODY); it must be a whole number of bytes from 1024 to 2147483648."
    )
    error = refusal(tmp_path, {"log_level": "loud"})
    assert error.message == "log_level is 'loud' (from --set log_level); it must be debug, info, warning or error."


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["true", "yes", "1", "on", "True", " ON "], True), (["false", "no", "0", "off", "FALSE"], False)],
)
def test_booleans_in_every_spelling(tmp_path: Path, texts: list[str], expected: bool) -> None:
    for text in texts:
        assert load(tmp_path, SHOAL_ROBOTS=text).robots is expected
    (tmp_path / "shoal.toml").write_text(f"robots = {str(expected).lower()}\n")
    assert load(tmp_path).robots is expected


@pytest.mark.parametrize("value", ["1.0", "2", "[true]", '"maybe"'])
def test_invalid_booleans(tmp_path: Path, value: str) -> None:
    (tmp_path / "shoal.toml").write_text(f"robots = {value}\n")
    assert "it must be true or false" in refusal(tmp_path).message


def test_choices_do_not_depend_on_case(tmp_path: Path) -> None:
    settings = load(tmp_path, SHOAL_LOG_FORMAT="JSON", SHOAL_LOG_LEVEL=" Debug ")
    assert (settings.log_format, settings.log_level) == ("json", "debug")


def test_empty_texts_switch_things_off(tmp_path: Path) -> None:
    settings = load(tmp_path, SHOAL_STORE="", SHOAL_LOG_DIR=" ", SHOAL_USER_AGENT="")
    assert (settings.store, settings.log_dir, settings.user_agent) == ("", "", "")


def test_a_user_agent_is_always_sent(tmp_path: Path) -> None:
    assert load(tmp_path).agent == f"shoal/{shoal.__version__}"
    own = load(tmp_path, SHOAL_USER_AGENT="books/1 (me@example.com)")
    assert (own.agent, own.robots_agent) == ("books/1 (me@example.com)",) * 2
    browser = load(tmp_path, SHOAL_USER_AGENT="browser")
    assert browser.agent.startswith("Mozilla/5.0")
    assert browser.robots_agent == f"shoal/{shoal.__version__}", "whoever it looks like, it obeys its own rules"


def test_members_get_the_settings_of_the_table_of_their_collection(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        'max_body = 5000\n[scrapers.pacific]\ntarget = "configs/"\nuser_agent = "us (mail)"\nrobots = false\n'
        "retries = 1\n"
        'max_dead = "2%"\nconcurrency = 3\nmember_timeout = 9\nlease = 7\n[scrapers."fiji.times"]\nretries = 5\n'
    )
    settings = load(tmp_path, SHOAL_LEASE="8").for_scraper("pacific")
    given = {"user_agent": "us (mail)", "robots": "False", "max_dead": "2%"}
    assert settings.for_member("pacific", "fiji.times") == given
    assert settings.for_member("pacific", "fiji.sun") == {**given, "retries": "1"}
    texts = {f"SHOAL_{name.upper()}": text for name, text in given.items()}
    read = load_settings({}, environ=texts, folder=tmp_path).for_scraper("fiji.times")
    assert (read.robots, read.retries, str(read.max_dead)) == (False, 5, "2%")


@pytest.mark.parametrize(
    ("limit", "allowed", "too_many"),
    [
        ("10%", (10, 100), (11, 100)),
        ("1%", (3, 300), (4, 300)),
        ("1%", (0, 50), (1, 50)),
        ("0.5%", (1, 200), (1, 199)),
        ("33.3%", (333, 1000), (334, 1000)),
        ("0%", (0, 100), (1, 1_000_000_000)),
        ("25", (25, 30), (26, 1_000_000)),
        ("0", (0, 0), (1, 1)),
    ],
)
def test_dead_limits(tmp_path: Path, limit: str, allowed: tuple[int, int], too_many: tuple[int, int]) -> None:
    max_dead = load(tmp_path, SHOAL_MAX_DEAD=limit).max_dead
    assert not max_dead.exceeded(*allowed)
    assert max_dead.exceeded(*too_many)
    assert str(max_dead) == limit


def test_a_hundred_percent_is_never_exceeded_and_a_whole_number_is_a_count(tmp_path: Path) -> None:
    assert not load(tmp_path, SHOAL_MAX_DEAD="100%").max_dead.exceeded(7, 7)
    (tmp_path / "shoal.toml").write_text("max_dead = 3\n")
    assert str(load(tmp_path).max_dead) == "3"
    (tmp_path / "shoal.toml").write_text("max_dead = 0.1\n")
    assert "a share from 0% to 100%, or a count" in refusal(tmp_path).message


@pytest.mark.parametrize("value", ["true", '"4x"', "[4]", "1.0"])
def test_toml_values_must_have_the_right_type(tmp_path: Path, value: str) -> None:
    (tmp_path / "shoal.toml").write_text(f"pool_size = {value}\n")
    assert "pool_size in shoal.toml" in refusal(tmp_path).message


def test_unknown_names_are_errors_with_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean SHOAL_LEDGER?" in refusal(tmp_path, SHOAL_LEGDER="x").message
    assert "did you mean patience?" in refusal(tmp_path, {"patiense": "1"}).message
    (tmp_path / "shoal.toml").write_text("pool_sise = 4\n")
    error = refusal(tmp_path)
    assert error.message == "pool_sise in shoal.toml is not a setting; did you mean pool_size?"
    assert "shoal config show" in error.remedy


def test_unknown_names_in_dotenv_and_pyproject_are_errors_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SHOAL_PATIENSE=1\n")
    assert "SHOAL_PATIENSE in .env" in refusal(tmp_path).message
    (tmp_path / ".env").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool.shoal]\nledgers = 'x'\n")
    assert "ledgers in pyproject.toml" in refusal(tmp_path).message
    (tmp_path / "pyproject.toml").write_text("[tool]\nshoal = 1\n")
    assert "not a table" in refusal(tmp_path).message


def test_variables_of_the_test_suite_and_of_other_programs_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\nthis is no assignment\n")
    settings = load(tmp_path, SHOAL_TEST_DATABASE_URL="x", SHOAL_CHAOS="long", SHOALING="1")
    assert settings == load(tmp_path)


def test_programs_are_taken_from_the_environment(tmp_path: Path) -> None:
    settings = load(tmp_path, SHOAL_CHROMIUM="/opt/chromium", SHOAL_TOR="/opt/tor")
    assert (settings.chromium, settings.tor) == ("/opt/chromium", "/opt/tor")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("pool_size =\n")
    assert "shoal.toml is not valid TOML" in refusal(tmp_path).message
    (tmp_path / "shoal.toml").write_bytes(b"\xff")
    assert "shoal.toml cannot be read: it is not UTF-8 text" in refusal(tmp_path).message
    (tmp_path / "shoal.toml").unlink()
    (tmp_path / ".env").write_text("# fine\n\nSHOAL_LEDGER='open\n")
    assert "Line 3 of .env" in refusal(tmp_path).message


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("SHOAL_LEDGER=a.db", "a.db"),
        ("  export SHOAL_LEDGER = a.db  # why", "a.db"),
        ("SHOAL_LEDGER=a#b.db", "a#b.db"),
        ("SHOAL_LEDGER='a # $b.db' # why", "a # $b.db"),
        (r'SHOAL_LEDGER="a \"b\" \\.db"', 'a "b" \\.db'),
        ("SHOAL_LEDGER=with space.db", "with space.db"),
        ("SHOAL_LEDGER=$HOME/${HOME}.db", "$HOME/${HOME}.db"),
        ('SHOAL_LEDGER="$HOME/${HOME}.db"', "$HOME/${HOME}.db"),
        ("SHOAL_LEDGER=first.db\nSHOAL_LEDGER=last.db", "last.db"),
        ('OTHER="several\nlines"\nSHOAL_LEDGER=a.db', "a.db"),
        ("OTHER='open\nSHOAL_LEDGER=a.db", "a.db"),
        ("SHOAL_LEDGER=a.db\r\nOTHER=1\r", "a.db"),
    ],
)
def test_dotenv_lines(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / ".env").write_text(f"# comment\n\n{line}\n")
    assert load(tmp_path).ledger == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("SHOAL_LEDGER\n", 1),
        ("\n\n  SHOAL_LEDGER 'a.db'\n", 3),
        ("A=1\nSHOAL_LEDGER='a' b\n", 2),
        ("A=1\nSHOAL_LEDGER='a\nb'\n", 2),
        ("export PGPASSWORD='open\n", 1),
        ("OTHER='open\nSHOAL_LEDGER='a.db'\n", 2),
        ('OTHER="open\nB=1\nSHOAL_LEDGER="a.db"\n', 3),
    ],
)
def test_broken_lines_of_dotenv_are_named_when_they_are_ours(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / ".env").write_text(text)
    error = refusal(tmp_path)
    assert error.message == f"Line {line} of .env cannot be parsed."
    assert "NAME=value on one line" in error.remedy


def test_an_empty_ledger_is_not_silently_the_default(tmp_path: Path) -> None:
    assert "SHOAL_LEDGER" in refusal(tmp_path, SHOAL_LEDGER="").message


def test_postgres_by_parts(tmp_path: Path) -> None:  # S0.15
    flags: dict[str, str | None] = {"db_host": "db.example", "db_port": "6543"}
    settings = load(tmp_path, flags, PGHOST="ignored", DB_NAME="books", DB_USER="me", PGUSER="else", PGPASSWORD="p@:/s")
    assert settings.ledger == "postgresql://else:p%40%3A%2Fs@db.example:6543/books"
    assert str(settings.origins["ledger"]) == "--db-host"


def test_postgres_by_the_names_of_container_images(tmp_path: Path) -> None:  # S1.7
    """They count where POSTGRES_HOST is set, after PG* and DB_*; otherwise they are meant for a server's container."""
    image: Any = {
        "POSTGRES_PORT": "6543",
        "POSTGRES_DB": "scraper_db",
        "POSTGRES_USER": "me",
        "POSTGRES_PASSWORD": "secret",
    }
    settings = load(tmp_path, POSTGRES_HOST="db", **image)
    assert settings.ledger == "postgresql://me:secret@db:6543/scraper_db"
    assert str(settings.origins["ledger"]) == "POSTGRES_HOST"
    assert load(tmp_path, **image).ledger == ".shoal/ledger.db"
    assert load(tmp_path, POSTGRES_HOST="db", DB_NAME="other", PGPASSWORD="x", **image).ledger == (
        "postgresql://me:x@db:6543/other"
    )


def test_the_environment_overrides_parts_in_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PGHOST=from-dotenv\nDB_PASSWORD=secret\nDB_USER=me\n")
    assert load(tmp_path).ledger == "postgresql://me:secret@from-dotenv/"
    assert load(tmp_path, DB_HOST="from-env").ledger == "postgresql://me:secret@from-env/"


@pytest.mark.parametrize(
    ("host", "address"),
    [("::1", "postgresql://me@[::1]:5/x"), ("/run/pg", "postgresql://me@/x?host=/run/pg&port=5")],
)
def test_hosts_that_need_another_spelling(tmp_path: Path, host: str, address: str) -> None:
    assert load(tmp_path, PGHOST=host, PGPORT="5", PGDATABASE="x", PGUSER="me").ledger == address


def test_a_user_or_a_password_alone_does_not_make_a_postgres_ledger(tmp_path: Path) -> None:
    assert load(tmp_path, PGUSER="me", PGPASSWORD="secret", PGPORT="5432", PGHOST="").ledger == ".shoal/ledger.db"


def test_a_given_ledger_wins_over_parts(tmp_path: Path) -> None:
    assert load(tmp_path, SHOAL_LEDGER="a.db", PGHOST="h", DB_NAME="n").ledger == "a.db"


def test_a_flag_is_never_silently_ignored(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"db_host": "h"}, SHOAL_LEDGER="a.db")
    assert error.message == "--db-host is given, but the ledger is already named by SHOAL_LEDGER."


def test_a_bad_port_is_refused(tmp_path: Path) -> None:
    assert "PGPORT" in refusal(tmp_path, PGHOST="h", PGPORT="99999").message


def test_the_password_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from file\n")
    ledger = load(tmp_path, DB_HOST="h", DB_USER="me", DB_PASSWORD_FILE="password").ledger
    assert urlsplit(ledger).password == "from%20file"
    error = refusal(tmp_path, DB_HOST="h", DB_PASSWORD_FILE="missing")
    assert "missing (from DB_PASSWORD_FILE) cannot be read: No such file" in error.message


def test_a_url_without_a_password_is_completed(tmp_path: Path) -> None:
    ledger = "postgresql://me@h/db?sslmode=require"
    completed = load(tmp_path, SHOAL_LEDGER=ledger, DB_PASSWORD="secret").ledger
    assert completed == "postgresql://me:secret@h/db?sslmode=require"
    own = "postgresql://me:own@h/db"
    assert load(tmp_path, SHOAL_LEDGER=own, DB_PASSWORD="secret").ledger == own
    assert load(tmp_path, SHOAL_LEDGER="a.db", DB_PASSWORD="secret").ledger == "a.db"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@h/db",
        "postgres://me:s3cret@s3cret@h/db",
        "postgresql://:s3cret@h/db",
        "postgresql://me:s3c/ret?s3cret@h/db",
        "postgresql://h/db?password=s3cret&user=me",
        "postgresql://h/db?user=me&sslpassword=s3cret",
    ],
)
def test_no_spelling_of_a_password_is_shown(tmp_path: Path, address: str) -> None:
    shown = f"{redacted(address)} {load(tmp_path, SHOAL_LEDGER=address).shown()['ledger']}"
    assert "s3c" not in shown
    assert "h/db" in shown


def test_bad_values_do_not_show_the_password_of_an_address(tmp_path: Path) -> None:
    assert "s3cret" not in str(refusal(tmp_path, SHOAL_POOL_SIZE="postgresql://me:s3cret@h/db"))


def test_secrets_are_redacted_as_whole_words(tmp_path: Path) -> None:
    settings = load(tmp_path, SHOAL_LEDGER="postgresql://me:p%40ss@h/db")
    assert redacted("p@ss, p%40ss, but xp@ssx", settings.secrets()) == "***, ***, but xp@ssx"
    same = load(tmp_path, SHOAL_LEDGER="postgresql://postgres:postgres@h/db")
    assert redacted('user "postgres"', same.secrets()) == 'user "postgres"'
