"""One target on a saved page, the score of listings, the targets of the cities, the states of the workers."""

import dataclasses
import re

import pytest
from filter import read_rules, refusal, score
from listings import Listing, company_key, listings_of, looks_blocked
from shoal import Counters, Item, Permanent
from shoal.testing import FakeHttp, RecordedLog, yielded_by
from state_assignments import DATA, STATES, problems, read_assignments
from targets import City, WrongFile, make_targets, read_categories, read_cities
from yellowpages import crawl_single_target

SITE = "https://yp.example"
URL, SEARCH = f"{SITE}/los-angeles-ca/plumbers", f"{SITE}/search?search_terms=Plumbers"
NOTHING = '<div class="no-results">Nothing here.</div>'


def target(max_pages=1):
    payload = {"state_id": "CA", "city_slug": "los-angeles-ca", "category_slug": "plumbers"}
    return Item(URL, key="los-angeles-ca/plumbers", payload={**payload, "fallback_url": SEARCH, "max_pages": max_pages})


def test_one_listing_of_five_becomes_a_company(shoal_page):
    counters, log = Counters(), RecordedLog()
    page = shoal_page("results.html", url=URL)
    (company,) = yielded_by(crawl_single_target, page, target(), counters, log)
    assert (company.name, company.company, company.score) == ("Cedar Ridge Plumbers", "cedar-ridge.example", 100)
    assert (company.phone, company.email) == ("(555) 201-4411", "office@cedar-ridge.example")
    assert (company.rating, company.reviews, company.services) == (4.5, 12, ("Repairs", "Installation"))
    assert counters.values == {
        "accepted": 1,
        "rejected": 4,
        "rejected_sponsored": 1,
        "rejected_without_website": 1,
        "rejected_blocked_category": 1,
        "rejected_low_score": 1,
    }
    assert log.events[-1].event == "Target completed"
    assert (log.events[-1].fields["accepted"], log.events[-1].fields["rejected"]) == (1, 4)


def test_so_many_pages_are_read_as_the_target_says(shoal_page):
    second = f"{URL}?page=2"
    http = FakeHttp({second: shoal_page("results.html", url=second)})
    page = shoal_page("results.html", url=URL)
    assert len(yielded_by(crawl_single_target, page, target(max_pages=2), http)) == 2
    assert http.urls == [second]


def test_the_search_is_asked_where_there_is_no_page(shoal_page):
    gone = shoal_page("results.html", url=URL).replace(status=404)
    http = FakeHttp({SEARCH: shoal_page("results.html", url=SEARCH)})
    assert len(yielded_by(crawl_single_target, gone, target(), http)) == 1
    with pytest.raises(Permanent):
        yielded_by(crawl_single_target, gone, target(), FakeHttp({SEARCH: 404}))


def test_a_captcha_is_no_page_of_results(shoal_page):
    page = shoal_page("results.html", url=URL)
    assert looks_blocked(page) is None
    assert looks_blocked(page.replace(body=NOTHING.encode())) is None
    assert looks_blocked(page.replace(body=b"<p>Solve this captcha")) == "a captcha"
    assert looks_blocked(page.replace(body=b"<p>Hello")) == "neither results nor the sentence that there are none"


def test_the_score_of_a_listing():
    rules = read_rules(DATA / "filter.toml")
    plain = Listing(name="Cedar", profile_url="", source_page="")
    assert score(plain, rules) == 40
    assert score(Listing(name="Cedar", profile_url="", source_page="", category_tags=("Plumbers",)), rules) == 70
    assert score(Listing(name="Cedar", profile_url="", source_page="", category_tags=("Trade Schools",)), rules) == 0


def test_a_blocked_category_is_rejected_at_any_least_score():
    rules = read_rules(DATA / "filter.toml")
    school = Listing(name="Cedar", profile_url="", source_page="", website="cedar.example", category_tags=("Plumbers",))
    assert refusal(school, rules, least=0, sponsored=False) is None
    school = dataclasses.replace(school, category_tags=("Plumbers", "Trade Schools"))
    assert refusal(school, rules, least=0, sponsored=False) == "blocked_category"


def test_a_company_has_one_key_whatever_form_its_website_has():
    forms = ("https://www.Cedar.example/", "http://cedar.example", "cedar.example/?ref=yp", "cedar.example/#contact")
    forms += ("https://cedar.example#contact", "cedar.example/?ref=yp#contact", "cedar.example#/?ref=yp")
    assert {company_key(form) for form in forms} == {"cedar.example"}


def test_large_cities_come_first_and_have_more_pages():
    cities = {city.slug: city for city in read_cities()[0]}
    assert {city.state_id for city in cities.values()} == set(STATES)
    tiers = [(cities[slug].priority, cities[slug].max_pages) for slug in ("los-angeles-ca", "tulsa-ok", "medora-nd")]
    assert tiers == [(1, 3), (2, 2), (3, 1)]
    targets = list(make_targets(list(cities.values()), read_categories(), SITE))
    assert len(targets) == len({target.key for target in targets}) == len(cities) * 10
    assert [target.priority for target in targets] == sorted(target.priority for target in targets)
    first = next(target for target in targets if target.city_slug == "los-angeles-ca")
    assert first.primary_url == f"{SITE}/los-angeles-ca/plumbers"
    assert first.fallback_url == f"{SITE}/search?search_terms=Plumbers&geo_location_terms=Los+Angeles%2C+CA"


def test_a_slash_at_the_end_of_the_site_is_left_out():
    (target,) = make_targets([City("CA", "Los Angeles", 1, 3)], [("Plumbers", "plumbers")], f"{SITE}/")
    assert target.primary_url == f"{SITE}/los-angeles-ca/plumbers"
    assert target.fallback_url.startswith(f"{SITE}/search?")


def test_a_file_of_ones_own_as_spreadsheets_write_it(tmp_path):
    file = tmp_path / "cities.csv"
    file.write_bytes(b'\xef\xbb\xbfcity,state_id,population,x\nLos Angeles,ca,"3,900,000",1\nSan Juan,PR,340000,2\n')
    cities, others = read_cities(file)
    assert [(city.slug, city.state_id) for city in cities] == [("los-angeles-ca", "CA")]
    assert others == {"PR": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("state_id,city\nCA,Ojai\n", "has no column population; its first line must be: state_id,city,population"),
        ("", "has no column state_id, city, population"),
        ("state_id,city,population\nCA,Ojai,7600\nCA,Los Osos,\n", "line 3: population is empty"),
        ("state_id,city,population\nCA,,7600\n", "line 2: city is empty"),
        ("state_id,city,population\nCA\n", "line 2: city is empty"),
        ("state_id,city,population\nCA,Ojai,many\n", "line 2: the population 'many' is no number"),
        ("state_id,city,population\nCA,Ca\xf1on,1\n", "is not UTF-8 text"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_with_a_file_of_cities_is_said(tmp_path, text, complaint):
    file = tmp_path / "cities.csv"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    with pytest.raises(WrongFile, match=re.escape(complaint)):
        read_cities(file)


def test_the_address_of_a_city_has_plain_letters():
    names = ("Cañon City", "St. Louis", "Coeur d'Alene", "Peñasco ")
    assert [City("CO", name, 1, 1).slug for name in names] == [
        "canon-city-co",
        "st-louis-co",
        "coeur-d-alene-co",
        "penasco-co",
    ]


def test_every_state_has_one_worker():
    assigned = read_assignments()
    assert [len(codes) for codes in assigned] == [5, 5, 5, 5, 6, 5, 5, 5, 5, 5]
    assert "DC" in assigned[4]
    assert problems(assigned) == []
    assert problems([["CA", "CA", "ZZ"], [code for code in STATES if code not in ("CA", "TX")]]) == [
        "assigned more than once: CA",
        "no state: ZZ",
        "missing: TX",
    ]


def test_a_saved_page_has_all_its_listings(shoal_page):
    assert [listing.is_sponsored for listing in listings_of(shoal_page("results.html", url=URL))] == [
        False,
        True,
        False,
        False,
        False,
    ]
