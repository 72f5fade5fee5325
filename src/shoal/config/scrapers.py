"""What a configuration file says about one scraper: `[scrapers.NAME]` and `[scrapers.NAME.stages.STAGE]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from shoal.config.schedules import ScheduleConfig, ScheduleSetting
from shoal.config.sources import Origin, RawValue
from shoal.config.values import (
    ChoiceSetting,
    DelaySetting,
    NumberSetting,
    RateSetting,
    SettingType,
    TargetSetting,
    shown_value,
)
from shoal.errors import InvalidSetting
from shoal.model.lane import MAX_LANE_DELAY, parse_rate
from shoal.model.run import check_name

Mode = Literal["single", "distributed"]
OWN_VALUES: dict[str, SettingType] = {
    "target": TargetSetting(),
    "mode": ChoiceSetting(("single", "distributed")),
    "schedule": ScheduleSetting(),
}
RETRY_VALUES: dict[str, SettingType] = {
    "retries": NumberSetting(int, 0, 999),
    "backoff_factor": NumberSetting(float, 1, 10),
    "backoff_cap": NumberSetting(float, 0.01, 86_400, "seconds"),
    "backoff_jitter": NumberSetting(float, 0, 1),
}
STAGE_VALUES: dict[str, SettingType] = {
    "rate": RateSetting(),
    "delay": DelaySetting(NumberSetting(float, 0, MAX_LANE_DELAY, "seconds")),
    "concurrency": NumberSetting(int, 1, 10_000),
    "timeout": NumberSetting(float, 0.1, 86_400, "seconds"),
    **RETRY_VALUES,
}


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What overrules the code's declaration of a stage; None leaves it as it is.

    `rate` is the text as written, `delay` the least and the most seconds between two starts. One of them at most.
    """

    rate: str | None = None
    delay: tuple[float, float] | None = None
    concurrency: int | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff_factor: float | None = None
    backoff_cap: float | None = None
    backoff_jitter: float | None = None

    @property
    def pause(self) -> tuple[float, float] | None:
        """Least and most seconds between two starts on a lane, whether given as a rate or as a delay."""
        if self.rate is None:
            return self.delay
        seconds = parse_rate(self.rate)
        return seconds, seconds


class ScraperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One scraper's table.

    `target`: where its code is. `mode`: None leaves the choice to the code or the ledger. `schedule`: when it is run by
    itself. `values`: Shoal's settings given for this scraper alone. `settings`: the free table, handed to the author's
    code as it is. `origins`: where each came from, under its name in the table (`mode`, `stages.listing.rate`,
    `settings.region`).
    """

    name: str
    target: str | None = None
    mode: Mode | None = None
    schedule: ScheduleConfig | None = None
    values: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    stages: Mapping[str, StageConfig] = {}
    origins: Mapping[str, Origin] = {}

    def shown(self) -> dict[str, Any]:
        """All that is given, by its name in the table and fit for printing.

        Authors keep the keys of services in the free table, so its values are only named.
        """
        known = {"target": self.target, "mode": self.mode, "schedule": str(self.schedule), **self.values}
        for name, stage in self.stages.items():
            known.update({f"stages.{name}.{field}": getattr(stage, field) for field in STAGE_VALUES})
        return {name: shown_value(known.get(name, "(not shown)")) for name in self.origins}


class ScraperTable(msgspec.Struct):
    """A scraper's table as written, not yet checked."""

    given: dict[str, RawValue]
    settings: dict[str, RawValue]
    stages: dict[str, dict[str, RawValue]]

    def merged_over(self, lower: ScraperTable) -> ScraperTable:
        """This table, filled up with what only the lower place says."""
        stages = {
            name: _merge_stage(self.stages.get(name, {}), lower.stages.get(name, {}))
            for name in [*lower.stages, *self.stages]
        }
        return ScraperTable(lower.given | self.given, lower.settings | self.settings, stages)

    def validated(self, name: str, values: Mapping[str, SettingType]) -> ScraperConfig:
        """The table with every value checked. `values` holds the settings of Shoal that a scraper may have."""
        check_name("scraper", name)
        kinds = {**values, **OWN_VALUES}
        found = {key: kinds[key].read(key, given) for key, given in self.given.items()}
        if "schedule" in found and "target" not in found:
            raise InvalidSetting(
                f"{self.given['schedule'].origin} cannot be kept: the table does not say where the code is.",
                remedy=f'Add target = "{name}.py", or module:scraper.',
            )
        return ScraperConfig(
            name=name,
            **{own: found.pop(own) for own in OWN_VALUES if own in found},
            values=found,
            settings={key: given.value for key, given in self.settings.items()},
            stages={stage: _stage(stage, table) for stage, table in self.stages.items()},
            origins={key: given.origin for key, given in self._flatten()},
        )

    def _flatten(self) -> Iterator[tuple[str, RawValue]]:
        yield from self.given.items()
        for stage, table in self.stages.items():
            yield from ((f"stages.{stage}.{key}", given) for key, given in table.items())
        yield from ((f"settings.{key}", given) for key, given in self.settings.items())


def _merge_stage(higher: dict[str, RawValue], lower: dict[str, RawValue]) -> dict[str, RawValue]:
    """A rate replaces a delay of the lower place, and a delay a rate: they are two words for one thing."""
    replaced = {"rate", "delay"} if {"rate", "delay"} & higher.keys() else set()
    return {**{key: given for key, given in lower.items() if key not in replaced}, **higher}


def _stage(name: str, table: Mapping[str, RawValue]) -> StageConfig:
    check_name("stage", name)
    if "rate" in table and "delay" in table:
        raise InvalidSetting(
            f"{table['rate'].origin} and {table['delay'].origin} both say how far apart starts are.",
            remedy="Give one of the two.",
        )
    return StageConfig(**{key: STAGE_VALUES[key].read(key, given) for key, given in table.items()})
