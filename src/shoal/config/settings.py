"""The settings, their limits, and what holds for one scraper."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec

import shoal
from shoal.config.alerts import ALERT_KINDS, Addresses, AddressesSetting, AlertKindsSetting, ShareSetting
from shoal.config.scrapers import OWN_VALUES, RETRY_VALUES, Mode, ScraperConfig
from shoal.config.sources import Origin, RawValue
from shoal.config.values import (
    BoolSetting,
    ChoiceSetting,
    DeadLimitSetting,
    FolderSetting,
    NumberSetting,
    SettingType,
    TextSetting,
    UserAgentSetting,
    shown_value,
)
from shoal.define.policy import DEFAULT_RETRIES, MAX_MEMBER_SECONDS
from shoal.errors import InvalidSetting
from shoal.model.ledger_url import redacted_address, secrets_of
from shoal.model.outcome import RetryPolicy
from shoal.model.redaction import secret_texts
from shoal.model.run import DeadLimit

ENV_PREFIX = "SHOAL_"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")
SQLITE_LEDGER = ".shoal/ledger.db"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Shoal process can be told.

    `ledger`: a path, a `sqlite:///` or a `postgresql://` URL. `pool_size`: connections to PostgreSQL.
    `patience`: seconds that a call to the ledger survives an outage. `command_timeout`: seconds one statement may take
    on PostgreSQL. `busy_timeout`: seconds to wait for other writers of a SQLite file.

    `concurrency`: items one process works on at once. `workers`: processes of a pool, 0 for one per core. `batch_size`:
    items per claim. `lease`: seconds without a heartbeat after which a worker's items go to others. `drain`: seconds
    that running items get after a stop signal. `max_cpu`, `max_memory`: percent of the machine above which what is
    elastic shrinks; 100 for never.
    `user_agent`: what sites are told, empty for `shoal/<version>`. `robots`: obey robots.txt. `deny_private`: refuse
    addresses that are not public. `max_body`: bytes of a page. `memory_budget`: megabytes that the pages of a process
    may take at once. `retries`: attempts after the first, `backoff_factor`, `backoff_cap`, `backoff_jitter`: when they
    come; for what a scraper's code leaves out. `max_dead`: more dead items than this make a finished run a failure.
    `store`: folder of kept bodies, empty for none. `log_format`, `log_level`, `log_dir`: how and where to log; no log
    files when `log_dir` is empty.

    For the members of a collection: `member_timeout`, seconds that one may take; `member_stale`, that it may be without
    progress; `member_memory`, megabytes; `member_pause`, seconds between two of a group; `member_retries`, further
    attempts when one failed; `member_output`, the folder that its records are exported to, empty for none.

    `notify`: who is told of alerts, `notify_on`: of which kinds. `stall_after`: seconds without the end of an attempt
    after which a run counts as stalled. `error_share`: of the attempts of the last minutes, more that failed than this
    are an alert.

    `scrapers`: what the files say about single scrapers. `mode` is known only to the settings that `for_scraper` gives.
    `origins`: where each value came from. `hidden`: secrets that a scraper's code knows.
    """

    ledger: str = SQLITE_LEDGER
    pool_size: int = 4
    patience: float = 60.0
    command_timeout: float = 60.0
    busy_timeout: float = 30.0
    concurrency: int = 16
    workers: int = 0
    batch_size: int = 50
    lease: float = 30.0
    drain: float = 30.0
    max_cpu: int = 90
    max_memory: int = 85
    user_agent: str = ""
    robots: bool = True
    deny_private: bool = False
    max_body: int = 32 << 20
    memory_budget: int = 1_024
    retries: int = DEFAULT_RETRIES
    backoff_factor: float = RetryPolicy().factor
    backoff_cap: float = RetryPolicy().cap
    backoff_jitter: float = RetryPolicy().jitter
    max_dead: DeadLimit = DeadLimit(Decimal(10), True)
    store: str = ""
    log_format: str = "console"
    log_level: str = "info"
    log_dir: str = ".shoal/logs"
    member_timeout: float = 7_200.0
    member_stale: float = 600.0
    member_memory: int = 1_024
    member_pause: float = 1.0
    member_retries: int = 0
    member_output: str = ""
    notify: Addresses = Addresses()
    notify_on: str = " ".join(ALERT_KINDS)
    stall_after: float = 600.0
    error_share: DeadLimit = DeadLimit(Decimal(50), True)
    scrapers: Mapping[str, ScraperConfig] = {}
    mode: Mode | None = None
    origins: Mapping[str, Origin] = {}
    hidden: tuple[str, ...] = ()

    @property
    def agent(self) -> str:
        """What sites are told, with the default filled in."""
        return self.user_agent or f"shoal/{shoal.__version__}"

    def scraper(self, name: str) -> ScraperConfig:
        """What the files say about a scraper, which may be nothing."""
        return self.scrapers.get(name) or ScraperConfig(name=name)

    def for_scraper(self, name: str, *, mode: str | None = None) -> Settings:
        """The settings that hold for one scraper, with `mode` and a ledger that fits it.

        Flags and `SHOAL_*` variables outrank the scraper's table, which outranks the rest. `mode` is what the
        scraper's code asks for; its table outranks that; if neither says it, it is single. Raises InvalidSetting when
        mode and ledger do not go together.
        """
        table, merged = self.scraper(name), self.with_scraper_table(name)
        chosen, why = _mode(table, mode)
        merged = msgspec.structs.replace(merged, mode=chosen, origins={**merged.origins, "mode": why})
        return _with_matching_ledger(merged, table, name)

    def retry_options(self, name: str) -> dict[str, dict[str, Any]]:
        """What is said about retries, for `Scraper.configure`: to all scrapers, in this one's table, for this call.

        Of settings that `for_scraper` gave.
        """
        layers: dict[str, dict[str, Any]] = {"retry_defaults": {}, "retry_table": {}, "retry_overrides": {}}
        for option in RETRY_VALUES:
            origin = self.origins.get(option, Origin("default"))
            if origin.kind == "default":
                continue
            own = origin == self.scraper(name).origins.get(option)
            layer = "retry_overrides" if _is_per_call(origin) else "retry_table" if own else "retry_defaults"
            layers[layer][option] = getattr(self, option)
        return layers

    def with_scraper_table(self, name: str) -> Settings:
        """The settings with what the scraper's table says, whether or not it could work on this ledger."""
        table = self.scraper(name)
        own = {key: value for key, value in table.values.items() if not _is_per_call(self.origins.get(key))}
        origins = {**self.origins, **{key: table.origins[key] for key in own}}
        return msgspec.structs.replace(self, **own, origins=origins)

    def shown(self) -> dict[str, Any]:
        """The values by name, fit for printing: no password in them."""
        return {name: shown_value(getattr(self, name)) for name in NAMES}

    def secrets(self) -> tuple[str, ...]:
        """What must never be printed."""
        tables = [table.values for table in self.scrapers.values()]
        ledgers = [self.ledger, *(values.get("ledger", "") for values in tables)]
        addresses_given = [self.notify, *(values.get("notify", Addresses()) for values in tables)]
        return (
            *(secret for ledger in ledgers for secret in secrets_of(ledger)),
            *(secret for addresses in addresses_given for secret in addresses.secrets()),
            *(secret for table in self.scrapers.values() for secret in secret_texts(table.settings)),
            *self.hidden,
        )


VALUES: dict[str, SettingType] = {
    "ledger": TextSetting("a path or a URL"),
    "pool_size": NumberSetting(int, 1, 100),
    "patience": NumberSetting(float, 0, 86_400, "seconds"),
    "command_timeout": NumberSetting(float, 0.1, 86_400, "seconds"),
    "busy_timeout": NumberSetting(float, 0, 3_600, "seconds"),
    "concurrency": NumberSetting(int, 1, 10_000),
    "workers": NumberSetting(int, 0, 1_000),
    "batch_size": NumberSetting(int, 1, 10_000),
    "lease": NumberSetting(float, 1, 86_400, "seconds"),
    "drain": NumberSetting(float, 0, 86_400, "seconds"),
    "max_cpu": NumberSetting(int, 1, 100, "percent"),
    "max_memory": NumberSetting(int, 1, 100, "percent"),
    "user_agent": UserAgentSetting(),
    "robots": BoolSetting(),
    "deny_private": BoolSetting(),
    "max_body": NumberSetting(int, 1_024, 1 << 31, "bytes"),
    "memory_budget": NumberSetting(int, 16, 1 << 20, "megabytes"),
    **RETRY_VALUES,
    "max_dead": DeadLimitSetting(),
    "store": FolderSetting("no store"),
    "log_format": ChoiceSetting(("console", "json")),
    "log_level": ChoiceSetting(("debug", "info", "warning", "error")),
    "log_dir": FolderSetting("no log files"),
    "member_timeout": NumberSetting(float, 1, MAX_MEMBER_SECONDS, "seconds"),
    "member_stale": NumberSetting(float, 1, MAX_MEMBER_SECONDS, "seconds"),
    "member_memory": NumberSetting(int, 16, 1 << 20, "megabytes"),
    "member_pause": NumberSetting(float, 0, 3_600, "seconds"),
    "member_retries": NumberSetting(int, 0, 100),
    "member_output": FolderSetting("no exports"),
    "notify": AddressesSetting(),
    "notify_on": AlertKindsSetting(ALERT_KINDS),
    "stall_after": NumberSetting(float, 1, 31_536_000, "seconds"),
    "error_share": ShareSetting(),
}
NAMES = tuple(VALUES)
_PROCESS_ONLY = {
    "pool_size",
    "patience",
    "command_timeout",
    "busy_timeout",
    "log_format",
    "log_level",
    "log_dir",
}
SCRAPER_VALUES = {name: value for name, value in VALUES.items() if name not in _PROCESS_ONLY}


def _is_per_call(origin: Origin | None) -> bool:
    """Whether somebody said it for this one call, by a flag or a variable of Shoal's own."""
    return origin is not None and (origin.kind == "flag" or origin.name.startswith(ENV_PREFIX))


def _mode(table: ScraperConfig, by_code: str | None) -> tuple[Mode, Origin]:
    if table.mode is not None:
        return table.mode, table.origins["mode"]
    if by_code is not None:
        origin = Origin("code", f"the code of {table.name}")
        return cast("Mode", OWN_VALUES["mode"].read("mode", RawValue(by_code, origin))), origin
    return "single", Origin("default")


def _with_matching_ledger(settings: Settings, table: ScraperConfig, name: str) -> Settings:
    """The settings with a ledger that the mode can work on."""
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
        return settings  # this very PostgreSQL was named for it
    # Single and distributed scrapers live in one project: the PostgreSQL that all share is not meant for this one.
    file = table.values.get("ledger", SQLITE_LEDGER)
    why = table.origins["ledger"] if "ledger" in table.values else Origin("default", "the mode single")
    if _is_postgres(file):
        file, why = SQLITE_LEDGER, Origin("default", "the mode single")
    return msgspec.structs.replace(settings, ledger=file, origins={**settings.origins, "ledger": why})


def _is_postgres(ledger: str) -> bool:
    return ledger.lower().startswith(POSTGRES_SCHEMES)
