import os

import psycopg
import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import DropItem


class Warehouse:
    def open_spider(self, spider):
        self.connection = psycopg.connect(os.environ["DATABASE"], autocommit=True)
        self.connection.execute(
            "create table if not exists products_scrapy (sku text primary key, title text, price double precision)"
        )

    def process_item(self, item, spider):
        if item["price"] > 50:
            raise DropItem("too expensive")
        self.connection.execute(
            "insert into products_scrapy values (%(sku)s, %(title)s, %(price)s) "
            "on conflict (sku) do update set title = excluded.title, price = excluded.price",
            item,
        )
        return item

    def close_spider(self, spider):
        self.connection.close()


class Shop(scrapy.Spider):
    name = "shop"
    start_urls = [os.environ["SHOP"] + "/"]
    allowed_domains = ["127.0.0.1"]

    def parse(self, response):
        if sku := response.css("td.sku::text").get():
            yield {
                "sku": sku,
                "title": response.css("h1::text").get(),
                "price": float(response.css("article.product .amount::text").get()),
            }
        yield from response.follow_all(css="a")


process = CrawlerProcess(
    {
        "JOBDIR": "job",
        "ITEM_PIPELINES": {Warehouse: 1},
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": True,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Shop)
process.start()
