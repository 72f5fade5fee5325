"""The stages with saved pages; india.http is the page after its script has run."""

from shoal.testing import yielded_by

from countries import DrugPrice, DrugPriceWithComma, indian_drug, russian_drug


def test_a_page_that_a_browser_has_rendered(shoal_page):
    assert yielded_by(indian_drug, shoal_page("india")) == [
        DrugPrice(
            url="http://prices.example/india/drug/1",
            name="Alverstatin",
            strength="500 mg",
            pack="7 tablets",
            updated="2026-06-11",
            price=3573.93,
        )
    ]


def test_prices_with_a_decimal_comma(shoal_page):
    (found,) = yielded_by(russian_drug, shoal_page("russia"))
    assert isinstance(found, DrugPriceWithComma)
    assert (found.name, found.price) == ("Fortilcillin", 2515.56)
