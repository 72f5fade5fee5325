"""What an operator stored in the ledger for a scraper: how often items are tried again, and after how long.

It outranks code, files and variables, as the limits of lanes that an operator sets do. The heartbeat notices a change,
so it holds for attempts that end a heartbeat later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.define.policy import RETRY_OPTIONS
from shoal.define.scraper import Scraper
from shoal.errors import InvalidSetting
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log


def scraper_scope(scraper: str) -> str:
    """The scope of what is stored for a scraper."""
    return f"scraper:{scraper}"


class OperatorSettings:
    """Applies the stored settings to the stages of a scraper. `version`: the newest that was read."""

    def __init__(self, scraper: Scraper, log: Log) -> None:
        self._scraper = scraper
        self._log = log
        self._configured = {name: stage.policy for name, stage in scraper.stages.items()}
        self.version = 0

    async def read(self, ledger: Ledger) -> tuple[int, Mapping[str, Any]]:
        """The version and the values that are stored for the scraper; zero and none when nothing is."""
        return await ledger.settings.get(scraper_scope(self._scraper.name)) or (0, {})

    def apply(self, version: int, stored: Mapping[str, Any]) -> None:
        """Use these values from now on; what they leave out is as configured. Invalid ones change nothing."""
        if version == self.version:
            return
        self.version = version
        given = {name: stored[name] for name in RETRY_OPTIONS if stored.get(name) is not None}
        try:
            policies = {name: policy.replace(**given) for name, policy in self._configured.items()}
        except (InvalidSetting, TypeError) as error:
            self._log.warning("stored settings are not valid and not used", error=str(error))
            return
        for name, policy in policies.items():
            overridden = policy.retries_overridden or "retries" in given
            self._scraper.stages[name].policy = msgspec.structs.replace(policy, retries_overridden=overridden)
        self._log.info("stored settings apply", version=version, **given)
