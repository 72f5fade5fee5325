"""A list of URLs, one record for each: shoal run pages --urls-file urls.txt"""

from shoal import Page, Scraper

pages = Scraper("pages")  # keeps its work in .shoal/ledger.db, unless SHOAL_LEDGER names another ledger


@pages.stage(concurrency=4, timeout=30)  # at most four pages of one host at once
async def title(page: Page):  # asking for a Page means: fetch it for me
    yield {
        "url": page.url,
        "title": page.css("title::text").get("").strip(),
        "links": len(page.links()),
    }
