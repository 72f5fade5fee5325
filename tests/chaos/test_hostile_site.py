"""The hostile site keeps connections between slow pages, and logs who leaves."""

from __future__ import annotations

import asyncio
import io

from tests.chaos.hostile_site import HostileSite

REQUEST = b"GET /slow/%d HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_slow_pages_come_one_after_another_on_one_connection_and_a_client_that_leaves_is_logged() -> None:
    log = io.StringIO()
    async with await asyncio.start_server(HostileSite(log).serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in (1, 2):
            writer.write(REQUEST % number)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"</h1>")
        writer.write(REQUEST % 3)
        writer.close()
        async with asyncio.timeout(30):
            while log.getvalue().count("\n") < 3:  # noqa: ASYNC110 - the server writes it
                await asyncio.sleep(0.01)
    seen = [line.split() for line in log.getvalue().splitlines()]
    assert [(status, path) for _, _, status, _, _, path in seen] == [
        ("200", "/slow/1"),
        ("200", "/slow/2"),
        ("499", "/slow/3"),
    ]
    assert all(float(took) >= 0.29 for _, took, *_ in seen[:2])
