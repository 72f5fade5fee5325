import asyncio
import json
import os
from urllib.parse import urlencode, urljoin

from crawlee import ConcurrencySettings, Request
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import SqlStorageClient
from crawlee.storages import Dataset, RequestQueue


def filled(context: ParselCrawlingContext, form: str, values: dict[str, str]) -> Request:
    """Crawlee has no forms: the fields are collected by hand."""
    found = context.selector.css(form)
    fields = {field.attrib["name"]: field.attrib.get("value", "") for field in found.css("input[name]")}
    return Request.from_url(
        urljoin(context.request.url, found.attrib["action"]),
        method="POST",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        payload=urlencode({**fields, **values}),
        label="results",
        use_extended_unique_key=True,
    )


async def main() -> None:
    async with SqlStorageClient(connection_string="sqlite+aiosqlite:///crawlee.db") as storage:
        where = {"storage_client": storage, "configuration": Configuration(purge_on_start=False)}
        queue = await RequestQueue.open(name="search", **where)
        dataset = await Dataset.open(name="search", **where)
        crawler = ParselCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            concurrency_settings=ConcurrencySettings(desired_concurrency=8, max_concurrency=8),
            configure_logging=False,
            **where,
        )

        @crawler.router.default_handler
        async def search(context: ParselCrawlingContext) -> None:
            words = ("brush", "lamp", "set", "tray")
            await context.add_requests([filled(context, "#search", {"q": word}) for word in words])

        @crawler.router.handler("results")
        async def results(context: ParselCrawlingContext) -> None:
            for row in context.selector.css("ul.results li"):
                await dataset.push_data({"title": row.css("a::text").get(), "price": row.css(".amount::text").get()})
            if context.selector.css("#next"):
                await context.add_requests([filled(context, "#next", {})])

        await crawler.run([os.environ["SHOP"] + "/search"], purge_request_queue=False)
        with open(os.environ["OUT"], "w") as out:
            async for record in dataset.iterate_items():
                out.write(json.dumps(record) + "\n")


asyncio.run(main())
