"""One Chromium, and one served project that tests only look at, for all tests of the dashboard in a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.browser_tab import chromium
from tests.support.dashboard_scene import DashboardScene, prepare
from tests.support.project import Project
from tests.support.served import ServedProject


class Looked(NamedTuple):
    """A project that is looked at: tests must not change it."""

    url: str
    scene: DashboardScene
    served: ServedProject


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looked]:
    with Project(tmp_path_factory.mktemp("dashboard")) as project:
        scene = prepare(project)
        with ServedProject(project) as served:
            yield Looked(served.url, scene, served)
