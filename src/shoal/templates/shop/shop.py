"""Everything on one shelf of a shop: the listing leads to the products, page after page."""

from shoal import Page, Scraper

shop = Scraper("shop")  # keeps its work in .shoal/ledger.db, unless SHOAL_LEDGER names another ledger


@shop.stage(rate="20/s", retries=3)  # per host, over all machines; a real site is better off with "1/s"
async def listing(page: Page):  # asking for a Page means: fetch it for me
    for link in page.css("ul.products h3 a"):
        yield product.item(page.join(link.attrib["href"]))  # work for the next stage
    if more := page.css("li.next a"):
        yield listing.item(page.join(more.attrib["href"]))  # the next page of the listing


@shop.stage
async def product(page: Page):
    yield {  # a record: it is stored once, whatever happens
        "sku": page.css("td.sku::text").get(),
        "title": page.css("article.product h1::text").get(),
        "price": float(page.css("article.product .amount::text").get()),
        "url": page.url,
    }


shop.start(listing.item("http://127.0.0.1:8001/category/garden"))
