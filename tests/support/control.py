"""The application of `shoal serve` in this process, with clients at chosen addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from shoal.config import Settings, load_settings
from shoal.control.app import ControlOptions, build_app
from shoal.ledger.protocols import Ledger
from shoal.model.access import Role
from shoal.service.access import add_token

LOCAL, REMOTE = "127.0.0.1", "192.0.2.7"


def client_of(app: FastAPI, address: str = LOCAL, **headers: str) -> httpx.AsyncClient:
    """A client at this address. It sends what a program sends: no Origin, no cookie of its own."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=(address, 5_555), raise_app_exceptions=False),
        base_url="http://127.0.0.1:8642",
        headers=named,
    )


def settings_in(folder: Path, **values: str) -> Settings:
    return load_settings({"ledger": str(folder / "ledger.db"), **values}, environ={}, folder=folder)


@asynccontextmanager
async def running_app(settings: Settings, options: ControlOptions | None = None, **more: Any) -> AsyncIterator[FastAPI]:
    app = build_app(settings, options, **more)
    async with app.router.lifespan_context(app):
        yield app


async def token_of(app: FastAPI, name: str, role: Role = Role.OPERATOR, seconds: float | None = None) -> str:
    """A new token of this name."""
    ledger: Ledger = app.state.control.ledger
    return (await add_token(ledger, name, role, seconds=seconds)).secret


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}
