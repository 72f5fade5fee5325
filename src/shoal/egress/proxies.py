"""Pools of proxies: `[egress.NAME]` with kind = "proxies"."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from shoal.config.egress import EgressConfig
from shoal.egress.lists import ListFailed, ListSource, ProxyList
from shoal.egress.pool import BasePool
from shoal.errors import InvalidSetting
from shoal.model.egress import PoolKind
from shoal.model.log import Log

# A list that could not be fetched at the start is tried again after so long; its items wait.
_RETRY_SECONDS = 10.0
_MAX_WARNINGS = 10


class ProxyPool(BasePool):
    """Proxies of a list that is read again when it changes. A list that becomes unreadable or empty is not used."""

    kind: PoolKind = "proxies"
    noun: ClassVar[str] = "proxies"
    one: ClassVar[str] = "proxy"

    def __init__(
        self,
        config: EgressConfig,
        *,
        log: Log,
        alone: bool = False,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(config, log=log, alone=alone, now=now, rng=rng)
        self._source = ListSource(config, now=now)
        self._list: ProxyList | None = None
        self._problem = ""
        self._reading: asyncio.Task[ProxyList] | None = None
        self._failed_at: float | None = None

    async def start(self) -> None:
        """Read the list. Raises InvalidSetting for one without proxies; a URL that does not answer is asked again."""
        try:
            self._adopt(await self._source.read())
        except ListFailed as error:
            if self._config.url is None or not error.may_recover:
                raise InvalidSetting(error.message, remedy=error.remedy) from None
            self._keep_old(error)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError, ListFailed):
                await self._reading
            self._reading = None

    async def _refresh(self) -> None:
        """Read the list again if it is due. A URL is fetched beside, and used at the next sync."""
        if self._reading is None and (self._is_retry_due() or await self._source.is_due()):
            self._reading = asyncio.create_task(self._source.read(), name=f"proxies of {self.name}")
            if self._config.url is None:
                await asyncio.wait([self._reading])
        if self._reading is not None and self._reading.done():
            task, self._reading = self._reading, None
            try:
                self._adopt(task.result())
            except ListFailed as error:
                self._keep_old(error)

    def _is_retry_due(self) -> bool:
        return self._failed_at is not None and self._now() - self._failed_at >= _RETRY_SECONDS

    def _adopt(self, found: ProxyList) -> None:
        if self._problem:
            self._log.info("list of proxies can be read again", proxies=len(found.exits))
        self._problem, self._failed_at = "", None
        if found == self._list:
            return
        for bad in found.bad[:_MAX_WARNINGS]:
            self._log.warning("line is no proxy", list=self._source.where, line=bad.line, why=bad.why)
        if len(found.bad) > _MAX_WARNINGS:
            self._log.warning(
                "more lines are no proxies", list=self._source.where, lines=len(found.bad) - _MAX_WARNINGS
            )
        if self._list is not None:
            before, after = ({exit_.key for exit_ in each.exits} for each in (self._list, found))
            self._log.info(
                "list of proxies changed", proxies=len(after), added=len(after - before), removed=len(before - after)
            )
        self._list = found
        self._list_exits(found.exits)

    def _keep_old(self, error: ListFailed) -> None:
        if error.message != self._problem:
            used = len(self.health.records)
            self._log.warning("list of proxies cannot be read; the old one stays in use", why=str(error), proxies=used)
        self._problem = error.message
        self._failed_at = self._now() if self._config.url is not None else None

    def _no_exits_why(self) -> str:
        return self._problem.removeprefix(f"egress.{self.name}: ").rstrip(".") or f"{self.name} has no proxies"
