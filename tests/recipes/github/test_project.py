"""The project that `shoal init --recipe github` makes: settings by their old names, its own tests, imports."""

from __future__ import annotations

import csv
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.config import load_settings
from shoal.demo.recipe import write_environment
from shoal.recipes.github import PROJECT
from shoal.recipes.github.demo import profile_answers
from shoal.recipes.github.population import PLACES
from shoal.service.lookup import load_configured
from shoal.templates import write_project
from tests.recipes.github.conftest import PATIENCE, TOKENS, Serve, query, set_up, statuses
from tests.support.project import Project

TARGETED = ("username", "profile")
SMALL = (("Suva, Fiji", 8), ("Apia, Samoa", 4))
OLD_ROWS = """\
username,name,followers,hireable,enrichment_status,profiled_at,enhanced_at,retry_count,last_error
{0},,,,INITIAL,,,0,
{1},Bo Brook,17,t,PROFILED,2024-02-01 08:00:00,,0,
{2},Cleo Glen,4,,PROCESSING,2024-02-01 08:00:00,,0,
{3},Dov Inlet,5,f,ENHANCED,2024-02-01 08:00:00,2024-02-02 08:00:00,0,
{4},Gil Moor,6,,FAILED,2024-02-01 08:00:00,,3,502 Bad Gateway
,,,,INITIAL,,,0,
"""


def test_the_tests_of_the_project_pass(project: Project, serve: Serve) -> None:
    set_up(project, serve())
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


# What `.env` says by its old names, and what the scraper then has.
SETTINGS: dict[str, tuple[str, Callable[[Any, Any], object], object]] = {
    "GITHUB_API": ("http://api.example", lambda scraper, _: scraper.settings.api, "http://api.example"),
    "LOCATIONS": ("Suva, Fiji; Samoa", lambda scraper, _: scraper.settings.locations, "Suva, Fiji; Samoa"),
    "FIRST_YEAR": ("2020", lambda scraper, _: scraper.settings.first_year, 2020),
    "LAST_YEAR": ("2021", lambda scraper, _: scraper.settings.last_year, 2021),
    "USERNAMES_FILE": ("names.txt", lambda scraper, _: scraper.settings.usernames_file, "names.txt"),
    "PROFILE_AGAIN": ("true", lambda scraper, _: scraper.settings.profile_again, True),
    "REPOSITORY_PAGES": ("1", lambda scraper, _: scraper.settings.repository_pages, 1),
    "RETRY_DELAY": ("1.5", lambda scraper, _: scraper.settings.retry_delay, 1.5),
    "EXPONENTIAL_BACKOFF": ("false", lambda scraper, _: scraper.settings.exponential_backoff, False),
    "TARGET_USERNAMES": ("50", lambda scraper, _: scraper.stages["username"].policy.max_records, 50),
    "TARGET_PROFILES": ("9", lambda scraper, _: scraper.stages["profile"].policy.max_records, 9),
    "TARGET_OF": ("run", lambda scraper, _: [scraper.stages[s].policy.max_records_of for s in TARGETED], ["run"] * 2),
    "RATE_LIMIT_DELAY": ("5", lambda scraper, _: [each.policy.delay for each in scraper.stages.values()], [(5, 5)] * 3),
    "MAX_RETRIES": ("7", lambda scraper, _: {each.policy.retries for each in scraper.stages.values()}, {7}),
    "BATCH_SIZE": ("20", lambda _, settings: settings.batch_size, 20),
    "CONCURRENCY": ("6", lambda _, settings: settings.concurrency, 6),
    "TOKEN_SHARE": ("split", lambda _, settings: settings.egress["github"].share, "split"),
    "SCHEDULE": ("0 5 * * *", lambda _, settings: settings.scrapers["github"].schedule.cron, "0 5 * * *"),
    "SCHEDULE_ACTION": ("run", lambda _, settings: settings.scrapers["github"].schedule.action, "run"),
    "DB_HOST": ("db.example", lambda _, settings: settings.ledger, "postgresql://db.example/"),
}


def test_settings_have_their_old_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.3, S0.24, S0.25: each of them reaches what it is for, and is not what it is without."""
    write_project(tmp_path, dict(PROJECT.files()))
    monkeypatch.chdir(tmp_path)
    default, default_settings = load_configured("github", load_settings({}, environ={}, folder=tmp_path))
    write_environment(tmp_path, {name: value for name, (value, _, _) in SETTINGS.items()})
    scraper, settings = load_configured("github", load_settings({}, environ={}, folder=tmp_path))
    found = {name: read(scraper, settings) for name, (_, read, _) in SETTINGS.items()}
    assert found == {name: expected for name, (_, _, expected) in SETTINGS.items()}
    unchanged = [name for name, (_, read, _) in SETTINGS.items() if read(default, default_settings) == found[name]]
    assert unchanged == []


def test_a_run_ends_at_its_targets(project: Project, serve: Serve) -> None:
    """TARGET_PROFILES: the rest stays INITIAL and says why."""
    site = serve(places=SMALL)
    set_up(project, site, LOCATIONS="Suva, Fiji; Apia, Samoa", TARGET_PROFILES="5", SHOAL_CONCURRENCY="1")
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(project) == {"ENHANCED": 5, "INITIAL": 7}
    (row,) = query(project, "select distinct last_error from developers where enrichment_status = 'INITIAL'")
    assert row["last_error"] == "the stage profile has its 5 records in all runs (max_records)"


def test_the_pace_of_a_token_holds_over_instances(fleet: Project, serve: Serve) -> None:
    """RATE_LIMIT_DELAY, S0.25: with a pace of its own each instance would need half the time."""
    delay, names = 0.5, 12
    site = serve(places=(("Suva, Fiji", names),))
    set_up(fleet, site, tokens=TOKENS[:1], USERNAMES_FILE="names.txt", RATE_LIMIT_DELAY=str(delay))
    (fleet.folder / "names.txt").write_text("\n".join(map(site.site.people.login, range(names))))
    fleet.shoal("enqueue", "github")
    workers = [fleet.start("worker", "github", "--stage", "profile", "--drain", "-q") for _ in range(2)]
    assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
    at = sorted(visit.at for visit in site.log() if visit.path.startswith("/users/"))
    assert len(at) == names
    assert at[-1] - at[0] >= 0.75 * delay * (names - 1)


def test_each_night_finds_those_who_are_new(either: Project, serve: Serve) -> None:
    """A further run asks for nobody who was profiled or imported before, so targets of a run lead to others."""
    site = serve(places=SMALL)
    places = "Suva, Fiji; Apia, Samoa"
    set_up(either, site, LOCATIONS=places, TARGET_USERNAMES="8", TARGET_OF="run", SHOAL_CONCURRENCY="1")
    taken_over = site.site.people.login(0)
    import_rows(either, f"username,name,enrichment_status\n{taken_over},Bo Brook,ENHANCED\n", "file")

    def night(target: str = "5", again: str = "false") -> tuple[int, dict[str, int]]:
        """How many profiles are asked for in a further run, and the developers by status after it."""
        before = sum(profile_answers(site.log()).values())
        options = ("run", "github", "--fresh", "-q")
        either.shoal(*options, timeout=PATIENCE, TARGET_PROFILES=target, PROFILE_AGAIN=again)
        return sum(profile_answers(site.log()).values()) - before, statuses(either)

    either.shoal("run", "github", "-q", timeout=PATIENCE, TARGET_PROFILES="5")  # the imported row counts
    assert statuses(either)["ENHANCED"] == 5
    first = query(either, "select username, profiled_at, run_id from developers where enrichment_status = 'ENHANCED'")
    assert night()[0] == 5
    assert night() == (2, {"ENHANCED": 12})
    assert night() == (0, {"ENHANCED": 12})
    assert max(profile_answers(site.log()).values()) == 1
    assert taken_over not in profile_answers(site.log())
    kept = query(either, "select username, profiled_at, run_id from developers")
    assert [row for row in first if row not in kept] == []
    assert night(target="0", again="true")[0] >= 8, "as many as TARGET_USERNAMES lets the searches find"
    assert statuses(either) == {"ENHANCED": 12}


def test_the_targets_are_those_of_all_runs_together(either: Project, serve: Serve) -> None:
    """TARGET_PROFILES: when so many are there, a further run asks for nobody."""
    site = serve(places=SMALL)
    set_up(either, site, LOCATIONS="Suva, Fiji; Apia, Samoa", SHOAL_CONCURRENCY="1", TARGET_USERNAMES="0")
    for target, profiled in (("5", 5), ("7", 7), ("7", 7)):
        either.shoal("run", "github", "--fresh", "-q", timeout=PATIENCE, TARGET_PROFILES=target)
        assert statuses(either) == {"ENHANCED": profiled, "INITIAL": 12 - profiled}
    before = len(site.log())
    either.shoal("run", "github", "--fresh", "-q", timeout=PATIENCE, TARGET_PROFILES="7", TARGET_USERNAMES="12")
    assert len(site.log()) == before, "not even a search"


def test_a_cancellation_is_no_error_of_those_who_were_tried_again(either: Project, serve: Serve) -> None:
    """TARGET_PROFILES is raised later: last_error says only what holds."""
    site = serve(places=SMALL)
    set_up(either, site, LOCATIONS="Suva, Fiji; Apia, Samoa", TARGET_PROFILES="5", SHOAL_CONCURRENCY="4")
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    either.shoal("items", "retry", "latest", "--state", "cancelled", "--yes", TARGET_PROFILES="0")
    either.shoal("run", "github", "-q", timeout=PATIENCE, TARGET_PROFILES="0")
    rows = query(either, "select enrichment_status, last_error, count(*) as n from developers group by 1, 2")
    assert [tuple(row.values()) for row in rows] == [("ENHANCED", None, 12)]


def test_a_search_with_more_results_than_github_shows_is_split(project: Project, serve: Serve) -> None:
    """Every developer of a place with 1,400 in one year is found, once."""
    site = serve(limits={"core": (5_000, 3_600), "search": (500, 60)})
    set_up(project, site, LOCATIONS="Port Vila, Vanuatu", TARGET_PROFILES="1", CONCURRENCY="8")
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    assert project.counts(stage="username").results == 2_600
    searched = [visit.path for visit in site.log() if "created%3A2019" in visit.path]
    assert any("2019-01-01..2019-07-02" in path for path in searched)
    assert {visit.status for visit in site.log() if visit.path.startswith("/search/")} == {200}


def test_a_search_that_timed_out_at_github_is_repeated(project: Project, serve: Serve) -> None:
    """It shows too few developers, so it is not split by what it shows."""
    site = serve(faults=["incomplete"], limits={"core": (5_000, 3_600), "search": (500, 60)})
    set_up(project, site, LOCATIONS="Suva, Fiji", TARGET_PROFILES="1", CONCURRENCY="8", RETRY_DELAY="0.1")
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    assert project.counts(stage="username").results == dict(PLACES)["Suva, Fiji"]
    paths = Counter(visit.path for visit in site.log() if visit.path.startswith("/search/"))
    assert 0 < sum(times > 1 for times in paths.values()) < len(paths)
    assert all("-01-01.." in path and "-12-31&" in path for path in paths)


@pytest.fixture(params=["sqlite, file", "sqlite, standard input", "postgres, sqlite"])
def importing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Project, str]]:
    """A project on a ledger, and where the rows come from."""
    kind, source = request.param.split(", ")
    ledger = request.getfixturevalue("migrated_postgres") if kind == "postgres" else None
    with Project(tmp_path, ledger) as project:
        yield project, source


def test_rows_of_the_earlier_system_go_on_where_they_were(importing: tuple[Project, str], serve: Serve) -> None:
    either, source = importing
    site = serve(places=SMALL)
    set_up(either, site, LOCATIONS="", USERNAMES_FILE="")
    people = site.site.people
    logins = [people.login(number) for number in range(5)]
    rows = OLD_ROWS.format(*logins)
    said = import_rows(either, rows, source)
    assert "7 items added, 0 were there already\n" in said
    assert "PROFILED   2" in said
    assert "INITIAL    1" in said, "the row without a username is not counted"
    assert "1 left out, without a username: row 6" in said
    assert statuses(either) == {"INITIAL": 1, "PROFILED": 2, "ENHANCED": 1, "FAILED": 1}, "before any worker"
    assert "0 items added, 7 were there already" in import_rows(either, rows, source)
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(either) == {"ENHANCED": 4, "FAILED": 1}
    asked = {visit.path.split("?")[0] for visit in site.log() if visit.path.startswith("/users/")}
    assert f"/users/{logins[0]}" in asked
    assert not {path for path in asked if path == f"/users/{logins[1]}" or logins[3] in path or logins[4] in path}
    assert f"/users/{logins[1]}/repos" in asked
    stored = {row["username"]: row for row in query(either, "select * from developers")}
    imported = stored[logins[1]]
    assert (imported["name"], imported["followers"], bool(imported["hireable"])) == ("Bo Brook", 17, True)
    assert str(imported["profiled_at"]).startswith("2024-02-01 08:00:00")
    assert stored[logins[3]]["hireable"] in (False, 0)
    failed = stored[logins[4]]
    assert (failed["name"], failed["retry_count"], failed["last_error"]) == ("Gil Moor", 3, "502 Bad Gateway")
    either.shoal("items", "retry", "latest", "--state", "cancelled", "--yes")
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(either) == {"ENHANCED": 5}
    (row,) = query(either, f"select name, last_error from developers where username = '{logins[4]}'")
    assert tuple(row.values()) == (people.user(4)["name"], None)


def test_failed_rows_are_profiled_after_a_later_import_that_says_so(project: Project, serve: Serve) -> None:
    site = serve(places=SMALL)
    set_up(project, site, USERNAMES_FILE="names.txt")
    (project.folder / "names.txt").write_text(site.site.people.login(7))
    rows = OLD_ROWS.format(*(site.site.people.login(number) for number in range(5)))
    import_rows(project, rows, "file")
    assert statuses(project)["FAILED"] == 1
    import_rows(project, rows, "file", "--retry-failed")
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(project) == {"ENHANCED": 6}


def test_rows_keep_their_fields_when_there_are_more_than_the_target(either: Project, serve: Serve) -> None:
    """They go first and count; PROFILED ones beyond the target are enhanced too, and nobody is asked for twice."""
    site = serve(places=SMALL)
    set_up(either, site, LOCATIONS="Suva, Fiji", TARGET_PROFILES="2")
    logins = [site.site.people.login(number) for number in range(6)]
    header, row = "username,name,enrichment_status\n", "{},Name of {},{}\n"
    kinds = ["ENHANCED", "ENHANCED", "ENHANCED", "PROFILED", "PROFILED", "FAILED"]
    rows = header + "".join(row.format(name, name, kind) for name, kind in zip(logins, kinds, strict=True))
    import_rows(either, rows, "file")
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    stored = {row["username"]: row for row in query(either, "select * from developers")}
    shown = [(stored[name]["enrichment_status"], stored[name]["name"], stored[name]["last_error"]) for name in logins]
    ended = ["ENHANCED"] * 5 + ["FAILED"]
    assert shown == [(kind, f"Name of {name}", None) for kind, name in zip(ended, logins, strict=True)]
    assert statuses(either) == {"ENHANCED": 5, "FAILED": 1, "INITIAL": 2}, "the two that the search found"
    assert not [visit.path for visit in site.log() if visit.path.count("/") == 2 and visit.path.startswith("/users/")]


def test_an_import_with_a_bad_row_changes_nothing(project: Project, serve: Serve) -> None:
    site = serve(places=SMALL)
    set_up(project, site, USERNAMES_FILE="names.txt")
    (project.folder / "names.txt").write_text(site.site.people.login(0))
    rows = "username,followers,profiled_at,enrichment_status\na,1,,\nb,3.5,,\nc,1,last week,PROFILED\n"
    said = import_rows(project, rows, "file", code=1)
    assert "row 2 (b): followers cannot be '3.5'" in said
    assert "row 3 (c): profiled_at cannot be 'last week'" in said
    assert not Path(project.ledger).exists() or not project.shoal("runs", "ls", "--json").stdout.strip()
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(project) == {"ENHANCED": 1}


def test_rows_of_developers_whom_a_search_has_found_are_reported(either: Project, serve: Serve) -> None:
    """They are not lost without a word; the remedy takes them over."""
    site = serve(places=SMALL)
    set_up(either, site, USERNAMES_FILE="names.txt")
    found, other, profiled = (site.site.people.login(number) for number in range(3))
    (either.folder / "names.txt").write_text(f"{profiled}\n{found}\n")
    either.shoal("enqueue", "github")
    either.shoal("worker", "github", "--stage", "profile", "--limit", "1", "-q", timeout=PATIENCE)
    rows = f"username,name,enrichment_status\n{found},Ann,ENHANCED\n{other},Bo,ENHANCED\n{profiled},Cleo,ENHANCED\n"
    said = import_rows(either, rows, "file", code=1)
    assert "1 developers were in the run before: their rows were not taken over: " + found in said
    assert statuses(either) == {"INITIAL": 1, "PROFILED": 1, "ENHANCED": 1}
    remedy = re.search(r"shoal (runs cancel \S+),", said)
    assert remedy is not None
    either.shoal(*remedy[1].split(), "--yes")
    assert "not taken over" not in import_rows(either, rows, "file")
    assert statuses(either) == {"ENHANCED": 3}
    (row,) = query(either, f"select name from developers where username = '{found}'")
    assert row["name"] == "Ann"


@pytest.mark.parametrize("rows", ["", "someone,Bo,ENHANCED\n", "username;name\nsomeone;Bo\n", "username\n"])
def test_an_import_of_nothing_starts_no_search(project: Project, serve: Serve, rows: str) -> None:
    """`psql` may have failed, or the header or the commas may be missing."""
    set_up(project, serve(), LOCATIONS="Suva, Fiji")
    assert "Nothing was imported" in import_rows(project, rows, "standard input", code=1)
    assert not Path(project.ledger).exists(), "not even a ledger"


def test_a_row_that_is_not_profiled_keeps_its_time_and_its_error(either: Project, serve: Serve) -> None:
    site = serve(places=SMALL)
    set_up(either, site)
    name = site.site.people.login(0)
    header = "username,enrichment_status,scraped_at,retry_count,last_error\n"
    import_rows(either, f"{header}{name},INITIAL,2024-01-05 10:00:00,2,timeout\n", "file")
    shown = f"select scraped_at, retry_count, last_error from developers where username = '{name}'"

    def row() -> tuple[str, int, str | None]:
        (found,) = query(either, shown)
        return str(found["scraped_at"])[:19], found["retry_count"], found["last_error"]

    assert row() == ("2024-01-05 10:00:00", 2, "timeout")
    said = either.shoal("enqueue", "github", "--idempotency-key", "first", code=4).stderr  # as the containers begin
    assert "still active" in said
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    assert row() == ("2024-01-05 10:00:00", 0, None)


def import_rows(project: Project, rows: str, source: str, *options: str, code: int = 0) -> str:
    """What the script says that imports these rows."""
    name = "old.db" if source == "sqlite" else "developers.csv"
    if source == "sqlite":
        write_table(project, rows)
    else:
        (project.folder / name).write_text(rows)
    given: dict[str, Any] = {"input": rows} if source == "standard input" else {}
    command = [sys.executable, "import_developers.py", "-" if given else name, *options]
    environment = {"PATH": os.environ["PATH"], "SHOAL_LEDGER": project.ledger, "HOME": str(project.folder)}
    ended = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False, **given
    )
    assert ended.returncode == code, ended.stderr
    return str(ended.stdout + ended.stderr)


def write_table(project: Project, rows: str) -> None:
    header, *values = csv.reader(rows.splitlines())
    file = project.folder / "old.db"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"create table developers ({', '.join(header)})")
        marks = ", ".join("?" for _ in header)
        database.executemany(f"insert into developers values ({marks})", values)
        database.commit()


def test_a_file_of_user_names_replaces_the_searches(project: Project, serve: Serve) -> None:
    site = serve(places=SMALL)
    set_up(project, site, USERNAMES_FILE="names.txt")
    names = [site.site.people.login(number) for number in range(3)]
    (project.folder / "names.txt").write_text("# three\n" + "".join(f"@{name.upper()}\n" for name in names))
    project.shoal("run", "github", "-q", timeout=PATIENCE)
    stored = query(project, "select username, enrichment_status from developers")
    assert {row["username"] for row in stored} == set(names), "spelled as GitHub does"
    assert not [visit for visit in site.log() if visit.path.startswith("/search/")]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "Set LOCATIONS or USERNAMES_FILE in .env."),
        ({"USERNAMES_FILE": "nowhere.txt"}, "USERNAMES_FILE"),
    ],
)
def test_a_run_without_anybody_to_look_for_leaves_nothing_behind(
    project: Project, serve: Serve, variables: dict[str, Any], said: str
) -> None:
    site = serve(places=SMALL)
    set_up(project, site, **variables)
    for command in (("enqueue", "github", "--idempotency-key", "first"), ("run", "github", "-q")):
        assert said in project.shoal(*command, code=2).stderr
    assert project.shoal("runs", "ls", "--json").stdout.strip() == ""
    (project.folder / "names.txt").write_text(site.site.people.login(0))
    project.shoal("enqueue", "github", "--idempotency-key", "first", USERNAMES_FILE="names.txt")
    assert statuses(project) == {"INITIAL": 1}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FIRST_YEAR", "2025", "FIRST_YEAR is 2025 and LAST_YEAR is 2024"),
        ("LAST_YEAR", "20244", "they must be from 2008 to 9999"),
        ("GITHUB_API", "api.github.com", "GITHUB_API is 'api.github.com', it must begin with https://"),
        ("RETRY_DELAY", "-5", "RETRY_DELAY is -5.0, it must be 0 or more seconds"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_before_anything_is_asked(
    project: Project, serve: Serve, name: str, value: str, said: str
) -> None:
    site = serve(places=SMALL)
    set_up(project, site, LOCATIONS="Suva, Fiji")
    changed: dict[str, Any] = {name: value}
    for command in (("enqueue", "github"), ("worker", "github", "--stage", "profile")):
        assert said in project.shoal(*command, code=2, **changed).stderr
    assert site.log() == []
