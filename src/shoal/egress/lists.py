"""Lists of proxies: how a line is read, and where lists come from: a file, environment variables, or a URL."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.config.egress import EgressConfig
from shoal.errors import ShoalError
from shoal.model.egress import Exit, ProxyAddress, ProxyScheme, exit_key
from shoal.model.redaction import hide_everywhere

MAX_LIST_BYTES = 32 * 1024 * 1024
_FETCH_SECONDS = 30.0
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_SCHEMES: tuple[str, ...] = get_args(ProxyScheme)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,198}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMMENT = re.compile(r"(^|\s)#.*")
# How long a file must be unchanged before it is read again: somebody may still be writing it.
_SETTLE_SECONDS = 1.0
# Not user:password@host:port, which is redacted wherever texts are shown.
FORMATS = "host:port, host:port:user:password, or a URL (http, https, socks5, socks5h)"


class ListFailed(ShoalError):
    """A list of proxies cannot be read. `may_recover`: trying again may help."""

    remedy = f"Give one proxy per line: {FORMATS}."
    exit_code = 2

    def __init__(self, message: str, *, remedy: str | None = None, may_recover: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.may_recover = may_recover


class BadProxyLine(msgspec.Struct, frozen=True):
    """A line of a list that is no proxy, and why, without what it says."""

    line: int
    why: str


class ProxyList(msgspec.Struct, frozen=True):
    exits: tuple[Exit, ...]
    bad: tuple[BadProxyLine, ...] = ()


class _NoProxy(ValueError):
    """Why a line is no proxy; never with parts of the line that may be secret."""


def parse_list(pool: str, text: str) -> ProxyList:
    """The proxies of a list, each once, in its order. Passwords are redacted from now on wherever texts are shown."""
    found: dict[ProxyAddress, None] = {}
    bad = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        entry = _COMMENT.sub("", line).strip()
        if entry:
            try:
                found[parse_proxy(entry)] = None
            except _NoProxy as error:
                bad.append(BadProxyLine(number, str(error)))
    hide_everywhere(*{proxy.password or proxy.username for proxy in found})
    return ProxyList(tuple(_exits(pool, found)), tuple(bad))


def parse_proxy(text: str) -> ProxyAddress:
    """One proxy. Raises ValueError, with a message that has no secret."""
    scheme, separator, rest = text.partition("://")
    is_url = bool(separator)
    if is_url:
        scheme = scheme.lower()
        if scheme not in _SCHEMES:
            shown = scheme if scheme in ("socks", "socks4", "socks4a", "ftp") else "that"
            raise _NoProxy(f"{shown} is no kind of proxy; use one of {', '.join(_SCHEMES)}")
        rest = rest.removesuffix("/")
    else:
        scheme, rest = "http", text
    login, at, address = rest.rpartition("@")
    host, port, behind = _host_and_port(address, scheme if is_url else "")
    if at:
        if behind:
            raise _NoProxy("it has a login twice")
        user, _, password = login.partition(":")
        if is_url:
            user, password = unquote(user), unquote(password)
    else:
        user, _, password = behind.partition(":")
    _check_login(scheme, user, password)
    return ProxyAddress(_scheme(scheme), host, port, user, password)


def _scheme(text: str) -> ProxyScheme:
    schemes: dict[str, ProxyScheme] = {each: each for each in get_args(ProxyScheme)}
    return schemes[text]


def _host_and_port(text: str, scheme: str) -> tuple[str, int, str]:
    """Host, port, and what is behind them: `user:password`. A URL may leave the port out."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise _NoProxy("what is in brackets is no IPv6 address") from None
        if not bracket or (rest and not rest.startswith(":")):
            raise _NoProxy("it has no port")
        rest = rest[1:]
    else:
        host, _, rest = text.partition(":")
        if ("::" in text or text.count(":") == 7) and _is_ipv6(text):
            raise _NoProxy("an IPv6 address must be in brackets, [::1]:8080")
        if _HOST.fullmatch(host) is None:
            raise _NoProxy("it does not begin with a host name or an address")
    port, colon, behind = rest.partition(":")
    if not port and scheme and not colon:
        return host.lower(), _DEFAULT_PORTS[scheme], ""
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65_535:
        raise _NoProxy("behind the host there is no port from 1 to 65535")
    if scheme and behind:
        raise _NoProxy("the login of a URL is written before the host")
    return host.lower(), int(port), behind


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_login(scheme: str, user: str, password: str) -> None:
    if _CONTROL.search(user + password) is not None:
        raise _NoProxy("its login has a control character")
    if password and not user:
        raise _NoProxy("it has a password and no user name")
    if scheme.startswith("socks"):
        if max(len(user.encode()), len(password.encode())) > 255:
            raise _NoProxy("SOCKS allows at most 255 bytes of user name and password")
    elif ":" in user:
        raise _NoProxy("a user name with a colon cannot be sent to an HTTP proxy")


def _exits(pool: str, proxies: Iterable[ProxyAddress]) -> Iterator[Exit]:
    proxies = list(proxies)
    addresses = Counter(proxy.address for proxy in proxies)
    same: Counter[tuple[str, ...]] = Counter()
    for proxy in proxies:
        parts = (proxy.scheme, proxy.host, str(proxy.port), proxy.username)
        same[parts] += 1
        # Providers put sessions into the password too. It must not be part of a fingerprint, so its number is.
        key = exit_key(*parts) if same[parts] == 1 else exit_key(*parts, str(same[parts]))
        label = proxy.address if addresses[proxy.address] == 1 else f"{proxy.address} {key[:4]}"
        yield Exit(pool=pool, key=key, label=label, proxy=proxy)


class ListSource:
    """Where the list of a pool comes from. `where` names it without secrets."""

    def __init__(self, config: EgressConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._now = now
        self._read_at: float | None = None
        self._file_state: tuple[int, int, int] | None = None
        self._seen_state: tuple[int, int, int] | None = None
        if config.url is not None:
            parts = urlsplit(config.url)
            self.where = f"{parts.scheme}://{parts.hostname}/..."
        else:
            self.where = config.file or ", ".join(config.env)

    async def read(self) -> ProxyList:
        """The list as it is now. Raises ListFailed."""
        config = self._config
        self._read_at = self._now()
        if config.file is not None:
            text = await asyncio.to_thread(self._read_file, Path(config.file))
        elif config.url is not None:
            text = await self._read_url(config.url)
        else:
            if config.missing and not config.given:
                raise ListFailed(
                    f"egress.{config.name}: the environment variable {config.missing[0]} is not set.",
                    remedy=f"Set it, here or in .env, to one proxy per line: {FORMATS}.",
                )
            text = "\n".join(re.sub(r"[\s,]+", "\n", value.strip()) for value in config.given.values())
        found = await asyncio.to_thread(parse_list, config.name, text)
        if not found.exits:
            why = f" Line {found.bad[0].line}: {found.bad[0].why}." if found.bad else ""
            raise ListFailed(f"egress.{config.name}: {self.where} has no usable proxy.{why}", may_recover=True)
        return found

    async def is_due(self) -> bool:
        """Whether the list should be read again: the file changed, or `refresh` has passed for a URL."""
        if self._config.file is not None:
            return await asyncio.to_thread(self._file_changed, Path(self._config.file))
        return (
            self._config.url is not None
            and self._read_at is not None
            and self._now() - self._read_at >= self._config.refresh
        )

    def _file_changed(self, path: Path) -> bool:
        try:
            state = _state_of(path)
        except OSError:
            state = (0, 0, 0)
        if state == self._file_state:
            return False
        # It is read when it was the same twice, or is old enough.
        settled = state == self._seen_state or time.time() - state[0] / 1e9 > _SETTLE_SECONDS
        self._seen_state = state
        return settled

    def _read_file(self, path: Path) -> str:
        try:
            self._file_state = _state_of(path)
            with path.open("rb") as file:
                data = file.read(MAX_LIST_BYTES + 1)
        except OSError as error:
            self._file_state = (0, 0, 0)
            raise ListFailed(
                f"egress.{self._config.name}: {path} cannot be read: {error.strerror or error}.",
                remedy=f"Create it with one proxy per line, or correct file in [egress.{self._config.name}].",
            ) from None
        return self._decoded(data)

    async def _read_url(self, url: str) -> str:
        import aiohttp  # only pools with a URL need it this early

        name = self._config.name
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_FETCH_SECONDS), trust_env=True) as session,
                session.get(url, max_redirects=5) as response,
            ):
                if response.status != 200:
                    raise ListFailed(
                        f"egress.{name}: {self.where} answered {response.status} instead of a list of proxies.",
                        remedy=f"Check url in [egress.{name}]: it must be the download link of the list.",
                        may_recover=response.status >= 500 or response.status in (408, 429),
                    )
                data = bytearray()
                async for piece in response.content.iter_chunked(65_536):
                    data += piece
                    if len(data) > MAX_LIST_BYTES:
                        break
        except aiohttp.InvalidURL:
            raise ListFailed(f"egress.{name}: url is no URL.", remedy="Give an http or https URL.") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Its text may contain the URL, and that a secret.
            raise ListFailed(
                f"egress.{name}: {self.where} could not be fetched: {type(error).__name__}.",
                remedy="Check the network; it is tried again.",
                may_recover=True,
            ) from None
        return self._decoded(bytes(data))

    def _decoded(self, data: bytes) -> str:
        if len(data) > MAX_LIST_BYTES:
            raise ListFailed(f"egress.{self._config.name}: {self.where} is larger than {MAX_LIST_BYTES >> 20} MB.")
        return data.decode("utf-8", errors="replace")


def others_can_read(config: EgressConfig) -> str | None:
    """A warning if other users of this machine can read a pool's file, with the remedy."""
    if config.file is None or os.name != "posix":
        return None
    try:
        mode = Path(config.file).stat().st_mode
    except OSError:
        return None
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    who = "every user" if mode & stat.S_IROTH else "its group"
    return f"{config.file} of egress.{config.name} has passwords and can be read by {who}: chmod 600 {config.file}"


def _state_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
