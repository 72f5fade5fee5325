"""What the demo of the countries says at its end is counted in the log of the site."""

from __future__ import annotations

from shoal.demo.stand_in import Visit
from shoal.recipes.countries.demo import _answers


def visit(at: float, path: str, peer: str, note: str = "") -> Visit:
    return Visit(at=at, ended=at, host="127.0.0.3", path=path, status=200, peer=peer, user_agent="", note=note)


def test_pages_that_were_asked_for_again_are_counted_by_their_exits() -> None:
    log = [
        visit(1, "/russia/drug/1", "127.8.0.1", "blocked"),
        visit(2, "/russia/drug/1", "127.8.0.2", "blocked"),
        visit(3, "/russia/drug/1", "127.8.0.3"),
        visit(4, "/russia/drug/9", "127.8.0.1", "reset"),
        visit(5, "/russia/drug/9", "127.8.0.1"),
        visit(6, "/russia/drug/2", "127.8.0.1", "blocked"),
    ]
    said = "3 were refused with 403, 1 cut off; asked for again: 2 from another address, 1 from the same one"
    assert _answers(log) == said
