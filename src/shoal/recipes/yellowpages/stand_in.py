"""A directory of invented companies: pages of results by city and category, as a Yellow Pages site shows them.

Everything about a page follows from its address and the seed, so the stand-in knows which companies a target leads to
(`companies_of`) without having served it.
"""

from __future__ import annotations

import random
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, ClassVar
from urllib.parse import urlencode

import msgspec

from shoal.demo.stand_in import StandIn, StandInRequest, StandInResponse, main

PER_PAGE = 30
MOST_LISTINGS = 95
# One in so many pages of a city and category is not there: the search has to do.
MISSING_EVERY = 10
CAPTCHA_EVERY = 25
_RESULTS = re.compile(r"/([a-z0-9-]+-[a-z]{2})/([a-z-]+)")
_KINDS = {"good": 54, "chain": 10, "sponsored": 10, "no website": 12, "blocked tag": 7, "weak": 7}
_FIRST = ("Cedar", "Granite", "Harbor", "Juniper", "Lantern", "Maple", "Northwind", "Orchard", "Prairie", "Summit")
_SECOND = ("Brothers", "Creek", "Crossing", "Hill", "House", "Point", "Ridge", "Works", "Yard", "and Daughter")
_PRAISE = ("Licensed and insured.", "Family owned.", "Free estimates.", "Emergency service.", "Friendly and on time.")


class Business(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the directory. `kind` says why the scraper should take it or not; `domain` is empty without website.

    A company of the kind `chain` is listed in several cities of a state, each time with another form of its address.
    """

    kind: str
    name: str
    website: str
    domain: str
    tags: tuple[str, ...]
    phone: str
    address: str
    email: str
    rating: float
    reviews: int
    description: str

    @property
    def is_wanted(self) -> bool:
        return self.kind in ("good", "chain")


class YellowPages(StandIn):
    """With the fault `limits`: `min_gap`: seconds that an address has to leave between two requests; `strikes`: answers
    429 after which it gets 403 for `block_seconds`. With the fault `captcha`, one in `captcha_every` visits of an
    address gets one, and not all addresses at the same number of visits.
    """

    name = "yellowpages"
    default_port = 8003
    FAULTS: ClassVar[Mapping[str, str]] = {
        "limits": "429 to an address that asks too soon, 403 after three of them",
        "captcha": f"one in {CAPTCHA_EVERY} visits of an address gets a captcha with status 200",
        "outage": "503 to everybody",
    }

    def __init__(
        self,
        *,
        min_gap: float = 0.05,
        strikes: int = 3,
        block_seconds: float = 4.0,
        captcha_every: int = CAPTCHA_EVERY,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.captcha_every = captcha_every
        self.min_gap = min_gap
        self.strikes = strikes
        self.block_seconds = block_seconds
        self._last_visit: dict[str, float] = {}
        self._visits: dict[str, int] = {}
        self._strikes: dict[str, int] = {}
        self._blocked_until: dict[str, float] = {}

    async def answer(self, request: StandInRequest) -> StandInResponse:
        if request.path == "/robots.txt":
            return StandInResponse(body="User-agent: *\nDisallow: /listings/\n", content_type="text/plain")
        if (fault := self._fault(request.peer)) is not None:
            return fault
        number = int(request.query.get("page", "1")) if request.query.get("page", "1").isdecimal() else 0
        if found := _RESULTS.fullmatch(request.path):
            city, category = found.groups()
            if self.is_missing(city, category):
                return _not_found()
            return self._results(city, category, number, request.path)
        if request.path == "/search":
            city = slug(request.query.get("geo_location_terms", ""))
            category = slug(request.query.get("search_terms", ""))
            same = {name: value for name, value in request.query.items() if name != "page"}
            return self._results(city, category, number, f"/search?{urlencode(same)}")
        return _not_found()

    def is_missing(self, city: str, category: str) -> bool:
        """Whether there is no page for a city and category, so that the search has to do."""
        return random.Random(f"{self.seed} missing {city} {category}").randrange(MISSING_EVERY) == 0

    def businesses(self, city: str, category: str) -> list[Business]:
        """All entries of a city and category, in the order of their pages."""
        rng = random.Random(f"{self.seed} {city} {category}")
        kinds = rng.choices(list(_KINDS), weights=list(_KINDS.values()), k=rng.randint(8, MOST_LISTINGS))
        return [self._business(kind, number, city, category, rng) for number, kind in enumerate(kinds)]

    def companies_of(self, targets: Iterable[tuple[str, str, int]]) -> set[str]:
        """The domains of the companies that these targets (city, category, pages) lead to: the truth of a crawl."""
        return {
            business.domain
            for city, category, pages in targets
            for business in self.businesses(city, category)[: pages * PER_PAGE]
            if business.is_wanted
        }

    def pages_of(self, city: str, category: str, most: int) -> int:
        """How many pages of results a target has, at most so many."""
        return min(most, -(-len(self.businesses(city, category)) // PER_PAGE))

    def _fault(self, peer: str) -> StandInResponse | None:
        """The answer of a fault that is switched on, for a visit of this address."""
        if "outage" in self.faults:
            return StandInResponse(body="Back soon.", status=503, note="outage")
        now = time.monotonic()
        gap, self._last_visit[peer] = now - self._last_visit.get(peer, float("-inf")), now
        self._visits[peer] = self._visits.get(peer, 0) + 1
        if "limits" in self.faults:
            if now < self._blocked_until.get(peer, 0.0):
                return StandInResponse(body="Forbidden.", status=403, note="blocked")
            if gap < self.min_gap:
                self._strikes[peer] = self._strikes.get(peer, 0) + 1
                if self._strikes[peer] >= self.strikes:
                    self._strikes[peer], self._blocked_until[peer] = 0, now + self.block_seconds
                return StandInResponse(body="Too fast.", status=429, headers={"Retry-After": "1"}, note="too fast")
        number = self._visits[peer] + int(peer.rpartition(".")[2])
        if "captcha" in self.faults and number % self.captcha_every == self.captcha_every // 2:
            return StandInResponse(body=_page("One moment", "<p>Please solve this captcha.</p>"), note="captcha")
        return None

    def _results(self, city: str, category: str, number: int, path: str) -> StandInResponse:
        everything = self.businesses(city, category)
        shown = everything[(number - 1) * PER_PAGE : number * PER_PAGE] if number > 0 else []
        if not shown:
            return _not_found()
        rows = "".join(_row(business, f"{category}-{city}-{at}") for at, business in enumerate(shown, number * 1000))
        mark = "&" if "?" in path else "?"
        more = number * PER_PAGE < len(everything)
        link = f'<a class="next" href="{escape(path)}{mark}page={number + 1}">Next</a>' if more else ""
        body = f'<div class="search-results">{rows}</div><div class="pagination">{link}</div>'
        return StandInResponse(body=_page(f"{category} in {city}", body), note=f"{city}/{category}")

    def _business(self, kind: str, number: int, city: str, category: str, rng: random.Random) -> Business:
        state = city[-2:]
        name = f"{rng.choice(_FIRST)} {rng.choice(_SECOND)} {category.replace('-', ' ').title()}"
        domain = f"{slug(name)}-{number}-{city}.example"
        website = f"https://{domain}/"
        if kind == "chain":
            chain = rng.randrange(12)
            name, domain = f"{_FIRST[chain % 10]} {category.replace('-', ' ').title()} Group", ""
            domain = f"{category}-group-{chain}-{state}.example"
            website = rng.choice((f"http://{domain}", f"https://www.{domain}/", f"HTTPS://{domain.upper()}/?ref=yp"))
        if kind == "no website":
            domain = website = ""
        tags = [category.replace("-", " ").title()]
        if kind == "blocked tag":
            tags.append("Equipment Rental")
        weak = kind == "weak"
        return Business(
            kind=kind,
            name=f"{name} Wholesale Supply" if weak else name,
            website=website,
            domain=domain,
            tags=("Business Services",) if weak else tuple(tags),
            phone="" if weak else f"(555) {rng.randint(200, 999)}-{rng.randint(1000, 9999)}",
            address=f"{rng.randint(1, 999)} Example Street, {city[:-3].replace('-', ' ').title()}, {state.upper()}",
            email=f"office@{domain}" if domain and rng.random() < 0.5 else "",
            rating=rng.choice((2.5, 3.0, 4.0, 4.5, 5.0)),
            reviews=rng.randint(0, 80),
            description="Now hiring." if weak else rng.choice(_PRAISE),
        )


def slug(text: str) -> str:
    """`Los Angeles, CA` as `los-angeles-ca`, `Cañon City, CO` as `canon-city-co`."""
    letters = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def _row(business: Business, listing: str) -> str:
    words = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
    rating = words[int(business.rating)] + (" half" if business.rating % 1 else "")
    site = f'<a class="track-visit-website" href="{escape(business.website)}">Website</a>' if business.website else ""
    mail = f'<a class="email-business" href="mailto:{business.email}">Email</a>' if business.email else ""
    pill = '<span class="ad-pill">Ad</span>' if business.kind == "sponsored" else ""
    tags = "".join(f"<a>{escape(tag)}</a>" for tag in business.tags)
    return (
        f'<div class="result"><div class="info">{pill}'
        f'<a class="business-name" href="/listings/{listing}"><span>{escape(business.name)}</span></a>'
        f'<div class="categories">{tags}</div>'
        f'<div class="ratings"><div class="result-rating {rating}"></div>'
        f'<span class="count">({business.reviews})</span></div>'
        f'<div class="phones">{business.phone}</div><div class="adr">{escape(business.address)}</div>'
        f'<div class="open-status">Open until 6 pm</div><p class="snippet">{escape(business.description)}</p>'
        f'<div class="amenities"><span>Repairs</span><span>Installation</span></div>'
        f'<div class="links">{site}{mail}</div></div></div>'
    )


def _page(title: str, body: str) -> str:
    return f"<!doctype html><html><head><title>{escape(title)}</title></head><body>{body}</body></html>"


def _not_found() -> StandInResponse:
    return StandInResponse(body=_page("Not found", "<p>This page is not here.</p>"), status=404)


if __name__ == "__main__":
    sys.exit(main(YellowPages))
