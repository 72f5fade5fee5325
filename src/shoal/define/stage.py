"""A stage: an author's function with its signature, policy and rules for items."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from shoal.define.context import Item
from shoal.define.extraction import each_rule, extracting, has_selectors, is_empty
from shoal.define.follow import Follow
from shoal.define.hooks import StageHooks
from shoal.define.login import Login
from shoal.define.policy import RETRY_OPTIONS, Client, Delay, MaxRecordsOf, Pace, RetryOptions, StagePolicy
from shoal.define.providers import Signature
from shoal.define.record_keys import RecordKeyFields, RecordKeyRule
from shoal.errors import InvalidScraper, Permanent
from shoal.fetch.download import DEFAULT_NAME, Download, check_template
from shoal.fetch.page import BLOCKABLE, BrowserOptions, Page
from shoal.model.item import NewItem
from shoal.model.request import Pairs, SecretName, make_request, with_query
from shoal.model.url_key import host_or_none

if TYPE_CHECKING:
    from shoal.define.scraper import Scraper

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
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

    - `name`: the function's unless given.
    - `rate` ("2/s", "30/min") or `delay` (seconds, or from..to): how often a host is visited, over all machines.
    - `concurrency`: how many of its items run at once.
    - `timeout`: seconds for one attempt.
    - `retries`: attempts after the first; `backoff_factor` (2), `backoff_cap` (300 s), `backoff_jitter` (0.2): their
      delays.
    - `lane`: what shares rate and concurrency instead of the host: a name, a function of the item, or None for no
      limit.
    - `partition`: affinity of the items.
    - `ordered`: items of a lane run one after another.
    - `follow`: links that become items.
    - `dedupe_redirects`: a page that a redirect and a link lead to is visited once; by default for stages that follow
      links.
    - `depth`: items that more items than this led to are left out.
    - `accept`: statuses that are failures otherwise, and reach the handler.
    - `record`: the type of every record; if its fields have selectors, the function needs no body.
    - `expect`: fields that every record should have; a run is warned of when most records lack one, and has failed
      when items died and no item of the stage ended well.
    - `may_be_empty`: fields that are never warned of.
    - `each`: the selector of the elements that are a record each.
    - `record_key`: a field, several, or a function of the record; records with the same key are stored once in the
      `record_scope` ("run" or the whole history of the "scraper"), and `on_duplicate` says whether a second one is
      dropped ("skip") or upserted ("replace").
    - `save`: stream the body to the place of the setting `files` instead of fetching a page; True, or the name of the
      file. `max_bytes`: of such a file.
    - `blocked`: a function that recognizes a soft block.
    - `headers`: sent with its requests.
    - `egress`: the pool of exits (`[egress.NAME]`) that its requests go out through; never directly.
    - `client`: what sends its requests: "http", "chrome" (looks like Chrome to the site) or "browser" (a real one).
    - `wait_for`: when a page in a browser is complete: at a selector, at "load" (the default) or "networkidle", or when
      a function of its `Tab` returns.
    - `block`: what a browser does not load, such as ("image", "font", "media").
    - `viewport`: width and height of the browser's window.
    - `capture`: keep a screenshot and the HTML of a page whose attempt fails, in the place of the setting `files`.
    - `pace`: what `rate` and `delay` count for: a "host", each "identity" (exit) at a host, or each "worker" at a host.
    - `max_records`: when a run has so many records of the stage, its open items end as cancelled.
    - `max_records_of`: whether the records of the "run" count for it, or those of all runs of the "scraper".
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
    dedupe_redirects: bool | None
    record: type | None
    record_key: RecordKeyFields | None
    record_scope: Literal["run", "scraper"]
    on_duplicate: Literal["skip", "replace"]
    expect: Collection[str]
    may_be_empty: Collection[str]
    each: Any
    save: bool | str
    max_bytes: int | None
    blocked: BlockRule | None
    headers: Mapping[str, str] | None
    depth: int | None
    accept: Collection[int]
    egress: str | None
    client: Client
    wait_for: str | Callable[[Any], Any]
    block: Collection[str]
    viewport: tuple[int, int]
    capture: bool
    pace: Pace
    max_records: int | None
    max_records_of: MaxRecordsOf


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
            egress=options.get("egress"),
            client=options.get("client"),
            pace=options.get("pace"),
            max_records=options.get("max_records"),
            max_records_of=options.get("max_records_of"),
            **retry_options,
        )
        follow = options.get("follow", False)
        self.follow = Follow() if follow is True else follow or None
        dedupe = options.get("dedupe_redirects")
        self.dedupe_redirects = self.follow is not None if dedupe is None else dedupe
        self.record = options.get("record")
        self.record_keys = _record_key_rule(scraper.name, self.name, options)
        self.expect = _checked_names(self.name, "expect", options.get("expect", ()))
        self.may_be_empty = _checked_names(self.name, "may_be_empty", options.get("may_be_empty", ()))
        self.each = options.get("each")
        # A function without a body whose record has selectors: the record of the page is what it returns.
        self.extracts = self.record is not None and is_empty(function) and has_selectors(self.record)
        self.function: Callable[P, T] = (
            extracting(function, self.record, self.each) if self.extracts and self.record is not None else function
        )
        save = options.get("save", False)
        self.save: str | None = DEFAULT_NAME if save is True else save or None
        self.max_bytes = options.get("max_bytes")
        # A stage without a body that saves a file: the reference to the file is its record.
        self.yields_download = self.save is not None and is_empty(function)
        self.blocked = options.get("blocked")
        self.headers = dict(options.get("headers") or {})
        self.depth = options.get("depth")
        self.accept = _checked_statuses(self.name, options.get("accept", ()))
        self._browser_options = _browser_options(self.name, options)
        self.error_function: Callable[..., Any] | None = None
        self._lane = options.get("lane", HOST)
        self._partition = options.get("partition", "")
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<stage {self.scraper.name}.{self.name}>"

    @property
    def egress(self) -> str | None:
        """The pool of exits that its requests go out through; None: directly."""
        return self.policy.egress or None

    @property
    def client(self) -> Client:
        return self.policy.client

    @property
    def browser(self) -> BrowserOptions:
        """What it says about pages in a browser."""
        return self._browser_options or BrowserOptions()

    @functools.cached_property
    def signature(self) -> Signature:
        return self.scraper.providers.stage_signature(self.function)

    @functools.cached_property
    def error_signature(self) -> Signature:
        assert self.error_function is not None
        return self.scraper.providers.error_signature(self.error_function)

    def on_error(self, function: F) -> F:
        """Call a function for each item of this stage that dies: `@product.on_error`.

        What it yields is stored with the item's end: a record, further items, or nothing. It may ask for `Failure`,
        `Item`, `Log`, the settings and the author's providers.
        """
        if self.error_function is not None:
            raise InvalidScraper(f"The stage {self.name} has two functions for on_error.")
        self.error_function = function
        return function

    @functools.cached_property
    def fetches(self) -> bool:
        """Whether Shoal fetches the item's URL: its function or one of its providers asks for a Page."""
        return Page in self.signature.types

    @functools.cached_property
    def hooks(self) -> StageHooks | None:
        """The hooks of its requests, responses and records; None when there are none."""
        return self.scraper.hooks.of_stage(self.name)

    @functools.cached_property
    def login(self) -> Login | None:
        """The login that its requests need."""
        return next((login for login in self.scraper.logins if login.is_for(self.name)), None)

    @property
    def by_host(self) -> bool:
        return self._lane is HOST

    def item(  # noqa: PLR0913 - all but the first by keyword
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
        method: str | None = None,
        params: Pairs | None = None,
        headers: Mapping[str, str | SecretName] | None = None,
        json: Any = None,
        form: Pairs | None = None,
        body: str | bytes | None = None,
    ) -> NewItem:
        """An item for this stage: a URL, a key, or both. Yield it, or pass it to `Scraper.start`.

        Given the `Item` of an earlier stage, the new item has the same key, URL, request, payload, partition, priority
        and depth. A smaller `priority` goes first; `delay` is seconds from now.

        `method`, `params`, `headers` and one of `json`, `form` and `body` are the request that is sent; it is stored,
        with secrets by name: `secret("API_KEY")`. Method and body are part of the key.
        """
        url: str | None
        depth: int | None = None
        request, query = None, ""
        if not (
            method is None and headers is None and params is None and json is None and form is None and body is None
        ):
            request, query = make_request(
                method=method, headers=headers, params=params, json=json, form=form, body=body
            )
        if isinstance(target, Item):
            url, depth = target.url, target.depth
            if request is None and not query:
                key, request = key or target.own_key, target.request
            payload = {**target.payload, **(payload or {})} or None
            partition = target.partition if partition is None else partition
            priority = target.priority if priority is None else priority
        else:
            url = target
        new = NewItem(
            url=with_query(url, query) if url is not None and query else url,
            key=key,
            payload=payload,
            stage=self.name,
            partition=partition or "",
            lane=lane if isinstance(lane, str) else None,
            priority=priority or 0,
            delay=delay,
            max_attempts=None if retries is None else retries + 1,
            request=request,
            depth=depth,
        )
        if partition is None and self._partition:
            part = self._partition if isinstance(self._partition, str) else self._partition(new)
            new = msgspec.structs.replace(new, partition=part)
        return msgspec.structs.replace(new, lane=self._lane_of(new)) if lane is UNSET else new

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
        self._check_save()
        if self.follow is not None:
            self.follow.checked()
            if not fetches:
                raise InvalidScraper(f"The stage {self.name} follows links, so its function must ask for a Page.")
            if self.follow.to is not None and self.follow.to not in self.scraper.stages:
                raise InvalidScraper(f"The stage {self.name} follows links to {self.follow.to!r}, which is no stage.")
        if self.error_function is not None:
            _ = self.error_signature
        if self.policy.pace == "identity" and (self.policy.delay is None or self.egress is None):
            raise InvalidScraper(
                f"The stage {self.name} has the pace of each identity: it needs egress, and a rate or a delay."
            )
        if self.policy.pace == "worker" and self.policy.delay is None:
            raise InvalidScraper(f"The stage {self.name} has the pace of each worker: it needs a rate or a delay.")
        if self.client != "browser" and (self._browser_options is not None or _asks_for_tab(self.signature)):
            what = "asks for a Tab" if self._browser_options is None else "has wait_for, block, viewport or capture"
            raise InvalidScraper(f'The stage {self.name} {what}, which needs client="browser".')
        if self.policy.ordered and self.by_host:
            raise InvalidScraper(f"The stage {self.name} is ordered, so it needs lane=.")

    def _check_save(self) -> None:
        if self.save is None:
            if Download in self.signature.types:
                raise InvalidScraper(f"The stage {self.name} asks for a Download, so it needs save=True.")
            if self.max_bytes is not None:
                raise InvalidScraper(f"The stage {self.name} has max_bytes, which needs save=True.")
            return
        if self.accept or self.blocked is not None:
            option = "accept" if self.accept else "blocked"
            raise InvalidScraper(f"The stage {self.name} saves files, so {option} has no page to apply to.")
        if self.fetches:
            raise InvalidScraper(
                f"The stage {self.name} saves files, which can be larger than memory, so it gets no Page.",
                remedy="Ask for a Download, or remove save=.",
            )
        try:
            check_template(self.save)
        except Permanent as problem:
            raise InvalidScraper(f"save of the stage {self.name}: {problem.message}.") from None

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
        "dedupe_redirects": (bool, "True or False"),
        "save": (bool | str, "True, or the name of the file"),
        "max_bytes": (int, "a number of bytes"),
        "depth": (int, "a whole number from 0"),
        "egress": (str, "the name of a pool, [egress.NAME] of shoal.toml"),
    }
    for name, (kind, what) in rules.items():
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise InvalidScraper(f"{name} of the stage {stage} is {value!r}; it must be {what}.")
    if options.get("each") is not None:
        each_rule(options["each"])
    if (depth := options.get("depth")) is not None and (isinstance(depth, bool) or depth < 0):
        raise InvalidScraper(f"depth of the stage {stage} is {depth!r}; it must be a whole number from 0.")
    if options.get("blocked") is not None and not callable(options["blocked"]):
        raise InvalidScraper(f"blocked of the stage {stage} must be a function that takes a Page.")


def _browser_options(stage: str, options: StageOptions) -> BrowserOptions | None:
    """What the options say about pages in a browser; None: nothing. Raises InvalidScraper."""
    given = {name: options.get(name) for name in ("wait_for", "block", "viewport", "capture")}
    if all(value is None for value in given.values()):
        return None
    wait_for, block, viewport = given["wait_for"] or "load", given["block"] or (), given["viewport"]
    if not (isinstance(wait_for, str) or callable(wait_for)):
        raise InvalidScraper(
            f"wait_for of the stage {stage} is {wait_for!r}; "
            'it must be a selector, "load", "networkidle" or a function.'
        )
    names: Any = (block,) if isinstance(block, str) else block
    if not isinstance(names, Collection) or not set(names) <= set(BLOCKABLE):
        raise InvalidScraper(f"block of the stage {stage} is {block!r}; it may have {', '.join(BLOCKABLE)}.")
    if viewport is not None and not (
        isinstance(viewport, tuple | list)
        and len(viewport) == 2
        and all(type(size) is int and 1 <= size <= 10_000 for size in viewport)
    ):
        raise InvalidScraper(f"viewport of the stage {stage} is {viewport!r}; it must be (width, height) in pixels.")
    return BrowserOptions(
        wait_for=wait_for,
        block=frozenset(names),
        viewport=None if viewport is None else (viewport[0], viewport[1]),
        capture=bool(given["capture"]),
    )


def _asks_for_tab(signature: Signature) -> bool:
    return any(getattr(kind, "__module__", "") == "shoal.fetch.tab" for kind in signature.types)


def _checked_statuses(stage: str, accept: Any) -> frozenset[int]:
    """The statuses of `accept`. Raises InvalidScraper for what is no status."""
    statuses = (accept,) if isinstance(accept, int) else accept
    try:
        found = frozenset(statuses)
    except TypeError:
        found = frozenset({None})
    if not all(type(status) is int and 100 <= status <= 599 for status in found):
        raise InvalidScraper(f"accept of the stage {stage} is {accept!r}; it must be statuses such as (404, 410).")
    if 429 in found:
        raise InvalidScraper(f"accept of the stage {stage} has 429, with which a host asks all workers to wait.")
    return found


def _checked_names(stage: str, option: str, names: Collection[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(names):
        raise InvalidScraper(f"{option} of the stage {stage} is {names!r}; it must be a list of the names of fields.")
    return tuple(names)


def _record_key_rule(scraper: str, stage: str, options: StageOptions) -> RecordKeyRule | None:
    key, scope, on_duplicate = options.get("record_key"), options.get("record_scope"), options.get("on_duplicate")
    if key is None:
        if scope is not None or on_duplicate is not None:
            raise InvalidScraper(f"The stage {stage} has record_scope or on_duplicate, so it needs record_key=.")
        return None
    return RecordKeyRule(scraper, stage, key, scope or "run", on_duplicate or "skip")
