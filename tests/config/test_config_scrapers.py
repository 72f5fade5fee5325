"""Configuration of single scrapers: their tables, what overrides them, and their mode."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.config import ScraperConfig, Settings, StageConfig, load_settings, redacted
from shoal.errors import InvalidSetting

POSTGRES = "postgresql://me@db/shoal"


def load(
    folder: Path, toml: str = "", flags: Mapping[str, str | None] | None = None, *, pyproject: str = "", **environ: str
) -> Settings:
    (folder / "shoal.toml").write_text(toml)
    (folder / "pyproject.toml").write_text(pyproject)
    return load_settings(flags or {}, environ=environ, folder=folder)


def refusal(folder: Path, toml: str) -> InvalidSetting:
    with pytest.raises(InvalidSetting) as caught:
        load(folder, toml)
    return caught.value


FULL = """
concurrency = 8
lease = 20

[PREFIXscrapers.books]
target = "books.py"
mode = "single"
concurrency = 4
robots = false
max_dead = "1%"

[PREFIXscrapers.books.settings]
region = "north"
deep = {list = [1, 2]}

[PREFIXscrapers.books.stages.listing]
rate = "30/min"
retries = 0

[PREFIXscrapers.books.stages.detail]
delay = [1, 2.5]
concurrency = 2
timeout = 9
"""


@pytest.mark.parametrize("prefix", ["", "tool.shoal."])
def test_a_scraper_has_a_table_of_its_own(tmp_path: Path, prefix: str) -> None:  # S1.1
    settings = load(tmp_path, FULL.replace("PREFIX", prefix))
    books = settings.scrapers["books"]
    assert (books.target, books.mode) == ("books.py", "single")
    assert books.settings == {"region": "north", "deep": {"list": [1, 2]}}
    assert books.stages == {
        "listing": StageConfig(rate="30/min", retries=0),
        "detail": StageConfig(delay=(1.0, 2.5), concurrency=2, timeout=9.0),
    }
    assert [stage.pause for stage in books.stages.values()] == [(2.0, 2.0), (1.0, 2.5)]
    assert StageConfig(retries=1).pause is None
    assert str(books.origins["stages.listing.rate"]) == f"{prefix}scrapers.books.stages.listing.rate in shoal.toml"
    assert settings.concurrency == 8
    effective = settings.for_scraper("books")
    assert (effective.concurrency, effective.lease, effective.robots) == (4, 20.0, False)
    assert str(effective.max_dead) == "1%"
    assert str(effective.origins["concurrency"]) == f"{prefix}scrapers.books.concurrency in shoal.toml"
    assert str(effective.origins["lease"]) == "lease in shoal.toml"


def test_the_table_may_be_in_pyproject(tmp_path: Path) -> None:
    books = load(tmp_path, pyproject="[tool.shoal.scrapers.books]\ntarget = 'shop:books'\n").scrapers["books"]
    assert books.target == "shop:books"
    assert str(books.origins["target"]) == "tool.shoal.scrapers.books.target in pyproject.toml"


def test_shoal_toml_overrides_pyproject_name_by_name(tmp_path: Path) -> None:
    low = """
    [tool.shoal.scrapers.books]
    target = "low.py"
    lease = 5
    settings = {a = 1, b = 1}
    [tool.shoal.scrapers.books.stages.listing]
    delay = 1
    retries = 1
    [tool.shoal.scrapers.other]
    """
    high = """
    [scrapers.books]
    target = "high.py"
    settings = {b = 2}
    stages.listing = {rate = "2/s"}
    """
    settings = load(tmp_path, high, pyproject=low)
    assert list(settings.scrapers) == ["books", "other"]
    books = settings.scrapers["books"]
    assert (books.target, books.values, books.settings) == ("high.py", {"lease": 5.0}, {"a": 1, "b": 2})
    assert books.stages == {"listing": StageConfig(rate="2/s", retries=1)}


def test_one_file_must_not_spell_a_name_both_ways(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[scrapers.books]\nlease = 5\n[tool.shoal.scrapers.books]\ndrain = 5\n")
    assert error.message == "shoal.toml has both scrapers.books and tool.shoal.scrapers.books."
    assert "both lease and tool.shoal.lease" in refusal(tmp_path, "lease = 5\n[tool.shoal]\nlease = 6\n").message
    both = load(tmp_path, "lease = 5\n[scrapers.a]\n[tool.shoal]\ndrain = 6\n[tool.shoal.scrapers.b]\n")
    assert (both.lease, both.drain, list(both.scrapers)) == (5.0, 6.0, ["a", "b"])


@pytest.mark.parametrize(
    ("flags", "environ", "dotenv", "concurrency"),
    [
        ({}, {}, "", 4),
        ({}, {}, "SHOAL_CONCURRENCY=5\n", 5),
        ({}, {"SHOAL_CONCURRENCY": "6"}, "", 6),
        ({"concurrency": "7"}, {"SHOAL_CONCURRENCY": "6"}, "", 7),
    ],
)
def test_flags_and_variables_override_the_table(
    tmp_path: Path, flags: dict[str, str | None], environ: dict[str, str], dotenv: str, concurrency: int
) -> None:
    (tmp_path / ".env").write_text(dotenv)
    settings = load(tmp_path, "concurrency = 3\n[scrapers.books]\nconcurrency = 4\n", flags, **environ)
    assert settings.for_scraper("books").concurrency == concurrency
    assert settings.for_scraper("others").concurrency == (3 if concurrency == 4 else concurrency)


def test_a_scraper_without_a_table_has_the_common_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, "lease = 5\n")
    assert settings.scraper("books") == ScraperConfig(name="books")
    assert settings.for_scraper("books").lease == 5.0


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("scrapers = 1", "scrapers in shoal.toml is not a table."),
        ("scrapers.books = 1", "scrapers.books in shoal.toml is not a table."),
        ("scrapers.books.stages = 1", "scrapers.books.stages in shoal.toml is not a table."),
        ("scrapers.books.settings = 1", "scrapers.books.settings in shoal.toml is not a table."),
        ("scrapers.books.stages.a = 1", "scrapers.books.stages.a in shoal.toml is not a table."),
        ("tool.shoal.scrapers.books = 1", "tool.shoal.scrapers.books in shoal.toml is not a table."),
        ("tool.shaol.lease = 1", "tool.shaol in shoal.toml is not a setting; did you mean shoal?"),
        (
            "scrapers.books.concurency = 4",
            "scrapers.books.concurency in shoal.toml is not a setting; did you mean concurrency?",
        ),
        (
            "scrapers.books.stages.a.retry = 4",
            "scrapers.books.stages.a.retry in shoal.toml is not a setting; did you mean retries?",
        ),
        (
            "scrapers.books.pool_size = 4",
            "scrapers.books.pool_size in shoal.toml is a setting of the process, not of a scraper.",
        ),
        ("mode = 'single'", "mode in shoal.toml is a setting of a scraper."),
        ("scrapers.'a b'.lease = 4", "'a b' is not a valid scraper name"),
        ("scrapers.books.stages.'a/b'.retries = 4", "'a/b' is not a valid stage name"),
        ("scrapers.books.mode = 'double'", "it must be single or distributed."),
        ("scrapers.books.target = 'books'", "it must be a file such as books.py or fijitimes.yaml, module:scraper"),
        ("scrapers.books.lease = 0", "(from scrapers.books.lease in shoal.toml); it must be a number of seconds"),
        ("scrapers.books.stages.a.rate = '2/week'", "rate (from scrapers.books.stages.a.rate in shoal.toml): The rate"),
        ("scrapers.books.stages.a.rate = 2", "it must be starts per time"),
        ("scrapers.books.stages.a.delay = [3, 1]", "or [least, most], the smaller first."),
        ("scrapers.books.stages.a.delay = [1]", "or [least, most]."),
        ("scrapers.books.stages.a.delay = -1", "it must be a number of seconds from 0 to 86400, or [least, most]."),
        ("scrapers.books.stages.a.timeout = 0", "it must be a number of seconds from 0.1 to 86400."),
        ("scrapers.books.stages.a = {rate = '2/s', delay = 1}", "are both set; they mean the same."),
    ],
)
def test_mistakes_in_tables_are_reported_with_their_origin(tmp_path: Path, toml: str, message: str) -> None:
    error = refusal(tmp_path, toml)
    assert message in error.message
    assert error.remedy


@pytest.mark.parametrize(
    ("table", "code", "ledger", "mode", "origin"),
    [
        ("", None, "", "single", "default"),
        ("", None, POSTGRES, "single", "default"),
        ("", "single", "", "single", "the code of books"),
        ("", "distributed", POSTGRES, "distributed", "the code of books"),
        ("mode = 'distributed'", "single", POSTGRES, "distributed", "scrapers.books.mode in shoal.toml"),
        ("mode = 'single'", "distributed", "", "single", "scrapers.books.mode in shoal.toml"),
    ],
)
def test_the_mode_by_precedence(
    tmp_path: Path, table: str, code: str | None, ledger: str, mode: str, origin: str
) -> None:  # S1.1
    (tmp_path / ".env").write_text(f"SHOAL_LEDGER={ledger}\n" if ledger else "")
    settings = load(tmp_path, f"[scrapers.books]\n{table}\n")
    assert settings.mode is None
    effective = settings.for_scraper("books", mode=code)
    assert (effective.mode, str(effective.origins["mode"])) == (mode, origin)
    assert effective.ledger == (ledger or ".shoal/ledger.db")


def test_an_unknown_mode_in_the_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"\(from the code of books\); it must be single or distributed"):
        load(tmp_path).for_scraper("books", mode="double")


def test_single_and_distributed_scrapers_share_a_project(tmp_path: Path) -> None:  # S1.26
    toml = f"""
    ledger = "{POSTGRES}"
    [scrapers.home]
    mode = "single"
    [scrapers.india]
    mode = "distributed"
    """
    settings = load(tmp_path, toml)
    home, india = settings.for_scraper("home"), settings.for_scraper("india")
    assert (home.ledger, str(home.origins["ledger"])) == (".shoal/ledger.db", "default for the mode single")
    assert india.ledger == POSTGRES
    by_variable = load(tmp_path, toml, SHOAL_LEDGER="postgresql://me@other/shoal")
    assert by_variable.for_scraper("home").ledger == ".shoal/ledger.db"
    assert by_variable.for_scraper("india").ledger == "postgresql://me@other/shoal"


def test_a_single_scraper_keeps_the_file_its_table_names(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scrapers.home]\nmode = 'single'\nledger = 'home.db'\n", SHOAL_LEDGER=POSTGRES)
    home = settings.for_scraper("home")
    assert (home.ledger, str(home.origins["ledger"])) == ("home.db", "scrapers.home.ledger in shoal.toml")


@pytest.mark.parametrize("flags", [{"ledger": POSTGRES}, {"db_host": "db", "db_name": "shoal"}])
def test_a_single_scraper_works_on_the_postgres_that_a_flag_names(
    tmp_path: Path, flags: dict[str, str | None]
) -> None:  # S1.1
    home = load(tmp_path, "[scrapers.home]\nmode = 'single'\n", flags).for_scraper("home")
    assert home.mode == "single"
    assert home.ledger.startswith("postgresql://")


def test_a_single_scraper_works_on_the_postgres_that_its_table_names(tmp_path: Path) -> None:
    home = load(tmp_path, f"[scrapers.home]\nmode = 'single'\nledger = '{POSTGRES}'\n").for_scraper("home")
    assert (home.mode, home.ledger) == ("single", POSTGRES)


def test_retry_options_by_precedence(tmp_path: Path) -> None:  # S4.2
    toml = "retries = 9\nbackoff_cap = 20\n[scrapers.books]\nbackoff_cap = 30\nbackoff_jitter = 0\n"
    settings = load(tmp_path, toml, {"backoff_jitter": "0.7"}, SHOAL_BACKOFF_FACTOR="3")
    assert settings.for_scraper("books").retry_options("books") == {
        "retry_defaults": {"retries": 9},
        "retry_table": {"backoff_cap": 30.0},
        "retry_overrides": {"backoff_factor": 3.0, "backoff_jitter": 0.7},
    }
    assert settings.for_scraper("others").retry_options("others")["retry_defaults"] == {
        "retries": 9,
        "backoff_cap": 20.0,
    }
    assert str(settings.for_scraper("books").origins["backoff_cap"]) == "scrapers.books.backoff_cap in shoal.toml"
    for wrong in ("backoff_factor = 11", "backoff_cap = 0", "backoff_jitter = 'much'", "retries = -1"):
        assert "it must be" in refusal(tmp_path, wrong).message
        assert "it must be" in refusal(tmp_path, f"[scrapers.books.stages.a]\n{wrong}").message


def test_distributed_needs_postgres(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scrapers.india]\nmode = 'distributed'\n")
    with pytest.raises(InvalidSetting, match=r"needs PostgreSQL, but the ledger is \.shoal/ledger\.db") as caught:
        settings.for_scraper("india")
    assert "SHOAL_LEDGER=postgresql://" in caught.value.remedy


def test_a_ledger_of_a_table_wins_over_parts_from_variables_and_gets_the_password(tmp_path: Path) -> None:
    toml = "[scrapers.india]\nledger = 'postgresql://me@db/india'\n"
    settings = load(tmp_path, toml, PGHOST="elsewhere", PGPASSWORD="s3cret")
    assert settings.for_scraper("india").ledger == "postgresql://me:s3cret@db/india"
    assert settings.for_scraper("others").ledger.endswith(":s3cret@elsewhere/")
    flag: dict[str, str | None] = {"db_host": "flagged"}
    assert load(tmp_path, toml, flag).for_scraper("india").ledger == "postgresql://flagged/"


def test_tables_are_shown_without_secrets(tmp_path: Path) -> None:
    toml = """
    [scrapers.india]
    ledger = "postgresql://me:s3cret@db/india"
    max_dead = 5
    settings.service_key = "k3y"
    stages.listing.rate = "2/s"
    """
    settings = load(tmp_path, toml)
    assert settings.scrapers["india"].shown() == {
        "ledger": "postgresql://me:***@db/india",
        "max_dead": "5",
        "stages.listing.rate": "2/s",
        "settings.service_key": "(not shown)",
    }
    assert redacted("s3cret", settings.secrets()) == "***"


OLD_NAMES = """
workers = "${WORKER_COUNT:-10}"

[egress.exits]
kind = "proxies"
file = "${PROXY_FILE:-data/proxies.txt}"
ban_after = "${BAN_AFTER:-10}"
ban_for = "${BAN_MINUTES:-60}m"

[scrapers.pages.settings]
limit = "${LIMIT:-5}"
text = "$${LIMIT} of ${LIMIT:-5} ${EMPTY:-}"

[scrapers.pages.stages.page]
delay = ["${MIN_DELAY_SECONDS:-8}", "${MAX_DELAY_SECONDS:-20.0}"]
"""


def test_values_of_a_file_may_refer_to_variables(tmp_path: Path) -> None:  # S0.25, S3.6
    settings = load(tmp_path, OLD_NAMES)
    assert settings.workers == 10
    assert settings.scrapers["pages"].stages["page"].delay == (8.0, 20.0)
    assert settings.egress["exits"].ban_for == 3_600.0
    assert settings.scrapers["pages"].settings == {"limit": "5", "text": "${LIMIT} of 5 "}
    (tmp_path / ".env").write_text("WORKER_COUNT=4\nMAX_DELAY_SECONDS=12.5\nBAN_MINUTES=5\nLIMIT=\n")
    changed = load(tmp_path, OLD_NAMES, WORKER_COUNT="7")
    assert changed.workers == 7, "the environment overrides .env"
    assert changed.scrapers["pages"].stages["page"].delay == (8.0, 12.5)
    assert changed.egress["exits"].ban_for == 300.0
    assert changed.scrapers["pages"].settings["limit"] == "5", "an empty variable counts as unset"


def test_a_wrong_value_is_corrected_where_its_variable_is_set(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WORKER_COUNT=ten\n")
    error = refusal(tmp_path, OLD_NAMES)
    assert error.message.startswith("workers is 'ten' (from WORKER_COUNT in .env, by workers in shoal.toml); it must")
    assert error.remedy == "Correct WORKER_COUNT in .env."
    (tmp_path / ".env").write_text("MAX_DELAY_SECONDS=long\n")
    assert refusal(tmp_path, OLD_NAMES).remedy == "Correct MAX_DELAY_SECONDS in .env.", "also inside of a list"


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, '[scrapers.pages.settings]\nkey = "${API_KEY}"\n')
    assert (
        error.message == "scrapers.pages.settings.key in shoal.toml refers to the variable API_KEY, which is not set."
    )
    assert "API_KEY" in error.remedy
    assert "workers" in refusal(tmp_path, 'workers = "${WORKER_COUNT:-many}"').message
