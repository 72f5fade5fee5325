"""Downloads: what is stored, how a transfer goes on after it broke, and what is left behind when it fails."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import AttemptEnded, Blocked, Permanent, StoreFailed, Throttled, Transient
from shoal.fetch import download as downloads_module
from shoal.fetch.download import Download, Downloads
from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Request
from tests.fetch.test_http import Witness
from tests.support.file_site import ServedFile
from tests.support.object_store import BUCKET, S3Server
from tests.support.raw_site import Site, redirect, reply

CONTENT = random.Random(7).randbytes(3 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def downloads(folder: Path) -> Downloads:
    return Downloads(str(folder))


class Saver:
    """Downloads from one site, as one worker would."""

    def __init__(self, site: Site, fetcher: HttpFetcher, downloads: Downloads) -> None:
        self.site = site
        self.fetcher = fetcher
        self.downloads = downloads

    async def __call__(self, path: str = "/f.bin", **options: Any) -> Download:
        headers = options.pop("headers", {})
        return await self.downloads.save(self.fetcher, Request(url=self.site.url(path), headers=headers), **options)


@pytest.fixture
def save(site: Site, fetcher: HttpFetcher, downloads: Downloads) -> Saver:
    return Saver(site, fetcher, downloads)


def offsets(served: ServedFile) -> list[int]:
    """Where each request wanted to begin. A client that is slow loses what it had not read when a connection broke."""
    return [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for asked, _ in served.asked]


def stored(folder: Path) -> list[str]:
    """The files that are there, without what is remembered of complete downloads."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".done")
    return sorted(path.relative_to(folder).as_posix() for path in found)


async def test_a_file_is_stored_under_its_checksum(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/old"] = redirect("/dir/Report%20%C3%A9.PDF?x=1")
    site.answers["/dir/Report%20%C3%A9.PDF"] = ServedFile(CONTENT, headers={"Content-Type": "Application/PDF; q=1"})
    gate = Witness(site)
    done = await save("/old", gate=gate, headers={"X-Mine": "1"})
    path = folder / SHA256[:2] / f"{SHA256}.pdf"
    assert done == Download(
        url=site.url("/old"),
        final_url=site.url("/dir/Report%20%C3%A9.PDF?x=1"),
        path=str(path),
        bytes=len(CONTENT),
        sha256=SHA256,
        content_type="application/pdf",
        filename="Report é.PDF",
        status=200,
        etag='"v1"',
    )
    assert path.read_bytes() == CONTENT
    assert stored(folder) == [path.relative_to(folder).as_posix()]
    assert [seen.headers["accept-encoding"] for seen in site.log] == ["identity", "identity"]
    assert {seen.headers["x-mine"] for seen in site.log} == {"1"}
    assert [(what, hop) for what, hop, _ in gate.events if what in ("before", "done")] == [
        ("before", 0),
        ("done", 0),
        ("before", 1),
        ("done", 1),
    ]


@pytest.mark.parametrize("validators", [{}, {"etag": None, "last_modified": "Wed, 21 Oct 2026 07:28:00 GMT"}])
async def test_a_broken_transfer_goes_on_within_the_attempt(save: Saver, site: Site, validators: Any) -> None:
    site.answers["/f.bin"] = served = ServedFile(CONTENT, break_after=(1_500_000, 700_000), **validators)
    done = await save()
    condition = served.etag or served.last_modified
    assert (done.sha256, done.bytes) == (SHA256, len(CONTENT))
    assert [given for _, given in served.asked] == [None, condition, condition]
    _, second, third = offsets(served)
    assert 0 < second <= 1_500_000
    assert second <= third <= second + 700_000


async def test_the_next_attempt_goes_on_where_the_last_one_ended(
    save: Saver, site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads_module, "MIN_PROGRESS", 10 << 20)
    monkeypatch.setattr(downloads_module, "MAX_BREAKS", 0)
    site.answers["/f.bin"] = served = ServedFile(CONTENT, break_after=(1_500_000, 0, 100))
    for _ in range(3):
        with pytest.raises(Transient, match="the connection closed early"):
            await save()
    assert [name.partition("/")[0] for name in stored(folder)] == [".partial", ".partial"], "the part and its state"
    another = Saver(site, save.fetcher, Downloads(str(folder)))
    assert (await another()).sha256 == SHA256
    _, second, third, fourth = offsets(served)
    assert 0 < second == third <= fourth <= second + 100 <= 1_500_100
    assert stored(folder) == [f"{SHA256[:2]}/{SHA256}.bin"]


async def test_a_cancelled_download_goes_on(save: Saver, site: Site, folder: Path) -> None:
    held = ServedFile(CONTENT, pause=lambda position: 60.0 if position >= 2 << 20 else 0.0)
    site.answers["/f.bin"] = held
    task = asyncio.create_task(save())
    part = None
    for _ in range(500):
        part = next(folder.rglob("*.part"), None)
        if part is not None and part.stat().st_size >= 1 << 20:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.pause = None
    assert (await save()).sha256 == SHA256
    assert offsets(held)[1] >= 1 << 20


async def broken_once(save: Saver, served: ServedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a partial file behind."""
    save.site.answers["/f.bin"] = served
    served.break_after = [2_000_000]
    with monkeypatch.context() as patch:
        patch.setattr(downloads_module, "MIN_PROGRESS", 10 << 20)
        patch.setattr(downloads_module, "MAX_BREAKS", 0)
        with pytest.raises(Transient):
            await save()


NEW = random.Random(8).randbytes(2_500_000)


@pytest.mark.parametrize("if_range", [True, False], ids=["site obeys If-Range", "site ignores If-Range"])
async def test_a_file_that_changed_meanwhile_is_fetched_anew(
    save: Saver, folder: Path, monkeypatch: pytest.MonkeyPatch, if_range: bool
) -> None:
    await broken_once(save, ServedFile(CONTENT), monkeypatch)
    save.site.answers["/f.bin"] = served = ServedFile(NEW, etag='"v2"', if_range=if_range)
    if not if_range:
        with pytest.raises(Transient, match="another part than asked for"):
            await save()
    done = await save()
    assert done.sha256 == hashlib.sha256(NEW).hexdigest()
    assert offsets(served)[0] > 0
    assert served.asked[0][1] == '"v1"'
    assert stored(folder) == [f"{done.sha256[:2]}/{done.sha256}.bin"]


async def test_a_site_without_ranges_sends_all_again(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    await broken_once(save, ServedFile(CONTENT, ranges=False), monkeypatch)
    assert (await save()).sha256 == SHA256


async def test_a_shorter_file_is_fetched_anew(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    await broken_once(save, ServedFile(CONTENT), monkeypatch)
    save.site.answers["/f.bin"] = served = ServedFile(CONTENT[:1000], if_range=False)
    assert (await save()).bytes == 1000
    assert offsets(served)[0] > 1000
    assert offsets(served)[1:] == [0]


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
async def test_without_a_strong_validator_nothing_is_kept_of_a_broken_transfer(
    save: Saver, site: Site, folder: Path, etag: str | None
) -> None:
    site.answers["/f.bin"] = served = ServedFile(CONTENT, etag=etag, break_after=(2_000_000,))
    with pytest.raises(Transient, match="the connection closed early"):
        await save()
    assert stored(folder) == []
    assert (await save()).sha256 == SHA256
    assert offsets(served) == [0, 0]


async def test_a_complete_file_that_was_not_stored_yet_is_not_fetched_again(
    save: Saver, site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `kill -9` between the last byte and the name."""
    site.answers["/f.bin"] = served = ServedFile(CONTENT)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(downloads_module._PartialFile, "store", killed)
        with pytest.raises(KeyboardInterrupt):
            await save()
    assert (await save()).sha256 == SHA256
    assert [asked for asked, _ in served.asked] == [None, f"bytes={len(CONTENT) - 1}-"]
    assert stored(folder) == [f"{SHA256[:2]}/{SHA256}.bin"]


async def test_an_unchanged_file_is_not_fetched_again(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/f.bin"] = ServedFile(CONTENT)
    first = await save()
    again = await save()
    assert (again.not_modified, again.path, again.sha256) == (True, first.path, SHA256)
    assert site.log[1].headers["if-none-match"] == '"v1"'
    Path(first.path).unlink()
    assert not (await save()).not_modified
    assert stored(folder) == [f"{SHA256[:2]}/{SHA256}.bin"]


async def test_offline_only_earlier_downloads_are_given_out(save: Saver, site: Site, folder: Path) -> None:
    offline = Saver(site, save.fetcher, Downloads(str(folder), offline=True))
    with pytest.raises(Permanent, match="has not been downloaded"):
        await offline()
    site.answers["/f.bin"] = ServedFile(CONTENT)
    first = await save()
    assert await offline() == first
    assert len(site.log) == 1


async def test_looking_for_an_earlier_download_keeps_an_unfinished_one(
    save: Saver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedFile(CONTENT)
    await broken_once(save, served, monkeypatch)
    with pytest.raises(Permanent, match="has not been downloaded"):
        await Saver(save.site, save.fetcher, Downloads(str(folder), offline=True))()
    assert (await save()).sha256 == SHA256
    assert offsets(served)[1] > 0


async def test_a_body_that_is_shorter_than_announced_is_an_error(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/f.bin"] = reply(CONTENT[:1000], Content_Length="1001", content_type="x/y", Connection="close")
    with pytest.raises(Transient, match="the connection closed early"):
        await save()
    assert stored(folder) == []


async def test_a_compressed_transfer_is_decompressed_and_a_compressed_file_is_not(save: Saver, site: Site) -> None:
    packed = gzip.compress(CONTENT)
    site.answers["/data.csv"] = reply(packed, content_type="text/csv", Content_Encoding="gzip", ETag='"g"')
    site.answers["/data.csv.gz"] = reply(packed, content_type="text/csv", Content_Encoding="gzip")
    site.answers["/short.csv"] = reply(packed[:-20], content_type="text/csv", Content_Encoding="gzip")
    site.answers["/odd.csv"] = reply(packed, content_type="text/csv", Content_Encoding="compress")
    assert (await save("/data.csv")).sha256 == SHA256
    assert Path((await save("/data.csv.gz")).path).read_bytes() == packed
    with pytest.raises(Transient, match="the compressed body ends too early"):
        await save("/short.csv")
    with pytest.raises(Permanent, match="content encoding 'compress'"):
        await save("/odd.csv")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_file_above_max_bytes_is_refused(save: Saver, site: Site, folder: Path, chunked: bool) -> None:
    if chunked:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
        site.answers["/f.bin"] = reply(body, Transfer_Encoding="chunked", content_type="x/y", ETag='"c"')
    else:
        site.answers["/f.bin"] = ServedFile(CONTENT)
    with pytest.raises(Permanent, match="is larger than 2000000 bytes"):
        await save(max_bytes=2_000_000)
    assert stored(folder) == []
    assert (await save(max_bytes=len(CONTENT))).sha256 == SHA256


async def test_another_content_than_expected_is_refused(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/f.bin"] = ServedFile(CONTENT)
    with pytest.raises(Transient, match=f"has the sha256 {SHA256}, not {'0' * 64}"):
        await save(sha256="0" * 64)
    assert stored(folder) == []
    assert (await save(sha256=SHA256.upper())).sha256 == SHA256


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (reply("gone", status=404), Permanent, "404 Not Found"),
        (reply("no", status=403), Blocked, "403 Forbidden"),
        (reply("later", status=503), Transient, "503 Service Unavailable"),
        (reply("<title>Just a moment...</title>"), Blocked, "soft block"),
        (reply("", content_type="text/html"), Blocked, "soft block"),
    ],
)
async def test_what_is_not_the_file_ends_as_a_page_would(
    save: Saver, site: Site, folder: Path, answer: bytes, kind: type[AttemptEnded], message: str
) -> None:
    site.answers["/f.bin"] = answer
    with pytest.raises(kind, match=message):
        await save()
    assert stored(folder) == []


async def test_a_site_that_asks_to_wait_is_reported_to_the_gate(save: Saver, site: Site) -> None:
    class Gate(Witness):
        throttled: Throttled | None = None

        async def on_throttled(self, ended: Throttled) -> None:
            self.throttled = ended

    gate = Gate(site)
    site.answers["/f.bin"] = reply("wait", status=429, Retry_After="7")
    with pytest.raises(Throttled):
        await save(gate=gate)
    assert gate.throttled is not None
    assert gate.throttled.retry_after == 7


async def test_a_name_that_cannot_be_a_file_is_no_fault_of_the_disk(save: Saver, site: Site, folder: Path) -> None:
    """It ends the item; every other failure to write a file would end the worker."""
    site.answers["/f.bin"] = ServedFile(CONTENT)
    await save(name="a/b")
    for name, why in (("n" * 300, "too long"), ("a/b/c", "same name"), ("a/b/c/d", "same name")):
        with pytest.raises(Permanent, match=why):
            await save(name=name)
    await save(name="c")
    assert stored(folder) == ["a/b", "c"]


async def test_a_full_disk_is_one_sentence_and_the_part_is_kept(
    save: Saver, site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.answers["/f.bin"] = served = ServedFile(CONTENT)
    real = os.write
    room = 2 << 20

    def write(descriptor: int, data: Any) -> int:
        nonlocal room
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= len(data)
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(
            StoreFailed, match=r"could not be written to .*/files/\.partial: No space left on device\. Free"
        ) as caught:
            await save()
    assert caught.value.exit_code == 3
    assert (await save()).sha256 == SHA256
    assert offsets(served)[1] >= 1 << 20


async def test_equal_files_are_stored_once(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/a.bin"] = site.answers["/b.bin"] = ServedFile(CONTENT)
    first, second = await asyncio.gather(save("/a.bin"), save("/b.bin"))
    assert first.path == second.path
    assert stored(folder) == [f"{SHA256[:2]}/{SHA256}.bin"]


async def test_the_same_url_at_the_same_time(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/f.bin"] = ServedFile(CONTENT, pause=lambda _: 0.005)
    found = await asyncio.gather(save(), save(), save())
    assert {done.path for done in found} == {str(folder / SHA256[:2] / f"{SHA256}.bin")}
    assert stored(folder) == [f"{SHA256[:2]}/{SHA256}.bin"]


async def test_files_by_name_and_never_one_over_another(save: Saver, site: Site, folder: Path) -> None:
    site.answers["/x/report.pdf"] = ServedFile(b"one")
    site.answers["/y/report.pdf"] = ServedFile(b"two")
    site.answers["/z/report.pdf"] = ServedFile(b"one", etag=None)
    template = "pdfs/{host}/{stem}{ext}"
    paths = [(await save(path, name=template)).path for path in ("/x/report.pdf", "/y/report.pdf", "/z/report.pdf")]
    base = folder / "pdfs" / "127.0.0.1"
    two = hashlib.sha256(b"two").hexdigest()[:12]
    assert paths == [str(base / "report.pdf"), str(base / f"report-{two}.pdf"), str(base / "report.pdf")]
    assert (base / "report.pdf").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ('attachment; filename="..\\\\..\\\\evil.exe"', "evil.exe"),
        ("attachment; filename*=UTF-8''%e2%82%ac%20rates.csv", "€ rates.csv"),
        ('attachment; filename=".htaccess"', "htaccess"),
        ('attachment; filename="a/b\x07c:d.txt"', "b_c_d.txt"),
        ("attachment; filename*=nonsense''%ff%fe", None),
        (f'attachment; filename="{"x" * 900}.tar.gz"', "x" * 143 + ".tar.gz"),
        ('attachment; filename=".."', "download"),
        ("inline", "f.bin"),
    ],
)
async def test_names_that_sites_give_stay_in_the_folder(
    save: Saver, site: Site, folder: Path, disposition: str, name: str | None
) -> None:
    site.answers["/f.bin"] = ServedFile(b"x", headers={"Content-Disposition": disposition})
    done = await save(name="{name}")
    if name is not None:
        assert done.filename == name
    assert Path(done.path).resolve().parent == folder.resolve()


@pytest.mark.parametrize("template", ["../x", "/etc/x", "a//b", "{nothing}", "{", ".hidden/x", "", "a\\b"])
async def test_names_that_lead_elsewhere_are_refused(save: Saver, template: str) -> None:
    with pytest.raises(Permanent, match="the name"):
        await save(name=template)


async def test_the_timeout_stands_still_while_the_body_arrives(save: Saver, site: Site) -> None:
    site.answers["/f.bin"] = ServedFile(CONTENT[:600_000], pause=lambda _: 0.1)
    async with asyncio.timeout(0.4) as deadline:
        before = deadline.when()
        done = await save(deadline=deadline)
        after = deadline.when()
    assert done.bytes == 600_000
    assert before is not None
    assert after is not None
    assert after - before > 0.5


async def test_a_site_that_stops_sending_or_sends_too_slowly_ends_the_attempt(
    site: Site, downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = HttpFetcher(connections=4, user_agent="shoal/0.1", idle_timeout=0.3)
    patient = HttpFetcher(connections=4, user_agent="shoal/0.1", idle_timeout=60)
    save = Saver(site, fetcher, downloads)
    site.answers["/stops"] = ServedFile(CONTENT, etag=None, pause=lambda position: 30.0 if position else 0.0)
    with pytest.raises(Transient, match="no data for too long"):
        await save("/stops")
    monkeypatch.setattr(downloads_module, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(downloads_module, "SLOW_BYTES", 1 << 20)
    site.answers["/slow"] = ServedFile(CONTENT, pause=lambda _: 0.1)
    save = Saver(site, patient, downloads)
    with pytest.raises(Transient, match="arrives too slowly"):
        await save("/slow")
    await fetcher.close()
    await patient.close()


async def test_memory_stays_flat(save: Saver, site: Site) -> None:
    site.answers["/f.bin"] = ServedFile(bytes(48 << 20))
    tracemalloc.start()
    try:
        done = await save()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.bytes == 48 << 20
    assert peak < 12 << 20, "including the pieces that the site writes"


async def test_an_object_store_gets_the_whole_file_or_nothing(
    s3: S3Server, site: Site, fetcher: HttpFetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "partial"
    save = Saver(site, fetcher, Downloads(f"s3://{BUCKET}/raw/", partial=partial))
    content = CONTENT * 3
    site.answers["/f.bin"] = served = ServedFile(content, headers={"Content-Type": "video/mp4"})
    served.break_after = [4_000_000]
    done = await save(name="clips/{name}")
    assert done.path == f"s3://{BUCKET}/raw/clips/f.bin"
    stored_object = s3.client.get_object(Bucket=BUCKET, Key="raw/clips/f.bin")
    assert stored_object["ContentType"] == "video/mp4"
    assert stored_object["Body"].read() == content
    assert 0 < offsets(served)[1] <= 4_000_000
    assert [path.suffix for path in partial.rglob("*") if path.is_file()] == [".done"]
    assert (await save(name="clips/{name}")).not_modified
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("shoal.storage.objects.MAX_RETRIES", 0)
    with pytest.raises(StoreFailed, match="could not be stored"):
        await save(name="other/{name}")
    assert [path.suffix for path in partial.rglob("*.part")] == [".part"], "the file need not be fetched again"
    asked = len(site.log)
    with pytest.raises(StoreFailed, match="Downloads cannot be stored: "):
        await Saver(site, fetcher, Downloads(f"s3://{BUCKET}/raw/", partial=tmp_path / "new"))()
    assert len(site.log) == asked, "known before the file is fetched"
