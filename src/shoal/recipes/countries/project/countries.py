"""Drug prices of four countries, each from a list of URLs: shoal start india --urls-file urls/india.txt

`shoal.toml` is the registry: it says of each scraper whether it is single or distributed, and how its workers go out.
"""

from dataclasses import dataclass

from shoal import Page, Scraper, css, decimal_comma, number, page_url


@dataclass
class DrugPrice:
    """One drug of a register; the selectors are those of its page."""

    url: str = page_url()
    name: str = css("h1")
    strength: str = css(".strength")
    pack: str = css(".pack")
    updated: str = css(".updated")
    price: float = css(".price", number)  # ₹ 1,234.50


@dataclass
class DrugPriceWithComma(DrugPrice):
    price: float = css(".price", decimal_comma)  # 1.234,50 ₽


# The views are the old queue's table, for its SQL queries. A SQLite file has them by itself.
india = Scraper("india", views="views")
malaysia = Scraper("malaysia", views="views")
russia = Scraper("russia", views="views")
argentina = Scraper("argentina", views="views")

# These two registers are empty until their script has run: each worker opens them in a browser of its own. Images and
# fonts are not loaded. Eight pages of a site at once, over all machines.
IN_A_BROWSER = {"client": "browser", "wait_for": ".price", "block": ("image", "font", "media")}


@india.stage(record=DrugPrice, egress="tor", concurrency=8, **IN_A_BROWSER)
async def indian_drug(page: Page): ...  # the record says what is read


@malaysia.stage(record=DrugPrice, egress="tor", concurrency=8, **IN_A_BROWSER)
async def malaysian_drug(page: Page): ...


@russia.stage(record=DrugPriceWithComma, egress="tor", concurrency=2)
async def russian_drug(page: Page): ...


@argentina.stage(record=DrugPriceWithComma, egress="tor", concurrency=4)
async def argentine_drug(page: Page): ...
