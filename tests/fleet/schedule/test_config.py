"""Schedules in the configuration: the short form, the table, and one clear sentence for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config import load_settings
from shoal.config.schedules import ScheduleConfig
from shoal.errors import InvalidSetting
from tests.support.project import Project


def schedule(folder: Path, text: str, target: str = 'target = "books.py"') -> ScheduleConfig | None:
    (folder / "shoal.toml").write_text(f"[scrapers.books]\n{target}\n{text}\n")
    return load_settings({}, environ={}, folder=folder).scrapers["books"].schedule


def table(folder: Path, text: str) -> ScheduleConfig | None:
    return schedule(folder, f"[scrapers.books.schedule]\n{text}")


def test_a_text_is_a_cron_expression(tmp_path: Path) -> None:
    assert schedule(tmp_path, 'schedule = "0  2 * * *"') == ScheduleConfig(
        cron="0 2 * * *", timezone="UTC", missed="once", overlap="skip", action="run"
    )
    assert schedule(tmp_path, "") is None


def test_a_table_has_all_options(tmp_path: Path) -> None:
    assert table(
        tmp_path,
        'cron = "0 0,2,4 * * *"\ntimezone = "Europe/Berlin"\nmissed = "skip"\noverlap = "wait"\naction = "enqueue"',
    ) == ScheduleConfig(cron="0 0,2,4 * * *", timezone="Europe/Berlin", missed="skip", overlap="wait", action="enqueue")


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("15m", 900), ("24h", 86_400), ("7 d", 604_800)])
def test_an_interval(tmp_path: Path, text: str, seconds: int) -> None:
    assert table(tmp_path, f'every = "{text}"') == ScheduleConfig(every=seconds)


def test_missed_all_implies_overlap_wait(tmp_path: Path) -> None:
    assert table(tmp_path, 'every = "1h"\nmissed = "all"') == ScheduleConfig(every=3_600, missed="all", overlap="wait")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('cron = "61 2 * * *"', "cron expression"),
        ('cron = "0 2 * *"', "cron expression"),
        ('cron = "0 0 30 2 *"', "cron expression"),
        ('cron = ""', "cron expression"),
        ("cron = 5", "cron expression"),
        ('cron = "0 2 * * *"\ntimezone = "Europe/Nowhere"', "time zone, such as Europe/Berlin"),
        ('cron = "0 2 * * *"\ntimezone = "Europe"', "time zone"),
        ('cron = "0 2 * * *"\ntimezone = "../../etc/passwd"', "time zone"),
        ('every = "0s"', "1 s to 366 d"),
        ('every = "400d"', "1 s to 366 d"),
        ('every = "1.5h"', "1 s to 366 d"),
        ("every = 30", "1 s to 366 d"),
        ('every = "1h"\ntimezone = "UTC"', "has no effect with every"),
        ('every = "1h"\ncron = "0 2 * * *"', "both cron and every"),
        ('timezone = "UTC"', "neither cron nor every"),
        ('every = "1h"\nmissed = "twice"', "once, skip or all"),
        ('every = "1h"\noverlap = "kill"', "skip or wait"),
        ('every = "1h"\naction = "stop"', "run or enqueue"),
        ('every = "1h"\nmissed = "all"\noverlap = "skip"', "requires every slot"),
        ('every = "1h"\ncorn = "0 2 * * *"', "scrapers.books.schedule.corn in shoal.toml is not a setting"),
    ],
)
def test_an_invalid_schedule_is_explained(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        table(tmp_path, text)
    assert said in caught.value.message
    assert "scrapers.books.schedule" in caught.value.message
    assert caught.value.exit_code == 2


def test_a_schedule_needs_code_to_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"where the code is") as caught:
        schedule(tmp_path, 'schedule = "0 2 * * *"', target="")
    assert 'target = "books.py"' in caught.value.remedy
    (tmp_path / "shoal.toml").write_text('schedule = "0 2 * * *"')
    with pytest.raises(InvalidSetting, match=r"is a setting of a scraper"):
        load_settings({}, environ={}, folder=tmp_path)


def test_the_command_line_shows_it_and_refuses_what_is_wrong(project: Project) -> None:
    toml = project.folder / "shoal.toml"
    toml.write_text('[scrapers.books]\ntarget = "books.py"\nschedule = "0 2 * * *"\n')
    shown = project.shoal("config", "show").stdout
    assert "0 2 * * * UTC, missed once, overlap skip, action run" in shown
    toml.write_text('[scrapers.books]\ntarget = "books.py"\nschedule = "0 25 * * *"\n')
    for command in (["config", "show"], ["schedule", "ls"], ["schedule", "start"]):
        said = project.shoal(*command, code=2).stderr
        assert "schedule is '0 25 * * *' (from scrapers.books.schedule in shoal.toml)" in said
        assert len(said.splitlines()) == 1


def test_start_without_a_schedule_is_an_error(project: Project) -> None:
    assert "No scraper has a schedule" in project.shoal("schedule", "start", code=2).stderr
    assert "No scraper has a schedule" in project.shoal("schedule", "ls").stderr
    assert "There is no schedule of 'books'" in project.shoal("schedule", "next", "books", code=5).stderr
