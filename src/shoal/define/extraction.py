"""Records from selectors: the fields of a record type say where on a page their values are.

`css`, `xpath`, `jmes` and `page_url` mark a field; `extract` and `extract_all` read the records of a page.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from shoal.errors import InvalidRecord, InvalidScraper
from shoal.fetch.markup import element_text, one_line
from shoal.fetch.page import Page
from shoal.model.url_key import quoted

if TYPE_CHECKING:
    from parsel import Selector

R = TypeVar("R")
Converter = Callable[..., Any]
_RULE = "shoal rule"
_MANY = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set, collections.abc.Iterable)
_NUMBERS = frozenset({int, float, Decimal})
_SHOWN_TEXT = 60
# A sign, digits in groups (western or Indian) or in a row, and a fraction.
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+\u2212]\s?)?"
    r"(?:\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d{1,3}(?:[\s'\u2019,.]\d{3})+(?!\d)|\d+)?(?:[.,]\d+|(?<=\d))"
)
_MAX_NUMBER_TEXT = 1_000


class SelectorRule(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value is and how it is converted; made by `css`, `xpath`, `jmes` and `page_url`."""

    kind: Literal["css", "xpath", "jmes", "page_url"]
    query: str = ""
    converters: tuple[Converter, ...] = ()
    pattern: str | None = None
    join: str | None = None
    html: bool = False
    strip: bool = True

    def __str__(self) -> str:
        return f"{self.kind}({self.query!r})" if self.query else f"{self.kind}()"


def css(
    query: str,
    *converters: Converter,
    re: str | None = None,
    join: str | None = None,
    html: bool = False,
    strip: bool = True,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field that a CSS selector finds: `title: str = css("h1")` in a dataclass, or `Annotated[str, css("h1")]`.

    An element gives its text; `::text` and `::attr(name)` as in `Page.css`. The first match counts, for a list all of
    them. `converters` are called one after another; one with a parameter `page` gets the page too. `re`: what this
    regular expression finds in the text, its first group if it has one. `join`: all matches as one text, with this
    between them. `html`: the markup instead of the text. `strip=False` keeps white space as it is. `default`: of a
    dataclass field; in `Annotated` write it as usual, behind `=`.
    """
    return _field("css", query, converters, default, pattern=re, join=join, html=html, strip=strip)


def xpath(
    query: str,
    *converters: Converter,
    re: str | None = None,
    join: str | None = None,
    html: bool = False,
    strip: bool = True,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field that an XPath expression finds; the other arguments are those of `css`."""
    return _field("xpath", query, converters, default, pattern=re, join=join, html=html, strip=strip)


def jmes(query: str, *converters: Converter, default: Any = dataclasses.MISSING) -> Any:
    """A field that a JMESPath expression finds in a JSON page: `price: float = jmes("offer.price")`."""
    return _field("jmes", query, converters, default)


def page_url(*converters: Converter) -> Any:
    """A field that is the URL of the page, after redirects."""
    return _field("page_url", "", converters, dataclasses.MISSING)


def _field(
    kind: Literal["css", "xpath", "jmes", "page_url"],
    query: str,
    converters: tuple[Converter, ...],
    default: Any,
    **options: Any,
) -> Any:
    if kind != "page_url" and not query.strip():
        raise InvalidScraper(f"{kind}({query!r}) is not a selector.", remedy='Write it like css("h1").')
    given: tuple[object, ...] = converters
    if odd := next((each for each in given if not callable(each)), None):
        raise InvalidScraper(
            f"{kind}({query!r}) has the converter {odd!r}, which is not a function.",
            remedy="Converters are functions of the text, such as float; options are given by name.",
        )
    rule = SelectorRule(kind=kind, query=query, converters=converters, **options)
    # A dataclass field without a default stays a required argument of the class; one with a default may come before it.
    return dataclasses.field(default=default, kw_only=default is not dataclasses.MISSING, metadata={_RULE: rule})


# --- converters


def number(text: str) -> int | float:
    """The first number in a text, whatever surrounds it: `£1,299.00`, `1 299,00 Kč`, `1.299,00 €`.

    Of two kinds of separators the last one begins the fraction, and one that is repeated separates thousands. Only
    `1,299` and `1.299` could mean both: here the first is 1299 and the second 1.299. Raises ValueError for a text
    without a number.
    """
    digits = _decimal_text(text)
    return float(digits) if "." in digits else int(digits)


def decimal_comma(text: str) -> int | float:
    """Like `number`, for sites that write `1.299` for 1299 and `1,299` for 1.299."""
    digits = _decimal_text(text, thousands=".")
    return float(digits) if "." in digits else int(digits)


def absolute_url(href: str, page: Page) -> str:
    """A link of the page as an absolute URL: `css("a::attr(href)", absolute_url)`."""
    return page.join(href)


def _decimal_text(text: Any, *, thousands: str = ",") -> str:
    """The first number in a text as Python writes it. `thousands`: what a lone separator before three digits means."""
    found = _NUMBER.search(str(text)[:_MAX_NUMBER_TEXT])
    if found is None:
        raise ValueError("there is no number in it")
    written = found[0].replace("\u2212", "-").replace("'", "").replace("\u2019", "")
    compact = "".join(written.split())
    last = max(compact.rfind(","), compact.rfind("."))
    if last < 0:
        return compact
    separator, behind = compact[last], compact[last + 1 :]
    if compact.count(separator) > 1:
        is_fraction = False
    elif ("." in compact and "," in compact) or len(written) > len(compact):
        is_fraction = True
    else:
        is_fraction = separator != thousands or len(behind) != 3 or compact[:last].lstrip("+-") in ("", "0")
    whole = compact[:last].replace(",", "").replace(".", "")
    return f"{whole if whole.strip('+-') else whole + '0'}.{behind}" if is_fraction else whole + behind


# --- the fields of a record type


class _Field:
    """One field of a record type with a rule, ready to be read from pages."""

    __slots__ = ("each", "has_default", "kind", "many", "name", "nested", "optional", "pattern", "rule", "steps")

    def __init__(self, name: str, rule: SelectorRule, kind: Any, *, has_default: bool, seen: tuple[type, ...]) -> None:
        self.name = name
        self.rule = rule
        self.kind = kind
        self.has_default = has_default
        inner, self.optional = _without_none(kind)
        self.many = typing.get_origin(inner) in _MANY or inner in _MANY
        if self.many:
            inner, _ = _without_none((typing.get_args(inner) or (str,))[0])
        self.nested = _fields_of(inner, seen) if _is_record_type(inner) else ()
        self.pattern = re.compile(rule.pattern) if rule.pattern is not None else None
        self.steps = [(step, _wants_page(step)) for step in rule.converters]
        self.each: Callable[[Any], Any] | None = None
        options = typing.get_args(inner) if typing.get_origin(inner) in (typing.Union, types.UnionType) else (inner,)
        if not self.steps and rule.kind != "jmes":
            if inner is bool and self.pattern is None and not self.many:
                self.each = bool
            elif set(options) <= _NUMBERS:
                self.each = _exact if Decimal in options else number


class _Missing(Exception):
    """A selector finds nothing for a required field."""


@functools.lru_cache(maxsize=256)
def _fields(record: Any) -> tuple[_Field, ...]:
    """The fields of a type that have rules; none for other types."""
    return _fields_of(record, ()) if _is_record_type(record) else ()


def _fields_of(record: type, seen: tuple[type, ...]) -> tuple[_Field, ...]:
    """The fields of a type that have rules. Raises InvalidScraper for what cannot work."""
    if record in seen:
        raise InvalidScraper(
            f"{record.__name__} contains itself, so its selectors would never end.",
            remedy="Extract nested records in the handler.",
        )
    defaults = _defaults(record)
    fields = []
    for name, hint in _hints(record).items():
        if name not in defaults:
            continue  # a class variable
        rule = _rule_of(record, name, hint)
        if rule is not None:
            _check_rule(rule, f"{record.__name__}.{name}")
            fields.append(_Field(name, rule, hint, has_default=defaults[name], seen=(*seen, record)))
    if fields:
        covered = {field.name for field in fields}
        if bare := [name for name, has_default in defaults.items() if not has_default and name not in covered]:
            raise InvalidScraper(
                f"{record.__name__}.{bare[0]} has neither a selector nor a default, but other fields have selectors.",
                remedy=f"Give it one: `{bare[0]}: Annotated[str, css(...)]`.",
            )
    return tuple(fields)


def has_selectors(record: Any) -> bool:
    """Whether it is a record type whose fields have selectors. Raises InvalidScraper for one that cannot work."""
    return bool(_fields(record))


def _is_record_type(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_fields")):
        return False
    return any(_rule_of(kind, name, hint) is not None for name, hint in _hints(kind).items())


def _hints(record: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(record, include_extras=True)
    except NameError as problem:
        raise InvalidScraper(
            f"{record.__name__} has a type annotation that cannot be resolved: {problem}.",
            remedy="Define or import its types at the top of the file, not inside a function or under TYPE_CHECKING.",
        ) from None


def _defaults(record: Any) -> dict[str, bool]:
    """The names of the fields, and whether each has a default."""
    missing = dataclasses.MISSING
    if dataclasses.is_dataclass(record):
        return {
            each.name: each.default is not missing or each.default_factory is not missing
            for each in dataclasses.fields(record)
            if each.init
        }
    if issubclass(record, msgspec.Struct):
        return {each.name: not each.required for each in msgspec.structs.fields(record)}
    return {name: not each.is_required() for name, each in record.model_fields.items()}


def _rule_of(record: Any, name: str, hint: Any) -> SelectorRule | None:
    marks = [hint_mark for hint_mark in getattr(hint, "__metadata__", ()) if isinstance(hint_mark, dataclasses.Field)]
    if dataclasses.is_dataclass(record):
        marks += [each for each in dataclasses.fields(record) if each.name == name]
    rules = [mark.metadata[_RULE] for mark in marks if _RULE in mark.metadata]
    if not rules and _is_misplaced(record, name):
        raise InvalidScraper(
            f"{record.__name__}.{name} has a selector behind `=`, which only a dataclass may have.",
            remedy=f"Write `{name}: Annotated[TYPE, css(...)]`.",
        )
    return rules[0] if rules else None


def _is_misplaced(record: Any, name: str) -> bool:
    if dataclasses.is_dataclass(record):
        return False
    if issubclass(record, msgspec.Struct):
        default = next((each.default for each in msgspec.structs.fields(record) if each.name == name), None)
    else:
        default = getattr(record.model_fields.get(name), "default", None)
    return isinstance(default, dataclasses.Field) and _RULE in default.metadata


def _without_none(kind: Any) -> tuple[Any, bool]:
    """A type without Annotated and without None, and whether it allowed None."""
    kind = _without_marks(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        rest = tuple(_without_marks(option) for option in options if option is not type(None))
        if len(rest) < len(options):
            return (typing.Union[rest] if rest else type(None)), True  # noqa: UP007 - made at run time
    return kind, False


def _without_marks(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _wants_page(converter: Converter) -> bool:
    try:
        return "page" in inspect.signature(converter).parameters
    except (ValueError, TypeError):  # some built-in functions have no signature
        return False


def _check_rule(rule: SelectorRule, where: str) -> None:
    """Raises InvalidScraper for a selector or a regular expression that is not valid."""
    try:
        match rule.kind:
            case "css":
                from parsel.csstranslator import HTMLTranslator

                HTMLTranslator().css_to_xpath(rule.query)
            case "xpath":
                from lxml import etree  # type: ignore[import-untyped]

                etree.XPath(rule.query)
            case "jmes":
                from parsel import Selector

                Selector(root={}, type="json").jmespath(rule.query)
        if rule.pattern is not None:
            re.compile(rule.pattern)
    except Exception as problem:  # each library has an error class of its own
        text = " ".join(str(problem).split())
        raise InvalidScraper(f"{where} has a selector that is not valid: {rule}: {text}.") from None


# --- reading a page


def extract(record: type[R], page: Page, scope: Selector | None = None) -> R:
    """The record of a page whose type carries selectors; `scope`: only of this part of the page.

    Raises InvalidRecord that names the field, its selector and the URL, when a required field has no value or a value
    does not fit its type.
    """
    fields = _required_fields(record)
    if scope is None:
        scope = _json_scope(page) if any(field.rule.kind == "jmes" for field in fields) else page.selector
    return typing.cast("R", _build(record, fields, scope, page, ""))


def extract_all(record: type[R], page: Page, each: Any) -> list[R]:
    """A record for every match of `each`: a CSS selector, `xpath(...)` or `jmes(...)`. Raises as `extract`."""
    return _all(record, page, each_rule(each))


def _all(record: type[R], page: Page, rule: SelectorRule) -> list[R]:
    fields = _required_fields(record)
    boxes = _select(rule, _json_scope(page) if rule.kind == "jmes" else page.selector, page)
    return [_build(record, fields, box, page, f"match {number} of {rule}") for number, box in enumerate(boxes, 1)]


def _json_scope(page: Page) -> Selector:
    from parsel import Selector

    return Selector(root=page.json(), type="json")


def each_rule(each: Any) -> SelectorRule:
    """The rule that `each=` stands for."""
    mark = css(each) if isinstance(each, str) else each
    rule = mark.metadata.get(_RULE) if isinstance(mark, dataclasses.Field) else None
    if not isinstance(rule, SelectorRule) or rule.kind == "page_url":
        raise InvalidScraper(
            f"each is {each!r}; it must be a CSS selector.", remedy='Write each=".product" or each=xpath("//tr").'
        )
    _check_rule(rule, "each")
    return rule


def _required_fields(record: Any) -> tuple[_Field, ...]:
    fields = _fields(record)
    if not fields:
        name = getattr(record, "__name__", str(record))
        raise InvalidScraper(
            f"{name} has no fields with selectors.", remedy='Add them: `title: Annotated[str, css("h1")]`.'
        )
    return fields


def _build(record: Any, fields: tuple[_Field, ...], scope: Any, page: Page, place: str) -> Any:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field in fields:
        try:
            found = _value(field, scope, page)
        except _Missing:
            problems.append(f"{field.name} is missing: {field.rule} finds nothing")
            continue
        except _Unusable as error:
            problems.append(f"{field.name} is not valid: {field.rule} finds {error}")
            continue
        if found is not dataclasses.MISSING:
            values[field.name] = found
    if not problems:
        try:
            if (validate := getattr(record, "model_validate", None)) is not None:
                return validate(values)
            return _with_defaults(msgspec.convert(values, record, strict=False))
        except (ValueError, TypeError) as error:  # those of msgspec and pydantic are ValueErrors
            problems = _misfits(record, fields, values, error)
    where = f"{quoted(page.url)}, {place}" if place else quoted(page.url)
    raise InvalidRecord(
        f"{where} is not a valid {record.__name__}: {'; '.join(problems)}.",
        remedy="Correct the selector or the type, or give the field a default.",
    )


def _with_defaults(made: Any) -> Any:
    """msgspec leaves defaults of a dataclass to its class, where its own encoder does not find them."""
    own = getattr(made, "__dict__", None)
    if own is not None and dataclasses.is_dataclass(made):
        own.update({each.name: each.default for each in dataclasses.fields(made) if each.name not in own})
    return made


class _Unusable(Exception):
    """What a selector found cannot be converted."""


def _value(field: _Field, scope: Any, page: Page) -> Any:
    """The value of a field; MISSING if its default applies. Raises _Missing or _Unusable."""
    rule = field.rule
    if field.nested:
        kind = _inner_type(field.kind)
        boxes = _select(rule, scope, page)
        boxes = boxes if field.many else boxes[:1]
        found = [_build(kind, field.nested, box, page, f"in {field.name}") for box in boxes]
    elif field.each is bool:
        return bool(_select(rule, scope, page))
    else:
        found = list(_converted(field, scope, page))
    if field.many:
        return dataclasses.MISSING if not found and field.has_default else found
    if found:
        return found[0]
    if field.has_default:
        return dataclasses.MISSING
    if field.optional:
        return None
    raise _Missing


def _converted(field: _Field, scope: Any, page: Page) -> Iterator[Any]:
    texts = _texts(field, scope, page)
    for text in texts:
        value = text
        try:
            if field.each is not None:
                value = field.each(value)
            for step, wants_page in field.steps:
                value = step(value, page=page) if wants_page else step(value)
        except Exception as error:
            name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise _Unusable(f"{_shown(text)}: {name}{' '.join(str(error).split())}") from error
        if value is not None:
            yield value
            if not field.many:
                return


def _texts(field: _Field, scope: Any, page: Page) -> Iterator[Any]:
    """What the rule finds, as texts that are not empty; JSON values and numbers of XPath as they are."""
    rule = field.rule
    if rule.kind == "page_url":
        yield page.url
        return
    found: Iterator[Any] = (_node_value(rule, node) for node in _select(rule, scope, page))
    if rule.join is not None:
        found = iter((rule.join.join(str(value) for value in found if value not in ("", None)),))
    if field.pattern is not None:
        found = (_searched(field.pattern, value) for value in found)
    yield from (value for value in found if value is not None and value != "")


def _searched(pattern: re.Pattern[str], value: Any) -> str | None:
    match = pattern.search(str(value))
    if match is None:
        return None
    return match[1] if pattern.groups else match[0]


def _select(rule: SelectorRule, scope: Any, page: Page) -> list[Any]:
    find = scope.css if rule.kind == "css" else scope.xpath if rule.kind == "xpath" else scope.jmespath
    try:
        return list(find(rule.query))
    except ValueError as error:
        raise InvalidRecord(
            f"{rule} cannot be used on {quoted(page.url)}, which is {page.content_type or 'not markup'}: {error}.",
            remedy='For JSON use jmes("path").',
        ) from None


def _node_value(rule: SelectorRule, node: Any) -> Any:
    root = node.root
    if rule.kind == "jmes" or isinstance(root, bool | float):
        return root
    if not isinstance(root, str):
        root = node.get() if rule.html else element_text(root)
    return one_line(root) if rule.strip and not rule.html else root


def _misfits(record: Any, fields: tuple[_Field, ...], values: dict[str, Any], error: Exception) -> list[str]:
    """The fields whose values do not fit their types, each with what was found."""
    rules = {field.name: field for field in fields}
    if callable(details := getattr(error, "errors", None)):  # pydantic's
        named = [(str(each["loc"][0]) if each["loc"] else "", each["msg"]) for each in details()]
    else:
        named = []
        for name, value in values.items():
            try:
                msgspec.convert(value, rules[name].kind, strict=False)
            except (ValueError, TypeError) as problem:
                named.append((name, str(problem)))
    if not named:
        return [" ".join(str(error).split())]
    return [
        f"{name} is not valid: {rules[name].rule} finds {_shown(values.get(name))}: {' '.join(text.split())}"
        if name in rules
        else f"{name}: {text}".removeprefix(": ")
        for name, text in named
    ]


def _inner_type(kind: Any) -> Any:
    inner, _ = _without_none(kind)
    if typing.get_origin(inner) in _MANY:
        inner, _ = _without_none(typing.get_args(inner)[0])
    return inner


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}..."


def _exact(text: str) -> Decimal:
    return Decimal(_decimal_text(text))


# --- stages without a body


def _nothing() -> None: ...


def _nothing_documented() -> None:
    """Nothing."""


async def _nothing_async() -> None: ...


async def _nothing_async_documented() -> None:
    """Nothing."""


def _nothing_passed() -> None:
    pass


async def _nothing_async_passed() -> None:
    pass


_EMPTY_CODES = frozenset(
    function.__code__.co_code
    for function in (
        _nothing,
        _nothing_documented,
        _nothing_passed,
        _nothing_async,
        _nothing_async_documented,
        _nothing_async_passed,
    )
)


def is_empty(function: Callable[..., Any]) -> bool:
    """Whether the body of a function is only `...`, `pass` or a docstring."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in _EMPTY_CODES:
        return False
    documented = getattr(function, "__doc__", None)
    return all(value in (None, ..., documented) for value in code.co_consts)


def extracting(function: Callable[..., Any], record: type, each: Any = None) -> Callable[..., Any]:
    """A function with the parameters of `function` that returns the record of its page, or those of `each`."""
    rule = None if each is None else each_rule(each)

    def records(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        page = next(value for value in (*arguments, *named.values()) if isinstance(value, Page))
        return extract(record, page) if rule is None else _all(record, page, rule)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def extracted(*arguments: Any, **named: Any) -> Any:
            return records(arguments, named)

        return extracted

    @functools.wraps(function)
    def extracted_in_thread(*arguments: Any, **named: Any) -> Any:
        return records(arguments, named)

    return extracted_in_thread
