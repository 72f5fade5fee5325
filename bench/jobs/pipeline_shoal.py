import os
from dataclasses import dataclass

from shoal import Dropped, Page, Scraper

shop = Scraper("shop")


@dataclass
class Product:
    sku: str
    title: str
    price: float


@shop.stage(follow=True, concurrency=8, record=Product, record_key="sku", name="product")
async def any_page(page: Page):
    if sku := page.css("td.sku::text").get():
        yield {
            "sku": sku,
            "title": page.css("h1::text").get(),
            "price": float(page.css("article.product .amount::text").get()),
        }


@shop.on_record
def only_affordable(product: Product) -> Product:
    if product.price > 50:
        raise Dropped("too expensive")
    return product


shop.start(os.environ["SHOP"] + "/")
