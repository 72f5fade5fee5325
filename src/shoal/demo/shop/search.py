"""What the shop answers to more than a plain GET: a search form, an API in JSON, and a file to download in parts."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Mapping
from html import escape
from urllib.parse import parse_qs

import msgspec

from shoal.demo.shop.catalogue import Catalogue, Product
from shoal.demo.shop.pages import frame
from shoal.demo.shop.site import ShopResponse

# Known to everybody who reads the documentation.
API_KEY = "driftwood-demo-key"
FORM_TOKEN = "c0ffee42"
PER_ANSWER = 20
SEARCH, PRODUCTS, API_SEARCH, FILE = "/search", "/api/products", "/api/search", "/files/catalogue.csv"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_JSON = "application/json"


class ShopSearch:
    """Answers by method and path; None for what it does not know."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._products = [product for category in catalogue.categories for product in category.products]
        self._file = _catalogue_file(self._products)
        self._etag = f'"{hashlib.sha256(self._file).hexdigest()[:16]}"'

    def answer(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> ShopResponse | None:
        match method, path:
            case (("GET" | "HEAD"), "/search"):
                return _page(frame("Search", f"<h1>Search</h1>\n{_form('', 'Search')}"))
            case "POST", "/search":
                return self._results(parse_qs(body.decode(errors="replace")))
            case (("GET" | "HEAD"), "/api/products"):
                return self._listed("", _number(parse_qs(query).get("page", ["1"])[0]))
            case "POST", "/api/search":
                return self._api_search(headers, body)
            case (("GET" | "HEAD"), "/files/catalogue.csv"):
                return self._download(headers)
        return None

    def _results(self, fields: Mapping[str, list[str]]) -> ShopResponse:
        if fields.get("token") != [FORM_TOKEN]:
            return _page(frame("Search", "<h1>Search</h1>\n<p>Please use the form.</p>"), status=400)
        text, number = fields.get("q", [""])[0], _number(fields.get("page", ["1"])[0])
        found = self._found(text)
        shown = found[(number - 1) * PER_ANSWER : number * PER_ANSWER]
        cards = "\n".join(
            f'<li><a href="{escape(product.path)}">{escape(product.title)}</a> '
            f'<span class="amount">{product.price:.2f}</span></li>'
            for product in shown
        )
        more = _form(text, "Next", number + 1) if number * PER_ANSWER < len(found) else ""
        return _page(
            frame(
                f"Search: {text}",
                f"<h1>{len(found)} products</h1>\n<ul class='results'>\n{cards}\n</ul>\n{more}",
            )
        )

    def _api_search(self, headers: Mapping[str, str], body: bytes) -> ShopResponse:
        if headers.get("Authorization") != f"Bearer {API_KEY}":
            return _json({"error": "Send the header Authorization: Bearer KEY."}, status=401)
        try:
            asked = msgspec.json.decode(body, type=dict[str, str | int])
        except msgspec.DecodeError:
            return _json({"error": "Send a JSON object with query and page."}, status=400)
        return self._listed(str(asked.get("query", "")), _number(asked.get("page", 1)))

    def _listed(self, text: str, number: int) -> ShopResponse:
        found = self._found(text)
        shown = found[(number - 1) * PER_ANSWER : number * PER_ANSWER]
        pages = max(1, -(-len(found) // PER_ANSWER))
        products = [
            {"sku": product.sku, "title": product.title, "price": product.price, "path": product.path}
            for product in shown
        ]
        return _json({"total": len(found), "page": number, "pages": pages, "products": products})

    def _found(self, text: str) -> list[Product]:
        return [product for product in self._products if text.lower() in product.title.lower()]

    def _download(self, headers: Mapping[str, str]) -> ShopResponse:
        sent = {"ETag": self._etag, "Accept-Ranges": "bytes"}
        whole = ShopResponse(body=self._file, content_type="text/csv; charset=utf-8", headers=sent)
        asked = _RANGE.fullmatch(headers.get("Range", ""))
        if asked is None or headers.get("If-Range", self._etag) != self._etag:
            return whole
        first, last = int(asked[1]), int(asked[2] or len(self._file) - 1)
        if first >= len(self._file):
            return ShopResponse(status=416, headers={**sent, "Content-Range": f"bytes */{len(self._file)}"})
        part = self._file[first : last + 1]
        place = f"bytes {first}-{first + len(part) - 1}/{len(self._file)}"
        return msgspec.structs.replace(whole, body=part, status=206, headers={**sent, "Content-Range": place})


def _form(text: str, button: str, page: int = 1) -> str:
    return (
        f'<form id="{button.lower()}" method="post" action="{SEARCH}">\n'
        f'<input type="hidden" name="token" value="{FORM_TOKEN}">\n'
        f'<input type="hidden" name="page" value="{page}">\n'
        f'<input type="{"search" if page == 1 else "hidden"}" name="q" value="{escape(text)}">\n'
        f'<button type="submit" name="go" value="1">{button}</button>\n</form>'
    )


def _catalogue_file(products: list[Product]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("sku", "title", "price", "currency", "stock", "description"))
    for product in products:
        writer.writerow(
            (product.sku, product.title, product.price, product.currency, product.stock, product.description)
        )
    return text.getvalue().encode()


def _number(value: object) -> int:
    text = str(value)
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 8 else 1


def _page(text: str, *, status: int = 200) -> ShopResponse:
    return ShopResponse(body=text.encode(), status=status)


def _json(value: object, *, status: int = 200) -> ShopResponse:
    return ShopResponse(body=msgspec.json.encode(value), status=status, content_type=_JSON)
