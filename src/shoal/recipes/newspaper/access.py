"""What goes with the requests: headers, and a login that only the newspaper's own hosts get."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping

from shoal.define.declared import Declared
from shoal.define.http import Http
from shoal.define.typed import wrong
from shoal.errors import Blocked, Permanent, Transient
from shoal.fetch.page import Page
from shoal.model.urlkey import host_or_none
from shoal.recipes.newspaper.settings import HeaderAuth, Newspaper, many


class Access:
    def __init__(self, declared: Declared, paper: Newspaper) -> None:
        self._headers = paper.headers
        self._retry_seconds = paper.retry_seconds
        self._login = _login(declared, paper)
        self._hosts = {host_or_none(url) for url in (paper.base_url, *many(paper.listing.url_template))} - {None}

    async def get(self, http: Http, url: str | None) -> Page:
        """The page; one that fails is not asked for again before the time that the file asks for."""
        if url is None:
            raise Permanent("the item has no URL")
        try:
            return await http.get(url, headers={**self._headers, **self._login_for(url)})
        except (Transient, Blocked) as ended:
            wait = max(ended.retry_after or 0.0, self._retry_seconds)
            raise type(ended)(ended.message, retry_after=wait) from None

    def _login_for(self, url: str) -> Mapping[str, str]:
        return self._login if self._login and host_or_none(url) in self._hosts else {}


def _login(declared: Declared, paper: Newspaper) -> dict[str, str]:
    if paper.auth is None:
        return {}
    if isinstance(paper.auth, HeaderAuth):
        return {paper.auth.header: _secret(declared, "variable", paper.auth.variable)}
    user = _secret(declared, "user_variable", paper.auth.user_variable)
    password = _secret(declared, "password_variable", paper.auth.password_variable)
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def _secret(declared: Declared, key: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        message = f"auth.{key} is {variable}, but there is no such environment variable, or it is empty."
        raise wrong(declared, ["auth", key], message, remedy=f"Set it: export {variable}=...")
    if not value.isprintable():
        raise wrong(declared, ["auth", key], f"the environment variable {variable} cannot be sent as a header.")
    return value
