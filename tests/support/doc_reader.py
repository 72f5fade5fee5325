"""A reader who does what a page says: saves its files, runs its commands and its code, in the order of the page.

What a fenced block is for stands behind its opening fence:

    ```python title=books.py     a file to save; works for every language
    ```python                    code to run
    ```console                   commands, one a line, each begins with `$ `; they end well
    ```console exit=130          commands that end with this exit code
    ```sql                       a query to the PostgreSQL at $PG that returns rows
    ```toml                      text to read; it must be valid

A page that names the address of the bundled shop finds the shop there, on a port of its own. The server of a page that
names the address of `shoal serve` has a port of its own, too. What a page has started and not stopped is killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import asyncpg

from shoal.demo.shop import Shop
from tests.support.server import free_port

SHOP = "127.0.0.1:8001"
SERVER = "127.0.0.1:8642"
TIMEOUT_SECONDS = 120
_BLOCK = re.compile(r"^```(\w*)((?: \w+=\S+)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A killed command leaves no state; then the last one holds.
_STATE = 'pwd > "$STATE/cwd"; export -p > "$STATE/env"'


class Block(NamedTuple):
    language: str
    options: Mapping[str, str]
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(language, dict(option.split("=", 1) for option in options.split()), text)
        for language, options, text in _BLOCK.findall(page.read_text())
    ]


@contextmanager
def shop_for(page: Path) -> Iterator[str]:
    """Where the shop of this page really is: nowhere, when the page does not speak of it."""
    if SHOP not in page.read_text():
        yield SHOP
        return
    with Shop().serving() as shop:
        yield shop.url.removeprefix("http://")


class Reader:
    """Somebody with an empty folder, `shoal` on the path and a PostgreSQL at $PG.

    Commands change the folder and export variables for those after them, as in one terminal.
    """

    def __init__(self, folder: Path, postgres_url: str, shop: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PG", "DB_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self._state = folder / "state"
        self._home = folder / "home"
        self._env = {**kept, "PATH": path, "PG": postgres_url, "STATE": str(self._state), "HOME": str(self._home)}
        self._shop = shop
        self._server = SERVER
        self._postgres_url = postgres_url
        self._groups: list[int] = []
        for made in (self._state, self._home):
            made.mkdir()
        # Readers see the answer of a refused request; here it also ends the command with an error.
        (self._home / ".curlrc").write_text("fail-with-body\n")
        (self._state / "cwd").write_text(str(self._home))
        (self._state / "env").write_text("")

    @property
    def here(self) -> Path:
        return Path((self._state / "cwd").read_text().strip())

    def follow(self, page: Path) -> None:
        if SERVER in page.read_text():
            port = free_port()
            self._server = f"127.0.0.1:{port}"
            self._env["SHOAL_SERVE_PORT"] = str(port)
        try:
            self._follow(page)
        finally:
            for group in self._groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    def _follow(self, page: Path) -> None:
        for number, block in enumerate(blocks_of(page)):
            text = block.text.replace(SHOP, self._shop).replace(SERVER, self._server)
            if title := block.options.get("title"):
                self._save(title, text)
            elif block.language == "python":
                self._save(f"block{number}.py", text)
                self._run(f"python block{number}.py", expected=0)
            elif block.language == "console":
                for line in text.splitlines():
                    assert line.startswith("$ "), f"only commands belong into a console block: {line}"
                    self._run(line[2:], expected=int(block.options.get("exit", 0)))
            elif block.language == "sql":
                asyncio.run(self._ask(text))
            elif block.language == "toml":
                tomllib.loads(text)

    def _save(self, name: str, text: str) -> None:
        file = self.here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _run(self, command: str, *, expected: int) -> None:
        script = f'. "$STATE/env"; cd {shlex.quote(str(self.here))}\n{command}\ncode=$?; {_STATE}; exit $code\n'
        process = subprocess.Popen(
            ["sh", "-c", script],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._groups.append(process.pid)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == expected, f"{command}: exit {process.returncode}\n{output}"
        self._move_to_the_shop()

    def _move_to_the_shop(self) -> None:
        """Files that Shoal wrote, such as those of `shoal init`, name the shop's usual address too."""
        if self._shop == SHOP:
            return
        for file in self._home.rglob("*"):
            if file.suffix in {".py", ".toml", ".html", ".txt"} and ".shoal" not in file.parts:
                text = file.read_bytes()
                if SHOP.encode() in text:
                    file.write_bytes(text.replace(SHOP.encode(), self._shop.encode()))

    async def _ask(self, sql: str) -> None:
        connection = await asyncpg.connect(self._postgres_url)
        try:
            assert await connection.fetch(sql), "the query finds nothing"
        finally:
            await connection.close()
