"""A stage: an author's function with its signature, policy and rules for items."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from shoal.define.context import Item
from shoal.define.extraction import each_rule, extracting, has_selectors, is_empty
from shoal.define.follow import Follow
from shoal.define.policy import RETRY_OPTIONS, Delay, RetryOptions, StagePolicy
from shoal.define.providers import Signature
from shoal.errors import InvalidScraper
from shoal.fetch.page import Page
from shoal.model.item import NewItem
from shoal.model.url_key import host_or_none

if TYPE_CHECKING:
    from shoal.define.scraper import Scraper

P = ParamSpec("P")
T = TypeVar("T")
LaneRule = str | Callable[[NewItem], str | None] | None
PartitionRule = str | Callable[[NewItem], str]
BlockRule = Callable[[Page], bool | str | None]


class _Host:
    """The default lane: the host of an item's URL."""

    def __repr__(self) -> str:
        return "HOST"


class _Unset:
    """No lane was given: the rule of the stage applies."""


HOST: Final = _Host()
UNSET: Final = _Unset()


class StageOptions(RetryOptions, total=False):
    """The options of a stage; all are optional.

    `name`: the function's unless given. `rate` ("2/s", "30/min") or `delay` (seconds, or from..to): how often a host is
    visited, over all machines. `concurrency`: how many of its items run at once. `timeout`: seconds for one attempt.
    `retries`: attempts after the first; `backoff_factor` (2), `backoff_cap` (300 s), `backoff_jitter` (0.2): their
    delays. `lane`: what shares rate and concurrency instead of the host: a name, a function of the item, or None for no
    limit. `partition`: affinity of the items. `ordered`: items of a lane run one after another. `follow`: links that
    become items. `record`: the type of every record; if its fields have selectors, the function needs no body. `each`:
    the selector of the elements that are a record each. `blocked`: a function that recognizes a soft block. `headers`:
    sent with its requests.
    """

    name: str | None
    rate: str | None
    delay: Delay | None
    concurrency: int | None
    timeout: float | None
    lane: LaneRule | _Host
    partition: PartitionRule
    ordered: bool
    follow: Follow | bool
    record: type | None
    each: Any
    blocked: BlockRule | None
    headers: Mapping[str, str] | None


class Stage(Generic[P, T]):
    """A decorated function. It stays callable, so that a test can call it.

    Created by `Scraper.stage`; `stage.item(...)` creates items for it.
    """

    def __init__(self, scraper: Scraper, function: Callable[P, T], options: StageOptions) -> None:
        self.scraper = scraper
        self.name: str = options.get("name") or str(getattr(function, "__name__", type(function).__name__))
        _check_types(self.name, options)
        retry_options: dict[str, Any] = {}
        for source in (scraper.retry_options, options):
            retry_options |= {name: value for name in RETRY_OPTIONS if (value := source.get(name)) is not None}
        self.policy = StagePolicy(ordered=options.get("ordered", False), set_in_code=frozenset(retry_options)).replace(
            rate=options.get("rate"),
            delay=options.get("delay"),
            concurrency=options.get("concurrency"),
            timeout=options.get("timeout"),
            **retry_options,
        )
        follow = options.get("follow", False)
        self.follow = Follow() if follow is True else follow or None
        self.record = options.get("record")
        self.each = options.get("each")
        # A function without a body whose record has selectors: the record of the page is what it returns.
        self.extracts = self.record is not None and is_empty(function) and has_selectors(self.record)
        self.function: Callable[P, T] = (
            extracting(function, self.record, self.each) if self.extracts and self.record is not None else function
        )
        self.blocked = options.get("blocked")
        self.headers = dict(options.get("headers") or {})
        self._lane = options.get("lane", HOST)
        self._partition = options.get("partition", "")
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<stage {self.scraper.name}.{self.name}>"

    @functools.cached_property
    def signature(self) -> Signature:
        return self.scraper.providers.stage_signature(self.function)

    @functools.cached_property
    def fetches(self) -> bool:
        """Whether Shoal fetches the item's URL: its function or one of its providers asks for a Page."""
        return Page in self.signature.types

    @property
    def by_host(self) -> bool:
        return self._lane is HOST

    def item(
        self,
        target: str | Item | None = None,
        *,
        key: str | None = None,
        payload: Mapping[str, Any] | None = None,
        lane: str | _Unset | None = UNSET,
        partition: str | None = None,
        priority: int | None = None,
        delay: float = 0.0,
        retries: int | None = None,
    ) -> NewItem:
        """An item for this stage: a URL, a key, or both. Yield it, or pass it to `Scraper.start`.

        Given the `Item` of an earlier stage, the new item has the same key, URL, payload, partition and priority. A
        smaller `priority` goes first; `delay` is seconds from now.
        """
        url: str | None
        if isinstance(target, Item):
            url, key = target.url, key or target.own_key
            payload = {**target.payload, **(payload or {})} or None
            partition = target.partition if partition is None else partition
            priority = target.priority if priority is None else priority
        else:
            url = target
        new = NewItem(
            url=url,
            key=key,
            payload=payload,
            stage=self.name,
            partition=partition or "",
            lane=lane if isinstance(lane, str) else None,
            priority=priority or 0,
            delay=delay,
            max_attempts=None if retries is None else retries + 1,
        )
        if partition is None and self._partition:
            part = self._partition if isinstance(self._partition, str) else self._partition(new)
            new = _replace(new, partition=part)
        return _replace(new, lane=self._lane_of(new)) if lane is UNSET else new

    def sitemap(self, url: str, *, match: str | None = None, since: str | None = None) -> NewItem:
        """An item that reads a sitemap, or those that a robots.txt names, and yields an item for each page in it.

        `match`: a regular expression searched in each URL. `since`: a date like 2026-01-31; pages that the sitemap
        says were changed before are left out. Call it where the scraper is defined, not in a handler.
        """
        from shoal.define.sitemap import sitemap_item

        return sitemap_item(self, url, match=match, since=since)

    def check(self) -> None:
        """Raises InvalidScraper for a declaration that cannot work, before anything starts."""
        fetches = self.fetches
        if self.each is not None and not self.extracts:
            raise InvalidScraper(
                f"The stage {self.name} has each=: it needs a record= type with selectors, and no body.",
                remedy="In a handler with a body use extract_all(Record, page, each).",
            )
        if self.extracts and Page not in (provider.type for _, provider in self.signature.parameters):
            raise InvalidScraper(f"The stage {self.name} extracts records, so its function must ask for a Page.")
        if self.follow is not None:
            self.follow.checked()
            if not fetches:
                raise InvalidScraper(f"The stage {self.name} follows links, so its function must ask for a Page.")
            if self.follow.to is not None and self.follow.to not in self.scraper.stages:
                raise InvalidScraper(f"The stage {self.name} follows links to {self.follow.to!r}, which is no stage.")
        if self.policy.ordered and self.by_host:
            raise InvalidScraper(f"The stage {self.name} is ordered, so it needs lane=.")

    def _lane_of(self, new: NewItem) -> str | None:
        if isinstance(self._lane, _Host):
            if new.url is not None:
                return host_or_none(new.url)
            # Without a URL there is no host, so the author's rate applies to the stage as a whole.
            return f"{self.scraper.name}.{self.name}" if self.policy.has_rate else None
        return self._lane(new) if callable(self._lane) else self._lane


AnyStage = Stage[..., Any]


def _check_types(stage: str, options: StageOptions) -> None:
    """Raises InvalidScraper for options of the wrong type."""
    rules: dict[str, tuple[Any, str]] = {
        "follow": (Follow | bool, "True or Follow(...)"),
        "record": (type, "a class"),
        "headers": (Mapping, "a dict of names and values"),
        "ordered": (bool, "True or False"),
    }
    for name, (kind, what) in rules.items():
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise InvalidScraper(f"{name} of the stage {stage} is {value!r}; it must be {what}.")
    if options.get("each") is not None:
        each_rule(options["each"])
    if options.get("blocked") is not None and not callable(options["blocked"]):
        raise InvalidScraper(f"blocked of the stage {stage} must be a function that takes a Page.")


def _replace(new: NewItem, *, partition: str | None = None, lane: str | None = None) -> NewItem:
    return NewItem(
        url=new.url,
        key=new.key,
        payload=new.payload,
        stage=new.stage,
        partition=new.partition if partition is None else partition,
        lane=new.lane if lane is None else lane,
        priority=new.priority,
        delay=new.delay,
        max_attempts=new.max_attempts,
    )
