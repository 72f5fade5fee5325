"""`[egress.NAME]`: pools of exits that requests go out through: proxies, API tokens, Tor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from shoal.config.sources import Origin, RawValue, Variables
from shoal.config.values import PLAIN_TEXT, CustomType, names_type, read_value, setting_types
from shoal.errors import InvalidSetting
from shoal.model.egress import BudgetPolicy, HealthRules, PoolKind
from shoal.model.run import check_name

Share = Literal["split", "fixed", "shared"]
Choice = Literal["round_robin", "healthiest", "sticky"]
# As other programs call them.
_OTHER_CHOICE_NAMES = {"health_based": "healthiest"}

_PROXIES, _TOKENS, _TOR = ("proxies",), ("tokens",), ("tor",)
# Which kinds have an option; the others are for all.
_KINDS_OF: dict[str, tuple[str, ...]] = {
    "file": _PROXIES,
    "url": _PROXIES,
    "refresh": _PROXIES,
    "env": (*_PROXIES, *_TOKENS),
    "share": (*_PROXIES, *_TOKENS),
    "block_after": (*_PROXIES, *_TOR),
    "block_for": (*_PROXIES, *_TOR),
    "choose": (*_PROXIES, *_TOKENS, *_TOR),
    "rotate": _PROXIES,
    "ban_for": (*_PROXIES, *_TOKENS),
    "header": _TOKENS,
    "hosts": _TOKENS,
    "budget": _TOKENS,
    "budgets": _TOKENS,
    "address_url": (*_PROXIES, *_TOR),
    "socks": _TOR,
    "control": _TOR,
    "torrc": _TOR,
    "circuits": _TOR,
    "rotate_after": _TOR,
    "rotate_every": _TOR,
}
# Empty, these count as not given, and a port alone is one of this machine: so a variable can be written as their value.
_MAY_BE_EMPTY = ("socks", "control", "torrc", "address_url")
_MAY_BE_A_PORT = ("socks", "control")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|min|h|d)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_HOST = re.compile(r"(https?://)?(\*\.)?[\w.-]+(:[0-9]{1,5})?|(https?://)?\[[0-9a-f:]+\](:[0-9]{1,5})?", re.ASCII)
_BUDGET = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})?\s*(s|sec|m|min|minute|h|hour|d|day)", re.ASCII)
_BUDGET_UNITS = {
    **dict.fromkeys(("s", "sec"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3_600),
    **dict.fromkeys(("d", "day"), 86_400),
}
MAX_DURATION = 31_536_000.0
MAX_PORT = 65_535


def parse_duration(text: str) -> float | None:
    """`60m` in seconds; None for what is no time, or one of more than a year."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found is not None else 0.0
    return seconds if 0 < seconds <= MAX_DURATION else None


def duration_text(seconds: float) -> str:
    """Seconds as `parse_duration` reads them, in the largest unit that gives a whole number: `45m`."""
    unit = next((unit for unit in ("d", "h", "m", "s") if seconds % _UNITS[unit] == 0), None)
    return f"{seconds:g}s" if unit is None else f"{seconds / _UNITS[unit]:.0f}{unit}"


def _read_duration(name: str, given: RawValue) -> float:
    value = given.value
    seconds = None if isinstance(value, bool) else parse_duration(str(value))
    if seconds is None:
        raise given.invalid(name, DURATION.accepted)
    return seconds


def parse_budget(text: str) -> BudgetPolicy | None:
    """`5000/h` as a budget; None for what is none."""
    found = _BUDGET.fullmatch(text.strip().lower())
    if found is None or int(found[1]) < 1 or found[2] == "0":
        return None
    return BudgetPolicy(int(found[1]), float(int(found[2] or 1) * _BUDGET_UNITS[found[3]]))


def _read_budget(name: str, given: RawValue) -> BudgetPolicy:
    budget = parse_budget(given.value) if isinstance(given.value, str) else None
    if budget is None:
        raise given.invalid(name, BUDGET.accepted)
    return budget


def _read_budgets(name: str, given: RawValue) -> dict[str, BudgetPolicy]:
    if not isinstance(given.value, dict) or not all(isinstance(key, str) and key for key in given.value):
        raise given.invalid(name, BUDGETS.accepted)
    return {key: _read_budget(f"{name}.{key}", RawValue(value, given.origin)) for key, value in given.value.items()}


def _read_choice(name: str, given: RawValue) -> Choice:
    text = given.value.strip().lower() if isinstance(given.value, str) else ""
    found = _OTHER_CHOICE_NAMES.get(text, text)
    if found not in get_args(Choice):
        raise given.invalid(name, CHOICE.accepted)
    return cast("Choice", found)


def _read_hosts(name: str, given: RawValue) -> tuple[str, ...]:
    value = [given.value] if isinstance(given.value, str) else given.value
    texts = value if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) and _HOST.fullmatch(text.strip().lower()) for text in texts):
        raise given.invalid(name, HOSTS.accepted)
    return tuple(dict.fromkeys(text.strip().lower() for text in texts))


CHOICE = CustomType(_read_choice, "round_robin, healthiest (also as health_based) or sticky")
DURATION = CustomType(_read_duration, 'a time such as "90s", "60m" or "2h", or a number of seconds')
BUDGET = CustomType(_read_budget, 'calls per time, such as "5000/h" or "30/min"')
BUDGETS = CustomType(_read_budgets, 'budgets by kind of call, such as { search = "30/min" }')
ENV_NAMES = names_type('["GITHUB_TOKEN", "GITHUB_TOKEN_*"]')
HOSTS = CustomType(_read_hosts, 'a host or a list of hosts, such as "api.github.com", "*.example.com" or "api:8080"')
Text = Annotated[str, Meta(min_length=1, max_length=2_000, pattern=rf"\A{PLAIN_TEXT}+\Z", description="a text")]
HeaderText = Annotated[
    str,
    Meta(
        max_length=500,
        pattern=r"\A[A-Za-z0-9-]+: [ -~]*\{token\}[ -~]*\Z",
        description='a header with {token} in it, such as "Authorization: Bearer {token}"',
    ),
]
_PORT_OF_TOR = r"\A(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(?!0)[0-9]{1,5}\Z"
SocksText = Annotated[
    str, Meta(pattern=_PORT_OF_TOR, description='host and port of Tor\'s SOCKS proxy, such as "tor:9050"')
]
ControlText = Annotated[
    str, Meta(pattern=_PORT_OF_TOR, description='host and port of Tor\'s control port, such as "tor:9051"')
]
UrlText = Annotated[str, Meta(max_length=2_000, pattern=r"\Ahttps?://[^\s/]+\S*\Z", description="a URL")]
Duration = Annotated[float, DURATION]


class EgressConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of exits. docs/howto/proxies.md, tokens.md and tor.md have the meanings.

    `given`: the values of the environment variables that `env` names, by name; secret. `missing`: those of its names
    that match none. `place`: the number of this worker, and how many there are, for `share = "fixed"`.
    """

    name: str
    kind: PoolKind
    file: Text | None = None
    url: Text | None = None
    env: Annotated[tuple[str, ...], ENV_NAMES] = ()
    refresh: Duration = 300.0
    share: Share = "shared"
    choose: Annotated[Choice, CHOICE] = "round_robin"
    rotate: bool = True
    ban_after: Annotated[int, Meta(ge=1, le=100_000)] = 10
    ban_for: Duration = 3_600.0
    block_after: Annotated[int, Meta(ge=1, le=100_000)] = 3
    block_for: Duration = 600.0
    header: HeaderText = "Authorization: Bearer {token}"
    hosts: Annotated[tuple[str, ...], HOSTS] = ()
    budget: Annotated[BudgetPolicy, BUDGET] | None = None
    budgets: Annotated[dict[str, BudgetPolicy], BUDGETS] = {}
    address_url: UrlText | None = None
    socks: SocksText | None = None
    control: ControlText | None = None
    torrc: Text | None = None
    circuits: Annotated[int, Meta(ge=1, le=10_000)] = 8
    rotate_after: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rotate_every: Duration = 600.0
    given: Mapping[str, str] = {}
    missing: tuple[str, ...] = ()
    place: tuple[int, int] | None = None
    origins: Mapping[str, Origin] = {}

    @property
    def health(self) -> HealthRules:
        return HealthRules(
            ban_after=self.ban_after, ban_for=self.ban_for, block_after=self.block_after, block_for=self.block_for
        )

    def shown(self) -> dict[str, Any]:
        """The given values by name, without secrets."""
        hidden = {} if self.url is None else {"url": f"{urlsplit(self.url).scheme}://{urlsplit(self.url).hostname}/..."}
        values = {name: getattr(self, name) for name in self.origins}
        durations = {name: duration_text(values[name]) for name in values if EGRESS_TYPES.get(name) is Duration}
        return {name: _plain(value) for name, value in values.items()} | durations | hidden

    def secrets(self) -> tuple[str, ...]:
        """All texts that must never be printed."""
        words = set(self.given.values()) | ({self.url} if self.url else set())
        return tuple(sorted((word for word in words if word), key=len, reverse=True))


EGRESS_TYPES = setting_types(EgressConfig, without=("name", "given", "missing", "place", "origins"))


def read_egress(name: str, table: Mapping[str, RawValue], variables: Variables) -> EgressConfig:
    """A pool's table with every value checked. Raises InvalidSetting."""
    check_name("egress", name)
    place = f"[egress.{name}]"
    table = {key: given for key, given in ((key, _port_named(key, raw)) for key, raw in table.items()) if given}
    if "kind" not in table:
        raise InvalidSetting(f"{place} has no kind.", remedy='Add kind = "proxies", "tokens" or "tor".')
    values = {key: read_value(key, EGRESS_TYPES[key], given) for key, given in table.items()}
    kind = values["kind"]
    for key, given in table.items():
        if kind not in _KINDS_OF.get(key, (kind,)):
            raise InvalidSetting(
                f"{given.origin} is no option of egress of the kind {kind}; it is one of {', '.join(_KINDS_OF[key])}.",
                remedy="Remove it.",
            )
    if values.get("share") == "fixed" and kind != "proxies":
        raise InvalidSetting(
            f"{table['share'].origin}: only egress of the kind proxies has parts that are fixed.",
            remedy='Choose share = "split".',
        )
    needed = {"proxies": ("file", "env", "url"), "tokens": ("env",), "tor": ()}[kind]
    if needed and sum(key in values for key in needed) != 1:
        raise InvalidSetting(
            f"{place} needs {' or '.join(needed)}{', one of them' if len(needed) > 1 else ''}.",
            remedy=f"Say where the {kind} come from.",
        )
    for key in _MAY_BE_A_PORT:
        if key in values and int(values[key].rpartition(":")[2]) > MAX_PORT:
            raise table[key].invalid(key, f"host and port, which is {MAX_PORT} at most")
    if "control" in values and "socks" not in values:
        raise InvalidSetting(
            f"{place} has control without socks: the tor that a worker starts is controlled by it anyway.",
            remedy="Remove control, or name the tor of somebody else with socks.",
        )
    if "socks" in values and "torrc" in values:
        raise InvalidSetting(
            f"{place} has socks, so it starts no tor that could read torrc.", remedy="Remove one of them."
        )
    found, missing = _variables(values.get("env", ()), variables)
    origins = {key: given.origin for key, given in table.items()}
    return EgressConfig(name=name, **values, given=found, missing=missing, origins=origins)


def _port_named(key: str, given: RawValue) -> RawValue | None:
    """The value; None for an empty one that counts as not given; a port alone with the address of this machine."""
    text = str(given.value).strip() if isinstance(given.value, str | int) else None
    if key in _MAY_BE_EMPTY and text == "":
        return None
    if key in _MAY_BE_A_PORT and text is not None and text.isdigit():
        return RawValue(f"127.0.0.1:{text}", given.origin)
    return given


def _variables(names: tuple[str, ...], variables: Variables) -> tuple[dict[str, str], tuple[str, ...]]:
    """The values of the variables with these names, where a `*` at the end stands for anything; names without one."""
    found: dict[str, str] = {}
    missing = []
    for name in names:
        known = variables.with_prefix(name[:-1] if name.endswith("*") else name)
        matching = {key: str(raw.value) for key, raw in sorted(known.items()) if name.endswith("*") or key == name}
        matching = {key: value for key, value in matching.items() if value.strip()}
        if not matching:
            missing.append(name)
        found |= matching
    return found, tuple(missing)


def _plain(value: Any) -> Any:
    if isinstance(value, BudgetPolicy):
        return f"{value.calls}/{value.seconds:g}s"
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value
