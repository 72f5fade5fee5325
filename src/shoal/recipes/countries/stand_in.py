"""The stand-in of four price registers: `python -m shoal.recipes.countries.stand_in --port 8002`.

`/india/drug/N` and `/malaysia/drug/N` are empty until their script has asked `/api/...` for the data; `/russia/drug/N`
and `/argentina/drug/N` are whole. `/ip` answers with the address that the visitor came from.
"""

from __future__ import annotations

import html
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Self

import msgspec

from shoal.demo.stand_in import JSON, TEXT, RunningStandIn, StandIn, StandInRequest, StandInResponse, main

COUNTRIES = ("india", "malaysia", "russia", "argentina")
# A host for each, so that each has limits of its own.
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
# Of these the page is empty until its script has run.
SCRIPTED = ("india", "malaysia")
DRUGS = 1_000_000
# Every so many pages that one address asks for, it is refused once.
BLOCK_EVERY = 4
# The first visit of every so many pages is cut off.
RESET_EVERY = 9
ADDRESS_PATH = "/ip"

_CURRENCIES = {"india": "INR", "malaysia": "MYR", "russia": "RUB", "argentina": "ARS"}
_STEMS = ("Alver", "Bexol", "Cardin", "Dorvax", "Elmida", "Fortil", "Glavon", "Helixa", "Ivorin", "Jantel")
_ENDINGS = ("amol", "idine", "oxin", "pril", "statin", "zole", "cillin", "olol")
_FORMS = ("tablets", "capsules", "syrup", "ampoules")
_STRENGTHS = (5, 10, 20, 40, 80, 100, 250, 500)


class DrugFacts(msgspec.Struct, frozen=True):
    """What the register knows of a drug: what a scraper must have stored."""

    name: str
    strength: str
    pack: str
    price: float
    currency: str
    updated: str


class PriceRegisters(StandIn):
    """Four registers of drug prices on a host each, as different in their markup as registers of four countries are."""

    name = "countries"
    default_port = 8002
    FAULTS: ClassVar = {
        "blocks": f"every {BLOCK_EVERY}th page that one address asks for is a 403",
        "resets": f"the first visit of every {RESET_EVERY}th page is cut off",
        "gone": "pages whose number ends in 13 are a 404",
    }

    def __init__(
        self, *, seed: int = 7, latency: tuple[float, float] = (0.0, 0.0), faults: Collection[str] = ()
    ) -> None:
        super().__init__(seed=seed, latency=latency, faults=faults)
        self._addresses: dict[str, str] = {}
        self._asked: Counter[str] = Counter()
        self._reset: set[str] = set()

    def facts(self, country: str, number: int) -> DrugFacts:
        """The truth about a drug, from the seed alone."""
        chance = random.Random(f"{self.seed} {country} {number}")
        return DrugFacts(
            name=chance.choice(_STEMS) + chance.choice(_ENDINGS),
            strength=f"{chance.choice(_STRENGTHS)} mg",
            pack=f"{chance.choice((7, 10, 14, 28, 30, 100))} {chance.choice(_FORMS)}",
            price=chance.randrange(100, 500_000) / 100,
            currency=_CURRENCIES[country],
            updated=f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}",
        )

    def urls(self, country: str, count: int) -> Iterator[str]:
        """The addresses of the first drugs of a country, while the site is served."""
        return (f"{self.address(country)}/{country}/drug/{number}" for number in range(1, count + 1))

    def address(self, country: str) -> str:
        """Where the register of a country is: each has a host of its own, if the site is served on several."""
        return self._addresses.get(country, self.url)

    @contextmanager
    def serving(self, *, port: int = 0, hosts: Sequence[str] = HOSTS) -> Iterator[RunningStandIn[Self]]:
        with super().serving(port=port, hosts=hosts) as running:
            addresses = list(running.urls.values())
            self._addresses = {name: addresses[n % len(addresses)] for n, name in enumerate(COUNTRIES)}
            yield running

    async def answer(self, request: StandInRequest) -> StandInResponse:
        if request.path == ADDRESS_PATH:
            return StandInResponse(body=f"{request.peer}\n", content_type=TEXT)
        if request.path == "/robots.txt":
            return StandInResponse(body="User-agent: *\nAllow: /\n", content_type=TEXT)
        if request.path == "/app.js":
            return StandInResponse(body=_SCRIPT, content_type="text/javascript; charset=utf-8")
        is_data = request.path.startswith("/api/")
        country, number = _drug(request.path.removeprefix("/api"))
        if not number or (is_data and country not in SCRIPTED):
            return StandInResponse(status=404, body="<h1>No such page</h1>")
        if "gone" in self.faults and number % 100 == 13:
            return StandInResponse(status=404, body="<h1>No longer registered</h1>")
        if is_data:
            return StandInResponse(body=msgspec.json.encode(self.facts(country, number)), content_type=JSON)
        return self._fault(request) or self._page(country, number)

    def _fault(self, request: StandInRequest) -> StandInResponse | None:
        """The answer to a page that is not given out this time."""
        self._asked[request.peer] += 1
        if "blocks" in self.faults and self._asked[request.peer] % BLOCK_EVERY == 0:
            return StandInResponse(status=403, body="<h1>Too many visits from your address</h1>", note="blocked")
        number = _drug(request.path)[1]
        if "resets" in self.faults and number % RESET_EVERY == 0 and request.path not in self._reset:
            self._reset.add(request.path)
            return StandInResponse(reset=True, note="reset")
        return None

    def _page(self, country: str, number: int) -> StandInResponse:
        if country in SCRIPTED:
            # Nothing of the data is in the page: a client without scripts gets no price.
            return StandInResponse(body=_EMPTY.format(title=country.title(), source=f"/api/{country}/drug/{number}"))
        drug = self.facts(country, number)
        rows = {"strength": drug.strength, "pack": drug.pack, "price": _local_price(drug), "updated": drug.updated}
        body = "".join(
            f"<tr><th>{name}</th><td class={name}>{html.escape(text)}</td></tr>" for name, text in rows.items()
        )
        return StandInResponse(body=f"<title>{drug.name}</title><h1>{drug.name}</h1><table>{body}</table>")


def _drug(path: str) -> tuple[str, int]:
    """Country and number of `/india/drug/12`; 0 for every other path."""
    parts = path.split("/")
    if len(parts) != 4 or parts[1] not in COUNTRIES or parts[2] != "drug" or not parts[3].isdecimal():
        return "", 0
    number = int(parts[3])
    return (parts[1], number) if number <= DRUGS else ("", 0)


def _local_price(drug: DrugFacts) -> str:
    """The price as the country writes it: 1.234,50 with a sign before or behind."""
    text = f"{drug.price:,.2f}".translate(str.maketrans(",.", ".,"))
    return f"{text} ₽" if drug.currency == "RUB" else f"$ {text}"


_EMPTY = """<!doctype html>
<meta charset="utf-8">
<title>Price register of {title}</title>
<div id="drug" data-source="{source}"></div>
<script src="/app.js"></script>
"""
_SIGNS = json.dumps({"INR": "₹", "MYR": "RM"}, ensure_ascii=False)
_SCRIPT = f"""
const place = document.getElementById("drug");
const signs = {_SIGNS};
fetch(place.dataset.source).then((answer) => answer.json()).then((drug) => {{
  const price = drug.price.toLocaleString("en-US", {{ minimumFractionDigits: 2 }});
  const add = (tag, name, text) => {{
    const element = document.createElement(tag);
    element.className = name;
    element.textContent = text;
    place.append(element);
  }};
  add("h1", "name", drug.name);
  add("p", "strength", drug.strength);
  add("p", "pack", drug.pack);
  add("p", "updated", drug.updated);
  add("p", "price", signs[drug.currency] + " " + price);
}});
"""

if __name__ == "__main__":
    raise SystemExit(main(PriceRegisters))
