"""A project of the recipe, its stand-in and its proxies, as `shoal demo yellowpages` has them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal.config import load_settings
from shoal.demo.recipe import write_environment
from shoal.demo.stand_in import RunningStandIn
from shoal.recipes.yellowpages import PROJECT
from shoal.recipes.yellowpages.proxies import RunningProxies, serving_proxies
from shoal.recipes.yellowpages.stand_in import YellowPages
from shoal.service.client import Fleet
from shoal.templates import write_project
from tests.support.project import Project, clean_environment

T = TypeVar("T")
# Processes beside each other do not share source addresses.
_NETWORKS = (
    f"127.{second}.{third}"
    for second in itertools.repeat(random.SystemRandom().randint(16, 250))
    for third in range(1, 255)
)


class Directory:
    """A project that scrapes a stand-in through proxies."""

    def __init__(self, project: Project, site: RunningStandIn[YellowPages], proxies: RunningProxies) -> None:
        self.project = project
        self.site = site
        self.proxies = proxies

    @property
    def folder(self) -> Path:
        return self.project.folder

    def python(self, *arguments: str, code: int = 0) -> str:
        """What a script of the project prints."""
        said = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=clean_environment(self.folder, SHOAL_LEDGER=self.project.ledger),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert said.returncode == code, said.stdout + said.stderr
        return said.stdout

    def ask(self, work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
        """The answer of the ledger."""

        async def ask() -> T:
            settings = load_settings({"ledger": self.project.ledger}, environ={}, folder=self.folder)
            async with Fleet(settings) as fleet:
                return await work(fleet)

        return asyncio.run(ask())

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text()


@contextmanager
def open_directory(
    project: Project,
    site: YellowPages,
    *,
    proxies: int = 10,
    dead: int = 0,
    flaky: int = 0,
    delay: tuple[float, float] = (0.0, 0.02),
    **variables: str,
) -> Iterator[Directory]:
    """A project on a stand-in. `variables` are further lines of `.env`."""
    write_project(project.folder, dict(PROJECT.files()))
    with (
        site.serving() as running,
        serving_proxies(proxies, dead=dead, flaky=flaky, network=next(_NETWORKS)) as served,
    ):
        file = project.folder / "data" / "webshare_proxies.txt"
        file.write_text("".join(f"{line}\n" for line in served.lines()))
        os.chmod(file, 0o600)
        low, high = delay
        given = {"YP_BASE_URL": running.url, "MIN_DELAY_SECONDS": str(low), "MAX_DELAY_SECONDS": str(high)}
        write_environment(project.folder, {**given, **variables})
        yield Directory(project, running, served)


@pytest.fixture
def site() -> YellowPages:
    return YellowPages()
