"""Companies of the Yellow Pages: every city and category is a target, every state belongs to one worker."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from filter import read_rules, refusal, score
from listings import Listing, company_key, listings_of, looks_blocked, next_page
from shoal import CheckFailed, Counters, Http, Item, Log, Page, Permanent, Run, Scraper
from state_assignments import problems, read_assignments

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Options:
    """`[scrapers.yellowpages.settings]`. `min_score`: listings with less are rejected."""

    base_url: str = "https://www.yellowpages.com"
    min_score: int = 50
    include_sponsored: bool = False


@dataclass(frozen=True)
class Company(Listing):
    """A listing that was accepted. `company`: its website without what may differ, so that each is stored once."""

    company: str = ""
    score: int = 0
    state_id: str = ""
    city_slug: str = ""
    category_slug: str = ""


yellowpages = Scraper(
    "yellowpages",
    settings=Options,
    views="views",
    start_remedy="Store targets: `python generate_city_targets.py --states all`, or with --clear to crawl all again.",
)
rules = read_rules(HERE / "data" / "filter.toml")


@yellowpages.preflight
def environment_file() -> str:
    if not (HERE / ".env").is_file():
        raise CheckFailed("there is no .env", remedy="Copy .env.example to .env and put your values into it.")
    return ".env is there"


@yellowpages.preflight
def state_assignments() -> str:
    assigned = read_assignments()
    if found := problems(assigned):
        raise CheckFailed("; ".join(found), remedy="Correct data/state_assignments.txt.")
    return f"{len(assigned)} workers have {sum(map(len, assigned))} states, each once"


@yellowpages.on_start
def same_site(run: Run, options: Options) -> None:
    """The addresses of targets are made when they are stored; another site needs other targets."""
    stored = run.settings.get("base_url", options.base_url)
    if stored.rstrip("/") != options.base_url.rstrip("/"):
        raise CheckFailed(
            f"the targets of run {run.id} are pages of {stored}, and YP_BASE_URL is {options.base_url}",
            remedy="Store them anew: `python generate_city_targets.py --states all --clear`; or set YP_BASE_URL back.",
        )


@yellowpages.stage(
    egress="proxies",
    pace="worker",
    delay=(8, 20),
    concurrency=10,
    timeout=300,
    accept=(404,),
    blocked=looks_blocked,
    record=Company,
    record_key="company",
    record_scope="scraper",
    on_duplicate="replace",
)
async def crawl_single_target(page: Page, item: Item, http: Http, options: Options, counters: Counters, log: Log):
    """All pages of one target. It is done as a whole or not at all."""
    target, source = item.payload, "primary"
    if page.status == 404 and "fallback_url" in target:
        page, source = await http.open(target["fallback_url"]), "fallback"
    if page.status == 404:
        raise Permanent("neither the page of this city and category nor the search is there")
    pages = accepted = rejected = 0
    while True:
        pages += 1
        for listing in listings_of(page):
            why = refusal(listing, rules, least=options.min_score, sponsored=options.include_sponsored)
            if why is not None:
                rejected += 1
                counters.add(f"rejected_{why}")
                continue
            accepted += 1
            yield Company(
                **dataclasses.asdict(listing),
                company=company_key(listing.website),
                score=score(listing, rules),
                state_id=target.get("state_id", ""),
                city_slug=target.get("city_slug", ""),
                category_slug=target.get("category_slug", ""),
            )
        following = next_page(page)
        if following is None or pages >= target.get("max_pages", 1):
            break
        page = await http.open(following)
        if page.status == 404:
            break
    counters.add("accepted", accepted)
    counters.add("rejected", rejected)
    log.info("Target completed", source=source, pages=pages, accepted=accepted, rejected=rejected)


if __name__ == "__main__":
    yellowpages.run()
