"""A JSON API: items are names, not pages, and the code makes its own requests."""

from dataclasses import dataclass

from shoal import Http, Item, Permanent, Scraper


@dataclass
class Api:
    """[scrapers.rivers.settings] of shoal.toml."""

    base: str
    per_page: int = 50


rivers = Scraper("rivers", settings=Api)  # keeps its work in .shoal/ledger.db, unless SHOAL_LEDGER names another


@rivers.stage(rate="20/s")  # of this stage, over all machines
async def index(item: Item, http: Http, api: Api):
    number = item.payload.get("page", 1)
    answer = (await http.get(f"{api.base}/rivers", params={"page": number, "per_page": api.per_page})).json()
    for name in answer["rivers"]:
        yield river.item(key=name)  # no URL: the key identifies the work
    if answer["more"]:
        yield index.item(key=f"page {number + 1}", payload={"page": number + 1})


@rivers.stage(rate="20/s", retries=5)
async def river(item: Item, http: Http, api: Api):
    facts = (await http.get(f"{api.base}/rivers/{item.key}")).json()
    if "length_km" not in facts:
        raise Permanent("nobody has measured it")  # dead at once: trying again would not help
    yield {"name": item.key, "length_km": facts["length_km"], "mouth": facts["mouth"]}


rivers.start(index.item(key="page 1"))
