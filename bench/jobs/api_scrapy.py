import os

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import JsonRequest

URL = os.environ["SHOP"] + "/api/search"
HEADERS = {"Authorization": f"Bearer {os.environ['SHOP_API_KEY']}"}


class Search(scrapy.Spider):
    name = "search"

    async def start(self):
        yield JsonRequest(URL, data={"query": "", "page": 1}, headers=HEADERS)

    def parse(self, response):
        found = response.json()
        yield from found["products"]
        if found["page"] < found["pages"]:
            yield JsonRequest(URL, data={"query": "", "page": found["page"] + 1}, headers=HEADERS)


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
process.crawl(Search)
process.start()
