"""The client of a served project."""

from __future__ import annotations

import json
from threading import Thread
from types import SimpleNamespace
from typing import cast

from websockets.sync.server import ServerConnection, serve

from tests.support.served import ServedProject


def test_frames_leave_out_that_the_ledger_was_slow() -> None:
    """A busy machine may have such a frame among the others at any time."""
    slow = {"error": {"code": "slow", "message": "The ledger has not answered for 5 s.", "hint": "Wait for it."}}

    def send(connection: ServerConnection) -> None:
        for frame in (slow, {"active_workers": 1}, slow, slow, {"active_workers": 2}):
            connection.send(json.dumps(frame))

    with serve(send, "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.socket.getsockname()[1]
            project = cast(ServedProject, SimpleNamespace(url=f"http://127.0.0.1:{port}"))
            with ServedProject.frames(project, "/jobs/status") as frames:
                assert [next(frames)["active_workers"] for _ in range(2)] == [1, 2]
        finally:
            server.shutdown()
            thread.join()
