"""The site's process: opens its hosts, says where, and answers questions about what it saw.

The plan comes as one line of JSON on standard input; every further line there is a question, answered by one line
with all requests so far. When standard input closes, whoever started us is gone, and so are we.
"""

import asyncio
import functools
import json
import os
import socket
import sys
from collections.abc import Sequence

from tests.support.website.routes import Plan, Site
from tests.support.website.wire import Book, Request, Wire

_PORT_TRIES = 20


def listen(hosts: Sequence[str]) -> list[socket.socket]:
    """All hosts on one port."""
    for _ in range(_PORT_TRIES):
        listeners: list[socket.socket] = []
        try:
            for host in hosts:
                port = listeners[0].getsockname()[1] if listeners else 0
                listeners.append(socket.create_server((host, port), backlog=512))
        except OSError:
            for listener in listeners:
                listener.close()
        else:
            return listeners
    raise SystemExit("no port is free on all of " + ", ".join(hosts))


def told(request: Request) -> list[object]:
    """A request as a line of the log; the order is that of the fields of `Visit` in tests/support/site.py."""
    return [
        request.start,
        request.arrived,
        request.end,
        request.host,
        request.target,
        request.method,
        request.status,
        request.peer,
        request.connection,
        request.headers,
    ]


def say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def serve(plan: Plan) -> None:
    book = Book()
    make_wire = functools.partial(Wire, Site(plan).answer, book)
    loop = asyncio.get_running_loop()
    listeners = listen(plan["hosts"])
    for listener in listeners:
        await loop.create_server(make_wire, sock=listener)
    say(listeners[0].getsockname()[1])

    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while await questions.readline():
        say([told(request) for request in book.requests])
    # No farewell to clients: some of them hang on purpose.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.stdin.readline())))
