import os

from shoal import Scraper

shop = Scraper("shop")


@shop.stage(save=True, concurrency=8)
async def catalogue(): ...


shop.start(os.environ["SHOP"] + "/files/catalogue.csv")
