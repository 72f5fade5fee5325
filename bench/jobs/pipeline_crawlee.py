import asyncio
import os

import psycopg
from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import RequestQueue


async def main() -> None:
    database = await psycopg.AsyncConnection.connect(os.environ["DATABASE"], autocommit=True)
    await database.execute(
        "create table if not exists products_crawlee (sku text primary key, title text, price double precision)"
    )
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="shop", **where)
        crawler = ParselCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            concurrency_settings=ConcurrencySettings(desired_concurrency=8, max_concurrency=8),
            configure_logging=False,
            **where,
        )

        @crawler.router.default_handler
        async def any_page(context: ParselCrawlingContext) -> None:
            page = context.selector
            if sku := page.css("td.sku::text").get():
                price = float(page.css("article.product .amount::text").get())
                if price <= 50:
                    await database.execute(
                        "insert into products_crawlee values (%s, %s, %s) "
                        "on conflict (sku) do update set title = excluded.title, price = excluded.price",
                        (sku, page.css("h1::text").get(), price),
                    )
            await context.enqueue_links()

        await crawler.run([os.environ["SHOP"] + "/"], purge_request_queue=False)
    await database.close()


asyncio.run(main())
