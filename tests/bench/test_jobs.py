"""The six jobs of the comparison with Scrapy and Crawlee do what they say, in all three."""

import pytest

from bench.killed_jobs import FRAMEWORKS, PRODUCTS, JobBench, code_lines
from shoal.demo.shop import Shop
from shoal.demo.shop.search import FILE
from tests.support.brokers import RabbitServer

PER_CATEGORY = 10
# The bundled shop has no network and no database of its own; peers need a driver that only `make bench` installs.
OF_ALL = ("crawl", "api", "form", "download")
WORDS = ("brush", "lamp", "set", "tray")


def expected(job: str) -> set[str]:
    """What identifies the records of a complete job."""
    with Shop(per_category=PER_CATEGORY).serving() as shop:
        products = [product for product in shop.facts().products.values() if product.url.startswith(shop.url)]
    match job:
        case "crawl":
            return {product.sku for product in products}
        case "form":
            return {p.title for p in products if any(word in p.title.lower() for word in WORDS)}
        case "pipeline":
            return {product.sku for product in products if product.price <= 50}
        case "broker":
            return {product.sku for product in products[:PRODUCTS]}
    return set()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("job", OF_ALL)
def test_a_job_on_the_shop(job: str, framework: str) -> None:
    outcome = JobBench("", "", PER_CATEGORY).run(job, framework)
    found = set(outcome.records)
    match job:
        case "api":
            assert len(found) == 12 * PER_CATEGORY
        case "download":
            assert len(found) == 1
            assert FILE in next(iter(found))
        case _ if framework == "shoal":
            assert found == expected(job)
        case _:
            # Peers do not notice captchas and empty pages, and give up others.
            assert len(found) > 0.8 * len(expected(job))
            assert found <= expected(job)


def test_records_into_postgresql(postgres_url: str) -> None:
    outcome = JobBench(postgres_url, "", PER_CATEGORY).run("pipeline", "shoal")
    assert set(outcome.records) == expected("pipeline")


def test_broker_in_and_out(rabbitmq: RabbitServer) -> None:
    outcome = JobBench("", rabbitmq.url(), PER_CATEGORY).run("broker", "shoal")
    assert set(outcome.records) >= expected("broker")
    assert max(outcome.records.values()) == 1


@pytest.mark.parametrize("job", [*OF_ALL, "pipeline", "broker"])
def test_shoal_needs_the_least_code(job: str) -> None:
    lines = {framework: code_lines(job, framework) for framework in FRAMEWORKS}
    assert lines["shoal"] == min(lines.values()), lines
