import os

from shoal import Page, Scraper, secret

shop = Scraper("shop")
URL = os.environ["SHOP"] + "/api/search"
HEADERS = {"Authorization": secret("SHOP_API_KEY", format="Bearer {}")}


@shop.stage(concurrency=8)
async def search(page: Page):
    found = page.json()
    yield found["products"]
    if found["page"] < found["pages"]:
        yield search.item(URL, json={"query": "", "page": found["page"] + 1}, headers=HEADERS)


shop.start(search.item(URL, json={"query": "", "page": 1}, headers=HEADERS))
