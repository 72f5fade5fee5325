"""Policies: options of stages, changes by the configuration, and the policy of the lane."""

from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pydantic
import pytest

from shoal import Item, Page, Scraper
from shoal.define.policy import StagePolicy, strictest
from shoal.define.stage import StageOptions
from shoal.errors import InvalidScraper, InvalidSetting, UsageError
from shoal.model.lane import LanePolicy
from shoal.model.outcome import RetryPolicy


@dataclass
class Region:
    name: str
    limit: int = 10


class RegionModel(pydantic.BaseModel):
    name: str
    limit: int = 10


class RegionStruct(msgspec.Struct):
    name: str
    limit: int = 10


def lane_of(**options: Any) -> LanePolicy:
    """The policy that the ledger gets for a scraper of one stage with these options."""
    return scraper_with(cast(StageOptions, options)).run_spec().stages[0].lane


def scraper_with(*stages: StageOptions, settings: type | None = None) -> Scraper:
    scraper = Scraper("shop", settings=settings)
    for number, options in enumerate(stages):

        def listing(page: Page) -> None: ...

        options.setdefault("name", f"stage{number}")
        scraper.stage(**options)(listing)
    return scraper


def test_the_default_is_gentle_except_on_this_machine() -> None:
    assert lane_of() == LanePolicy(limit=1, delay_min=1, delay_max=1, loopback_limit=8)
    assert lane_of(concurrency=2) == LanePolicy(limit=2)
    assert scraper_with({}, {"rate": "5/s"}).run_spec().stages[0].lane == LanePolicy(
        limit=8, delay_min=0.2, delay_max=0.2
    )


@pytest.mark.parametrize(
    ("options", "lane"),
    [
        ({"rate": "2/s"}, LanePolicy(limit=8, delay_min=0.5, delay_max=0.5)),
        ({"rate": "30/min", "concurrency": 1}, LanePolicy(limit=1, delay_min=2, delay_max=2)),
        ({"delay": 3}, LanePolicy(limit=8, delay_min=3, delay_max=3)),
        ({"delay": (1, 4.5)}, LanePolicy(limit=8, delay_min=1, delay_max=4.5)),
        ({"concurrency": 64}, LanePolicy(limit=64)),
        (
            {"ordered": True, "lane": "queue", "delay": 1},
            LanePolicy(limit=1, delay_min=1, delay_max=1, ordered=True, shared=False),
        ),
    ],
)
def test_the_options_of_a_stage_are_those_of_its_lane(options: dict[str, Any], lane: LanePolicy) -> None:
    assert lane_of(**options) == lane


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": "2/s", "delay": 1}, "Give rate or delay, not both"),
        ({"rate": "fast"}, "'fast' is not a rate"),
        ({"rate": 2}, "2 is not a rate"),
        ({"delay": -1}, "delay_min is -1.0"),
        ({"delay": (3, 1)}, "above its delay_max"),
        ({"concurrency": 0}, "limit is"),
        ({"retries": -1}, "retries is -1"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"ordered": True, "lane": "queue", "concurrency": 4}, "one item of a lane at a time"),
    ],
)
def test_invalid_values_are_refused_at_the_declaration(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidSetting, InvalidScraper), match=words):
        lane_of(**options)


def test_stages_of_one_host_share_the_strictest_of_their_policies() -> None:
    shop = scraper_with({"rate": "2/s"}, {"concurrency": 2}, {"rate": "10/s", "concurrency": 5}, {"lane": "own"})
    first, second, third, own = [stage.lane for stage in shop.run_spec().stages]
    assert first == second == third == LanePolicy(limit=2, delay_min=0.5, delay_max=0.5)
    assert own == LanePolicy(limit=8)


def test_retries_are_attempts_after_the_first() -> None:
    spec = scraper_with({"retries": 0}, {"retries": 5}, {}).run_spec()
    assert [stage.max_attempts for stage in spec.stages] == [1, 6, 4]


def test_retry_options_of_a_scraper_apply_to_stages_without_their_own() -> None:  # S4.2
    shop = Scraper("shop", retries=7, backoff_factor=3, backoff_cap=60)

    @shop.stage(retries=1, backoff_jitter=0.0)
    async def one(item: Item) -> None: ...

    @shop.stage
    async def two(item: Item) -> None: ...

    assert [(stage.policy.retries, stage.policy.retry) for stage in (one, two)] == [
        (1, RetryPolicy(factor=3, cap=60, jitter=0.0)),
        (7, RetryPolicy(factor=3, cap=60, jitter=0.2)),
    ]
    assert [stage.max_attempts for stage in shop.run_spec().stages] == [2, 8]


def test_the_precedence_of_retry_options() -> None:
    """All scrapers' files, the code, the scraper's table, the stage's table, this one call: the later wins."""
    shop = scraper_with({"backoff_factor": 2.5}, {})
    said: dict[str, Any] = {
        "retry_defaults": {"backoff_factor": 4.0, "backoff_cap": 10.0},
        "retry_table": {"backoff_jitter": 0.5, "retries": 5},
        "stages": {"stage1": {"retries": 6, "backoff_jitter": 0.6}},
    }
    shop.configure(settings={}, **said)
    first, second = (stage.policy for stage in shop.stages.values())
    assert (first.retries, first.retry) == (5, RetryPolicy(factor=2.5, cap=10, jitter=0.5))
    assert (second.retries, second.retry) == (6, RetryPolicy(factor=4, cap=10, jitter=0.6))
    assert second.max_attempts(stored=1) == 1, "what the item was stored with"
    shop.configure(settings={}, **said, retry_overrides={"retries": 0, "backoff_factor": 1.0})
    assert {(stage.policy.retries, stage.policy.backoff_factor) for stage in shop.stages.values()} == {(0, 1.0)}
    assert shop.stages["stage1"].policy.max_attempts(stored=4) == 1


@pytest.mark.parametrize(
    "options",
    [{"backoff_factor": 0.5}, {"backoff_factor": "2"}, {"backoff_cap": 0}, {"backoff_jitter": 2}, {"retries": -1}],
)
def test_invalid_retry_options_are_refused(options: Any) -> None:
    with pytest.raises(InvalidSetting, match="must be"):
        Scraper("shop", **options)
    with pytest.raises(InvalidSetting, match="must be"):
        scraper_with(options)


def test_an_argument_that_a_scraper_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidScraper, match=r"no argument 'backof_factor'. Did you mean backoff_factor\?"):
        Scraper("shop", backof_factor=2)  # type: ignore[call-arg]


def test_the_configuration_changes_only_what_it_names() -> None:
    shop = scraper_with({"rate": "2/s", "retries": 1, "timeout": 5}, {})
    shop.configure(settings={}, stages={"stage0": {"rate": "1/10s", "delay": None, "retries": None, "timeout": 9}})
    policy = shop.stages["stage0"].policy
    assert (policy.delay, policy.retries, policy.timeout) == ((10, 10), 1, 9)
    assert shop.stages["stage1"].policy.delay is None
    with pytest.raises(InvalidScraper, match="names the stage 'other', but shop has stage0, stage1"):
        shop.configure(settings={}, stages={"other": {}})


@pytest.mark.parametrize("kind", [Region, RegionModel, RegionStruct])
def test_settings_fill_the_class_that_the_scraper_declares(kind: type) -> None:
    shop = scraper_with({}, settings=kind)
    shop.configure(settings={"name": "north"}, stages={})
    assert (shop.settings.name, shop.settings.limit) == ("north", 10)
    assert shop.run_spec().settings == {"name": "north"}
    shop.configure(settings={"name": "north", "limit": "12"}, stages={})
    assert shop.settings.limit == 12, "a text from a variable becomes a number"
    with pytest.raises(InvalidScraper, match=r"The settings of shop are invalid: .*limit") as refused:
        shop.configure(settings={"name": "north", "limit": "many"}, stages={})
    assert refused.value.remedy == "Correct [scrapers.shop.settings]."
    assert refused.value.message.startswith("The settings of shop are invalid: limit: ")
    if kind is not RegionModel:  # pydantic has words of its own
        assert refused.value.message.endswith("limit: it is 'many', and must be a whole number.")
    with pytest.raises(InvalidScraper) as refused:
        shop.configure(
            settings={"name": "north", "limit": "many"}, stages={}, variables={"limit": "LIMIT in .env", "name": "NAME"}
        )
    assert refused.value.remedy == "Correct LIMIT in .env."
    with pytest.raises(InvalidScraper, match="name"):
        shop.configure(settings={}, stages={})


@pytest.mark.parametrize(
    ("name", "value", "must_be"),
    [("captions", "perhaps", "true or false"), ("limit", "many", "a whole number"), ("score", "high", "a number")],
)
def test_a_setting_of_a_wrong_type_is_told_what_it_must_be(name: str, value: str, must_be: str) -> None:
    class Options(msgspec.Struct):
        captions: bool | None = False
        limit: int = 1
        score: float | None = None

    shop = scraper_with({}, settings=Options)
    for word, meant in (("yes", True), ("On", True), ("false", False), (" no ", False)):
        shop.configure(settings={"captions": word}, stages={})
        assert shop.settings.captions is meant
    with pytest.raises(InvalidScraper) as refused:
        shop.configure(settings={name: value}, stages={}, variables={name: f"{name.upper()} in .env"})
    assert refused.value.message == f"The settings of shop are invalid: {name}: it is {value!r}, and must be {must_be}."
    assert refused.value.remedy == f"Correct {name.upper()} in .env."


def test_settings_without_a_declared_class() -> None:
    with pytest.raises(InvalidScraper, match="the scraper declares no settings"):
        scraper_with({}).configure(settings={"name": "north"}, stages={})


def test_items_without_url_have_the_rate_of_their_stage() -> None:
    shop = Scraper("shop")

    @shop.stage(rate="1/s")
    def named(item: Item) -> None: ...

    assert named.item(key="k").lane == "shop.named"
    assert shop.run_spec().stages[0].lane.delay_min == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": "5"}, "timeout is '5'"),
        ({"delay": "1"}, "delay is '1'"),
        ({"delay": (1,)}, "delay is (1,)"),
        ({"headers": "x"}, "headers of the stage page is 'x'"),
        ({"follow": "yes"}, "follow of the stage page is 'yes'"),
        ({"record": "Book"}, "record of the stage page is 'Book'"),
        ({"blocked": 1}, "blocked of the stage page must be a function"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_in_a_sentence(options: Any, said: str) -> None:
    async def page() -> None: ...

    with pytest.raises(UsageError) as refused:
        Scraper("s").stage(**options)(page)
    assert said in refused.value.message


def test_the_strictest_of_two_delays_has_the_larger_of_each_end() -> None:
    lane = strictest([StagePolicy(delay=(1, 5)), StagePolicy(delay=(2, 3))])
    assert (lane.delay_min, lane.delay_max) == (2, 5)
