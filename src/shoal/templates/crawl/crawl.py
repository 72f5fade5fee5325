"""A site by its links, from its front page to a depth of two."""

from shoal import Follow, Item, Page, Scraper

crawl = Scraper("crawl")  # keeps its work in .shoal/ledger.db, unless SHOAL_LEDGER names another ledger


# Every link of a page that these rules let through becomes an item, each once.
@crawl.stage(follow=Follow(depth=2, deny=r"/private/|\?page="), concurrency=8, retries=2)
async def visit(page: Page, item: Item):  # asking for a Page means: fetch it for me
    yield {
        "url": page.url,
        "title": page.css("title::text").get("").strip(),
        "depth": item.depth,  # so many links away from the start
    }


crawl.start("http://127.0.0.1:8001/")
