import asyncio
import hashlib
import json
import os
from pathlib import Path

from crawlee.configuration import Configuration
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import Dataset, RequestQueue


async def main() -> None:
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="files", **where)
        dataset = await Dataset.open(name="files", **where)
        crawler = HttpCrawler(request_manager=queue, respect_robots_txt_file=True, configure_logging=False, **where)

        @crawler.router.default_handler
        async def save(context: HttpCrawlingContext) -> None:
            body = await context.http_response.read()  # the whole file is in memory
            name = hashlib.sha256(body).hexdigest()
            Path("files").mkdir(exist_ok=True)
            Path("files", name).write_bytes(body)
            await dataset.push_data({"url": context.request.url, "path": f"files/{name}", "bytes": len(body)})

        await crawler.run([os.environ["SHOP"] + "/files/catalogue.csv"], purge_request_queue=False)
        with open(os.environ["OUT"], "w") as out:
            async for record in dataset.iterate_items():
                out.write(json.dumps(record) + "\n")


asyncio.run(main())
