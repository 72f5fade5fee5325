"""What a reader needs to know about the machine, and nothing that tells whose it is."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from bench.places import SERVER_SETTINGS

PACKAGES = (
    "shoal",
    "asyncpg",
    "psycopg",
    "pgqueuer",
    "procrastinate",
    "uvloop",
    "aiohttp",
    "parsel",
    "scrapy",
    "crawlee",
)


def machine_facts(postgres_url: str) -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "postgres": asyncio.run(_server_version(postgres_url)),
        "postgres_settings": {"fsync": "on", **SERVER_SETTINGS},
        "sqlite": sqlite3.sqlite_version,
        **{package: _version(package) for package in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def _server_version(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("show server_version"))
    finally:
        await connection.close()
