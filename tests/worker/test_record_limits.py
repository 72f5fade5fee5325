"""Stages with max_records: they end when a run has so many of their records; the rest is cancelled with a reason."""

from __future__ import annotations

import json

from tests.support.project import Project

# `found` yields items while the later stages run; `profile` stops at its limit, `social` has none.
CODE = """
    people = Scraper("people")

    @people.stage(lane=None)
    async def found(item: Item):
        for number in range(40):
            yield profile.item(key=f"{item.key}-{number}")

    @people.stage(lane=None, max_records=25)
    async def profile(item: Item):
        await asyncio.sleep(0.01)
        if item.key.endswith("-3"):
            raise Permanent("no such user")
        yield {"name": item.key}
        yield social.item(item)

    @people.stage(lane=None)
    async def social(item: Item):
        yield {"links": item.key}

    people.start(found.item(key=letter) for letter in "abc")
"""
TOML = '[scrapers.people]\ntarget = "shop.py"\n[scrapers.people.stages.profile]\nmax_records = "{}"\n'


def test_a_stage_ends_with_its_records(either: Project) -> None:
    """S0: TARGET_PROFILES. One process, one record per item: the limit is exact, and nothing stays open."""
    either.write(CODE)
    said = either.shoal("run", "shop.py")
    profile, social = either.counts(stage="profile"), either.counts(stage="social")
    assert (profile.results, profile.done, social.results) == (25, 25, 25)
    assert profile.cancelled + profile.dead == 120 - 25
    assert profile.remaining == social.remaining == 0
    assert f"{profile.cancelled + social.cancelled} cancelled, 0 left" in said.stdout
    cancelled = json.loads(
        either.shoal("items", "ls", "latest", "--state", "cancelled", "--limit", "1", "--json").stdout
    )
    why = either.shoal("items", "why", "latest", str(cancelled["item_id"])).stdout
    assert "the stage profile has its 25 records (max_records)" in why


def test_many_workers_go_beyond_the_limit_only_by_what_runs(either: Project) -> None:
    either.write(CODE.replace("0.01", "0.2"))
    either.shoal("enqueue", "shop.py")
    workers = [either.start("worker", "shop.py", "-j", "3") for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    profile = either.counts(stage="profile")
    assert 25 <= profile.results < 25 + 3 * 3
    assert (profile.remaining, profile.results) == (0, profile.done)


def test_the_configuration_raises_the_limit_and_cancelled_items_go_on(project: Project) -> None:
    project.write(CODE)
    project.shoal("run", "shop.py", "-q")
    (project.folder / "shoal.toml").write_text(TOML.format("${TARGET_PROFILES:-30}"))
    project.shoal("items", "retry", "latest", "--state", "cancelled", "--yes")
    project.shoal("run", "people", "-q", "--resume")
    assert project.counts(stage="profile").results == 30
    project.shoal("items", "retry", "latest", "--state", "cancelled", "--yes")
    project.shoal("run", "people", "-q", "--resume", TARGET_PROFILES="0")
    assert project.counts(stage="profile").results == 120 - 3


def test_the_records_of_all_runs_may_count(either: Project) -> None:
    """S0: TARGET_PROFILES. A further run stores what is missing, and then nothing more."""
    either.write(CODE.replace("max_records=25", 'max_records=25, max_records_of="scraper"'))
    either.shoal("run", "shop.py", "-q", "--limit", "20")
    first = either.counts(stage="profile").results
    assert 0 < first < 25
    either.shoal("run", "shop.py", "-q", "--fresh")
    assert either.counts(stage="profile").results == 25 - first
    either.shoal("run", "shop.py", "-q", "--fresh")
    assert (either.counts(stage="profile").results, either.counts(stage="found").results) == (0, 0)
    why = either.shoal("items", "ls", "latest", "--state", "cancelled", "--limit", "1", "--json").stdout
    assert "the stage profile has its 25 records in all runs (max_records)" in why


def test_values_that_are_no_number_of_records_are_refused(project: Project) -> None:
    project.write(CODE.replace("max_records=25", "max_records=-1"))
    assert "max_records is -1" in project.shoal("run", "shop.py", code=2).stderr
    project.write(CODE.replace("max_records=25", 'max_records=25, max_records_of="ledger"'))
    assert (
        "max_records_of is 'ledger'; it must be one of run, scraper" in project.shoal("run", "shop.py", code=2).stderr
    )
    project.write(CODE)
    (project.folder / "shoal.toml").write_text(TOML.format("many"))
    assert "max_records" in project.shoal("run", "people", code=2).stderr
