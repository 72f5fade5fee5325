"""Which listings become companies: a score from 0 to 100, by the words in data/filter.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from listings import Listing

NEUTRAL = 40


@dataclass(frozen=True)
class Rules:
    """The lists of data/filter.toml, in lower case."""

    allow: frozenset[str]
    block: frozenset[str]
    anti_keywords: tuple[str, ...]
    hints: tuple[str, ...]


def read_rules(path: Path) -> Rules:
    lists = {name: [word.lower() for word in words] for name, words in tomllib.loads(path.read_text()).items()}
    return Rules(
        frozenset(lists["allow"]), frozenset(lists["block"]), tuple(lists["anti_keywords"]), tuple(lists["hints"])
    )


def score(listing: Listing, rules: Rules) -> int:
    """0 to 100: 40 for a listing about which nothing is known; 0 for one with a blocked tag."""
    tags = _tags(listing)
    if tags & rules.block:
        return 0
    words = f"{listing.name} {listing.description} {' '.join(listing.services)}".lower()
    points = NEUTRAL
    points += 30 if tags & rules.allow else 0
    points += min(20, 5 * sum(hint in words for hint in rules.hints))
    points += 10 if listing.phone else 0
    points += 10 if (listing.rating or 0) >= 4 and listing.reviews >= 10 else 0
    points -= 30 * sum(word in words for word in rules.anti_keywords)
    return max(0, min(100, points))


def refusal(listing: Listing, rules: Rules, *, least: int, sponsored: bool) -> str | None:
    """Why a listing is rejected; None when it is accepted."""
    if listing.is_sponsored and not sponsored:
        return "sponsored"
    if not listing.website:
        return "without_website"
    if _tags(listing) & rules.block:
        return "blocked_category"
    return "low_score" if score(listing, rules) < least else None


def _tags(listing: Listing) -> set[str]:
    return {tag.lower() for tag in listing.category_tags}
