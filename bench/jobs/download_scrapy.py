import os

import scrapy
from scrapy.crawler import CrawlerProcess


class Files(scrapy.Spider):
    name = "files"
    start_urls = [os.environ["SHOP"] + "/about"]

    def parse(self, response):
        yield {"file_urls": [os.environ["SHOP"] + "/files/catalogue.csv"]}


process = CrawlerProcess(
    {
        "JOBDIR": "job",
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": "files",
        "FEEDS": {os.environ["OUT"]: {"format": "jsonlines", "overwrite": False}},
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": True,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Files)
process.start()
