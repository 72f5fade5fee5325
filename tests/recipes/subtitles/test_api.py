"""Channels, videos and captions by REST, on both ledgers and without workers: every answer and every refusal."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from shoal.config import load_settings
from shoal.model.access import Role
from shoal.model.item import NewItem
from shoal.recipes import find_project
from shoal.service.client import Fleet
from shoal.templates import write_project
from shoal.testing.harness import LedgerHarness
from tests.ledger.conftest import either_harness, place, postgres_template
from tests.recipes.subtitles.conftest import HOSTILE, URL, do_the_work
from tests.support.control import REMOTE, bearer, client_of, running_app, token_of

__all__ = ["either_harness", "place", "postgres_template"]


@pytest.fixture
async def api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, either_harness: LedgerHarness, modules: dict[str, ModuleType]
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, dict(find_project("subtitles").files()))
    settings = load_settings({"ledger": str(tmp_path / "unused.db")}, environ={}, folder=tmp_path)
    async with running_app(settings, opened=lambda: either_harness.ledger) as app, client_of(app) as client:
        client.app = app  # type: ignore[attr-defined]
        yield client


async def ask(
    api: httpx.AsyncClient, method: str, path: str, body: Any = None, status: int = 200, **params: Any
) -> Any:
    got = await api.request(method, path, json=body, params=params)
    assert got.status_code == status, got.text
    return got.json()


async def test_channels_videos_and_captions(api: httpx.AsyncClient, either_harness: LedgerHarness) -> None:
    assert await ask(api, "GET", "/channels") == {"rows": [], "cursor": None}
    assert await ask(api, "GET", "/videos") == {"rows": [], "cursor": None}
    await ask(api, "GET", "/videos/1", status=404)
    added = await ask(api, "POST", "/channels", {"url": f"  {URL} "})
    assert (added["url"], added["reading"], added["total_videos"]) == (URL, True, 0)
    await do_the_work(either_harness)

    (channel,) = (await ask(api, "GET", "/channels"))["rows"]
    assert channel["name"] == "Boats"
    assert channel["added_at"] == added["added_at"], "not the time of its last change"
    numbers = ("total_videos", "completed", "failed", "skipped", "pending", "processing")
    assert [channel[name] for name in numbers] == [4, 1, 1, 1, 1, 0]
    assert await ask(api, "GET", f"/channels/{channel['channel_id']}") == channel
    queue = await ask(api, "GET", "/jobs/queue/stats")
    assert queue["total"] == channel["total_videos"], "the queue is that of the videos, without the listing"
    assert [queue[name] for name in numbers[1:]] == [channel[name] for name in numbers[1:]]

    page = await ask(api, "GET", "/videos", channel=channel["channel_id"], limit=2)
    rest = await ask(api, "GET", "/videos", channel=channel["channel_id"], cursor=page["cursor"])
    one, two, four, three = page["rows"] + rest["rows"]
    assert [video["status"] for video in (one, two, four, three)] == ["completed", "failed", "skipped", "pending"]
    for status in ("completed", "failed", "skipped", "pending"):
        found = await api.get("/videos", params={"status": status})
        assert len(found.json()["rows"]) == channel[status], "what a channel counts is what the filter shows"
    assert (two["title"], two["attempts"], two["last_error"]) == (HOSTILE, 1, "Private video")
    assert one["completed_at"]
    failed = (await api.get("/videos", params={"status": "failed"})).json()
    assert [video["video_id"] for video in failed["rows"]] == [two["video_id"]]

    captions = await ask(api, "GET", f"/subtitles/{one['video_id']}")
    assert (captions["content"], captions["language"]) == (f"Words\n{HOSTILE}", "en")
    file = await api.get(f"/subtitles/{one['video_id']}/download")
    assert file.text == f"Words\n{HOSTILE}\n"
    assert file.headers["content-disposition"].startswith('attachment; filename="v1_One.txt"')
    packed = await api.get(f"/channels/{channel['channel_id']}/download")
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert archive.namelist() == ["v1_One.txt"]
    await ask(api, "GET", f"/subtitles/{two['video_id']}", status=404)

    await check_retries(api, ended=(two, four), others=(one, three))

    # Read again: the same channel. Deleted: gone, with its records. Added again: anew, under another name.
    assert (await ask(api, "POST", "/channels", {"url": URL}))["channel_id"] == channel["channel_id"]
    assert (await ask(api, "DELETE", f"/channels/{channel['channel_id']}", preview="true"))["items"] == 4
    assert (await ask(api, "DELETE", f"/channels/{channel['channel_id']}"))["text"] == "Deleted: Boats."
    assert await ask(api, "GET", "/channels") == {"rows": [], "cursor": None}
    assert (await ask(api, "GET", "/videos"))["rows"] == []
    assert (await ask(api, "GET", "/videos", channel=channel["channel_id"]))["rows"] == [], "as /videos/ID says"
    await ask(api, "GET", f"/videos/{one['video_id']}", status=404)
    await ask(api, "DELETE", f"/channels/{channel['channel_id']}", status=404)
    again = await ask(api, "POST", "/channels", {"url": URL})
    assert (again["channel_id"], again["total_videos"]) == (f"{channel['channel_id']}.1", 0)
    fleet = Fleet(load_settings({}, environ={}, folder=Path.cwd()), opened=either_harness.ledger)
    assert [record async for record in fleet.records("latest:subtitles")] == []
    assert await either_harness.ledger.upkeep.audit() == []
    actions = [event["action"] for event in (await ask(api, "GET", "/api/v1/events"))["rows"]]
    assert {"items.retried", "items.cancelled", "records.discarded", "route.called"} <= set(actions)


async def check_retries(api: httpx.AsyncClient, ended: tuple[Any, ...], others: tuple[Any, ...]) -> None:
    """What failed or was skipped is tried again; nothing else is."""
    for video in ended:
        assert (await ask(api, "POST", f"/videos/{video['video_id']}/retry", preview="true"))["preview"]
        assert (await ask(api, "POST", f"/videos/{video['video_id']}/retry"))["items"] == 1
        assert (await ask(api, "GET", f"/videos/{video['video_id']}"))["status"] == "pending"
    for video in (*ended, *others):
        refused = await ask(api, "POST", f"/videos/{video['video_id']}/retry", status=409)
        assert refused["error"]["code"] == "wrong_state"


async def test_there_may_be_very_many_channels(
    api: httpx.AsyncClient, either_harness: LedgerHarness, modules: dict[str, ModuleType]
) -> None:
    """Every one is listed, in pages, and the last one is found as fast as the first."""
    first = await ask(api, "POST", "/channels", {"url": URL})
    run = (await ask(api, "GET", "/jobs"))["run_id"]
    names = modules["subtitles"].channel_id
    urls = [f"https://videos.example/@{number}" for number in range(1_050)]
    items = [NewItem(url=url, stage="channel", partition=names(url)) for url in urls]
    await either_harness.ledger.intake.enqueue(run, items)
    last = await ask(api, "POST", "/channels", {"url": "https://videos.example/@last"})
    assert (await ask(api, "GET", f"/channels/{last['channel_id']}"))["reading"]
    assert (await ask(api, "POST", "/channels", {"url": URL}))["channel_id"] == first["channel_id"]

    seen: list[str] = []
    page = await ask(api, "GET", "/channels")
    assert len(page["rows"]) == 1_000
    while True:
        seen += [row["channel_id"] for row in page["rows"]]
        if page["cursor"] is None:
            break
        page = await ask(api, "GET", "/channels", cursor=page["cursor"], limit=40)
    assert seen == [first["channel_id"], *map(names, urls), last["channel_id"]]
    await ask(api, "GET", "/channels", cursor="x", status=422)
    assert (await ask(api, "DELETE", f"/channels/{last['channel_id']}"))["text"]
    await ask(api, "GET", f"/channels/{last['channel_id']}", status=404)


async def test_a_paused_job_stays_paused_and_an_ended_run_goes_on(
    api: httpx.AsyncClient, either_harness: LedgerHarness
) -> None:
    await ask(api, "POST", "/channels", {"url": URL})
    run = (await ask(api, "GET", "/jobs"))["run_id"]
    await ask(api, "POST", "/jobs/pause")
    await ask(api, "POST", "/channels", {"url": "https://videos.example/@ropes"})
    assert (await ask(api, "GET", "/jobs"))["status"] == "paused"
    await either_harness.ledger.runs.cancel(run)
    await ask(api, "POST", "/channels", {"url": "https://videos.example/@sails"})
    assert (await either_harness.ledger.runs.get(run)).state == "active"
    assert len((await ask(api, "GET", "/channels"))["rows"]) == 3


async def test_what_is_no_address_is_refused(api: httpx.AsyncClient) -> None:
    for url in ("file:///etc/passwd", "javascript:alert(1)", "boats", "", "https://", "https://x" + "y" * 3_000):
        await ask(api, "POST", "/channels", {"url": url}, status=422)
        await ask(api, "POST", "/channels", {"url": url}, status=422, preview="true")
    assert await ask(api, "GET", "/channels") == {"rows": [], "cursor": None}


@pytest.mark.parametrize(
    "spelling",
    [
        "https://videos.example/@boats#about",
        "https://videos.example/@boats?",
        "https://videos.example/./@boats",
        "https://videos.example:443/@boats",
        "HTTPS://Videos.Example/@boats",
    ],
)
async def test_a_channel_has_one_name_however_its_address_is_spelled(
    api: httpx.AsyncClient, either_harness: LedgerHarness, spelling: str
) -> None:
    """Another spelling of a known channel reads that one again; after it was deleted, it adds that one anew."""
    first = await ask(api, "POST", "/channels", {"url": URL})
    await do_the_work(either_harness)
    previewed = await ask(api, "POST", "/channels", {"url": spelling}, preview="true")
    assert (previewed["channel_id"], previewed["total_videos"]) == (first["channel_id"], 4)
    again = await ask(api, "POST", "/channels", {"url": spelling})
    assert (again["channel_id"], again["total_videos"], again["reading"]) == (first["channel_id"], 4, True)
    assert [row["channel_id"] for row in (await ask(api, "GET", "/channels"))["rows"]] == [first["channel_id"]]
    await ask(api, "DELETE", f"/channels/{first['channel_id']}")
    anew = await ask(api, "POST", "/channels", {"url": spelling})
    assert (anew["channel_id"], anew["total_videos"]) == (f"{first['channel_id']}.1", 0)


async def test_viewers_look_and_change_nothing(api: httpx.AsyncClient) -> None:
    app = api.app  # type: ignore[attr-defined]
    viewer = bearer(await token_of(app, "viewer", Role.VIEWER))
    async with client_of(app, REMOTE) as remote:
        refused = await remote.get("/channels", headers={"Host": "127.0.0.1:8642"})
        assert refused.status_code == 401
        seen = await remote.get("/channels", headers=viewer)
        assert seen.json()["rows"] == []
        assert (await remote.post("/channels", json={"url": URL}, headers=viewer)).status_code == 403


async def test_settings_have_their_bounds(api: httpx.AsyncClient) -> None:
    """S4.2: out of range is 422."""
    assert (await ask(api, "GET", "/settings"))["max_workers"] == 5
    wrong: list[dict[str, Any]] = [
        {"max_workers": 0},
        {"max_workers": 21},
        {"max_retries": -1},
        {"max_retries": 11},
        {"backoff_factor": 0.5},
        {"backoff_factor": 11},
    ]
    for body in wrong:
        await ask(api, "POST", "/settings", body, status=422)
    changed = await ask(api, "POST", "/settings", {"max_workers": 20, "max_retries": 0, "backoff_factor": 10})
    assert changed == {"max_workers": 20, "max_retries": 0, "backoff_factor": 10.0, "output_dir": "./subtitles"}
