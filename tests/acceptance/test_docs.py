"""The documentation is true: its commands run, its code works, its links lead somewhere, nothing is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from shoal.cli.main import app
from shoal.config.scrapers import OWN_VALUES, STAGE_VALUES
from shoal.config.settings import ENV_PREFIX, NAMES, SCRAPER_VALUES, VALUES, Settings
from shoal.config.values import Choice, Dead, Number, Value, YesNo
from shoal.errors import LedgerError, NotFound, ShoalError, UsageError
from shoal.ledger.postgres.schema import migrations
from shoal.model.item import ItemState
from shoal.model.outcome import OutcomeClass
from tests.acceptance.reader import Reader, blocks_of, shop_for

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for page in ROOT.rglob("*.md") if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
)
NAMES_OF_PAGES = [page.relative_to(ROOT).as_posix() for page in PAGES]
LINK = re.compile(r"\]\(([^)#\s]+)")
MAKE = re.compile(r"^make (\w+)", re.MULTILINE)


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found, f"there is no section {title!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_a_page_can_be_followed(page: str, tmp_path: Path, postgres_url: str) -> None:  # S0.20
    with shop_for(ROOT / page) as shop:
        Reader(tmp_path, postgres_url, shop).follow(ROOT / page)


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_make_knows_the_targets_that_a_page_names(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks_of(ROOT / page):
        for name in MAKE.findall(block.text) if block.language == "" else ():
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page}: no make {name}"


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        assert "://" not in target, f"{page}: {target} leads outside"
        assert ((ROOT / page).parent / target).exists(), f"{page}: {target} does not exist"


def test_every_setting_is_documented_with_its_default() -> None:
    text = text_of("configuration.md")
    defaults = Settings()
    for name in NAMES:
        row = re.search(rf"^\| `{name}` \| `{ENV_PREFIX}{name.upper()}` \| (.*?) \| (.+) \|$", text, re.MULTILINE)
        assert row, f"{name} has no row"
        default, meaning = row.groups()
        assert default == written(getattr(defaults, name)), name
        for word in words_of(VALUES[name]):
            assert word in meaning, f"the row of {name} does not say {word}"
    assert {*NAMES, "scrapers", "mode", "origins"} == set(Settings.__struct_fields__)


def written(default: object) -> str:
    """A default as the table shows it."""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"{default:.10g}"
    return f"`{default}`" if str(default) else "empty"


def words_of(value: Value) -> list[str]:
    """What a reader must be told about the values that are allowed."""
    match value:
        case Number():
            return [f"{value.low:.10g} to {value.high:.10g}"]
        case Choice():
            return [f"`{option}`" for option in value.options]
        case YesNo():
            return ["`true`", "`false`"]
        case Dead():
            return ["`1%`", "`25`", "`100%`"]
        case _:
            return []


def test_every_setting_of_scrapers_and_stages_is_documented() -> None:
    text = text_of("configuration.md")
    for name in [*OWN_VALUES, *SCRAPER_VALUES, *STAGE_VALUES]:
        assert f"`{name}`" in text.partition("## Settings of one scraper")[2], name


def test_every_command_is_documented() -> None:
    text = text_of("commands.md")
    for command in commands():
        assert f"`shoal {command}`" in text, command


def commands() -> Iterator[str]:
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from (f"{name} {verb}" for verb in command.commands)
        else:
            yield name


def test_every_exit_code_is_documented() -> None:
    text = text_of("commands.md")
    for code in {error.exit_code for error in (ShoalError, UsageError, NotFound, LedgerError)} | {0, 1, 130}:
        assert f"| {code} |" in text, code


def test_every_outcome_and_state_is_documented() -> None:
    text = text_of("ledger.md")
    for word in [*OutcomeClass, *ItemState]:
        assert f"| `{word.value}` |" in text, word


def test_every_view_is_documented() -> None:
    functions = (ROOT / "src/shoal/ledger/postgres/functions/80_views.sql").read_text()
    views = re.findall(r"create or replace view shoal\.(\w+)", functions)
    assert len(views) == 6
    for view in views:
        assert f"`{view}`" in text_of("operations.md"), view


def test_every_requirement_has_a_row_and_what_is_done_has_a_test() -> None:
    rows = dict(re.findall(r"^\| (S\d\.\d+) \| (\w+) \|", text_of("requirements.md"), re.MULTILINE))
    counts = {"S0": 30, "S1": 27, "S2": 29, "S3": 28, "S4": 21}
    assert set(rows) == {f"{system}.{n}" for system, count in counts.items() for n in range(1, count + 1)}
    assert set(rows.values()) <= {"done", "ledger", "open"}
    tested = "\n".join(
        path.read_text() for folder in ("tests", "src/shoal/testing") for path in (ROOT / folder).rglob("*.py")
    )
    for number, state in rows.items():
        if state != "open":
            assert re.search(rf"\b{re.escape(number)}\b", tested), f"no test names {number}"


def test_the_newest_migration_has_a_number_that_follows() -> None:
    assert [version for version, _, _ in migrations()] == list(range(1, len(migrations()) + 1))
