"""`shoal demo subtitles`: five workers fetch the captions of a channel of 400 videos, and the site says what it saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport, closest_line
from shoal.demo.stand_in import RunningStandIn, StandIn
from shoal.errors import ClientMissing
from shoal.recipes.subtitles.stand_in import VideoSite
from shoal.service.client import Fleet

LATENCY = (0.1, 0.3)
# A late answer takes longer than an attempt may.
ATTEMPT_SECONDS, HANG_SECONDS = 8, 10.0
RETRIES = 3


class SubtitlesDemo(RecipeDemo):
    name = "subtitles"
    about = "A channel of 400 videos: captions in five formats, and all that goes wrong at a real site."

    def stand_in(self) -> StandIn:
        if find_spec("yt_dlp") is None:
            raise ClientMissing(
                "The recipe subtitles needs yt-dlp, which is not installed.", remedy="pip install 'shoal[subtitles]'"
            )
        return VideoSite(latency=LATENCY, hang=HANG_SECONDS)

    @contextmanager
    def serving(self, folder: Path) -> Iterator[RunningStandIn[Any]]:
        with super().serving(folder) as site:
            (folder / "channels.txt").write_text(f"{site.site.channel_url}\n")
            yield site

    def environment(self, site: RunningStandIn[Any]) -> Mapping[str, str]:
        return {
            "MAX_WORKERS": "5",
            "MAX_RETRIES": str(RETRIES),
            "BACKOFF_FACTOR": "2",
            "VIDEO_TIMEOUT": str(ATTEMPT_SECONDS),
            "REQUESTS_PER_HOST": "200/s",  # it is our own site
        }

    def steps(self, site: RunningStandIn[Any]) -> Sequence[DemoStep]:
        one_each = ("--set", "concurrency=1", "--stagger", "0")
        return [
            DemoStep(("shoal", "enqueue", "subtitles", "--urls-file", "channels.txt"), "the channel is queued"),
            DemoStep(
                ("shoal", "pool", "start", "subtitles", "--yes", *one_each),
                "five workers, each with one video at a time; the page Subtitles of the dashboard shows them",
                exit_codes=(0, 1),
            ),
        ]

    async def site_report(self, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
        records = [record async for record in fleet.records("latest:subtitles", stage="video")]
        counts = await fleet.stats("subtitles", stage="video")
        return compare(site, records, dead=counts.dead, retries=RETRIES)


def compare(site: RunningStandIn[Any], records: Sequence[Mapping[str, Any]], *, dead: int, retries: int) -> SiteReport:
    """What the site knows of itself and saw, against what was stored."""
    videos: Mapping[str, Any] = {video.id: video for video in site.site.videos}
    wanted = {video.id: video.text for video in videos.values() if video.text is not None}
    stored = Counter(record["video_id"] for record in records)
    wrong = [record["video_id"] for record in records if wanted.get(record["video_id"]) != record["text"]]
    log = site.log()
    pages = Counter(visit.path.rpartition("/")[2] for visit in log if visit.path.startswith("/watch/"))
    files = Counter(visit.path for visit in log if visit.path.startswith("/captions/"))
    plain = [
        video.id for video in videos.values() if video.kind in ("plain", "none", "private", "unavailable", "deleted")
    ]
    again = [video for video in plain if pages[video] > 1]
    broken = [video.id for video in videos.values() if video.kind == "broken"]
    problems: list[str] = []
    if missing := set(wanted) - set(stored):
        problems.append(f"{len(missing)} videos have no captions: {', '.join(sorted(missing)[:5])}")
    if twice := [video for video, times in stored.items() if times > 1]:
        problems.append(f"stored more than once: {', '.join(twice[:5])}")
    if wrong:
        problems.append(f"other captions than the site has: {', '.join(wrong[:5])}")
    if dead != len(videos) - len(wanted):
        problems.append(f"{dead} videos are dead, not {len(videos) - len(wanted)}")
    most = max((pages[video] for video in broken), default=0)
    lines = [
        f"{len(log):,} requests: {sum(pages.values())} for pages of videos, {sum(files.values())} for captions",
        closest_line(log, lambda visit: visit.host, "of all workers to the host"),
        f"{len(stored)} videos have captions" + ("" if problems else ", stored once, and as the site has them"),
        f"{dead} have none: no captions, private, unavailable, deleted, or always 503",
        f"always 503: asked {most} times, which is one try and {retries} retries" if broken else "",
        f"asked for more than once without need: {len(again)} of {len(plain)}",
    ]
    figures = {"stored": len(stored), "dead": dead, "requests": len(log), "asked_again": len(again)}
    return SiteReport(lines=[line for line in lines if line], problems=problems, figures=figures)


DEMO = SubtitlesDemo()
