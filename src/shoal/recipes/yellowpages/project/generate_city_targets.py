"""Stores the targets: `python generate_city_targets.py --states all`, or CA,TX. Again: adds what is missing."""

import argparse
import asyncio
import dataclasses
import sys
from collections import Counter
from pathlib import Path

import shoal
from state_assignments import DATA, STATES
from targets import City, Target, WrongFile, make_targets, read_categories, read_cities
from yellowpages import crawl_single_target, yellowpages


def main() -> int:
    options = argparse.ArgumentParser(description="Store the targets, one for each city and category.")
    options.add_argument("--states", default="all", help="all, or codes such as CA,TX (default: %(default)s)")
    options.add_argument("--clear", action="store_true", help="cancel what is still planned and begin anew")
    options.add_argument("--cities", type=Path, default=DATA / "cities.csv", help="columns state_id, city, population")
    options.add_argument("--categories", type=Path, default=DATA / "categories.csv", help="columns label, slug")
    options.add_argument("--cities-per-state", type=int, metavar="N", help="only the N largest of each state")
    options.add_argument("--max-categories", type=int, metavar="N", help="only the first N categories")
    chosen = options.parse_args()
    states = {code for each in chosen.states.split(",") if (code := each.strip().upper())}
    if "ALL" in states:
        states = set(STATES)
    if unknown := states - set(STATES):
        options.error(f"--states: there is no {', '.join(sorted(unknown))}; codes are two letters, such as CA,TX")
    try:
        cities, others = read_cities(chosen.cities)
        categories = read_categories(chosen.categories)[: chosen.max_categories]
    except WrongFile as error:
        print(error, file=sys.stderr)
        return 2
    cities = _largest([city for city in cities if city.state_id in states], chosen.cities_per_state)
    if others:
        codes = ", ".join(f"{number} of {code}" for code, number in others.items())
        print(f"Left out, as they are in none of the 51 states: {codes}")
    if not cities or not categories:
        print("There are no targets: no city of these states is in the file, or no category.", file=sys.stderr)
        return 2
    try:
        return asyncio.run(generate(cities, categories, clear=chosen.clear))
    except shoal.errors.ShoalError as error:
        print(f"{error.message} {error.remedy}", file=sys.stderr)
        return error.exit_code


async def generate(cities: list[City], categories: list[tuple[str, str]], *, clear: bool) -> int:
    """Store the targets in the newest run, or in a new one; what is there already is left as it is."""
    async with shoal.connect() as fleet:
        base_url = fleet.scraper(yellowpages).settings.base_url
        targets = list(make_targets(cities, categories, base_url))
        newest = (await fleet.runs(scraper=yellowpages.name, limit=1)).rows
        if clear and newest and newest[0].counts.remaining:
            await fleet.cancel(newest[0].run.id)
        fresh = clear or not newest
        stored = await fleet.enqueue(yellowpages, map(to_item, targets), fresh=fresh, resume=not fresh)
    tiers = Counter(target.priority for target in targets)
    print(f"{len(cities)} cities x {len(categories)} categories = {len(targets)} targets in run {stored.run_id}")
    print("  by priority: " + ", ".join(f"{tier}: {tiers[tier]}" for tier in sorted(tiers)))
    twice = len(targets) - len({target.key for target in targets})
    print(f"  {stored.enqueued} new, {stored.duplicates - twice} there before")
    if twice:
        print(f"  {twice} left out: their city or category is in the file twice, with the same address")
    return 0


def to_item(target: Target):
    """A target as an item: its state is the partition, and a 429 makes this state wait, not the others."""
    return crawl_single_target.item(
        target.primary_url,
        key=target.key,
        payload=dataclasses.asdict(target),
        partition=target.state_id,
        lane=f"yellowpages {target.state_id}",
        priority=target.priority,
    )


def _largest(cities: list[City], number: int | None) -> list[City]:
    """The first cities of each state; they are sorted by population."""
    seen: Counter[str] = Counter()
    kept = []
    for city in cities:
        seen[city.state_id] += 1
        if number is None or seen[city.state_id] <= number:
            kept.append(city)
    return kept


if __name__ == "__main__":
    sys.exit(main())
