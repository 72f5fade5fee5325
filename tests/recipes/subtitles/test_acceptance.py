"""A channel from being pasted to the download of its captions: real workers, compared with the stand-in's log."""

from __future__ import annotations

import io
import operator
import os
import re
import signal
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import httpx
import pytest

from shoal.demo.stand_in import RunningStandIn
from shoal.model.views import OldestLease
from shoal.recipes.subtitles.demo import compare
from shoal.recipes.subtitles.stand_in import NEW_VIDEOS, VideoSite
from tests.recipes.subtitles.conftest import served_subtitles
from tests.support import LONG
from tests.support.project import Project
from tests.support.served import ServedProject

# Enough for all that is done while pages are slow, three seconds each.
VIDEOS = 400 if LONG else 60
LATENCY = 0.2
LATE_SECONDS = 20.0
RETRIES = 2
WORKERS = 5
# What a machine that is busy reaches too, when a video is mostly waiting for the site.
FASTER = 4.0 if LONG else 2.5
WAITING = 2.0 if LONG else 1.0


@pytest.fixture
def site() -> Iterator[RunningStandIn[VideoSite]]:
    with VideoSite(videos=VIDEOS, latency=(LATENCY, LATENCY), hang=LATE_SECONDS).serving() as site:
        yield site


def until(served: ServedProject, path: str, is_so: Any, patience: float = 300.0) -> Any:
    deadline = time.monotonic() + patience
    while not is_so(seen := served.get(path)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
    return seen


def pages(site: RunningStandIn[VideoSite]) -> Counter[str]:
    return Counter(visit.path.rpartition("/")[2] for visit in site.log() if visit.path.startswith("/watch/"))


@pytest.fixture(params=["sqlite", "postgres"] if LONG else ["sqlite"])
def whole(request: pytest.FixtureRequest) -> Project:
    """A project on each ledger when there is time; test_api.py has both always."""
    found: Project = request.getfixturevalue("fleet" if request.param == "postgres" else "project")
    return found


def test_a_channel_is_pasted_worked_on_and_downloaded(whole: Project, site: RunningStandIn[VideoSite]) -> None:
    """S4.1, S4.4-S4.15: five workers, kill -9 in the middle, and captions that equal the truth."""
    with served_subtitles(whole, site, MAX_RETRIES=str(RETRIES)) as served:
        url = site.site.channel_url
        assert served.get("/channels")["rows"] == []
        assert served.post("/channels", {"url": url}, preview=True)["total_videos"] == 0
        assert served.get("/channels")["rows"] == [], "a preview changes nothing"
        added = served.post("/channels", {"url": url})
        assert added["reading"]
        site.switch("slow")
        started = served.post("/jobs/workers/start", {"num_workers": WORKERS})
        assert served.post("/jobs/start")["pool_id"] == started["pool_id"], "a second start does not double"
        check_frames(served, started["run_id"])
        assert len([pool for pool in served.get("/api/v1/pools")["rows"] if pool["state"] == "running"]) == 1
        killed = kill_a_worker_and_the_server(served, site, started["run_id"])
        check_pause(served, site)
        assert served.get("/channels")["rows"][0]["pending"] > 0, "too few videos for what was checked until here"
        site.switch("slow", on=False)

        done = until(served, "/channels", lambda seen: seen["rows"][0]["pending"] + seen["rows"][0]["processing"] == 0)
        (channel,) = done["rows"]
        truth = {video.id: video for video in site.site.videos}
        assert (channel["name"], channel["total_videos"]) == ("Harbour Workshop", VIDEOS)
        assert channel["completed"] == sum(video.text is not None for video in truth.values())
        tries = served.ask(lambda ledger: ledger.reads.attempts(started["run_id"], killed))
        assert [each.outcome for each in tries].count("crashed") == 1, "the attempt that was killed is known as such"
        assert tries[-1].outcome == "done"
        check_downloads(served, whole, site, channel["channel_id"])
        check_failures(served, site)
        check_reading_again(served, site, url)
        check_deletion(served, channel["channel_id"], url)
        assert whole.is_sound()


def check_frames(served: ServedProject, run_id: str) -> None:
    """S4.12, S4.13: the workers of a frame are those that have a lease in the ledger."""

    def agrees(frame: dict[str, Any]) -> bool:
        leases = served.ask(lambda ledger: ledger.reads.oldest_leases(run_id))
        held = {lease.worker: lease.name for lease in leases}
        return len(held) > 1 and held == {name: has["item"] for name, has in frame["workers"].items()}

    with served.frames("/jobs/status") as frames:
        seen = []
        for frame in islice(frames, 60):
            assert frame["active_workers"] == len(frame["workers"])
            seen.append(agrees(frame))
            if seen[-1]:
                break
    assert seen[-1], "no frame had the workers that the ledger has"
    fields = {"status", "active_workers", "counts", "throughput_per_min", "workers", "recent_errors"}
    assert fields <= frame.keys()


def check_pause(served: ServedProject, site: RunningStandIn[VideoSite]) -> None:
    """A second after the request no video is asked for any more; adding a channel does not end the pause.

    A machine that is busy may itself need longer, so the best of three counts; a pause that is too slow never passes.
    """
    late = []
    for _ in range(3):
        asked_at = time.monotonic()
        assert served.post("/jobs/pause")["status"] == "paused"
        # What runs may end: a late video takes longest.
        until(served, "/jobs/queue/stats", lambda seen: seen["processing"] == 0)
        late.append(max(visit.at for visit in site.log() if visit.path.startswith("/watch/")) - asked_at)
        if late[-1] < 1.0:
            break
        before = len(site.log())
        served.post("/jobs/resume")
        served.until(lambda: len(site.log()), partial(operator.lt, before))
    assert min(late) < 1.0, f"videos were asked for {late} s after the pause"
    served.post("/channels", {"url": site.site.channel_url})
    assert served.get("/jobs")["status"] == "paused"
    assert served.post("/jobs/resume")["status"] == "running"


def kill_a_worker_and_the_server(served: ServedProject, site: RunningStandIn[VideoSite], run_id: str) -> int:
    """kill -9 of a worker that has a video, then of the server: nothing is lost, and the pool goes on. The video."""
    plain = {f"{site.url}/watch/{video.id}" for video in site.site.videos if video.kind == "plain"}
    for _ in range(20):
        leases = served.until(
            lambda: leases_of(served, run_id), lambda found: any(each.name in plain for each in found)
        )
        lease = next(each for each in reversed(leases) if each.name in plain)
        workers = served.get("/api/v1/workers")["rows"]
        pid = next(worker["pid"] for worker in workers if worker["worker"] == lease.worker)
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end the video before it is killed
        if lease in leases_of(served, run_id):
            os.kill(pid, signal.SIGKILL)
            served.kill()
            served.start()
            return int(lease.item)
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("no worker kept its video long enough")


def leases_of(served: ServedProject, run_id: str) -> list[OldestLease]:
    """The videos that workers have."""
    leases: list[OldestLease] = served.ask(lambda ledger: ledger.reads.oldest_leases(run_id))
    return [lease for lease in leases if "/watch/" in lease.name]


def check_downloads(served: ServedProject, project: Project, site: RunningStandIn[VideoSite], channel_id: str) -> None:
    """What is downloaded, what lies in `output_dir` and what the site has are the same."""
    wanted = {video.id: video.text for video in site.site.videos if video.text is not None}
    answer = httpx.get(f"{served.url}/channels/{channel_id}/download", timeout=60)
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        packed = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {name.partition("_")[0]: text.rstrip("\n") for name, text in packed.items()} == wanted
    assert not [name for name in packed if "/" in name or "\\" in name or ".." in name or name.startswith(".")]
    folder = project.folder / "subtitles" / channel_id
    assert {file.name: file.read_text() for file in folder.iterdir()} == packed

    rows = all_videos(served, channel_id)
    assert len(rows) == VIDEOS
    by_id = {row["url"].rpartition("/")[2]: row for row in rows}
    script = next(video for video in site.site.videos if video.kind == "script")
    found = served.get(f"/subtitles/{by_id[script.id]['video_id']}")
    assert (found["content"], found["language"]) == (script.text, script.language)
    assert "<script>" in found["content"]
    one = httpx.get(f"{served.url}/subtitles/{by_id[script.id]['video_id']}/download", timeout=60)
    assert one.text == f"{script.text}\n"
    assert one.headers["content-type"].startswith("text/plain")
    assert one.headers["content-disposition"].startswith("attachment;")
    records = project.export()
    videos = [record for record in records if "video_id" in record]
    said = compare(site, videos, dead=len(rows) - len(videos), retries=RETRIES)
    assert said.problems == []
    assert any(
        re.fullmatch(r"the two closest requests of all workers to the host: [\d.]+ s apart", each)
        for each in said.lines
    )


def all_videos(served: ServedProject, channel_id: str) -> list[dict[str, Any]]:
    rows, cursor = [], None
    while True:
        page = served.get("/videos", channel=channel_id, limit=100, **({"cursor": cursor} if cursor else {}))
        rows += page["rows"]
        cursor = page["cursor"]
        if cursor is None:
            return rows


def check_failures(served: ServedProject, site: RunningStandIn[VideoSite]) -> None:
    """S4.6-S4.8: permanent ones were tried once, transient ones until the retries were used up."""
    failed = {row["url"].rpartition("/")[2]: row for row in served.get("/videos", status="failed", limit=200)["rows"]}
    errors = {
        "none": "No subtitles available",
        "private": "Private video (HTTP 403)",
        "unavailable": "Video unavailable (HTTP 410)",
        "deleted": "This video has been deleted (HTTP 404)",
        "broken": "Exceeded retries: 503 Service Unavailable",
    }
    for video in site.site.videos:
        if video.kind in errors:
            assert failed[video.id]["last_error"] == errors[video.kind]
            if video.kind == "broken":
                assert failed[video.id]["attempts"] == 1 + RETRIES
    limited = [video.id for video in site.site.videos if video.kind == "limited"]
    late = [video.id for video in site.site.videos if video.kind == "late"]
    # The site logs a late answer when it is over, and that is after the attempt.
    asked = served.until(lambda: pages(site), lambda seen: all(seen[video] >= 3 for video in late))
    assert all(asked[video] >= 2 for video in limited)
    lines = served.get("/logs", level="ERROR", limit=1_000)["rows"]
    assert {"No subtitles available", "Private video (HTTP 403)"} <= {line["message"] for line in lines}

    gone = next(row for video, row in failed.items() if site.site.videos[int(video[1:]) - 1].kind == "private")
    assert served.post(f"/videos/{gone['video_id']}/retry")["items"] == 1
    until(served, f"/videos/{gone['video_id']}", lambda seen: seen["status"] == "failed")
    done = served.get("/videos", status="completed", limit=1)["rows"][0]
    assert served.post(f"/videos/{done['video_id']}/retry", status=409)["error"]["code"] == "wrong_state"


def check_reading_again(served: ServedProject, site: RunningStandIn[VideoSite], url: str) -> None:
    """A channel that is read again adds only videos that are new; the others are not asked for."""
    before = pages(site)
    site.switch("more")
    served.post("/channels", {"url": url})
    done = until(
        served,
        "/channels",
        lambda seen: seen["rows"][0]["total_videos"] == VIDEOS + NEW_VIDEOS and seen["rows"][0]["pending"] == 0,
    )
    assert len(done["rows"]) == 1
    until(served, "/jobs/queue/stats", lambda seen: seen["remaining"] == 0)
    assert len(pages(site) - before) == NEW_VIDEOS


def check_deletion(served: ServedProject, channel_id: str, url: str) -> None:
    """A deleted channel is gone with its captions; added again it begins anew."""
    video = served.get("/videos", channel=channel_id, status="completed", limit=1)["rows"][0]["video_id"]
    preview = httpx.delete(f"{served.url}/channels/{channel_id}", params={"preview": "true"}, timeout=60).json()
    assert preview["items"] == VIDEOS + NEW_VIDEOS
    assert httpx.delete(f"{served.url}/channels/{channel_id}", timeout=60).status_code == 200
    assert served.get("/channels")["rows"] == []
    assert httpx.get(f"{served.url}/subtitles/{video}", timeout=60).status_code == 404
    records = served.ask(lambda ledger: ledger.reads.results(served.get("/jobs")["run_id"]))
    assert records.rows == ()
    again = served.post("/channels", {"url": url})
    assert again["channel_id"] != channel_id
    assert [row["total_videos"] for row in served.get("/channels")["rows"]] == [0]


def test_a_run_that_has_ended_is_continued(project: Project) -> None:
    """S4.3: by the same command, and by workers that are started; nothing is fetched twice, and all is still shown."""
    command = ("run", "subtitles", "--urls-file", "channels.txt")
    with VideoSite(videos=3, ordinary=True).serving() as site, served_subtitles(project, site) as served:
        project.urls([site.site.channel_url], "channels.txt")
        project.shoal(*command)
        before, asked = served.get("/channels"), len(site.log())
        assert [row["completed"] for row in before["rows"]] == [3]
        project.shoal(*command)
        assert served.get("/channels") == before
        started = served.post("/jobs/start", {"num_workers": 1})
        assert served.get("/channels") == before
        assert len(served.get("/videos")["rows"]) == 3
        assert (started["run_id"], started["status"]) == (project.run().id, "running")
        assert not [visit.path for visit in site.log()[asked:] if visit.path != "/robots.txt"]
        (row,) = before["rows"]
        site.switch("more")
        served.post("/channels", {"url": row["url"]})
        done = 3 + NEW_VIDEOS
        until(served, f"/channels/{row['channel_id']}", lambda seen: seen["completed"] == done)
        assert project.is_sound()


def test_a_new_channel_is_read_at_once_and_deleted_videos_come_again(project: Project) -> None:
    """Channels are listed before videos. Videos of a deleted channel are fetched again, by whatever address."""
    videos = 30
    with (
        VideoSite(videos=videos, faults=("slow",), ordinary=True).serving() as site,
        served_subtitles(project, site, VIDEO_TIMEOUT="60") as served,
    ):
        first = served.post("/channels", {"url": site.site.channel_url})["channel_id"]
        served.post("/jobs/workers/start", {"num_workers": 1})
        until(served, f"/channels/{first}", lambda seen: seen["total_videos"] == videos)
        wanted = site.site.videos[-1]
        address = f"{site.url}/watch/{wanted.id}"
        second = served.post("/channels", {"url": address})["channel_id"]
        seen = until(served, f"/channels/{second}", lambda seen: not seen["reading"])
        assert seen["total_videos"] == 0, "the video belongs to the channel that was read first"
        assert served.get(f"/channels/{first}")["pending"] > videos // 2

        site.switch("slow", on=False)
        assert httpx.delete(f"{served.url}/channels/{first}", timeout=60).status_code == 200
        assert served.post("/channels", {"url": address})["channel_id"] == second
        until(served, f"/channels/{second}", lambda seen: (seen["total_videos"], seen["completed"]) == (1, 1))
        (video,) = served.get("/videos", channel=second)["rows"]
        assert served.get(f"/subtitles/{video['video_id']}")["content"] == wanted.text


def test_a_stop_gives_back_what_runs(project: Project) -> None:
    """S4.9: within a second after the drain every video waits again, no try is counted, and the workers are gone.

    A machine that is busy may itself need longer, so the best of three counts; a stop that is too slow never passes.
    """
    drain, given_back = 1.0, 0
    took: list[float] = []
    with (
        VideoSite(videos=60, faults=("slow",), ordinary=True).serving() as site,
        served_subtitles(project, site) as served,
    ):
        served.post("/channels", {"url": site.site.channel_url})
        for _ in range(3):
            asked = site.site.asked.total()
            run_id = served.post("/jobs/workers/start", {"num_workers": WORKERS})["run_id"]
            served.until(site.site.asked.total, partial(operator.le, asked + WORKERS))
            held = served.until(partial(leases_of, served, run_id), lambda found: len(found) == WORKERS)
            before = {each.item: served.get(f"/videos/{each.item}")["attempts"] for each in held}
            began = time.monotonic()
            with ThreadPoolExecutor(1) as thread:
                stopping = thread.submit(served.post, "/jobs/workers/stop", drain=drain)
                served.until(partial(leases_of, served, run_id), operator.not_)
                took.append(time.monotonic() - began)
                stopped = stopping.result()
            assert (stopped["pool"], stopped["worker_status"]["running"]) == ("ended", False)
            assert served.get("/jobs/queue/stats")["processing"] == 0
            assert served.get("/api/v1/workers")["rows"] == []
            for item, attempts in before.items():
                video = served.get(f"/videos/{item}")
                given_back += video["status"] == "pending"
                assert (video["status"], video["attempts"]) in (("pending", attempts), ("completed", attempts + 1))
            if took[-1] < drain + 1.0:
                break
        assert given_back > 0, "every video ended within the drain"
        assert min(took) < drain + 1.0, f"after a stop with {drain:g} s of drain videos were given back in {took} s"
        assert project.is_sound()


def test_five_workers_are_faster_than_one(project: Project) -> None:
    """S4.20, S4.21: with a site whose latency dominates; the settings change the number of workers while they run."""
    with (
        VideoSite(videos=400 if LONG else 100, latency=(WAITING, WAITING), ordinary=True).serving() as site,
        served_subtitles(project, site) as served,
    ):
        served.post("/channels", {"url": site.site.channel_url})
        served.post("/jobs/workers/start", {"num_workers": 1})
        overlap(site, 1)
        alone, alone_rate = overlap(site, 10 if LONG else 3)
        refused = served.post("/settings", {"max_workers": 21}, status=422)
        assert refused["error"]["code"] == "invalid_request"
        served.post("/settings", {"max_workers": WORKERS, "max_retries": 1, "backoff_factor": 3})
        until(served, "/jobs/workers/status", lambda seen: seen["worker_status"]["active_workers"] == WORKERS)
        together, together_rate = overlap(site, 60 if LONG else 20)
        assert alone == pytest.approx(1.0, abs=0.01), "one worker asks for one thing at a time"
        assert together >= FASTER, f"the site answered {together:.2f} requests at once to five workers"
        if LONG:
            assert together_rate >= FASTER * alone_rate, f"{together_rate:.2f} and {alone_rate:.2f} videos in a second"


def overlap(site: RunningStandIn[VideoSite], videos: int) -> tuple[float, float]:
    """Until so many further videos are fetched: how many requests are answered at once, on average, while any is, and
    how many videos are fetched in a second.
    """
    began, before = time.monotonic(), captions_sent(site)
    deadline = began + 180
    while captions_sent(site) < before + videos:
        assert time.monotonic() < deadline, "nothing is fetched"
        time.sleep(0.02)
    rate = (captions_sent(site) - before) / (time.monotonic() - began)
    times = sorted((visit.at, visit.ended) for visit in site.log() if visit.at >= began)
    total = sum(ended - at for at, ended in times)
    busy, until_then = 0.0, began
    for at, ended in times:
        busy += max(0.0, ended - max(at, until_then))
        until_then = max(until_then, ended)
    return total / busy, rate


def captions_sent(site: RunningStandIn[VideoSite]) -> int:
    return sum(visit.path.startswith("/captions/") for visit in site.log())
