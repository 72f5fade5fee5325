"""Calls a stage in a test, with what it asks for, and returns what it yields."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from shoal.define.context import EarlierRuns, Http, Item, Notes
from shoal.define.counters import Counters
from shoal.define.follow import StageLinks
from shoal.define.providers import FunctionKind, Provider, function_location
from shoal.define.records import Output
from shoal.define.stage import AnyStage, Stage
from shoal.fetch.page import Page
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.testing.fake_http import FakeHttp


class LoggedEvent(NamedTuple):
    """One event of a log."""

    level: str
    event: str
    fields: Mapping[str, Any]


class RecordedLog:
    """A Log that keeps its events in `events`, those of logs bound to it too."""

    def __init__(self, events: list[LoggedEvent] | None = None, fields: Mapping[str, Any] | None = None) -> None:
        self.events: list[LoggedEvent] = [] if events is None else events
        self._fields = dict(fields or {})

    def debug(self, event: str, **fields: Any) -> None:
        self._add("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._add("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._add("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._add("error", event, fields)

    def bind(self, **fields: Any) -> RecordedLog:
        return RecordedLog(self.events, {**self._fields, **fields})

    def _add(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append(LoggedEvent(level, event, {**self._fields, **fields}))


def yielded_by(stage: AnyStage, *values: object, **named: object) -> list[Any]:
    """All that a stage yields or returns for these values: records as they were yielded, and items.

    Values go to the parameters of their types, as Shoal would inject them; `named` ones by the parameter's name. What
    is not given: an Item for the URL of the page, a FakeHttp that answers nothing, a RecordedLog, the settings with
    their defaults. Providers and hooks are not called. Raises what the handler raises, and InvalidRecord for a record
    that could not be stored. It works inside a running event loop too.
    """
    if not isinstance(stage, Stage):
        raise TypeError(f"yielded_by() takes a stage and what it asks for, not {stage!r:.80}.")
    arguments = _arguments(stage, values, named)
    match stage.signature.kind:
        case FunctionKind.PLAIN:
            found = _flat(stage.function(**arguments))
        case FunctionKind.COROUTINE:
            found = _run(_returned(stage.function(**arguments)))
        case FunctionKind.ASYNC_GENERATOR:
            found = _run(_collected(stage.function(**arguments)))
    checked = Output(stage.name, stage.scraper.stages, stage.record, keys=stage.record_keys)
    for value in found:
        checked.add(value)
    return found


def followed_by(stage: AnyStage, page: Page, *, depth: int = 0) -> list[NewItem]:
    """The items for the links of a page that the `follow` rules of a stage let through; `depth` is the page's own."""
    if stage.follow is None:
        return []
    return stage.follow.checked().items(page, Item(page.requested_url, stage=stage.name, depth=depth), stage)


def _arguments(stage: AnyStage, values: Iterable[object], named: Mapping[str, object]) -> dict[str, Any]:
    providers = dict(stage.signature.parameters)
    where = function_location(stage.function)
    arguments: dict[str, Any] = dict(named)
    for value in values:
        name = next(
            (name for name, provider in providers.items() if name not in arguments and _takes(provider, value)), None
        )
        if name is None:
            asked = ", ".join(f"{name}: {provider.name}" for name, provider in providers.items()) or "nothing"
            raise TypeError(f"{where} has no parameter for {value!r:.80}; it asks for {asked}.")
        arguments[name] = value
    for name, provider in providers.items():
        if name not in arguments:
            arguments[name] = _default(stage, name, provider, arguments)
    _set_link_source(stage, arguments.values())
    return arguments


def _set_link_source(stage: AnyStage, arguments: Iterable[Any]) -> None:
    """Let `page.follow_links` lead to the stages of the scraper, as it does in an attempt."""
    given = list(arguments)
    sent = [value for value in given if isinstance(value, Page | Http)]
    urls = [value.requested_url for value in sent if isinstance(value, Page)]
    item = next((value for value in given if isinstance(value, Item)), Item(urls[0] if urls else None))
    for value in sent:
        value._link_source = StageLinks(stage, item)


def _takes(provider: Provider, value: object) -> bool:
    if provider.type is Log:
        return isinstance(value, RecordedLog)
    return isinstance(provider.type, type) and isinstance(value, provider.type)


def _default(stage: AnyStage, name: str, provider: Provider, given: Mapping[str, Any]) -> Any:
    scraper = stage.scraper
    if provider.type is Item:
        page = next((value for value in given.values() if isinstance(value, Page)), None)
        return Item(page.requested_url if page else None, key=None if page else "test", stage=stage.name)
    if provider.type is Http:
        return FakeHttp({})
    if provider.type is Counters:
        return Counters()
    if provider.type is EarlierRuns:
        return EarlierRuns()
    if provider.type is Notes:
        return Notes()
    if provider.type is Log:
        return RecordedLog()
    if scraper.settings_type is not None and provider.type is scraper.settings_type:
        return scraper.settings if scraper.settings is not None else scraper.settings_type()
    raise TypeError(f"{function_location(stage.function)} asks for {name!r}: give it a value, {name}=...")


async def _collected(values: Any) -> list[Any]:
    return [each async for value in values for each in _flat(value)]


async def _returned(coroutine: Any) -> list[Any]:
    value = await coroutine
    return await _collected(value) if hasattr(value, "__aiter__") else _flat(value)


def _flat(value: Any) -> list[Any]:
    """Records and items of a yielded or returned value, as an attempt takes them."""
    if value is None:
        return []
    is_record = isinstance(value, Mapping | str | bytes) or hasattr(value, "model_dump") or hasattr(value, "_fields")
    if isinstance(value, Iterable) and not is_record:
        return [each for inner in value for each in _flat(inner)]
    return [value]


def _run(work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    results: list[list[Any]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="shoal-test")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
