from shoal import Page, Scraper

shop = Scraper("shop")


@shop.stage(concurrency=8, name="product")
async def product(page: Page):
    yield {"sku": page.css("td.sku::text").get(), "title": page.css("h1::text").get()}
