import asyncio
import json
import os

from crawlee import ConcurrencySettings, Request
from crawlee.configuration import Configuration
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import Dataset, RequestQueue

URL = os.environ["SHOP"] + "/api/search"


def search(page: int) -> Request:
    return Request.from_url(
        URL,
        method="POST",
        headers={"Authorization": f"Bearer {os.environ['SHOP_API_KEY']}", "Content-Type": "application/json"},
        payload=json.dumps({"query": "", "page": page}),
        use_extended_unique_key=True,
    )


async def main() -> None:
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="search", **where)
        dataset = await Dataset.open(name="search", **where)
        crawler = HttpCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            concurrency_settings=ConcurrencySettings(desired_concurrency=8, max_concurrency=8),
            configure_logging=False,
            **where,
        )

        @crawler.router.default_handler
        async def found(context: HttpCrawlingContext) -> None:
            answer = json.loads(await context.http_response.read())
            await dataset.push_data(answer["products"])
            if answer["page"] < answer["pages"]:
                await context.add_requests([search(answer["page"] + 1)])

        await crawler.run([search(1)], purge_request_queue=False)
        with open(os.environ["OUT"], "w") as out:
            async for record in dataset.iterate_items():
                out.write(json.dumps(record) + "\n")


asyncio.run(main())
