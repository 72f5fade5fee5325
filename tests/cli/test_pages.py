"""What authors do with pages, through the command line: records from selectors, forms, downloads."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.file_site import ServedFile
from tests.support.project import Project
from tests.support.raw_site import Site, reply

CONTENT = random.Random(3).randbytes(6 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    yield site
    await site.stop()


async def run(project: Project, *arguments: str, code: int = 0, **variables: Any) -> tuple[str, str]:
    """A command, while the site answers on this loop."""
    command = await asyncio.to_thread(lambda: project.shoal(*arguments, code=code, **variables))
    return command.stdout, command.stderr


FILES = """
from shoal import Download
shop = Scraper("shop", robots=False)

@shop.stage
async def listing(page: Page):
    for link in page.css("a::attr(href)").getall():
        yield file.item(page.join(link))

@shop.stage(save=True, timeout=2, retries=1)
async def file(): ...

@shop.stage(save="named/{name}", max_bytes=100)
async def small(file: Download, item: Item):
    yield {"where": file.path, "size": file.bytes, "note": item.payload.get("note")}

@shop.stage
async def by_hand(item: Item, http: Http):
    file = await http.download(item.payload["url"], sha256=item.payload.get("sha256"))
    yield {"path": file.path, "same": file.not_modified}
"""


async def test_a_killed_download_goes_on_by_range_and_is_stored_once(either: Project, site: Site) -> None:  # S0.1
    project = either
    project.write(FILES)
    files = project.folder / ".shoal" / "files"
    site.answers["/"] = reply("<a href=/big.iso>big</a>")
    # It stalls behind five of six megabytes.
    site.answers["/big.iso"] = served = ServedFile(CONTENT, pause=lambda position: 60.0 if position >= 5 << 20 else 0.0)
    urls = project.urls([site.url("/")])
    command = project.start("run", "shop.py", "--urls-file", urls, SHOAL_LEASE="4")
    part = None
    for _ in range(3000):
        part = next(files.rglob("*.part"), None)
        if part is not None and part.stat().st_size >= 4 << 20:
            break
        assert not command.is_over, command.stderr
        await asyncio.sleep(0.01)
    command.kill()
    assert part is not None
    kept = part.stat().st_size
    served.pause = None
    await run(project, "run", "shop.py", "--urls-file", urls)
    assert [asked for asked, _ in served.asked] == [None, f"bytes={kept}-"]
    [record] = await asyncio.to_thread(project.export)
    assert (record["sha256"], record["bytes"], record["url"]) == (SHA256, len(CONTENT), site.url("/big.iso"))
    path = project.folder / record["path"]
    assert path.read_bytes() == CONTENT
    assert [each for each in files.rglob("*") if each.is_file() and each.suffix != ".done"] == [path]
    assert record["path"] == f".shoal/files/{SHA256[:2]}/{SHA256}.iso"


async def test_saving_stages_and_http_download(project: Project, site: Site) -> None:
    project.write(FILES)
    site.answers["/a.txt"] = ServedFile(b"abc")
    site.answers["/large.txt"] = ServedFile(b"x" * 200)
    tried, _ = await run(project, "try", "shop.py:small", site.url("/a.txt"), "--payload", '{"note": 7}')
    assert json.loads(tried) == {"where": ".shoal/files/named/a.txt", "size": 3, "note": 7}
    _, refused = await run(project, "try", "shop.py:small", site.url("/large.txt"), code=1)
    assert "is larger than 100 bytes" in refused
    payload = json.dumps({"url": site.url("/a.txt"), "sha256": hashlib.sha256(b"abc").hexdigest()})
    by_hand = ("try", "shop.py:by_hand", "--key", "k", "--payload", payload)
    first, _ = await run(project, *by_hand, SHOAL_FILES="other")
    again, _ = await run(project, *by_hand, SHOAL_FILES="other")
    assert json.loads(first)["path"].startswith("other/")
    assert (json.loads(first)["same"], json.loads(again)["same"]) == (False, True)
    _, none = await run(project, *by_hand, SHOAL_FILES="", code=1)
    assert "there is no folder for downloads: set `files`" in none
    project.write(FILES.replace(", robots=False", ""))
    site.answers["/robots.txt"] = reply("User-agent: *\nDisallow: /a", content_type="text/plain")
    before = len(site.log)
    _, forbidden = await run(project, *by_hand, code=1)
    assert "robots.txt" in forbidden
    assert [seen.path for seen in site.log[before:]] == ["/robots.txt"]


SELECTORS = """
from dataclasses import dataclass
from shoal import css, page_url

shop = Scraper("shop", robots=False)

@dataclass
class Product:
    title: str = css("h1")
    price: float = css(".price")
    tags: list[str] = css(".tag")
    url: str = page_url()

@shop.stage(record=Product)
async def product(page: Page): ...

@dataclass
class Row:
    name: str = css("b")

@shop.stage(record=Row, each="li", follow=Follow(to="product"))
def rows(page: Page):
    "Every row, and the products that it links to."
"""


async def test_stages_without_a_body_extract_their_records(project: Project, site: Site) -> None:
    project.write(SELECTORS)
    site.answers["/list"] = reply("<li><b>One</b><a href=/1>1</a></li><li><b>Two</b><a href=/2>2</a></li>")
    site.answers["/1"] = reply("<h1>Rake</h1><p class=price>$1,200</p><i class=tag>a</i>")
    site.answers["/2"] = reply("<h1>Hoe</h1><p>no price today</p>")
    tried, _ = await run(project, "try", "shop.py", site.url("/1"))
    rake = {"title": "Rake", "price": 1200.0, "tags": ["a"], "url": site.url("/1")}
    assert json.loads(tried) == rake
    _, failed = await run(project, "try", "shop.py", site.url("/2"), code=1)
    assert f"'{site.url('/2')}' is not a valid Product: price is missing: css('.price') finds nothing." in failed
    urls = project.urls([site.url("/list")])
    await run(project, "run", "shop.py", "--urls-file", urls, "--stage", "rows", "--max-dead", "100%")
    records = await asyncio.to_thread(project.export)
    assert sorted(map(json.dumps, records)) == sorted(map(json.dumps, [{"name": "One"}, {"name": "Two"}, rake]))
    dead = [item for item in await asyncio.to_thread(project.items) if item.state.value == "dead"]
    assert [item.tries for item in dead] == [1], "a page that lacks a field is not fetched again"


FORMS = """
shop = Scraper("shop", robots=False)

@shop.stage
async def search(page: Page):
    form = page.form("#search")
    for size in form.choices("size"):
        yield form.item(results, {"q": "räke & hoe", "size": size}, payload={"size": size})
    login = page.form(name="login")
    yield login.item(results, {"password": secret("SHOP_PASSWORD")}, payload={"size": "login"})

@shop.stage
async def results(page: Page, item: Item, http: Http):
    again = await http.submit(page.form(), {"page": 2})
    yield {"size": item.payload["size"], "found": page.css("p::text").get(), "again": again.css("p::text").get()}
"""


async def test_forms_become_items_that_a_resumed_run_sends_again(project: Project, site: Site) -> None:
    project.write("from shoal import secret\n" + FORMS)
    site.answers["/"] = reply(
        """<form id=search method=post action=/results><input type=hidden name=token value=t1><input name=q>
        <select name=size><option>small<option>large</select><button name=go value=1>Go</button></form>
        <form name=login method=post action=/results><input name=user value=me><input type=password name=password>"""
    )
    site.answers["/results"] = reply("<p>42</p><form action=/more method=get><input name=page></form>")
    site.answers["/more"] = reply("<p>43</p>")
    urls = project.urls([site.url("/")])
    await run(project, "run", "shop.py", "--urls-file", urls, SHOP_PASSWORD="hunter2-x")
    posted = sorted(seen.body.decode() for seen in site.log if seen.path == "/results")
    common = "token=t1&q=r%C3%A4ke+%26+hoe&size={}&go=1"
    assert posted == [common.format("large"), common.format("small"), "user=me&password=hunter2-x"]
    assert {seen.headers["referer"] for seen in site.log if seen.path == "/results"} == {site.url("/")}
    assert {seen.target for seen in site.log if seen.path == "/more"} == {"/more?page=2"}
    records = await asyncio.to_thread(project.export)
    assert sorted(record["size"] for record in records) == ["large", "login", "small"]
    assert {(record["found"], record["again"]) for record in records} == {("42", "43")}
    stored = b"".join(path.read_bytes() for path in Path(project.folder).glob("ledger.db*"))
    assert b"hunter2" not in stored
