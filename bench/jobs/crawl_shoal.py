import os

from shoal import Page, Scraper

shop = Scraper("shop")


@shop.stage(follow=True, concurrency=8)
async def any_page(page: Page):
    if sku := page.css("td.sku::text").get():
        yield {"sku": sku, "title": page.css("h1::text").get()}


shop.start(os.environ["SHOP"] + "/")
