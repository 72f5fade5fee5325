import os

from shoal import Page, Scraper

shop = Scraper("shop")


@shop.stage(concurrency=8)
async def search(page: Page):
    for word in ("brush", "lamp", "set", "tray"):
        yield page.form("#search").item(results, {"q": word})


@shop.stage
async def results(page: Page):
    for row in page.css("ul.results li"):
        yield {"title": row.css("a::text").get(), "price": row.css(".amount::text").get()}
    if page.css("#next"):
        yield page.form("#next").item(results)


shop.start(os.environ["SHOP"] + "/search")
