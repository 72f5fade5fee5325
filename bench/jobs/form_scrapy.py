import os

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import FormRequest


class Search(scrapy.Spider):
    name = "search"
    start_urls = [os.environ["SHOP"] + "/search"]

    def parse(self, response):
        for word in ("brush", "lamp", "set", "tray"):
            yield FormRequest.from_response(response, formid="search", formdata={"q": word}, callback=self.results)

    def results(self, response):
        for row in response.css("ul.results li"):
            yield {"title": row.css("a::text").get(), "price": row.css(".amount::text").get()}
        if response.css("#next"):
            yield FormRequest.from_response(response, formid="next", callback=self.results)


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
