import json
import os

import aio_pika
import scrapy
from scrapy.crawler import AsyncCrawlerProcess


class Results:
    async def open_spider(self, spider):
        self.connection = await aio_pika.connect(os.environ["BROKER"])
        self.channel = await self.connection.channel()
        await self.channel.declare_queue("results_scrapy", durable=True)

    async def process_item(self, item, spider):
        await self.channel.default_exchange.publish(
            aio_pika.Message(json.dumps(item).encode(), delivery_mode=2), "results_scrapy"
        )
        return item

    async def close_spider(self, spider):
        await self.connection.close()


class Products(scrapy.Spider):
    name = "products"

    async def start(self):
        connection = await aio_pika.connect(os.environ["BROKER"])
        channel = await connection.channel()
        queue = await channel.declare_queue("urls_scrapy", durable=True)
        # Scrapy does not tell when a request has been stored: the message is acknowledged when it is taken.
        while message := await queue.get(fail=False, no_ack=True):
            yield scrapy.Request(message.body.decode())
        await connection.close()

    def parse(self, response):
        yield {"sku": response.css("td.sku::text").get(), "title": response.css("h1::text").get()}


process = AsyncCrawlerProcess(
    {
        "JOBDIR": "job",
        "ITEM_PIPELINES": {Results: 1},
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": True,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Products)
process.start()
