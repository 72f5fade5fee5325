"""What the routes of `/api/v1` share: who asks, how pages are named, how answers and actions are written."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Path, Query, Request
from fastapi.responses import Response

from shoal.config import Settings
from shoal.control.access import Operator, Principal, Viewer
from shoal.control.answers import Preview
from shoal.control.app import Control, ControlDep
from shoal.control.live import live_clients
from shoal.control.schemas import ActionAnswer, ErrorAnswer
from shoal.errors import UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.views import CursorPage
from shoal.service.actions import ActionReport, Actions
from shoal.service.commands import Commands
from shoal.service.overview import SharedReads
from shoal.service.records import without_secrets

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
# An action that takes longer is answered with 202 and goes on.
ACTION_SECONDS = 10.0
# Smaller answers are not worth the work of compressing.
MIN_GZIP_BYTES = 2_048
GZIP_LEVEL = 4

RunPath = Annotated[
    str,
    Path(
        description="A run's id, `latest`, or `latest:SCRAPER`.",
        min_length=1,
        max_length=200,
        examples=["latest"],
    ),
]
ItemPath = Annotated[int, Path(description="The item's number in its run.", ge=1, le=(1 << 63) - 1, examples=[1])]
NamePath = Annotated[str, Path(min_length=1, max_length=255)]
Cursor = Annotated[str | None, Query(description="The `cursor` of the page before.", max_length=500)]
Limit = Annotated[int, Query(description="At most so many rows.", ge=1, le=MAX_LIMIT)]
StageQuery = Annotated[str | None, Query(description="Only of this stage.", max_length=100)]
TextQuery = Annotated[str | None, Query(max_length=500)]


def _error(description: str) -> dict[str, Any]:
    return {"model": ErrorAnswer, "description": description}


# The statuses that routes document.
READ: dict[int | str, dict[str, Any]] = {
    304: {"description": "Not changed: the ETag of `If-None-Match` still holds."},
    401: _error("A log-in or a token is needed."),
    403: _error("Not allowed, such as a request for another host."),
    404: _error("There is no such run, item, lane, worker, pool or exit."),
    422: _error("The request cannot be understood: a parameter or a field is wrong."),
    429: _error("Too many requests."),
    503: _error("The ledger does not answer."),
}
WRITE: dict[int | str, dict[str, Any]] = {
    **{status: text for status, text in READ.items() if status != 304},
    400: _error("The body cannot be read."),
    403: _error("Not allowed: the role is viewer, or the request comes from another site."),
    409: _error("It cannot be done now: the state is another one, or the idempotency key was used for something else."),
    413: _error("The body is too large."),
    202: {
        "model": ActionAnswer,
        "description": "It takes longer, as with a slow ledger, and goes on; the answer says how far it has come.",
    },
}
# Of writes that answer when they are done.
WHOLE_WRITE = {status: text for status, text in WRITE.items() if status != 202}


class Api:
    """A request of somebody who may see everything, and the means to answer it."""

    def __init__(self, request: Request, control: Control, principal: Principal) -> None:
        self.control = control
        self.principal = principal
        self._request = request

    @property
    def ledger(self) -> Ledger:
        return self.control.ledger

    @property
    def settings(self) -> Settings:
        return self.control.settings

    @property
    def shared(self) -> SharedReads:
        """Reads that live updates do too."""
        return live_clients(self._request).hub.shared

    @property
    def commands(self) -> Commands:
        return Commands(self.settings)

    def answer(self, value: Any, *, status: int = 200) -> Response:
        """A value as JSON, without secrets."""
        return self.json(msgspec.json.encode(without_secrets(value, self.settings.secrets())), status=status)

    def json(self, body: bytes, *, status: int = 200) -> Response:
        """An answer that is encoded already and has no secrets."""
        headers = {"Vary": "Accept-Encoding"}
        takes_gzip = "gzip" in self._request.headers.get("accept-encoding", "")
        # Answers to writes are short, and kept with their idempotency key as they are.
        if self._request.method == "GET" and takes_gzip and len(body) >= MIN_GZIP_BYTES:
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        return Response(body, status, headers, media_type="application/json")

    def page(self, page: CursorPage[Any], record: Callable[[Any], Any], command: str = "", **fields: Any) -> Response:
        rows = [record(row) for row in page.rows]
        return self.answer({"rows": rows, "cursor": page.cursor, "command": command, **fields})


class Acting(Api):
    """A request of an operator to change something, or with `preview` to say what would be changed."""

    def __init__(self, request: Request, control: Control, principal: Principal, preview: bool) -> None:
        super().__init__(request, control, principal)
        self._preview = preview

    async def act(self, action: Callable[[Actions], Awaitable[ActionReport]]) -> Response:
        """Do it and answer what was done. What takes longer goes on when the answer was sent, or the client left."""
        progress = _Progress()
        actions = Actions(
            self.ledger, self.settings, by=self.principal.actor, preview=self._preview, on_progress=progress.add
        )
        if self._preview:
            report = await action(actions)
            names = ("text", "items", "items_is_at_least", "command")
            return self.answer({"preview": True, **{name: getattr(report, name) for name in names}})
        task = asyncio.ensure_future(action(actions))
        running: set[asyncio.Future[ActionReport]] = self._request.app.state.__dict__.setdefault("actions", set())
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.wait({task}, timeout=ACTION_SECONDS)
        if not task.done():
            task.add_done_callback(_ignore_error)
            text = f"Going on: {progress.items} so far. It continues in the background."
            return self.answer({"text": text, "items": progress.items, "command": "", "complete": False}, status=202)
        report = task.result()
        fields = {"text": report.text, "items": report.items, "command": report.command, "complete": True}
        return self.answer({**fields, **report.fields})


class _Progress:
    items = 0

    def add(self, items: int) -> None:
        self.items = items


def _ignore_error(task: asyncio.Future[Any]) -> None:
    """The ledger was away: what is left to do is visible in the run, and the same call continues it."""
    if not task.cancelled():
        task.exception()


def _check_text(request: Request) -> None:
    """No text of the ledger has a NUL: PostgreSQL cannot store it."""
    if "\0" in request.url.path or b"%00" in request.scope.get("query_string", b""):
        raise UsageError("The address contains a NUL character.", remedy="Remove it.")


async def _api(request: Request, control: ControlDep, principal: Viewer) -> Api:
    _check_text(request)
    return Api(request, control, principal)


async def _acting(request: Request, control: ControlDep, principal: Operator, preview: Preview = False) -> Acting:
    _check_text(request)
    return Acting(request, control, principal, preview)


ApiDep = Annotated[Api, Depends(_api)]
ActingDep = Annotated[Acting, Depends(_acting)]
