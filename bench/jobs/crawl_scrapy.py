import os

import scrapy
from scrapy.crawler import CrawlerProcess


class Shop(scrapy.Spider):
    name = "shop"
    start_urls = [os.environ["SHOP"] + "/"]
    allowed_domains = ["127.0.0.1"]

    def parse(self, response):
        if sku := response.css("td.sku::text").get():
            yield {"sku": sku, "title": response.css("h1::text").get()}
        yield from response.follow_all(css="a")


process = CrawlerProcess(
    {
        "JOBDIR": "job",
        "FEEDS": {os.environ["OUT"]: {"format": "jsonlines", "overwrite": False}},
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": True,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Shop)
process.start()
