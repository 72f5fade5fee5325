"""The body store and its fetchers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import Permanent, StoreFailed, Throttled
from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Page, Request
from shoal.fetch.store import FileStore, StoreOnlyFetcher, StoringFetcher
from tests.support.raw_site import Seen, Site, redirect, reply


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "pages")


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


async def test_a_stored_page_is_read_back_unchanged(store: FileStore, tmp_path: Path) -> None:
    page = Page.of("http://shop.test/a?b=1&a=2", "<p>é" * 100, headers={"Content-Type": "text/html", "ETag": '"1"'})
    await store.put(page)
    again = await store.get("http://SHOP.test/a?a=2&b=1#part")
    assert again is not None
    assert (again.body, again.status, again.url, again.from_store) == (page.body, 200, page.url, True)
    assert again.headers["etag"] == '"1"'
    assert await store.get("http://shop.test/other") is None
    [path] = files(tmp_path)
    name = path.name
    assert path == tmp_path / "pages" / name[:2] / name[2:4] / name


async def test_the_newest_copy_wins_and_readers_see_whole_pages(store: FileStore, tmp_path: Path) -> None:
    url = "http://shop.test/"

    async def write() -> None:
        for number in range(20):
            await store.put(Page.of(url, b"%d" % number * 5000))

    async def read() -> None:
        for _ in range(20):
            page = await store.get(url)
            assert page is None or len(set(page.body)) <= 2

    await asyncio.gather(write(), read(), read())
    page = await store.get(url)
    assert page is not None
    assert page.body == b"19" * 5000
    assert len(list(files(tmp_path))) == 1, "something was left behind"


@pytest.mark.parametrize("damage", ["cut", "emptied", "foreign", "of another page"])
async def test_a_file_that_is_not_ours_counts_as_missing_and_stays(
    store: FileStore, tmp_path: Path, damage: str
) -> None:
    url = "http://shop.test/"
    await store.put(Page.of(url, b"abc" * 1000))
    [path] = files(tmp_path)
    content = path.read_bytes()
    damaged = {
        "cut": content[:-5],
        "emptied": b"",
        "foreign": b"GIF89a\n\0\1",
        "of another page": content.replace(b'"requested_url":"http://shop', b'"requested_url":"http://flop'),
    }[damage]
    path.write_bytes(damaged)
    assert await store.get(url) is None
    assert path.read_bytes() == damaged


async def test_a_write_error_of_the_store_is_transient(tmp_path: Path) -> None:
    (tmp_path / "pages").write_text("a file where the folder should be")
    with pytest.raises(StoreFailed, match=r"http://shop.test/ could not be written to the store: \w+"):
        await FileStore(tmp_path / "pages").put(Page.of("http://shop.test/"))


def test_validators() -> None:
    page = Page.of("http://shop.test/", headers={"etag": 'W/"x"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"})
    assert FileStore.validators(page) == {
        "If-None-Match": 'W/"x"',
        "If-Modified-Since": "Thu, 01 Jan 2026 00:00:00 GMT",
    }
    assert FileStore.validators(Page.of("http://shop.test/")) == {}


async def test_an_unchanged_page_is_not_sent_again(site: Site, fetcher: HttpFetcher, store: FileStore) -> None:
    version = '"1"'

    async def versioned(seen: Seen, writer: asyncio.StreamWriter) -> None:
        same = seen.headers.get("if-none-match") == version
        writer.write(reply(status=304, ETag=version) if same else reply(f"page {version}", ETag=version))

    site.answers |= {"/old": redirect("/page"), "/page": versioned}
    storing = StoringFetcher(fetcher, store)
    first = await storing.fetch(Request(url=site.url("/old")))
    second = await storing.fetch(Request(url=site.url("/old")))
    assert (first.not_modified, first.from_store, first.text) == (False, False, 'page "1"')
    assert (second.not_modified, second.from_store, second.text, second.status) == (True, True, 'page "1"', 200)
    assert (second.url, second.history) == (site.url("/page"), (site.url("/old"),))
    version = '"2"'
    third = await storing.fetch(Request(url=site.url("/old")))
    assert (third.not_modified, third.text) == (False, 'page "2"')
    stored = await store.get(site.url("/old"))
    assert stored is not None
    assert stored.text == 'page "2"'


async def test_a_304_of_another_redirect_target_is_not_used(site: Site, fetcher: HttpFetcher, store: FileStore) -> None:
    async def same_tag_everywhere(seen: Seen, writer: asyncio.StreamWriter) -> None:
        tagged = "if-none-match" in seen.headers
        writer.write(reply(status=304) if tagged else reply(f"page {seen.path}", ETag='"same"'))

    site.answers |= {"/latest": redirect("/monday"), "/monday": same_tag_everywhere, "/tuesday": same_tag_everywhere}
    storing = StoringFetcher(fetcher, store)
    assert (await storing.fetch(Request(url=site.url("/latest")))).text == "page /monday"
    site.answers["/latest"] = redirect("/tuesday")
    assert (await storing.fetch(Request(url=site.url("/latest")))).text == "page /tuesday"


async def test_only_good_answers_to_get_are_kept(
    site: Site, fetcher: HttpFetcher, store: FileStore, tmp_path: Path
) -> None:
    site.answers |= {"/ok": reply("ok"), "/gone": reply("no", status=404), "/empty": reply("")}
    storing = StoringFetcher(fetcher, store)
    await storing.fetch(Request(url=site.url("/gone")))
    await storing.fetch(Request(url=site.url("/empty")))
    await storing.fetch(Request(url=site.url("/ok"), method="POST", body=b"x"))
    await storing.fetch(Request(url=site.url("/ok"), method="HEAD"))
    await storing.fetch(Request(url=site.url("/ok"), headers={"if-none-match": '"mine"'}))
    assert list(files(tmp_path)) == []
    await storing.fetch(Request(url=site.url("/ok")))
    assert len(list(files(tmp_path))) == 1


async def test_from_the_store_alone(store: FileStore) -> None:
    class Forbidden:
        async def before_request(self, url: str, hop: int) -> None:
            raise AssertionError("nothing goes on the wire")

        def after_send(self, hop: int) -> None:
            raise AssertionError("nothing goes on the wire")

        def request_done(self, hop: int) -> None:
            raise AssertionError("nothing goes on the wire")

        async def before_send(self, hop: int) -> None:
            raise AssertionError("nothing goes on the wire")

        async def on_redirect(self, url: str, method: str) -> None:
            pass

        async def on_throttled(self, ended: Throttled) -> None:
            raise AssertionError("nothing goes on the wire")

    await store.put(Page.of("http://shop.test/a", "kept"))
    only = StoreOnlyFetcher(store)
    page = await only.fetch(Request(url="http://shop.test/a"), gate=Forbidden())
    assert (page.text, page.from_store, page.not_modified) == ("kept", True, False)
    with pytest.raises(Permanent, match=r"http://shop.test/b is not in the store"):
        await only.fetch(Request(url="http://shop.test/b"))
    with pytest.raises(Permanent, match=r"POST http://shop.test/a is not in the store"):
        await only.fetch(Request(url="http://shop.test/a", method="POST"))
    with pytest.raises(Permanent, match="larger than 3 bytes"):
        await only.fetch(Request(url="http://shop.test/a"), max_body=3)
    with pytest.raises(Permanent, match="not a valid absolute URL"):
        await only.fetch(Request(url="nonsense"))
