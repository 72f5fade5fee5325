"""Captions of channels and playlists as plain text: a channel leads to its videos, a video to its captions."""

import asyncio
from dataclasses import dataclass, field

from yt_dlp.utils import unsmuggle_url

from captions import NotCaptions, choose_track, file_name, to_text
from extract import extract
from shoal import CheckFailed, Files, Http, Item, Log, Notes, Permanent, Scraper, url_hash
from shoal.errors import InvalidItem

DELETED_VIDEOS = "deleted_videos"  # how often each was deleted with its channel: {short_hash(url): times}


@dataclass
class Options:
    """`[scrapers.subtitles.settings]` of shoal.toml."""

    languages: list[str] = field(default_factory=lambda: ["en"])  # then the first one that there is
    auto_captions: bool = False  # also captions that a machine made
    max_videos: int = 0  # of a channel; 0: all
    max_workers: int = 5
    max_retries: int = 3


subtitles = Scraper("subtitles", settings=Options, one_run=True)


def short_hash(url: str) -> str:
    """The same for all spellings of an address; empty for what is none: it is refused when it is stored."""
    try:
        return url_hash(url)[:10]
    except InvalidItem:
        return ""


def channel_id(url: str) -> str:
    """A short name of a channel for addresses and file names."""
    return short_hash(url)


def channel_of(item) -> str:
    """The partition of an item: its channel."""
    return (item.payload or {}).get("channel") or channel_id(item.url)


@subtitles.preflight
def bounds(options: Options) -> str:
    """Those that `POST /settings` has hold for what is configured too, whatever starts the workers."""
    for name, value, low, high in (
        ("MAX_WORKERS", options.max_workers, 1, 20),
        ("MAX_RETRIES", options.max_retries, 0, 10),
    ):
        if not low <= value <= high:
            raise CheckFailed(f"{name} is {value}; it must be from {low} to {high}", remedy=f"Correct {name} in .env.")
    return "workers and retries are within their bounds"


@subtitles.stage(partition=channel_of, concurrency=20, record_key="channel", on_duplicate="replace")
async def channel(item: Item, http: Http, notes: Notes, options: Options, log: Log):
    """List the videos of a channel. A video that the run has already is not added again."""
    info = await extract(http, item.url, playlistend=options.max_videos or None)
    deleted = await notes.get(DELETED_VIDEOS) or {}
    entries = [info] if info.get("_type", "video") == "video" else info.get("entries") or []
    videos = 0
    for entry in entries:
        url, extra = unsmuggle_url(entry.get("webpage_url") or entry.get("url") or "", {})
        if not url:
            continue
        if entry.get("ie_key") == "YoutubeTab":  # the tabs of a channel: videos, shorts, live streams
            payload = {**item.payload, "channel": item.partition, "tab": True}
            # Of a channel that is read again they are read again too: they share the time in its key.
            yield channel.item(url, key=item.own_key and f"{url} {item.own_key.rpartition(' ')[2]}", payload=payload)
            continue
        videos += 1
        video_id = str(entry.get("id") or extra.get("force_videoid") or url.rstrip("/").rpartition("/")[2])
        title = str(entry.get("title") or video_id)
        payload = {"channel": item.partition, "video_id": video_id[:200], "title": title[:500]}
        # A video that was deleted with its channel is added again: its URL is no longer enough as its key. Videos come
        # after all channels, so that a new channel is listed at once.
        times = deleted.get(short_hash(url))
        yield video.item(url, key=f"{url} {times}" if times else None, payload=payload, priority=1)
    log.info("channel read", url=item.url, videos=videos)
    if not item.payload.get("tab"):
        name = info.get("channel") or info.get("uploader") or info.get("title") or item.url
        yield {"channel": item.partition, "url": item.url, "name": str(name)[:500]}


@subtitles.stage(partition=channel_of, concurrency=20, timeout=120)
async def video(item: Item, http: Http, files: Files, options: Options):
    """The captions of one video as text: in the ledger, and in a file `<id>_<title>.txt`."""
    info = await extract(http, item.url)
    found = choose_track(info, options.languages, auto=options.auto_captions)
    if found is None:
        raise Permanent("No subtitles available")
    language, track, is_auto = found
    try:
        body = (await http.get(track["url"])).text
        text = await asyncio.to_thread(to_text, body)  # large files must not hold up the other attempts
    except NotCaptions as error:
        raise Permanent(f"No subtitles available: {error}") from None
    video_id = item.payload.get("video_id") or str(info.get("id") or "video")
    title = item.payload.get("title") or str(info.get("title") or video_id)
    name = file_name(video_id, title)
    await files.write(f"{item.partition}/{name}", f"{text}\n")
    yield {
        "channel": item.partition,
        "video_id": video_id,
        "url": item.url,
        "title": title,
        "language": language,
        "auto": is_auto,
        "file": name,
        "text": text,
    }
