import asyncio
import json
import os

from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import Dataset, RequestQueue


async def main() -> None:
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="shop", **where)
        dataset = await Dataset.open(name="shop", **where)
        crawler = ParselCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            concurrency_settings=ConcurrencySettings(desired_concurrency=8, max_concurrency=8),
            configure_logging=False,
            **where,
        )

        @crawler.router.default_handler
        async def any_page(context: ParselCrawlingContext) -> None:
            if sku := context.selector.css("td.sku::text").get():
                await dataset.push_data({"sku": sku, "title": context.selector.css("h1::text").get()})
            await context.enqueue_links()

        await crawler.run([os.environ["SHOP"] + "/"], purge_request_queue=False)
        with open(os.environ["OUT"], "w") as out:
            async for record in dataset.iterate_items():
                out.write(json.dumps(record) + "\n")


asyncio.run(main())
