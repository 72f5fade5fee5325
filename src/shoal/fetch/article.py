"""The text of an article without what surrounds it, by trafilatura (`pip install 'shoal[articles]'`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Permanent, UsageError
from shoal.model.url_key import quoted

if TYPE_CHECKING:
    from shoal.fetch.page import Page

# Finding an article takes about a second of processor time for each megabyte.
MAX_CHARS = 10 << 20


class Article(msgspec.Struct, frozen=True, kw_only=True):
    """An article. `date` is a day, as 2026-01-31. `text` has a line for each paragraph. What is unknown is None."""

    url: str
    title: str | None = None
    author: str | None = None
    date: str | None = None
    text: str
    description: str | None = None
    site: str | None = None
    language: str | None = None
    image: str | None = None
    categories: list[str] = []
    tags: list[str] = []


def read_article(page: Page, *, comments: bool, tables: bool, links: bool, favor: str | None) -> Article:
    """The article of a page. Raises Permanent for a page without one, UsageError without trafilatura."""
    try:
        from trafilatura import bare_extraction
    except ImportError as error:
        package = "lxml-html-clean" if "html_clean" in str(error) else "trafilatura"  # lxml names it in a sentence
        raise UsageError(
            f"page.article() needs the package {package}, which is not installed.",
            remedy="Install it with `pip install 'shoal[articles]'`.",
        ) from None
    page.parse()  # refuses pages that are too deep to be parsed
    if len(page.text) > MAX_CHARS:
        raise Permanent(f"{quoted(page.url)} is larger than {MAX_CHARS >> 20} MB, too large for an article")
    found: Any = bare_extraction(
        page.text,
        url=page.url,
        with_metadata=True,
        include_comments=comments,
        include_tables=tables,
        include_links=links,
        favor_precision=favor == "precision",
        favor_recall=favor == "recall",
    )
    text = (found.text or "").strip() if found is not None else ""
    if found is None or not text:
        raise Permanent(f"{quoted(page.url)} has no article that could be found")
    root = page.selector.root
    language = found.language or (root.get("lang") if hasattr(root, "get") else None)
    return Article(
        url=page.url,
        title=found.title or None,
        author=found.author or None,
        date=found.date or None,
        text=text,
        description=found.description or None,
        site=found.sitename or None,
        language=language or None,
        image=found.image or None,
        categories=list(found.categories or []),
        tags=list(found.tags or []),
    )
