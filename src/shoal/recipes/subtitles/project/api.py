"""Channels, videos and captions by REST: `shoal serve` adds these paths to its own (/jobs, /settings, /logs, /cleanup).

All channels are in one run. A channel is a partition of it: its counts are read, never counted. A channel that is read
again adds only videos that are new; one that was deleted and is added again begins anew.
"""

import asyncio
import datetime as dt
import io
import zipfile
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from captions import file_name
from shoal import Counts, Fleet, ItemFilter, Run
from shoal.errors import InvalidItem, NotFound, UsageError, WrongState
from shoal.serve import Preview, ServedFleet
from subtitles import DELETED_VIDEOS, channel, channel_id, short_hash, subtitles

LATEST = "latest:subtitles"
DELETED = "deleted_channels"  # how often each was deleted: {channel: times}
PAGE = 200
MAX_CHANNELS = 1_000  # of one answer
MAX_DELETED = 50_000  # deleted videos that are remembered, the newest: a note has 1 MiB

router = APIRouter(tags=["subtitles"])
changing = asyncio.Lock()

VideoStatus = Literal["pending", "processing", "completed", "failed", "skipped", "cancelled"]
STATES = {
    "pending": ("ready", "waiting", "delayed"),
    "processing": ("leased",),
    "completed": ("done",),
    "failed": ("dead",),
    "skipped": ("skipped",),
    "cancelled": ("cancelled",),
}
STATUS_OF = {state: status for status, states in STATES.items() for state in states}
ChannelPath = Annotated[str, Path(min_length=1, max_length=40)]
VideoPath = Annotated[int, Path(ge=1, le=(1 << 63) - 1)]


class NewChannel(BaseModel):
    url: str = Field(min_length=1, max_length=2_000, examples=["https://www.youtube.com/@NASA"])


class ChannelAnswer(BaseModel):
    """`skipped`: robots.txt forbids them. `reading`: its videos are still being listed. `error`: why the last listing
    failed.
    """

    channel_id: str
    url: str
    name: str
    total_videos: int
    pending: int
    processing: int
    completed: int
    failed: int
    skipped: int
    reading: bool
    error: str | None
    added_at: dt.datetime


class ChannelList(BaseModel):
    rows: list[ChannelAnswer]
    cursor: str | None


class VideoAnswer(BaseModel):
    """`attempts`: tries that were charged. `last_error`: of the last of them."""

    video_id: int
    channel_id: str
    url: str
    title: str
    status: VideoStatus
    attempts: int
    last_error: str | None
    completed_at: dt.datetime | None
    retry_at: dt.datetime | None


class VideoList(BaseModel):
    rows: list[VideoAnswer]
    cursor: str | None


class SubtitlesAnswer(BaseModel):
    video_id: int
    channel_id: str
    title: str
    language: str
    auto: bool
    content: str


class ChangeAnswer(BaseModel):
    text: str
    preview: bool = False
    items: int | None = None


# Channels


@router.get("/channels")
async def list_channels(
    fleet: ServedFleet,
    cursor: Annotated[str | None, Query(pattern=r"^\d{1,18}$")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_CHANNELS)] = MAX_CHANNELS,
) -> ChannelList:
    """Channels in the order they were added; `cursor` is that of the page before."""
    if (run := await _run(fleet)) is None:
        return ChannelList(rows=[], cursor=None)
    found = [
        (name, listings)
        for name, listings in (await _listings(fleet)).items()
        if cursor is None or listings.first.id > int(cursor)
    ]
    names = {record["channel"]: record["name"] async for record in fleet.records(LATEST, stage="channel")}
    counts = await _counts(fleet)
    rows = [_answer(name, listings, run, names.get(name), counts.get(name)) for name, listings in found[:limit]]
    return ChannelList(rows=rows, cursor=str(found[limit - 1][1].first.id) if len(found) > limit else None)


@router.post("/channels")
async def add_channel(fleet: ServedFleet, body: NewChannel, preview: Preview = False) -> ChannelAnswer:
    """Add a channel or a playlist, or read it again: only videos that are new are added."""
    scheme, _, rest = body.url.strip().partition("://")
    url = f"{scheme.lower()}://{rest}"
    if not url.startswith(("http://", "https://")) or not channel_id(url):
        raise UsageError(
            f"{body.url.strip()[:100]!r} is not the address of a channel.",
            remedy="Paste one that begins with https://.",
        )
    async with changing:
        run = await _run(fleet)
        times = (await _deleted(fleet)).get(channel_id(url), 0) if run else 0
        name = _channel(url, times)
        known = run and await _find(fleet, name)
        if preview:
            return known or ChannelAnswer(channel_id=name, url=url, name=url, **_nothing())
        now = dt.datetime.now(dt.UTC).isoformat()
        payload = {"channel": name, "added_at": now}
        key = f"{url} {now}" if known or times else None
        try:
            item = channel.item(url, key=key, payload=payload)
        except InvalidItem as error:
            raise UsageError(error.message) from None
        if run is None or run.state in ("finished", "cancelled"):
            await fleet.enqueue(subtitles, [item], keep_open=True, resume=run is not None)
        else:
            await fleet.add_items(run.id, [item])
        return await _one(fleet, name)


@router.get("/channels/{channel_id}")
async def read_channel(fleet: ServedFleet, channel_id: ChannelPath) -> ChannelAnswer:
    """One channel."""
    return await _one(fleet, channel_id)


@router.delete("/channels/{channel_id}")
async def delete_channel(fleet: ServedFleet, channel_id: ChannelPath, preview: Preview = False) -> ChangeAnswer:
    """Delete a channel with its captions. What a worker does for it now is cancelled; files in `output_dir` stay."""
    async with changing:
        found = await _one(fleet, channel_id)
        if preview:
            text = f"To be deleted: {found.name}, with the captions of {found.completed} videos."
            return ChangeAnswer(text=text, preview=True, items=found.total_videos)
        which = ItemFilter(partition=channel_id)
        await fleet.cancel_items(LATEST, which)
        await fleet.discard(LATEST, which)
        await _forget_videos(fleet, channel_id)
        plain = channel_id.partition(".")[0]
        deleted = await _deleted(fleet)
        await fleet.put_note(LATEST, DELETED, {**deleted, plain: deleted.get(plain, 0) + 1})
    return ChangeAnswer(text=f"Deleted: {found.name}.", items=found.total_videos)


@router.get("/channels/{channel_id}/download", response_class=Response)
async def download_channel(fleet: ServedFleet, channel_id: ChannelPath) -> StreamingResponse:
    """The captions of a channel as a .zip with a .txt for each video."""
    found = await _one(fleet, channel_id)
    name = file_name(found.channel_id, found.name).removesuffix(".txt") + ".zip"
    return StreamingResponse(_zipped(fleet, channel_id), media_type="application/zip", headers=_attachment(name))


# Videos


@router.get("/videos")
async def list_videos(
    fleet: ServedFleet,
    channel: Annotated[str | None, Query(max_length=40)] = None,
    status: VideoStatus | None = None,
    text: Annotated[str | None, Query(max_length=200, description="A part of the address.")] = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
) -> VideoList:
    """Videos in the order they were found; `cursor` is that of the page before."""
    if await _run(fleet) is None:
        return VideoList(rows=[], cursor=None)
    states = STATES[status] if status else ()
    which = ItemFilter(stage="video", partition=channel, states=states, text=text)
    page = await fleet.items(LATEST, which, cursor=cursor, limit=limit)
    deleted = await _deleted(fleet)
    rows = [_video(item) for item in page.rows if not _is_deleted(item.partition, deleted)]
    return VideoList(rows=rows, cursor=page.cursor)


@router.get("/videos/{video_id}")
async def read_video(fleet: ServedFleet, video_id: VideoPath) -> VideoAnswer:
    """One video."""
    return _video(await _item(fleet, video_id))


@router.post("/videos/{video_id}/retry")
async def retry_video(fleet: ServedFleet, video_id: VideoPath, preview: Preview = False) -> ChangeAnswer:
    """Try a failed or skipped video again, as if it were new."""
    item = await _item(fleet, video_id)
    if STATUS_OF[item.state] not in ("failed", "skipped"):
        raise WrongState(
            f"The video is {STATUS_OF[item.state]}, not failed or skipped.",
            remedy="Only failed and skipped videos are retried.",
        )
    if preview:
        return ChangeAnswer(text=f"To be retried: {_title(item)}.", preview=True, items=1)
    await fleet.retry(LATEST, ItemFilter(ids=(video_id,)))
    return ChangeAnswer(text=f"To be tried again: {_title(item)}.", items=1)


# Subtitles


@router.get("/subtitles/{video_id}")
async def read_subtitles(fleet: ServedFleet, video_id: VideoPath) -> SubtitlesAnswer:
    """The captions of a video as text. It is text of a site: show it as text, never as HTML."""
    item, record = await _captions(fleet, video_id)
    return SubtitlesAnswer(
        video_id=video_id,
        channel_id=item.partition,
        title=record["title"],
        language=record["language"],
        auto=record["auto"],
        content=record["text"],
    )


@router.get("/subtitles/{video_id}/download", response_class=Response)
async def download_subtitles(fleet: ServedFleet, video_id: VideoPath) -> Response:
    """The captions of a video as a file `<id>_<title>.txt`."""
    _, record = await _captions(fleet, video_id)
    return Response(f"{record['text']}\n", media_type="text/plain; charset=utf-8", headers=_attachment(record["file"]))


# Parts


async def _run(fleet: Fleet):
    """The run of all channels; None before the first."""
    rows = (await fleet.runs(scraper="subtitles", limit=1)).rows
    return rows[0].run if rows else None


async def _deleted(fleet: Fleet) -> dict[str, int]:
    return await fleet.note(LATEST, DELETED) or {}


async def _forget_videos(fleet: Fleet, name: str) -> None:
    """The videos of a channel may be added again, by this channel or another."""
    times, cursor = await fleet.note(LATEST, DELETED_VIDEOS) or {}, None
    while True:
        page = await fleet.items(LATEST, ItemFilter(stage="video", partition=name), cursor=cursor, limit=PAGE)
        for item in page.rows:
            mark = short_hash(item.url)
            times[mark] = times.pop(mark, 0) + 1
        cursor = page.cursor
        if cursor is None:
            break
    await fleet.put_note(LATEST, DELETED_VIDEOS, dict(list(times.items())[-MAX_DELETED:]))


def _channel(url: str, times: int) -> str:
    """The name of a channel that was deleted so many times before."""
    return f"{channel_id(url)}.{times}" if times else channel_id(url)


def _is_deleted(name: str, deleted: dict[str, int]) -> bool:
    plain, _, times = name.partition(".")
    return int(times or 0) < deleted.get(plain, 0)


class Listings(NamedTuple):
    """The items of a channel: for the first and the last time that it was read, or is to be."""

    first: Any
    last: Any


async def _listings(fleet: Fleet, name: str | None = None) -> dict[str, Listings]:
    """Of all channels in the order they were added, or of one."""
    deleted = await _deleted(fleet)
    found: dict[str, Listings] = {}
    cursor = None
    while True:
        page = await fleet.items(LATEST, ItemFilter(stage="channel", partition=name), cursor=cursor, limit=PAGE)
        for item in page.rows:
            if not _is_deleted(item.partition, deleted) and not (item.payload or {}).get("tab"):
                before = found.get(item.partition)
                found[item.partition] = Listings(item, item) if before is None else before._replace(last=item)
        cursor = page.cursor
        if cursor is None:
            return found


async def _counts(fleet: Fleet, name: str | None = None) -> dict[str, Counts]:
    """The counts of the videos of each channel, or up to one: they come by name."""
    found: dict[str, Counts] = {}
    cursor = None
    while True:
        page = await fleet.partitions(LATEST, stage="video", cursor=cursor, limit=PAGE)
        found |= {part.partition: part.counts for part in page.rows}
        cursor = page.cursor
        if cursor is None or (name is not None and name in found):
            return found


async def _name(fleet: Fleet, channel: str) -> str | None:
    """The name of a channel: its record belongs to the newest listing that stored it."""
    ids: list[int] = []
    cursor = None
    which = ItemFilter(stage="channel", partition=channel, states=("done",))
    while True:
        page = await fleet.items(LATEST, which, cursor=cursor, limit=PAGE)
        ids += [item.id for item in page.rows if not (item.payload or {}).get("tab")]
        cursor = page.cursor
        if cursor is None:
            break
    for id in reversed(ids):
        if records := await fleet.item_records(LATEST, id):
            return records[0]["name"]
    return None


def _added_at(listing) -> dt.datetime | None:
    """When a channel was added by REST; None for one of a file, which came with the run."""
    found = (listing.payload or {}).get("added_at")
    return dt.datetime.fromisoformat(found) if found else None


def _answer(channel: str, listings: Listings, run: Run, name: str | None, found: Counts | None) -> ChannelAnswer:
    added_at = _added_at(listings.first) or run.created_at
    last = listings.last
    numbers = (
        _nothing(added_at)
        if found is None
        else {
            "total_videos": found.total - found.cancelled,
            "pending": found.pending,
            "processing": found.leased,
            "completed": found.done,
            "failed": found.dead,
            "skipped": found.skipped,
            "added_at": added_at,
        }
    )
    return ChannelAnswer(
        channel_id=channel,
        url=last.url,
        name=name or last.url,
        **{**numbers, "reading": STATUS_OF[last.state] in ("pending", "processing"), "error": last.error},
    )


def _nothing(added_at: dt.datetime | None = None) -> dict:
    numbers = dict.fromkeys(("total_videos", "pending", "processing", "completed", "failed", "skipped"), 0)
    return {**numbers, "reading": False, "error": None, "added_at": added_at or dt.datetime.now(dt.UTC)}


async def _find(fleet: Fleet, channel: str) -> ChannelAnswer | None:
    if (run := await _run(fleet)) is None:
        return None
    listings = (await _listings(fleet, channel)).get(channel)
    if listings is None:
        return None
    counts = await _counts(fleet, channel)
    return _answer(channel, listings, run, await _name(fleet, channel), counts.get(channel))


async def _one(fleet: Fleet, name: str) -> ChannelAnswer:
    if (found := await _find(fleet, name)) is None:
        raise NotFound(f"There is no channel {name!r}.", remedy="GET /channels lists them.")
    return found


async def _item(fleet: Fleet, video_id: int):
    if await _run(fleet) is None:
        raise NotFound(f"There is no video {video_id}.", remedy="GET /videos lists them.")
    item = (await fleet.item(LATEST, id=video_id)).item
    if item.stage != "video" or _is_deleted(item.partition, await _deleted(fleet)):
        raise NotFound(f"There is no video {video_id}.", remedy="GET /videos lists them.")
    return item


def _title(item) -> str:
    return (item.payload or {}).get("title") or item.url


def _video(item) -> VideoAnswer:
    status = STATUS_OF[item.state]
    return VideoAnswer(
        video_id=item.id,
        channel_id=item.partition,
        url=item.url,
        title=_title(item),
        status=status,
        attempts=item.tries,
        last_error=item.error,
        completed_at=item.since if status == "completed" else None,
        retry_at=item.due_at if item.state == "delayed" else None,
    )


async def _captions(fleet: Fleet, video_id: int):
    item = await _item(fleet, video_id)
    records = await fleet.item_records(LATEST, video_id)
    if not records:
        status = STATUS_OF[item.state]
        raise NotFound(f"Video {video_id} has no captions: it is {status}.", remedy="See its last_error in /videos.")
    return item, records[0]


class _Pipe(io.RawIOBase):
    """What a zip file writes, to be sent part by part."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = b"".join(self._parts), []
        return parts


async def _zipped(fleet: Fleet, name: str) -> AsyncIterator[bytes]:
    """A zip file of a channel's captions, in the memory of one video."""
    pipe, cursor, taken = _Pipe(), None, set()
    which = ItemFilter(stage="video", partition=name, states=("done",))
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        while True:
            page = await fleet.items(LATEST, which, cursor=cursor, limit=PAGE)
            for item in page.rows:
                for record in await fleet.item_records(LATEST, item.id):
                    file = record["file"] if record["file"] not in taken else f"{item.id}_{record['file']}"
                    taken.add(file)
                    archive.writestr(file, f"{record['text']}\n")
                    yield pipe.take()
            cursor = page.cursor
            if cursor is None:
                break
    yield pipe.take()


def _attachment(name: str) -> dict[str, str]:
    """A header that saves under this name, whatever letters it has; the content is never shown as a page."""
    plain = "".join(letter if letter.isascii() and letter not in '"\\%' else "_" for letter in name)
    return {"Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"}
