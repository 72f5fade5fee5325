"""Hooks of requests, responses and records: what an author declares, checked before anything starts.

`worker/attempt_hooks.py` calls them.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.define.providers import FunctionKind, ProviderRegistry, Signature, function_location, type_hints
from shoal.errors import InvalidScraper
from shoal.fetch.page import Page, Request

if TYPE_CHECKING:
    from shoal.define.stage import AnyStage

StageNames = Iterable["str | AnyStage"]


class HookEvent(Enum):
    """When a hook is called; the value is the name of its decorator."""

    REQUEST = "before_request"
    RESPONSE = "after_response"
    RECORD = "on_record"


class Hook(msgspec.Struct, frozen=True, eq=False):
    """A function that is called for requests, responses or records of some stages; None: of all."""

    event: HookEvent
    function: Callable[..., Any]
    stages: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return function_location(self.function)


class PreparedHook(msgspec.Struct, frozen=True, eq=False):
    """A hook with its signature.

    `record_parameter`: the name of the parameter that gets the record. `record_type`: what `isinstance` tests it with;
    None for every record. `must_return`: its annotation promises a value, so None is a mistake.
    """

    hook: Hook
    signature: Signature
    must_return: bool
    record_parameter: str = ""
    record_type: Any = None

    @property
    def event(self) -> HookEvent:
        return self.hook.event

    @property
    def function(self) -> Callable[..., Any]:
        return self.hook.function

    @property
    def name(self) -> str:
        return self.hook.name

    def is_for(self, record: Any) -> bool:
        """Whether the record has the type that the hook is for."""
        return self.record_type is None or isinstance(record, self.record_type)


class StageHooks(msgspec.Struct, frozen=True, eq=False):
    """The hooks of one stage, in the order of their declaration."""

    before_request: tuple[PreparedHook, ...]
    after_response: tuple[PreparedHook, ...]
    on_record: tuple[PreparedHook, ...]


class HookRegistry:
    """The hooks of one scraper, in the order of their declaration."""

    def __init__(self, scraper: str, providers: ProviderRegistry) -> None:
        self._scraper = scraper
        self._providers = providers
        self._hooks: list[Hook] = []
        self._prepared: dict[Hook, PreparedHook] = {}

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [hook.function for hook in self._hooks]

    def add(self, event: HookEvent, function: Callable[..., Any], stages: StageNames | None) -> None:
        """Add a hook behind those declared before. Raises InvalidScraper for what is not a list of stages."""
        named = stage_names(f"the {event.value} hook {function_location(function)}", stages)
        self._hooks.append(Hook(event, function, named))

    def of_stage(self, stage: str) -> StageHooks | None:
        """The hooks of a stage; None when there are none."""
        chosen = [self._prepare(hook) for hook in self._hooks if hook.stages is None or stage in hook.stages]
        if not chosen:
            return None
        return StageHooks(*(tuple(each for each in chosen if each.hook.event is event) for event in HookEvent))

    def check(self, stages: Mapping[str, AnyStage]) -> None:
        """Raises InvalidScraper for a hook that asks for what it cannot get, or could never be called."""
        for hook in self._hooks:
            unknown = set(hook.stages or ()) - set(stages)
            if unknown:
                raise InvalidScraper(
                    f"{_called(hook)} is for the stage {min(unknown)!r}, but {self._scraper} has {', '.join(stages)}.",
                    remedy="Correct its stages=[...].",
                )
            prepared = self._prepare(hook)
            own = [stage for name, stage in stages.items() if hook.stages is None or name in hook.stages]
            if hook.event is HookEvent.RECORD:
                _check_record_hook(prepared, own)

    def _prepare(self, hook: Hook) -> PreparedHook:
        known = self._prepared.get(hook)
        if known is None:
            known = self._prepared[hook] = self._read(hook)
        return known

    def _read(self, hook: Hook) -> PreparedHook:
        function = hook.function
        hints = type_hints(function)
        must_return = _promises_a_value(hints)
        if hook.event is HookEvent.RECORD:
            name = _first_parameter(hook)
            signature = self._providers.record_hook_signature(function, name)
            prepared = PreparedHook(hook, signature, must_return, name, _record_type(hook, hints.get(name)))
        else:
            signature = self._providers.request_hook_signature(function)
            prepared = PreparedHook(hook, signature, must_return)
            _check_request_hook(prepared)
        if signature.kind is FunctionKind.ASYNC_GENERATOR or inspect.isgeneratorfunction(function):
            raise InvalidScraper(f"{_called(hook)} yields; a hook returns one value.", remedy="Use `return`.")
        return prepared


def _called(hook: Hook) -> str:
    return f"The {hook.event.value} hook {hook.name}"


def stage_names(what: str, stages: StageNames | None) -> tuple[str, ...] | None:
    """The names of the stages that a decorator was given. Raises InvalidScraper for what is not a list of stages."""
    if stages is None:
        return None
    given = None if isinstance(stages, str) or not isinstance(stages, Iterable) else list(stages)
    names = [each if isinstance(each, str) else getattr(each, "name", None) for each in given or ()]
    if not names or None in names:
        raise InvalidScraper(
            f'stages= of {what} is {stages!r}; it must be a list of stages: ["listing"] or [listing].',
        )
    return tuple(name for name in names if name is not None)


def _check_request_hook(prepared: PreparedHook) -> None:
    """A request hook must ask for the request, a response hook for the page; other pages do not exist yet."""
    hook, signature = prepared.hook, prepared.signature
    direct = {provider.type for _, provider in signature.parameters}
    wanted = Request if hook.event is HookEvent.REQUEST else Page
    if wanted not in direct:
        raise InvalidScraper(
            f"{_called(hook)} does not ask for the {wanted.__name__}.",
            remedy=f"Give it a parameter annotated with {wanted.__name__}.",
        )
    if hook.event is HookEvent.REQUEST and Page in direct:
        raise InvalidScraper(
            f"{_called(hook)} asks for a Page, which does not exist before the request.",
            remedy="Remove that parameter, or make it an after_response hook.",
        )
    by_way = next(
        (name for name, provider in signature.parameters if Page in signature.provided.get(provider.type, ())), None
    )
    if by_way is not None:
        raise InvalidScraper(
            f"{_called(hook)} asks for {by_way!r}, whose provider needs the Page of the item; "
            "it is not there yet when the hook is called.",
            remedy=f"Remove {by_way!r}.",
        )


def _check_record_hook(prepared: PreparedHook, stages: Iterable[AnyStage]) -> None:
    hook, kind = prepared.hook, prepared.record_type
    declared = []
    for stage in stages:
        if Page in prepared.signature.types and not stage.fetches:
            raise InvalidScraper(
                f"{_called(hook)} asks for a Page, but the stage {stage.name} fetches none.",
                remedy="Restrict the hook with stages=[...], or remove the parameter.",
            )
        declared.append(stage.record)
    if kind is not None and declared and all(record is not None and not _fits(record, kind) for record in declared):
        names = ", ".join(sorted({record.__name__ for record in declared if record is not None}))
        raise InvalidScraper(
            f"{_called(hook)} is for records of the type {type_text(kind)}, but its stages declare {names}: "
            "it would never be called.",
            remedy="Correct the annotation of its first parameter.",
        )


def _fits(record: type, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if typing.is_typeddict(record):
        record = dict
    return any(issubclass(record, each) or issubclass(each, record) for each in kinds)


def _first_parameter(hook: Hook) -> str:
    parameters = list(inspect.signature(hook.function).parameters.values())
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not parameters or parameters[0].kind not in by_name:
        raise InvalidScraper(f"{_called(hook)} has no parameter for the record; its first parameter gets it.")
    return parameters[0].name


def _record_type(hook: Hook, hint: Any) -> Any:
    """What `isinstance` tests a record with, from an annotation; None for every record."""
    if hint is None or hint is Any or hint is object:
        return None
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        found = [_record_type(hook, each) for each in typing.get_args(hint)]
        return None if None in found else tuple(dict.fromkeys(found))
    if typing.is_typeddict(hint) or typing.is_typeddict(origin):
        return dict
    kind = origin or hint
    if not isinstance(kind, type) or issubclass(kind, (str, bytes, int, float, bool, list, set)):
        raise InvalidScraper(
            f"The first parameter of the on_record hook {hook.name} is annotated with {type_text(hint)}, "
            "which is no type of records.",
            remedy="Annotate it with dict, a dataclass, a Struct or a pydantic model; without one it gets all records.",
        )
    return kind


def type_text(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " or ".join(map(type_text, kind))
    return getattr(kind, "__name__", None) or str(kind)


def _promises_a_value(hints: Mapping[str, Any]) -> bool:
    """Whether the return annotation excludes None."""
    if "return" not in hints:
        return False
    hint = hints["return"]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return not any(option in (None, type(None), Any, object) for option in options)
