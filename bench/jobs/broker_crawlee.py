import asyncio
import json
import os

import aio_pika
from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import RequestQueue


async def main() -> None:
    connection = await aio_pika.connect(os.environ["BROKER"])
    channel = await connection.channel()
    urls = await channel.declare_queue("urls_crawlee", durable=True)
    await channel.declare_queue("results_crawlee", durable=True)
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="products", **where)
        crawler = ParselCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            concurrency_settings=ConcurrencySettings(desired_concurrency=8, max_concurrency=8),
            configure_logging=False,
            **where,
        )

        @crawler.router.default_handler
        async def product(context: ParselCrawlingContext) -> None:
            found = {
                "sku": context.selector.css("td.sku::text").get(),
                "title": context.selector.css("h1::text").get(),
            }
            await channel.default_exchange.publish(
                aio_pika.Message(json.dumps(found).encode(), delivery_mode=2), "results_crawlee"
            )

        while message := await urls.get(fail=False):
            await queue.add_request(message.body.decode())
            await message.ack()
        await crawler.run(purge_request_queue=False)
    await connection.close()


asyncio.run(main())
