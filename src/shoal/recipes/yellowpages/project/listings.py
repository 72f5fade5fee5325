"""A page of search results: its listings, its next page, and whether it is a captcha instead."""

import re
from dataclasses import dataclass

from shoal import Page

RATINGS = {"one": 1.0, "two": 2.0, "three": 3.0, "four": 4.0, "five": 5.0}


@dataclass(frozen=True)
class Listing:
    """A business as the directory shows it. Empty: the page does not say."""

    name: str
    profile_url: str
    source_page: str
    phone: str = ""
    address: str = ""
    email: str = ""
    website: str = ""
    category_tags: tuple[str, ...] = ()
    rating: float | None = None
    reviews: int = 0
    is_sponsored: bool = False
    hours: str = ""
    description: str = ""
    services: tuple[str, ...] = ()


def listings_of(page: Page) -> list[Listing]:
    return [_listing(page, result) for result in page.css(".search-results .result")]


def next_page(page: Page) -> str | None:
    """The address of the next page of results."""
    href = page.css(".pagination a.next::attr(href)").get()
    return None if href is None else page.join(href)


def looks_blocked(page: Page) -> str | None:
    """Why a page with a good status is not a page of results: the site shows a captcha instead."""
    if page.status == 404 or page.css(".search-results, .no-results").get() is not None:
        return None
    return "a captcha" if "captcha" in page.text.lower() else "neither results nor the sentence that there are none"


def company_key(website: str) -> str:
    """What makes two websites one company: host and path, without http, www, a slash at the end, query and fragment."""
    return re.split(r"[?#]", re.sub(r"^(https?://)?(www\.)?", "", website.strip().lower()))[0].rstrip("/")


def _listing(page: Page, result) -> Listing:
    def text(css: str) -> str:
        return " ".join(" ".join(result.css(f"{css} ::text").getall()).split())

    def texts(css: str) -> tuple[str, ...]:
        return tuple(each.strip() for each in result.css(f"{css}::text").getall() if each.strip())

    return Listing(
        name=text("a.business-name"),
        profile_url=page.join(result.css("a.business-name::attr(href)").get("")),
        source_page=page.url,
        phone=text(".phones"),
        address=text(".adr"),
        email=result.css("a.email-business::attr(href)").get("").removeprefix("mailto:"),
        website=result.css("a.track-visit-website::attr(href)").get(""),
        category_tags=texts(".categories a"),
        rating=_rating(result.css(".result-rating::attr(class)").get("")),
        reviews=int(re.sub(r"\D", "", text(".ratings .count")) or 0),
        is_sponsored=bool(result.css(".ad-pill")),
        hours=text(".open-status"),
        description=text(".snippet"),
        services=texts(".amenities span"),
    )


def _rating(classes: str) -> float | None:
    words = classes.split()
    stars = next((RATINGS[word] for word in words if word in RATINGS), None)
    return stars if stars is None else stars + 0.5 * ("half" in words)
