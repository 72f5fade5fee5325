"""Log in and out with a browser, and who one is: /api/v1/session, /api/v1/me."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from shoal import __version__
from shoal.control.access import COOKIE, SESSION_PATH, Client, Viewer, gate_of, open_to_all, session_cookie
from shoal.control.answers import ApiError
from shoal.service import access
from shoal.service.access import MAX_SECRET_LENGTH, SESSION_SECONDS
from shoal.wiring import sqlite_path

router = APIRouter(tags=["access"])


class LogIn(BaseModel):
    """A token of `shoal serve token add`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"token": "shoal_..."}]})
    token: Annotated[str, Field(min_length=1, max_length=MAX_SECRET_LENGTH)]


class Me(BaseModel):
    """Who sends this request, and where."""

    name: str
    role: Literal["viewer", "operator"]
    by: Literal["loopback", "token", "session"]
    expires_at: dt.datetime | None
    version: str
    project: str
    ledger: str
    backend: Literal["sqlite", "postgres"]
    time: dt.datetime
    login_required: bool
    csrf: str
    pages: list[str] = Field(description="what the routes of the project are for, by their tags")


class LogInAnswer(BaseModel):
    """Who a browser is from now on; its cookie says so."""

    text: str
    name: str
    role: Literal["viewer", "operator"]
    expires_at: dt.datetime | None


class LogOutAnswer(BaseModel):
    text: str


@router.get("/api/v1/me")
async def me(request: Request, who: Viewer) -> Me:
    """Who sends this request, and the server's version, project, ledger and clock."""
    control = request.app.state.control
    settings = control.settings
    return Me(
        name=who.name,
        role=who.role.value,
        by=who.by,
        expires_at=who.expires_at,
        version=__version__,
        project=Path(settings.project or os.getcwd()).name,
        ledger=settings.shown()["ledger"],
        backend="sqlite" if sqlite_path(settings.ledger) is not None else "postgres",
        time=dt.datetime.fromtimestamp(await control.ledger.lanes.clock(), dt.UTC),
        login_required=who.by != "loopback",
        csrf="1",
        pages=list(control.pages),
    )


@router.post(SESSION_PATH)
@open_to_all
async def log_in(request: Request, response: Response, body: LogIn) -> LogInAnswer:
    """Log in with a token: the answer sets a cookie that scripts cannot read."""
    gate = gate_of(request)
    client = gate.client_of(request.scope, request.headers)
    gate.failed_logins.check(client.address)
    gate.logins.check(client.address)
    ledger = gate.ledger
    token = await access.find_token(ledger, body.token.strip())
    if token is None:
        gate.refused_login(client.address)
        raise ApiError(401, "unauthorized", "The token is not valid: it was removed, has expired, or never existed.")
    gate.logins.add(client.address)
    new = await access.start_session(ledger, token, by=f"{token.name}@{client.address}")
    if new is None:
        raise ApiError(401, "unauthorized", "The token was removed or has just expired.")
    _set_cookie(response, client, _path(request), new.secret, int(SESSION_SECONDS))
    return LogInAnswer(
        text=f"Logged in as {token.name}.",
        name=token.name,
        role=new.grant.role.value,
        expires_at=new.grant.expires_at,
    )


@router.delete(SESSION_PATH)
@open_to_all
async def log_out(request: Request, response: Response) -> LogOutAnswer:
    """Log out: the session ends everywhere, and the cookie is deleted."""
    gate = gate_of(request)
    client = gate.client_of(request.scope, request.headers)
    if secret := session_cookie(request.headers):
        grant = await access.find_session(gate.ledger, secret)
        name = "unknown" if grant is None else grant.name
        await access.end_session(gate.ledger, secret, by=f"{name}@{client.address}")
    _set_cookie(response, client, _path(request), "", 0)
    return LogOutAnswer(text="Logged out.")


def _set_cookie(response: Response, client: Client, path: str, value: str, seconds: int) -> None:
    # Strict: the dashboard itself needs no cookie, so links of other sites lead to it, and its own requests have it.
    response.set_cookie(
        COOKIE, value, max_age=seconds, path=path, httponly=True, samesite="strict", secure=client.scheme == "https"
    )


def _path(request: Request) -> str:
    return f"{request.app.state.control.options.root_path}/"
