"""The settings of a process, their limits and defaults, and what a scraper's table changes of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, cast
from urllib.parse import unquote

import msgspec
from msgspec import Meta

import shoal
from shoal.config.egress import EgressConfig
from shoal.config.schedules import SCHEDULE, ScheduleConfig
from shoal.config.sinks import SinkConfig
from shoal.config.sources import Origin, RawValue
from shoal.config.values import (
    ADDRESSES,
    ALERT_KIND_WORDS,
    ALERT_KINDS,
    BYTES,
    DEAD_LIMIT,
    DELAY,
    MEGABYTES,
    PERCENT,
    PLAIN_TEXT,
    RATE,
    SECONDS,
    SHARE,
    Addresses,
    read_value,
    setting_types,
    shown_value,
)
from shoal.define.policy import DEFAULT_RETRIES, MAX_MEMBER_SECONDS, MAX_RECORDS, Client, MaxRecordsOf, Pace
from shoal.errors import InvalidSetting
from shoal.model.lane import parse_rate
from shoal.model.ledger_url import redacted_address, secrets_of
from shoal.model.log import LogNames
from shoal.model.outcome import RetryPolicy
from shoal.model.redaction import secret_texts
from shoal.model.run import DeadLimit
from shoal.project import SQLITE_LEDGER

ENV_PREFIX = "SHOAL_"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")

Mode = Literal["single", "distributed"]
LedgerText = Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}+\Z", description="a path or a URL")]
# A control character in a header could forge further headers.
UserAgentText = Annotated[
    str, Meta(max_length=500, pattern=r"\A[ -~]*\Z", description="a line of at most 500 ASCII characters")
]
# A value of `user_agent`: what a browser sends, for sites that refuse other clients.
BROWSER_AGENT = "browser"
BROWSER_USER_AGENT = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/139.0.0.0 Safari/537.36"
)
# A URL would become a folder of that name.
DayText = Annotated[str, Meta(pattern=r"\A(\d{4}-\d\d-\d\d)?\Z", description="a day such as 2024-01-31")]
FOLDER = rf"\A(?!.*://){PLAIN_TEXT}*\Z"
FOLDER_TEXT = "the path of a folder on this machine, or empty for"
PLACE = rf"\A(?:(?:s3|gs|az)://[^/]|(?!.*://)){PLAIN_TEXT}*\Z"
PLACE_TEXT = "the path of a folder, s3://BUCKET/PREFIX (gs://, az://), or empty for no downloads"
LOG_NAME = r"\A(?:[\w.-]|\{scraper\})+\.log\Z"
LogName = Annotated[
    str, Meta(pattern=LOG_NAME, description="the name of a file, such as {scraper}_pool.log, without a folder")
]
WorkerLogName = Annotated[
    str,
    Meta(
        pattern=r"\A(?:[\w.-]|\{scraper\})*\{worker\}(?:[\w.-]|\{scraper\})*\.log\Z",
        description="the name of a file with {worker} in it, such as {scraper}_worker_{worker}.log, without a folder",
    ),
]
TargetText = Annotated[
    str,
    Meta(
        pattern=rf"\A(?=.*(?:\.py|\.ya?ml|/)\Z|:*[^:].*:.*[^:]){PLAIN_TEXT}+\Z",
        description="a file such as books.py or fijitimes.yaml, module:scraper, or a folder such as configs/",
    ),
]
Concurrency = Annotated[int, Meta(ge=1, le=10_000)]
Retries = Annotated[int, Meta(ge=0, le=999)]
BackoffFactor = Annotated[float, Meta(ge=1, le=10)]
BackoffCap = Annotated[float, Meta(ge=0.01, le=86_400, extra=SECONDS)]
BackoffJitter = Annotated[float, Meta(ge=0, le=1)]
RETRY_NAMES = ("retries", "backoff_factor", "backoff_cap", "backoff_jitter")


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[scrapers.NAME.stages.STAGE]`: overrides what the code declares for a stage; None leaves it unchanged.

    `rate` is the text as written, `delay` the least and the most seconds between two starts. At most one is given.
    """

    rate: Annotated[str, RATE] | None = None
    delay: Annotated[tuple[float, float], DELAY] | None = None
    concurrency: Concurrency | None = None
    timeout: Annotated[float, Meta(ge=0.1, le=86_400, extra=SECONDS)] | None = None
    retries: Retries | None = None
    backoff_factor: BackoffFactor | None = None
    backoff_cap: BackoffCap | None = None
    backoff_jitter: BackoffJitter | None = None
    egress: Annotated[str, Meta(max_length=200, description="the name of a pool, or empty for none")] | None = None
    client: Client | None = None
    pace: Pace | None = None
    max_records: Annotated[int, Meta(ge=0, le=MAX_RECORDS)] | None = None
    max_records_of: MaxRecordsOf | None = None

    @property
    def pause(self) -> tuple[float, float] | None:
        """Least and most seconds between two starts on a lane, whether given as a rate or as a delay."""
        if self.rate is None:
            return self.delay
        seconds = parse_rate(self.rate)
        return seconds, seconds


class ScraperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[scrapers.NAME]`: the table of one scraper.

    `target`: where its code is. `mode`: None leaves the choice to the code. `schedule`: when a scheduler starts it.
    `values`: settings of Shoal for this scraper alone. `settings`: the author's free table, passed to the code
    unchanged. `origins`: where each value came from, by its name in the table (`mode`, `stages.listing.rate`,
    `settings.region`).
    """

    name: str
    target: TargetText | None = None
    mode: Mode | None = None
    schedule: Annotated[ScheduleConfig, SCHEDULE] | None = None
    values: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    stages: Mapping[str, StageConfig] = {}
    origins: Mapping[str, Origin] = {}

    def shown(self) -> dict[str, Any]:
        """All given values by their name in the table, without secrets.

        Authors keep API keys in the free table, so its values are not shown.
        """
        known = {"target": self.target, "mode": self.mode, "schedule": str(self.schedule), **self.values}
        for name, stage in self.stages.items():
            known.update({f"stages.{name}.{field}": getattr(stage, field) for field in STAGE_TYPES})
        return {name: shown_value(known.get(name, "(not shown)")) for name in self.origins}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a Shoal process, checked. docs/configuration.md has their meanings.

    `scrapers`, `sinks` and `egress`: the tables of single ones. `mode`: set only by `for_scraper`. `origins`: where
    each value came from. `hidden`: secrets that a scraper's code knows. `project`: the folder of the files, when it is
    not the current one. `ledger_above`: the default ledger of a parent folder, when this project has its own or none
    yet.
    """

    ledger: LedgerText = SQLITE_LEDGER
    pool_size: Annotated[int, Meta(ge=1, le=100)] = 4
    patience: Annotated[float, Meta(ge=0, le=86_400, extra=SECONDS)] = 60.0
    command_timeout: Annotated[float, Meta(ge=0.1, le=86_400, extra=SECONDS)] = 60.0
    busy_timeout: Annotated[float, Meta(ge=0, le=3_600, extra=SECONDS)] = 30.0
    concurrency: Concurrency = 16
    workers: Annotated[int, Meta(ge=0, le=1_000)] = 0
    worker_limit: Annotated[int, Meta(ge=0, le=1_000)] = 0
    batch_size: Annotated[int, Meta(ge=1, le=10_000)] = 50
    lease: Annotated[float, Meta(ge=1, le=86_400, extra=SECONDS)] = 30.0
    drain: Annotated[float, Meta(ge=0, le=86_400, extra=SECONDS)] = 30.0
    max_cpu: Annotated[int, Meta(ge=1, le=100, extra=PERCENT)] = 90
    max_memory: Annotated[int, Meta(ge=1, le=100, extra=PERCENT)] = 85
    user_agent: UserAgentText = ""
    robots: bool = True
    deny_private: bool = False
    max_body: Annotated[int, Meta(ge=1_024, le=1 << 31, extra=BYTES)] = 32 << 20
    memory_budget: Annotated[int, Meta(ge=16, le=1 << 20, extra=MEGABYTES)] = 1_024
    retries: Retries = DEFAULT_RETRIES
    backoff_factor: BackoffFactor = RetryPolicy().factor
    backoff_cap: BackoffCap = RetryPolicy().cap
    backoff_jitter: BackoffJitter = RetryPolicy().jitter
    max_dead: Annotated[DeadLimit, DEAD_LIMIT] = DeadLimit(Decimal(10), True)
    since: DayText = ""
    until: DayText = ""
    from_scratch: bool = False
    store: Annotated[str, Meta(pattern=FOLDER, description=f"{FOLDER_TEXT} no store")] = ""
    files: Annotated[str, Meta(pattern=PLACE, description=PLACE_TEXT)] = ".shoal/files"
    sessions: Annotated[str, Meta(pattern=FOLDER, description=f"{FOLDER_TEXT} no sessions")] = ".shoal/sessions"
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_dir: Annotated[str, Meta(pattern=FOLDER, description=f"{FOLDER_TEXT} no log files")] = ".shoal/logs"
    worker_log: WorkerLogName = "{scraper}_worker_{worker}.log"
    pool_log: LogName = "{scraper}_pool.log"
    egress_log: LogName = "{scraper}_egress.log"
    assign: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="the path of a file, or none")] = ""
    chromium: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="the path of a program")] = ""
    tor: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="the path of a program")] = ""
    browser_tabs: Annotated[int, Meta(ge=1, le=200)] = 8
    browser_targets: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    browser_memory: Annotated[int, Meta(ge=128, le=1 << 20, extra=MEGABYTES)] = 2_048
    browser_sandbox: bool = True
    member_timeout: Annotated[float, Meta(ge=1, le=MAX_MEMBER_SECONDS, extra=SECONDS)] = 7_200.0
    member_stale: Annotated[float, Meta(ge=1, le=MAX_MEMBER_SECONDS, extra=SECONDS)] = 600.0
    member_memory: Annotated[int, Meta(ge=16, le=1 << 20, extra=MEGABYTES)] = 1_024
    member_pause: Annotated[float, Meta(ge=0, le=3_600, extra=SECONDS)] = 1.0
    member_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    group_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    member_output: Annotated[str, Meta(pattern=FOLDER, description=f"{FOLDER_TEXT} no exports")] = ""
    notify: Annotated[Addresses, ADDRESSES] = Addresses()
    notify_on: Annotated[str, ALERT_KIND_WORDS] = " ".join(ALERT_KINDS)
    stall_after: Annotated[float, Meta(ge=1, le=31_536_000, extra=SECONDS)] = 600.0
    error_share: Annotated[DeadLimit, SHARE] = DeadLimit(Decimal(50), True)
    empty_share: Annotated[DeadLimit, SHARE] = DeadLimit(Decimal(80), True)
    coverage_drop: Annotated[DeadLimit, SHARE] = DeadLimit(Decimal(30), True)
    feed_url: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="the address of a feed")] = ""
    feed_backlog: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10_000
    feed_batch: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    feed_idle: Annotated[float, Meta(ge=0, le=86_400, extra=SECONDS)] = 10.0
    sink_wait: Annotated[float, Meta(ge=0, le=86_400, extra=SECONDS)] = 30.0
    serve_host: Annotated[str, Meta(pattern=r"\A[\w.:\[\]-]+\Z", description="an address of this machine")] = (
        "127.0.0.1"
    )
    serve_port: Annotated[int, Meta(ge=0, le=65_535)] = 8_642
    serve_root_path: Annotated[str, Meta(pattern=r"\A[\w./~-]*\Z", description="a path such as /shoal")] = ""
    serve_trust_proxy: Annotated[str, Meta(pattern=r"\A[0-9a-fA-F.:/ ]*\Z", description="addresses of proxies")] = ""
    serve_allow_host: Annotated[str, Meta(pattern=r"\A[\w.:\[\] -]*\Z", description="names of hosts")] = ""
    serve_require_token: bool = False
    serve_jobs: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="a scraper of the project")] = ""
    jobs_stage: Annotated[str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="a stage of the scraper")] = ""
    serve_routes: Annotated[
        str, Meta(pattern=rf"\A{PLAIN_TEXT}*\Z", description="a Python file or module of the project")
    ] = ""
    scrapers: Mapping[str, ScraperConfig] = {}
    sinks: Mapping[str, SinkConfig] = {}
    egress: Mapping[str, EgressConfig] = {}
    mode: Mode | None = None
    origins: Mapping[str, Origin] = {}
    hidden: tuple[str, ...] = ()
    project: str = ""
    ledger_above: str = ""

    @property
    def agent(self) -> str:
        """The User-Agent header, with the default filled in."""
        return BROWSER_USER_AGENT if self.user_agent == BROWSER_AGENT else self.robots_agent

    @property
    def robots_agent(self) -> str:
        """Whose rules in robots.txt are obeyed: Shoal's own also where it sends what a browser does."""
        return f"shoal/{shoal.__version__}" if self.user_agent in ("", BROWSER_AGENT) else self.user_agent

    def scraper(self, name: str) -> ScraperConfig:
        """The table of a scraper; empty when the files have none."""
        return self.scrapers.get(name) or ScraperConfig(name=name)

    def for_scraper(self, name: str, *, mode: str | None = None, uses_ledger: bool = True) -> Settings:
        """The effective settings of one scraper, with `mode` and, if it is used, a matching ledger.

        Flags and `SHOAL_*` variables override the scraper's table, which overrides the rest. The parameter `mode` is
        the one that the scraper's code declares; the table overrides it; the default is single. Raises InvalidSetting
        for the mode distributed on a ledger that is not PostgreSQL.
        """
        table, merged = self.scraper(name), self.with_scraper_table(name)
        effective_mode, origin = _mode(table, mode)
        merged = msgspec.structs.replace(merged, mode=effective_mode, origins={**merged.origins, "mode": origin})
        return _with_matching_ledger(merged, table, name) if uses_ledger else merged

    def retry_options(self, name: str) -> dict[str, dict[str, Any]]:
        """The given retry options as `Scraper.configure` takes them: for all scrapers, of this table, for this call.

        Only for settings that `for_scraper` returned.
        """
        layers: dict[str, dict[str, Any]] = {"retry_defaults": {}, "retry_table": {}, "retry_overrides": {}}
        for option in RETRY_NAMES:
            origin = self.origins.get(option, Origin("default"))
            if origin.kind == "default":
                continue
            own = origin == self.scraper(name).origins.get(option)
            layer = "retry_overrides" if _is_per_call(origin) else "retry_table" if own else "retry_defaults"
            layers[layer][option] = getattr(self, option)
        return layers

    def with_scraper_table(self, name: str) -> Settings:
        """The settings with the scraper's table applied; mode and ledger are not checked."""
        table = self.scraper(name)
        own = {key: value for key, value in table.values.items() if not _is_per_call(self.origins.get(key))}
        origins = {**self.origins, **{key: table.origins[key] for key in own}}
        return msgspec.structs.replace(self, **own, origins=origins)

    def for_member(self, collection: str, member: str) -> dict[str, str]:
        """The settings of a collection's table that its members use, as texts, without those of the member's own table.

        Only for settings that `for_scraper` returned for the collection; what a flag or a variable gives reaches the
        members by itself.
        """
        table, own = self.scraper(collection), self.scraper(member).values
        return {
            name: str(getattr(self, name))
            for name in MEMBER_NAMES
            if name in table.values and name not in own and self.origins.get(name) == table.origins.get(name)
        }

    def at_place(self, number: int, workers: int) -> Settings:
        """The settings of one of so many workers, which decides its part of egress with `share = "fixed"`."""
        placed = {
            name: msgspec.structs.replace(egress, place=(number, workers)) for name, egress in self.egress.items()
        }
        return msgspec.structs.replace(self, egress=placed)

    def log_names(self, scraper: str) -> LogNames:
        """The names of the log files of a scraper's pool."""
        return LogNames(scraper=scraper, worker=self.worker_log, pool=self.pool_log, egress=self.egress_log)

    def in_project(self, path: str) -> str:
        """A path that is meant from the project's folder, as one from the current folder."""
        return os.path.join(self.project, path) if self.project else path

    def shown(self) -> dict[str, Any]:
        """The values by name, without secrets."""
        return {name: shown_value(getattr(self, name)) for name in NAMES}

    def secrets(self) -> tuple[str, ...]:
        """All texts that must never be printed."""
        tables = [table.values for table in self.scrapers.values()]
        ledgers = [self.ledger, *(values.get("ledger", "") for values in tables)]
        addresses_given = [self.notify, *(values.get("notify", Addresses()) for values in tables)]
        return (
            *(secret for ledger in ledgers for secret in secrets_of(ledger)),
            *(secret for addresses in addresses_given for secret in addresses.secrets()),
            *(secret for values in ({"feed_url": self.feed_url}, *tables) for secret in _login(values.get("feed_url"))),
            *(secret for table in self.scrapers.values() for secret in secret_texts(table.settings)),
            *(secret for sink in self.sinks.values() for secret in sink.secrets()),
            *(secret for egress in self.egress.values() for secret in egress.secrets()),
            *self.hidden,
        )


SETTING_TYPES = setting_types(
    Settings, without=("scrapers", "sinks", "egress", "mode", "origins", "hidden", "project", "ledger_above")
)
NAMES = tuple(SETTING_TYPES)
# The value of `assign` that gives no worker of a pool partitions of its own.
ASSIGN_NONE = "none"
# Paths: written in a file, they are meant from the file's folder.
PATHS = ("store", "files", "sessions", "log_dir", "member_output", "assign")
_PROCESS_ONLY = (
    *("pool_size", "patience", "command_timeout", "busy_timeout", "log_format", "log_level", "log_dir"),
    *("serve_host", "serve_port", "serve_root_path", "serve_trust_proxy", "serve_allow_host", "serve_require_token"),
    *("serve_jobs", "serve_routes"),
)
# What a scraper's table may have: settings of the process, and settings that only a scraper has.
SCRAPER_TYPES = {name: kind for name, kind in SETTING_TYPES.items() if name not in _PROCESS_ONLY}
# What the table of a collection may have for its members.
MEMBER_NAMES = (
    *("batch_size", "lease", "drain", "user_agent", "robots", "deny_private", "max_body", "memory_budget"),
    *(*RETRY_NAMES, "max_dead", "since", "until", "from_scratch", "store", "files", "sessions", "chromium", "tor"),
    *("browser_tabs", "browser_targets", "browser_memory", "browser_sandbox", "empty_share", "coverage_drop"),
    "sink_wait",
)
SCRAPER_OWN_TYPES = setting_types(ScraperConfig, without=("name", "values", "settings", "stages", "origins"))
STAGE_TYPES = setting_types(StageConfig)


def _login(url: str | None) -> tuple[str, ...]:
    """The password of an address, as written and as meant."""
    found = re.search(r"://[^/?#@]*?:([^/?#]+)@", url or "")
    return () if found is None else tuple({found[1], unquote(found[1])})


def _is_per_call(origin: Origin | None) -> bool:
    """Whether the value was given for this call alone, by a flag or a `SHOAL_*` variable."""
    return origin is not None and (origin.kind == "flag" or origin.name.startswith(ENV_PREFIX))


def _mode(table: ScraperConfig, by_code: str | None) -> tuple[Mode, Origin]:
    if table.mode is not None:
        return table.mode, table.origins["mode"]
    if by_code is not None:
        origin = Origin("code", f"the code of {table.name}")
        return cast("Mode", read_value("mode", Mode, RawValue(by_code, origin))), origin
    return "single", Origin("default")


def _with_matching_ledger(settings: Settings, table: ScraperConfig, name: str) -> Settings:
    """The settings with a ledger that the mode allows."""
    origin, on_postgres = settings.origins.get("ledger", Origin("default")), _is_postgres(settings.ledger)
    if settings.mode == "distributed" and not on_postgres:
        raise InvalidSetting(
            f"{name} has the mode distributed (from {settings.origins['mode']}), which needs PostgreSQL, "
            f"but the ledger is {redacted_address(settings.ledger)} (from {origin}).",
            remedy="Set SHOAL_LEDGER=postgresql://user@host/database, or change the mode to single.",
        )
    mode_is_explicit = settings.origins["mode"].kind != "default"
    if settings.mode == "distributed" or not on_postgres or not mode_is_explicit:
        return settings
    if origin.kind == "flag" or origin == table.origins.get("ledger"):
        return settings  # given for this call, or for this scraper
    # Single and distributed scrapers can share a project; the common PostgreSQL is for the distributed ones.
    file, origin = settings.in_project(SQLITE_LEDGER), Origin("default", "the mode single")
    if "ledger" in table.values and not _is_postgres(table.values["ledger"]):
        file, origin = table.values["ledger"], table.origins["ledger"]
    return msgspec.structs.replace(settings, ledger=file, origins={**settings.origins, "ledger": origin})


def _is_postgres(ledger: str) -> bool:
    return ledger.lower().startswith(POSTGRES_SCHEMES)
