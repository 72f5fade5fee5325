"""`[sinks.NAME]`: where records are delivered while runs go on, and which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Meta

from shoal.config.sources import Origin, RawValue, Variables
from shoal.config.values import PLAIN_TEXT, SECONDS, names_type, read_value, setting_types
from shoal.errors import InvalidSetting
from shoal.model.changes import ChangeFilter
from shoal.model.ledger_url import redacted_address, secrets_of
from shoal.model.redaction import redacted
from shoal.model.run import check_name

SinkKind = Literal["postgresql", "jsonl", "parquet", "webhook", "rabbitmq", "redis"]
SinkStart = Literal["beginning", "now"]
CURSOR_PREFIX = "sink:"

_BROKERS_AND_TABLES = ("postgresql", "webhook", "rabbitmq", "redis")
_FILES = ("jsonl", "parquet")
# Which kinds have an option; the others are for all.
_KINDS_OF: dict[str, tuple[str, ...]] = {
    "url": _BROKERS_AND_TABLES,
    "url_env": _BROKERS_AND_TABLES,
    "timeout": _BROKERS_AND_TABLES,
    "table": ("postgresql",),
    "path": _FILES,
    "interval": _FILES,
    "secret_env": ("webhook",),
    "exchange": ("rabbitmq",),
    "routing_key": ("rabbitmq",),
    "stream": ("redis",),
    "max_length": ("redis",),
}
_SCHEMES = {
    "postgresql": ("postgresql", "postgres"),
    "webhook": ("http", "https"),
    "rabbitmq": ("amqp", "amqps"),
    "redis": ("redis", "rediss"),
}
_DEFAULT_BATCH = {"jsonl": 10_000, "parquet": 10_000, "postgresql": 5_000}


NAMES = names_type('["shop", "news"]')
PlainText = Annotated[str, Meta(min_length=1, max_length=500, pattern=rf"\A{PLAIN_TEXT}+\Z", description="a text")]
VariableName = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable")
]
# Shorter parts of a webhook's path are words.
MIN_TOKEN_LENGTH = 16


class SinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A sink. docs/howto/sinks.md has the meanings; `url` and `secret` have their variables filled in.

    `missing`: the variables that are named but not set in this process.
    """

    name: str
    kind: SinkKind
    url: PlainText | None = None
    url_env: VariableName | None = None
    scrapers: Annotated[tuple[str, ...], NAMES] = ()
    stages: Annotated[tuple[str, ...], NAMES] = ()
    batch: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    start: SinkStart = "beginning"
    lag_alert: Annotated[float, Meta(ge=1, le=31_536_000, extra=SECONDS)] = 600.0
    timeout: Annotated[float, Meta(ge=0.1, le=3_600, extra=SECONDS)] = 30.0
    table: PlainText = "{scraper}_{stage}"
    path: PlainText | None = None
    interval: Annotated[float, Meta(ge=0, le=86_400, extra=SECONDS)] = 60.0
    secret_env: VariableName | None = None
    exchange: Annotated[str, Meta(max_length=127, description="the name of an exchange")] = ""
    routing_key: PlainText = "{scraper}.{stage}"
    stream: PlainText = "{scraper}:{stage}"
    max_length: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    secret: str | None = None
    missing: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = {}

    @property
    def cursor(self) -> str:
        """The name of its cursor in the ledger."""
        return CURSOR_PREFIX + self.name

    @property
    def is_files(self) -> bool:
        """Whether it writes parts; a part may take any time, and nothing of it is seen before it is complete."""
        return self.kind in _FILES

    @property
    def batch_size(self) -> int:
        return self.batch or _DEFAULT_BATCH.get(self.kind, 500)

    @property
    def which(self) -> ChangeFilter:
        return ChangeFilter(scrapers=self.scrapers, stages=self.stages)

    @property
    def place(self) -> str:
        """Where it delivers to, without secrets."""
        if self.kind in _FILES:
            return redacted(self.path or "")
        if self.kind == "webhook" and self.url:  # the path of a webhook is often its token
            parts = urlsplit(self.url)
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/..."
        return redacted_address(self.url) if self.url else f"${self.url_env}"

    def shown(self) -> dict[str, Any]:
        """The given values by name, without secrets."""
        hidden = {"url": self.place}
        return {name: hidden.get(name, getattr(self, name)) for name in self.origins}

    def secrets(self) -> tuple[str, ...]:
        """All texts that must never be printed."""
        words = {*secrets_of(self.url or ""), self.secret or ""}
        parts = urlsplit(self.url or "")
        words |= {parts.password or "", unquote(parts.password or "")}
        if self.kind == "webhook" and len(parts.path) > 1:
            tokens = (part for part in parts.path.split("/") if len(part) >= MIN_TOKEN_LENGTH)
            words |= {self.url or "", *tokens}
        return tuple(
            word for word in sorted({*words, *(quote(word, safe="") for word in words)}, key=len)[::-1] if word
        )

    def filled(self, template: str, scraper: str, stage: str) -> str:
        """A name with {scraper} and {stage} filled in."""
        return template.replace("{scraper}", scraper).replace("{stage}", stage)


SINK_TYPES = setting_types(SinkConfig, without=("name", "secret", "missing", "origins"))


def read_sink(name: str, table: Mapping[str, RawValue], variables: Variables) -> SinkConfig:
    """A sink's table with every value checked. Raises InvalidSetting."""
    check_name("sink", name)
    place = f"[sinks.{name}]"
    if "kind" not in table:
        raise InvalidSetting(f"{place} has no kind.", remedy=f'Add kind = "postgresql", or one of {_kinds()}.')
    values = {key: read_value(key, SINK_TYPES[key], given) for key, given in table.items()}
    kind = values["kind"]
    for key, given in table.items():
        if kind not in _KINDS_OF.get(key, (kind,)):
            raise InvalidSetting(
                f"{given.origin} is no option of a sink of the kind {kind}; it is one of {', '.join(_KINDS_OF[key])}.",
                remedy="Remove it.",
            )
    needed = ("path",) if kind in _FILES else ("url", "url_env")
    if sum(key in values for key in needed) != 1:
        raise InvalidSetting(
            f"{place} needs {' or '.join(needed)}{', one of the two' if len(needed) > 1 else ''}.",
            remedy="Say where the records go.",
        )
    origins = {key: given.origin for key, given in table.items()}
    missing: list[str] = []
    variable = _variable_reader(variables, missing)
    for key, env in (("url", "url_env"), ("secret", "secret_env")):
        if env in values and (found := variable(values[env])) is not None:
            values[key] = found
    _check_scheme(place, kind, values.get("url"))
    _check_templates(place, values)
    return SinkConfig(name=name, **values, missing=tuple(missing), origins=origins)


def _variable_reader(variables: Variables, missing: list[str]) -> Callable[[str], str | None]:
    def read(name: str) -> str | None:
        found = variables.first([name])
        if found is None:
            missing.append(name)
        return None if found is None else str(found.value)

    return read


def _check_scheme(place: str, kind: str, url: str | None) -> None:
    if url is not None and urlsplit(url).scheme.lower() not in _SCHEMES[kind]:
        raise InvalidSetting(
            f"The url of {place} does not begin with {' or '.join(f'{scheme}://' for scheme in _SCHEMES[kind])}.",
            remedy="Correct the url, or the kind.",
        )


def _check_templates(place: str, values: Mapping[str, Any]) -> None:
    for key in ("table", "routing_key", "stream", "path"):
        rest = str(values.get(key, "")).replace("{scraper}", "").replace("{stage}", "")
        if "{" in rest or "}" in rest:
            raise InvalidSetting(
                f"{key} of {place} has braces around something else than scraper and stage.",
                remedy="Write {scraper} and {stage}, or leave the braces out.",
            )


def _kinds() -> str:
    return ", ".join(sorted({kind for kinds in _KINDS_OF.values() for kind in kinds} - {"postgresql"}))
