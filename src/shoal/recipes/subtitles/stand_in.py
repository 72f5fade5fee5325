"""A stand-in of a video site: a channel as an RSS feed, pages with `<video>` and `<track>`, captions in all formats.

`python -m shoal.recipes.subtitles.stand_in --port 8002 --seed 7`. Most of the 400 videos are ordinary; the others are
what a real channel has: no captions, private, gone, answers that come late, an error or a request to wait, titles and
captions that attack whoever shows them.
"""

from __future__ import annotations

import html
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from shoal.demo.stand_in import StandIn, StandInRequest, StandInResponse, main

CHANNEL = "/@harbour"
CHANNEL_NAME = "Harbour Workshop"
VIDEOS = 400
NEW_VIDEOS = 5
SLOW_SECONDS = 3.0
FORMATS = ("json3", "vtt", "srt", "ttml", "srv1")
Kind = Literal["plain", "none", "private", "unavailable", "deleted", "limited", "late", "broken", "hostile", "script"]
# Of 100 videos; the others are plain.
SHARES: tuple[tuple[Kind, int], ...] = (
    *(("none", 2), ("private", 1), ("unavailable", 1), ("deleted", 1), ("limited", 1), ("late", 1), ("broken", 1)),
    *(("hostile", 3), ("script", 2)),
)
HOSTILE_TITLES = (
    "../../../etc/passwd",
    "<script>document.title='stolen'</script>",
    '"><img src=x onerror=alert(1)>',
    "rope\u202egnp.exe",
    "CON",
    '=HYPERLINK("http://198.51.100.7/","open")',
    "a/b\\c:d*e?f|g",
    "a very long title " * 25,
    "\u26f5 sails \u0001 and \u0000 cables",
)
SUBJECTS = ("The cable", "A dinghy", "The slipway", "Our crane", "The winch", "An anchor", "The tide", "This rudder")
VERBS = ("holds", "turns", "lifts", "slows", "scrapes", "carries", "guides", "wears")
OBJECTS = ("the keel", "two masts", "a loose plank", "the harbour wall", "fresh paint", "an old chain", "the sail loft")
SCRIPT = "<script>alert('caption')</script> & <b>bold</b>"


class StandInVideo(msgspec.Struct, frozen=True, kw_only=True):
    """A video of the channel. `tracks`: its languages with the format of each, in the order of the page."""

    id: str
    title: str
    kind: Kind
    tracks: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]

    @property
    def text(self) -> str | None:
        """The captions that a scraper must store; None when it can have none."""
        if self.kind in ("none", "private", "unavailable", "deleted", "broken"):
            return None
        return "\n".join(f"[{self.language}] {line}" for line in self.lines)

    @property
    def language(self) -> str:
        """`en`, then English of a region, then the first."""
        languages = [language for language, _ in self.tracks]
        regional = [language for language in languages if language.startswith("en-")]
        return "en" if "en" in languages else [*regional, *languages, ""][0]


class VideoSite(StandIn):
    """`videos`: of the channel. `hang`: seconds that a late answer takes. `ordinary`: all of them are plain.

    `asked`: how often each page was asked for, also those whose answer is not yet over.
    """

    name = "video-site"
    FAULTS: ClassVar[dict[str, str]] = {
        "outage": "every answer is 503",
        "slow": f"every page of a video takes {SLOW_SECONDS:g} s",
        "more": f"the channel has {NEW_VIDEOS} videos more",
    }

    def __init__(
        self,
        *,
        seed: int = 7,
        latency: tuple[float, float] = (0.0, 0.0),
        faults: Sequence[str] = (),
        videos: int = VIDEOS,
        hang: float = 10.0,
        ordinary: bool = False,
    ) -> None:
        super().__init__(seed=seed, latency=latency, faults=faults)
        self.hang = hang
        kinds: Sequence[Kind] = ["plain"] * videos if ordinary else _kinds(seed, videos)
        made = [_video(seed, number, kinds[number - 1]) for number in range(1, videos + 1)]
        made += [_video(seed, number, "plain") for number in range(videos + 1, videos + NEW_VIDEOS + 1)]
        self._first = videos
        self._videos = {video.id: video for video in made}
        self.asked: Counter[str] = Counter()

    @property
    def videos(self) -> list[StandInVideo]:
        """Those that the channel lists now."""
        shown = list(self._videos.values())
        return shown if "more" in self.faults else shown[: self._first]

    @property
    def channel_url(self) -> str:
        return f"{self.url}{CHANNEL}"

    async def answer(self, request: StandInRequest) -> StandInResponse:
        if "outage" in self.faults:
            return _error(503, "Service unavailable")
        parts = request.path.strip("/").split("/")
        if request.path == "/robots.txt":
            return StandInResponse(body="User-agent: *\nAllow: /\n", content_type="text/plain")
        if request.path == CHANNEL:
            return StandInResponse(body=self._feed(), content_type="application/rss+xml; charset=utf-8")
        if parts[0] == "watch" and len(parts) == 2 and parts[1] in self._videos:
            return self._page(self._videos[parts[1]])
        if parts[0] == "captions" and len(parts) == 2:
            video_id, _, rest = parts[1].partition(".")
            language, _, extension = rest.partition(".")
            video = self._videos.get(video_id)
            if video is not None and (language, extension) in video.tracks:
                lines = [f"[{language}] {line}" for line in video.lines]
                return StandInResponse(body=captions(lines, extension), content_type=_type(extension))
        return _error(404, "Not found")

    def _feed(self) -> str:
        items = "".join(
            f"<item><title>{_xml(video.title)}</title><link>{self.url}/watch/{video.id}</link>"
            f"<guid>{video.id}</guid></item>"
            for video in self.videos
        )
        head = f"<title>{CHANNEL_NAME}</title><link>{self.channel_url}</link><description>Boats</description>"
        return f'<?xml version="1.0" encoding="utf-8"?><rss version="2.0"><channel>{head}{items}</channel></rss>'

    def _page(self, video: StandInVideo) -> StandInResponse:
        self.asked[video.id] += 1
        match video.kind:
            case "private":
                return _error(403, "Private video")
            case "unavailable":
                return _error(410, "Video unavailable")
            case "deleted":
                return _error(404, "This video has been deleted")
            case "broken":
                return _error(503, "Service unavailable")
            case "limited" if self.asked[video.id] == 1:
                return _error(429, "Rate limit", {"Retry-After": "1"})
            case "late" if self.asked[video.id] <= 2:
                return StandInResponse(body=self._html(video), seconds=self.hang, note="late")
        return StandInResponse(body=self._html(video), seconds=SLOW_SECONDS if "slow" in self.faults else 0.0)

    def _html(self, video: StandInVideo) -> str:
        tracks = "".join(
            f'<track kind="subtitles" srclang="{language}" label="{language}" '
            f'src="/captions/{video.id}.{language}.{extension}">'
            for language, extension in video.tracks
        )
        title = html.escape(video.title)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>'
            f'<h1>{title}</h1><video controls src="/media/{video.id}.mp4">{tracks}</video></body></html>'
        )


def _kinds(seed: int, videos: int) -> list[Kind]:
    """The kind of each video: their shares of every hundred, at least one of each, in an order of the seed."""
    special = [kind for kind, share in SHARES for _ in range(max(1, share * videos // 100))]
    kinds: list[Kind] = special[:videos]
    kinds += ["plain" for _ in range(videos - len(kinds))]
    random.Random(f"kinds {seed}").shuffle(kinds)
    return kinds


def _video(seed: int, number: int, kind: Kind) -> StandInVideo:
    rng = random.Random(f"{seed} {number}")
    title = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}, part {number}"
    if kind == "hostile":
        title = HOSTILE_TITLES[number % len(HOSTILE_TITLES)]
    lines = [
        f"{index}: {rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
        for index in range(1, rng.randint(5, 40))
    ]
    if kind == "script":
        lines.insert(2, SCRIPT)
    extension = FORMATS[number % len(FORMATS)]
    languages = rng.choice((("en",), ("de", "en"), ("en", "fr"), ("de", "en-GB"), ("es", "pt"), ("en",)))
    tracks = () if kind == "none" else tuple((language, extension) for language in languages)
    return StandInVideo(id=f"v{number:04}", title=title, kind=kind, tracks=tracks, lines=tuple(lines))


def captions(lines: Sequence[str], extension: str) -> str:
    """A caption file of a format, with a cue of two seconds for each line."""
    cues = [(2 * number, 2 * number + 2, line) for number, line in enumerate(lines)]
    match extension:
        case "json3":
            events = [
                {"tStartMs": start * 1000, "dDurationMs": 2000, "segs": [{"utf8": line[:9]}, {"utf8": line[9:]}]}
                for start, _, line in cues
            ]
            return json.dumps({"wireMagic": "pb3", "events": [{"id": 1}, *events]})
        case "vtt":
            shown = [f"{_clock(start)} --> {_clock(end)} align:start\n<c>{_xml(line)}</c>" for start, end, line in cues]
            return "\n\n".join(["WEBVTT\nKind: captions", "NOTE made by a machine --> not really", *shown]) + "\n"
        case "srt":
            shown = [
                f"{number}\r\n{_clock(start, ',')} --> {_clock(end, ',')}\r\n{_xml(line)}"
                for number, (start, end, line) in enumerate(cues, 1)
            ]
            return "\ufeff" + "\r\n\r\n".join(shown) + "\r\n"
        case "ttml":
            shown = [f'<p begin="{_clock(start)}" end="{_clock(end)}">{_xml(line)}</p>' for start, end, line in cues]
            return f'<?xml version="1.0"?><tt xmlns="http://www.w3.org/ns/ttml"><body><div>{"".join(shown)}</div></body></tt>'
        case _:  # srv1 escapes its text twice
            shown = [f'<text start="{start}" dur="2">{_xml(html.escape(line))}</text>' for start, _, line in cues]
            return f'<?xml version="1.0" encoding="utf-8"?><transcript>{"".join(shown)}</transcript>'


def _clock(seconds: int, point: str = ".") -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}000"


def _xml(text: str) -> str:
    return html.escape("".join(character for character in text if character >= " "), quote=False)


def _type(extension: str) -> str:
    types = {"json3": "application/json", "vtt": "text/vtt", "srt": "text/plain"}
    return f"{types.get(extension, 'text/xml')}; charset=utf-8"


def _error(status: int, title: str, headers: dict[str, str] | None = None) -> StandInResponse:
    page = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return StandInResponse(body=page, status=status, headers=headers or {})


if __name__ == "__main__":
    sys.exit(main(VideoSite))
