"""Settings: those stored in the ledger by scope, and those in force in this server."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from shoal.control.api.common import READ, WRITE, ActingDep, ApiDep, NamePath
from shoal.control.schemas import PreviewAnswer, SettingsAnswer, SettingsBody, SettingsRecord
from shoal.service.stored_settings import effective_settings, list_stored

router = APIRouter(tags=["settings"])


@router.get("/settings", response_model=SettingsRecord, responses=READ)
async def read_settings(api: ApiDep) -> Response:
    """Stored settings with their versions, and effective ones with their origins, all without secrets."""
    stored = await list_stored(api.ledger)
    effective = list(effective_settings(api.settings))
    return api.answer({"stored": stored, "effective": effective, "command": api.commands.show_config()})


@router.put("/settings/{scope}", response_model=PreviewAnswer | SettingsAnswer, responses=WRITE)
async def put_settings(acting: ActingDep, scope: NamePath, body: SettingsBody) -> Response:
    """Store the retry options of a scraper (scope `scraper:NAME`): its workers follow with their next heartbeat."""
    return await acting.act(lambda actions: actions.put_settings(scope, body.value.model_dump(), version=body.version))
