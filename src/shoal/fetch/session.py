"""A session at a site as it is kept: its cookies, the storage of a browser, and headers that its login returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from shoal.model.redaction import hide_everywhere

if TYPE_CHECKING:
    from shoal.fetch.page import Identity
    from shoal.fetch.redirects import CookieJars

_FORMAT = 1


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """A cookie, in the form that browsers export.

    `domain`: with a dot in front for a cookie that subdomains get too. `expires`: seconds since 1970; -1 for a cookie
    that ends with the session.
    """

    name: str
    value: str
    domain: str
    path: str = "/"
    expires: float = -1
    secure: bool = False
    httpOnly: bool = False
    sameSite: str = "Lax"

    def __repr__(self) -> str:
        return f"Cookie({self.name} of {self.domain})"


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """What makes an identity known to a site. `origins`: the storage of a browser by origin. `at`: when it began, in
    seconds since 1970. Its values are secrets.

    `secrets`: the names of those that its login sent; `account`: a fingerprint of what it logged in with.
    """

    shoal_session: int = _FORMAT
    at: float = 0.0
    cookies: tuple[Cookie, ...] = ()
    headers: dict[str, str] = {}
    origins: list[dict[str, Any]] = []
    secrets: tuple[str, ...] = ()
    account: str = ""

    def __repr__(self) -> str:
        return f"SessionState({len(self.cookies)} cookies)"

    def encode(self) -> bytes:
        return _encode(self)

    def hide_headers(self) -> None:
        """Redact the values of its headers wherever this process writes text: they are keys of the site."""
        for value in self.headers.values():
            hide_everywhere(value.split()[-1] if value.split() else "")


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(SessionState)


def decode_session(content: bytes) -> SessionState | None:
    """The session; None for what is none, or has the format of another version."""
    try:
        state = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return state if state.shoal_session == _FORMAT else None


@runtime_checkable
class KeepsCookies(Protocol):
    """A fetcher whose cookie jars can be read and filled."""

    @property
    def jars(self) -> CookieJars | None: ...


class KeepsStorage(Protocol):
    """A browser whose profiles can be read and filled: cookies and storage, in the form of Playwright."""

    def profile_of(self, jar: str, identity: Identity | None) -> str:
        """The name of the profile that the tabs of a jar and an identity have."""

    async def storage_state(self, profile: str) -> Any:
        """None for a profile that there is not."""

    async def set_storage_state(self, profile: str, state: Any) -> None: ...


class BrowserProfile(NamedTuple):
    """A profile of a browser. `jars`: the cookie jars that it shares its cookies with."""

    browser: KeepsStorage
    name: str
    jars: CookieJars | None

    async def origins(self) -> list[dict[str, Any]]:
        """Its storage, by origin."""
        state = await self.browser.storage_state(self.name)
        return [] if state is None else list(state.get("origins", ()))

    async def load(self, state: SessionState) -> None:
        cookies = [msgspec.to_builtins(cookie) for cookie in state.cookies]
        await self.browser.set_storage_state(self.name, {"cookies": cookies, "origins": state.origins})


def jars_of(fetcher: object) -> CookieJars | None:
    """The cookie jars of a fetcher; None for one without."""
    return fetcher.jars if isinstance(fetcher, KeepsCookies) else None
