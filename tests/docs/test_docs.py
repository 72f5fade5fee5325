"""The documentation is true: its commands run, its code works, its links lead somewhere, nothing is left out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import shoal
import shoal.testing
from shoal import Fleet, Follow, Http, Item, Page, Request, RunReport, Scraper, Stage
from shoal.config.settings import (
    ENV_PREFIX,
    NAMES,
    SCRAPER_OWN_TYPES,
    SCRAPER_TYPES,
    SETTING_TYPES,
    STAGE_TYPES,
    Settings,
)
from shoal.config.sinks import SINK_TYPES
from shoal.define.policy import DEFAULT_PER_HOST, DEFAULT_RETRIES, DEFAULT_TIMEOUT, RETRY_OPTIONS, StagePolicy
from shoal.define.providers import BUILT_IN_PROVIDERS, OF_ATTEMPTS
from shoal.define.stage import StageOptions
from shoal.errors import EXIT_INTERRUPTED, EXIT_TIMED_OUT, AttemptEnded, ShoalError
from shoal.model.item import ItemState
from shoal.model.outcome import OutcomeClass
from tests.support.commands import commands
from tests.support.doc_reader import Reader, blocks_of, shop_for

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = ("node_modules", "build", "dist")  # installed or built
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in NOT_OURS for part in page.relative_to(ROOT).parts)
)
NAMES_OF_PAGES = [page.relative_to(ROOT).as_posix() for page in PAGES]
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")
HEADER_KEYS = (
    "ledger",
    "db_host",
    "db_port",
    "db_name",
    "db_user",
    "db_password",
    "set",
    "json",
    "quiet",
    "verbose",
    "no_input",
)
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
    for target, anchor in LINK.findall((ROOT / page).read_text()):
        assert "://" not in target, f"{page}: {target} leads outside"
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert linked.exists(), f"{page}: {target} does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{page}: {target}#{anchor} does not exist"


def test_files_that_the_architecture_names_exist() -> None:
    source = ROOT / "src/shoal"
    folders = (ROOT, source, source / "service", source / "ledger", source / "ledger/postgres/functions")
    named = set(re.findall(r"`([\w./]+\.(?:py|sql|tsx?))`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 100
    assert [name for name in sorted(named) if not any((folder / name).is_file() for folder in folders)] == []


def anchors(page: Path) -> set[str]:
    """The names that headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_is_documented_with_its_default() -> None:
    text = text_of("configuration.md")
    defaults = Settings()
    for name in NAMES:
        row = re.search(rf"^\| `{name}` \| `{ENV_PREFIX}{name.upper()}` \| (.*?) \| (.+) \|$", text, re.MULTILINE)
        assert row, f"{name} has no row"
        default, meaning = row.groups()
        assert default == written(getattr(defaults, name)), name
        for word in words_of(name):
            assert word in meaning, f"the row of {name} does not say {word}"
    not_settings = {"scrapers", "sinks", "egress", "mode", "origins", "hidden", "project", "ledger_above"}
    assert {*NAMES, *not_settings} == set(Settings.__struct_fields__)


def written(default: object) -> str:
    """A default as the table shows it."""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"{default:.10g}"
    return f"`{default}`" if str(default) else "empty"


def words_of(name: str) -> list[str]:
    """What a reader must be told about the values that are allowed."""
    if name == "max_dead":
        return ["`1%`", "`25`", "`100%`"]
    info = msgspec.inspect.type_info(SETTING_TYPES[name])
    match info.type if isinstance(info, msgspec.inspect.Metadata) else info:
        case msgspec.inspect.IntType(ge=low, le=high) | msgspec.inspect.FloatType(ge=low, le=high):
            return [f"{low:.10g} to {high:.10g}"]
        case msgspec.inspect.LiteralType(values=options):
            return [f"`{option}`" for option in options]
        case msgspec.inspect.BoolType():
            return ["`true`", "`false`"]
        case _:
            return []


def test_every_setting_of_scrapers_and_stages_is_documented() -> None:
    text = text_of("configuration.md")
    for name in [*SCRAPER_OWN_TYPES, *SCRAPER_TYPES, *STAGE_TYPES]:
        assert f"`{name}`" in text.partition("## Settings of one scraper")[2], name


def rows(text: str, title: str) -> dict[str, str]:
    """The rows of all tables below a heading: their first cell's name without brackets, and the whole row."""
    lines = re.findall(r"^\| .*$", section(text, title), re.MULTILINE)
    named = (line for line in lines if re.match(r"\| (`|settings|\d)", line))
    return {name: line for line in named for name in re.findall(r"[\w.]+", line.split(" | ")[0])[:1]}


@pytest.mark.parametrize("name", shoal.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"`{name}" in text_of("reference.md")


@pytest.mark.parametrize("kind", [Page, Item, Http, Request], ids=lambda kind: kind.__name__)
def test_every_member_is_in_the_reference(kind: type) -> None:
    assert set(rows(text_of("reference.md"), kind.__name__)) == members(kind)


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "title"), [(Fleet, "Operate a fleet"), (RunReport, "Run a scraper")])
def test_every_member_is_in_the_python_page(kind: type, title: str) -> None:
    text = section(text_of("python.md"), title)
    for name in members(kind) - {"list_is_stored", "export_error"}:
        assert re.search(rf"`{name}\b", text), f"{kind.__name__}.{name}"


def test_every_argument_of_run_is_in_the_python_page() -> None:
    text = section(text_of("python.md"), "Run a scraper")
    for name in inspect.signature(Scraper.run).parameters:
        assert name in ("self", "settings") or f"| `{name}=" in text, name


def test_scraper_and_stage_are_in_the_reference() -> None:
    text = text_of("reference.md")
    scraper = set(rows(text, "Scraper"))
    arguments = parameters(Scraper.__init__) - {"retry_options"} | set(RETRY_OPTIONS)
    hooks = {"before_request", "after_response", "on_record", "preflight", "on_start", "on_finish"}
    assert arguments | hooks | {"stage", "provide", "start", "run"} == scraper
    assert {"item", "on_error", "sitemap"} | parameters(Stage.item) == set(rows(text, "Stage"))
    for name in parameters(Stage.sitemap) - {"url"}:
        assert f"`{name}=`" in rows(text, "Stage")["sitemap"], name


def parameters(function: Callable[..., object]) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name != "self"}


def test_every_setting_of_sinks_is_documented() -> None:
    text = section(text_of("howto/sinks.md"), "Settings")
    assert [name for name in SINK_TYPES if f"`{name}`" not in text] == []


def test_every_stage_option_is_in_the_reference_with_its_default() -> None:
    options = rows(text_of("reference.md"), "Stage options")
    assert set(options) == set(StageOptions.__annotations__)
    defaults = {"concurrency": DEFAULT_PER_HOST, "timeout": DEFAULT_TIMEOUT, "retries": DEFAULT_RETRIES}
    defaults |= {name: getattr(StagePolicy(), name) for name in RETRY_OPTIONS}
    for name, value in defaults.items():
        assert f"| `{name}` | {value:g} |" in options[name]


def test_every_rule_of_following_is_in_the_reference() -> None:
    assert set(rows(text_of("reference.md"), "Follow")) == set(Follow.__struct_fields__)


def test_all_that_functions_may_ask_for_is_in_the_reference() -> None:
    text = rows(text_of("reference.md"), "Injected parameters")
    scopes = {provider.name: provider.scope for provider in BUILT_IN_PROVIDERS} | {"settings": "worker"}
    for name, scope in scopes.items():
        offered = text[name].split(" | ")[1]
        assert ("stages" in offered) == (scope in OF_ATTEMPTS), name
        assert ("hooks" in offered) == (scope in ("run", "worker")), name


def test_every_way_to_end_an_attempt_is_in_the_reference() -> None:
    assert set(rows(text_of("reference.md"), "Outcomes")) == {kind.__name__ for kind in AttemptEnded.__subclasses__()}


@pytest.mark.parametrize("name", [*shoal.testing.__all__, "shoal_page", "shoal_site"])
def test_every_helper_for_tests_is_in_its_guide(name: str) -> None:
    assert f"`{name}" in text_of("howto/testing.md")


def test_every_command_is_documented() -> None:
    overview = text_of("commands.md").partition("## ")[0]
    for name, _ in commands():
        assert overview.count(f"| `shoal {name}` |") == 1, name


def test_every_option_is_documented() -> None:
    text = text_of("commands.md")
    common = section(text, "Options of every command")
    for name, command in commands():
        own = rows_of_command(text, name)
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"`{option}`" in (common if parameter.name in HEADER_KEYS else own), f"shoal {name} {option}"


def rows_of_command(text: str, name: str) -> str:
    """What the page says about a command: every row that begins with it."""
    return "\n".join(re.findall(rf"^\| `shoal {name}` \|.*$", text, re.MULTILINE))


@pytest.mark.parametrize("page", ["commands.md", "reference.md"])
def test_every_exit_code_is_documented(page: str) -> None:
    codes = {ShoalError.exit_code} | {error.exit_code for error in ShoalError.__subclasses__()}
    for code in codes | {0, 1, EXIT_INTERRUPTED, EXIT_TIMED_OUT}:
        assert f"| {code} |" in text_of(page), code


def test_every_outcome_and_state_is_documented() -> None:
    text = text_of("ledger.md")
    for word in [*OutcomeClass, *ItemState]:
        assert f"| `{word.value}` |" in text, word


def test_every_view_is_documented() -> None:
    functions = (ROOT / "src/shoal/ledger/postgres/functions/80_views.sql").read_text()
    views = re.findall(r"create or replace view shoal\.(\w+)", functions)
    assert len(views) == 10
    for view in views:
        assert f"`{view}`" in text_of("operations.md"), view


@pytest.mark.parametrize("trouble", ["CPU", "idle", "429", "locks", "connections"])
def test_there_is_guidance_for_the_usual_troubles(trouble: str) -> None:  # S0.29
    assert re.search(rf"^\| .*{trouble}.* \| .+ \|$", section(text_of("operations.md"), "Guidance"), re.MULTILINE)


def test_every_requirement_has_a_row_and_what_is_done_has_a_test() -> None:
    states = dict(re.findall(r"^\| (S\d\.\d+) \| (\w+) \|", text_of("requirements.md"), re.MULTILINE))
    counts = {"S0": 30, "S1": 27, "S2": 29, "S3": 28, "S4": 21}
    assert set(states) == {f"{system}.{n}" for system, count in counts.items() for n in range(1, count + 1)}
    assert set(states.values()) <= {"done", "part", "open"}
    tested = "\n".join(
        path.read_text() for folder in ("tests", "src/shoal/testing") for path in (ROOT / folder).rglob("*.py")
    )
    for number, state in states.items():
        if state != "open":
            assert re.search(rf"\b{re.escape(number)}\b", tested), f"no test names {number}"
