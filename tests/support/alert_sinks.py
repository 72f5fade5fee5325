"""Where messages arrive: a mail server and a web server on loopback."""

from __future__ import annotations

import asyncio
import email
import email.policy
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

PATIENCE = 60.0
TOKEN = "hook-token-5f1d93"
PASSWORD = "mail-password-77c2"


class Sink:
    """What has arrived, each message as its title and its text."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    @property
    def titles(self) -> list[str]:
        return [title for title, _ in self.messages]

    def wait_for(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the titles are so."""
        deadline = time.monotonic() + PATIENCE
        while not is_there(self.titles):
            assert time.monotonic() < deadline, f"arrived so far: {self.messages}"
            time.sleep(0.02)
        return self.titles


class Mailbox(Sink):
    """A mail server that wants a password."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._loop.create_server(self._protocol, "127.0.0.1", 0))
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"mailto://shoal:{PASSWORD}@127.0.0.1:{port}/?from=shoal@example.com&to=me@example.com"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if not session.authenticated:
            return "530 Authentication required"
        message = email.message_from_bytes(envelope.original_content or b"", policy=email.policy.default)
        part = message.get_body(("plain", "html"))
        self.messages.append((str(message["subject"]), "" if part is None else part.get_content()))
        return "250 OK"

    def _protocol(self) -> SMTP:
        return SMTP(self, authenticator=self._may_send, auth_require_tls=False, loop=self._loop)

    def _may_send(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: Any) -> AuthResult:
        return AuthResult(success=given.password == PASSWORD.encode())

    async def _stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        conversations = asyncio.all_tasks() - {asyncio.current_task()}
        if conversations:
            await asyncio.wait(conversations, timeout=PATIENCE)


class Webhook(Sink):
    """A web server; while it is `down` it answers 503."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.refused = 0

    def __enter__(self) -> Self:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if sink.down:
                    sink.refused += 1
                else:
                    sink.messages.append((said["title"], said["message"]))
                self.send_response(503 if sink.down else 200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"json://127.0.0.1:{self._server.server_port}/{TOKEN}"
