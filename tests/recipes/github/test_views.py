"""The monitoring queries of the earlier system, as they were written there, on the views of the ledger."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

from tests.recipes.github.conftest import PATIENCE, Serve, query, set_up, statuses
from tests.support.project import Project

ACTIVE_CLAIMS = """
SELECT claimed_by, COUNT(*) as records_claimed, MIN(processing_started_at) as first_started,
       MAX(processing_started_at) as last_claimed
FROM developers
WHERE enrichment_status = 'PROCESSING'
GROUP BY claimed_by;
"""
COMPLETED_LAST_HOUR = """
SELECT claimed_by, COUNT(*) as completed
FROM developers
WHERE enrichment_status = 'PROFILED' AND profiled_at > NOW() - INTERVAL '1 hour'
GROUP BY claimed_by
ORDER BY completed DESC;
"""
STALE_CLAIMS = """
SELECT username, claimed_by, processing_started_at,
       EXTRACT(EPOCH FROM (NOW() - processing_started_at)) / 60 as minutes_ago
FROM developers
WHERE enrichment_status = 'PROCESSING' AND processing_started_at < NOW() - INTERVAL '30 minutes'
ORDER BY processing_started_at;
"""
MANY = 100_000
FIELDS = {
    *("username", "name", "email", "bio", "location", "company", "blog", "twitter_username", "hireable", "followers"),
    *("following", "public_repos", "public_gists", "profile_url", "avatar_url", "created_at", "updated_at"),
    *("scraped_at", "profiled_at", "enhanced_at", "retry_count", "last_error", "claimed_by", "processing_started_at"),
}


def test_the_queries_run_unchanged(fleet: Project, serve: Serve) -> None:
    """S0.4, S0.6, S0.16 to S0.19, S0.21."""
    site = serve(places=(("Suva, Fiji", 9),), faults=["missing"])  # developer 5 is gone
    set_up(fleet, site, LOCATIONS="Suva, Fiji", MAX_RETRIES="0")
    fleet.shoal("enqueue", "github")
    fleet.shoal("worker", "github", "--stage", "username", "--drain", "-q")
    assert statuses(fleet) == {"INITIAL": 9}
    fleet.shoal("worker", "github", "--stage", "profile", "--limit", "8", "-q")
    assert statuses(fleet)["PROFILED"] >= 7
    (completed,) = query(fleet, COMPLETED_LAST_HOUR)
    assert completed["completed"] == statuses(fleet)["PROFILED"]

    site.site.latency = (30.0, 30.0)
    worker = fleet.start("worker", "github", "--stage", "social", "--forever", "-j", "2")
    deadline = time.monotonic() + PATIENCE
    while statuses(fleet).get("PROCESSING") != 2:
        assert time.monotonic() < deadline, worker.stderr
        time.sleep(0.05)
    (claims,) = query(fleet, ACTIVE_CLAIMS)
    assert f"-{worker.pid}-" in claims["claimed_by"]  # S0.5
    assert (claims["records_claimed"], claims["first_started"] <= claims["last_claimed"]) == (2, True)
    assert query(fleet, STALE_CLAIMS) == []
    query(fleet, "update shoal.lease set claimed_at = claimed_at - interval '45 minutes'")
    stale = query(fleet, STALE_CLAIMS)
    assert (len(stale), stale[0]["claimed_by"]) == (2, claims["claimed_by"])
    assert 45 <= stale[0]["minutes_ago"] < 47

    worker.kill()
    fleet.shoal("release", "--older-than", "1800")  # S0.21: and each goes back to where it was
    site.site.latency = (0.0, 0.0)
    fleet.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(fleet) == {"ENHANCED": 8, "FAILED": 1}
    (failed,) = query(fleet, "SELECT username, last_error FROM developers WHERE enrichment_status = 'FAILED'")
    assert failed["username"] == site.site.people.login(5)
    assert "404" in failed["last_error"]


def test_the_views_have_the_columns_and_the_truth(either: Project, serve: Serve) -> None:
    site = serve(places=(("Suva, Fiji", 9),))
    set_up(either, site, LOCATIONS="Suva, Fiji")
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    people = site.site.people
    rows = query(either, "select * from developers order by username")
    assert sorted(row["username"] for row in rows) == sorted(people.login(number) for number in range(9))
    for row in rows:
        truth = people.user(people.number(row["username"]) or 0)
        assert set(row) >= FIELDS
        for name in ("name", "email", "bio", "location", "company", "blog", "followers", "public_repos", "avatar_url"):
            assert row[name] == truth[name]
        assert bool(row["hireable"]) == bool(truth["hireable"])
        assert str(row["created_at"])[:10] == truth["created_at"][:10]
        assert (row["enrichment_status"], row["retry_count"], row["last_error"]) == ("ENHANCED", 0, None)
        assert str(row["scraped_at"]) <= str(row["profiled_at"]) <= str(row["enhanced_at"])
    links = query(either, "select username, platform, verified from social_links")
    assert len(links) == len({(row["username"], row["platform"]) for row in links}) > 9
    assert {bool(row["verified"]) for row in links} == {True, False}
    top = query(either, 'select username, name, stars, "order" from repositories order by username, "order"')
    first = [row for row in top if row["username"] == rows[0]["username"]]
    assert [row["order"] for row in first] == list(range(1, len(first) + 1))
    assert [row["stars"] for row in first] == sorted((row["stars"] for row in first), reverse=True)


def test_a_further_run_hides_nothing_until_it_begins_with_a_developer(either: Project, serve: Serve) -> None:
    """A second run over the same people, and one more, does not show anybody twice, and keeps what is known."""
    site = serve(places=(("Suva, Fiji", 9),))
    set_up(either, site, USERNAMES_FILE="names.txt")
    names = [site.site.people.login(number) for number in range(4)]
    (either.folder / "names.txt").write_text("\n".join(names[:3]))
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    links = query(either, "select username, platform, url from social_links order by 1, 2")
    (either.folder / "names.txt").write_text("\n".join(names[1:]))
    either.shoal("enqueue", "github", "--fresh")
    assert statuses(either) == {"ENHANCED": 3, "INITIAL": 1}
    either.shoal("worker", "github", "--stage", "profile", "--drain", "-q", timeout=PATIENCE)
    assert statuses(either) == {"ENHANCED": 1, "PROFILED": 3}
    assert query(either, "select username, platform, url from social_links order by 1, 2") == links
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    assert statuses(either) == {"ENHANCED": 4}
    people = query(either, "select distinct username from social_links union select username from repositories")
    assert len(people) <= 4


def test_the_fields_are_the_last_that_were_stored(either: Project, serve: Serve) -> None:
    """Of a developer who fails in a later run."""
    site = serve(places=(("Suva, Fiji", 9),))
    set_up(either, site, USERNAMES_FILE="names.txt")
    name = site.site.people.login(5)
    (either.folder / "names.txt").write_text(name)
    either.shoal("run", "github", "-q", timeout=PATIENCE)
    site.site.faults.add("missing")  # developer 5 is gone
    either.shoal("run", "github", "--fresh", "-q", code=1, timeout=PATIENCE)
    (row,) = query(either, "select username, name, enrichment_status, last_error from developers")
    truth = site.site.people.user(5)
    assert (row["username"], row["name"], row["enrichment_status"]) == (name, truth["name"], "FAILED")
    assert "404" in row["last_error"]


def change(project: Project, what: str) -> None:
    if project.on_postgres:
        query(project, f"update shoal.{what}")
    else:
        with closing(sqlite3.connect(project.ledger)) as connection, connection:
            connection.execute(f"update {what}")


def test_tries_count_while_an_item_waits(either: Project, serve: Serve) -> None:
    """An item that failed and is ready again has its tries, as in url_work_queue."""
    site = serve(places=(("Suva, Fiji", 9),))
    set_up(either, site, USERNAMES_FILE="names.txt")
    (either.folder / "names.txt").write_text(site.site.people.login(0))
    either.shoal("enqueue", "github")
    change(either, "ready set tries = 2")
    assert [row["retry_count"] for row in query(either, "select retry_count from developers")] == [2]


def test_the_queries_are_quick_with_many_developers(fleet: Project, serve: Serve) -> None:
    """S0.16 to S0.19 at 100,000 developers, most of them profiled: seconds on a busy machine, not minutes."""
    set_up(fleet, serve(), USERNAMES_FILE="names.txt")
    (fleet.folder / "names.txt").write_text("one\n")
    fleet.shoal("enqueue", "github")
    record = json.dumps({"username": "x", "name": "Bo", "followers": 1, "created_at": "2020-01-01T00:00:00Z"})
    (place,) = query(
        fleet,
        "select r.no, g.id as stage, q.id as queue from shoal.run r join shoal.stage g on g.run = r.no and g.name = "
        "'profile' join shoal.queue q on q.stage = g.id",
    )
    run, stage, queue = place.values()
    ids = f"generate_series(1000000, {1_000_000 + MANY - 1}) as n"
    query(
        fleet,
        f"insert into shoal.item (id, run, stage, queue, priority, created_at, key_hash, key) "
        f"select n, {run}, {stage}, {queue}, 0, now(), sha256(n::text::bytea), 'user-' || n from {ids}",
    )
    query(
        fleet,
        "insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues, "
        f"state, outcome) select n, now(), now(), {run}, {queue}, 1, 1, 0, 1, 0, 'done', 'done' from {ids}",
    )
    query(fleet, f"insert into shoal.result (item, run, n, record) select n, {run}, 0, '{record}' from {ids}")
    query(fleet, "analyze")
    assert statuses(fleet) == {"PROFILED": MANY, "INITIAL": 1}
    for sql in (ACTIVE_CLAIMS, COMPLETED_LAST_HOUR, STALE_CLAIMS):
        began = time.monotonic()
        query(fleet, sql)
        assert time.monotonic() - began < 30
