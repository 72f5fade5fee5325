"""Fetches the pages of a newspaper with its headers; its login goes to the newspaper's own hosts only."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping

from shoal.config.settings import BROWSER_AGENT, BROWSER_USER_AGENT
from shoal.define.context import Http
from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.errors import Blocked, Permanent, Transient
from shoal.fetch.page import Page
from shoal.model.url_key import host_or_none
from shoal.recipes.newspapers.settings import HeaderAuth, Newspaper, as_tuple


class NewspaperClient:
    """Fetches pages with the headers and the login of the file."""

    def __init__(self, header: YamlHeader, paper: Newspaper) -> None:
        agent = BROWSER_USER_AGENT if paper.user_agent == BROWSER_AGENT else paper.user_agent
        self._headers = {**({"User-Agent": agent} if agent else {}), **paper.headers}
        self._retry_seconds = paper.retry_seconds
        self._login = _login(header, paper)
        self._hosts = {host_or_none(url) for url in (paper.base_url, *as_tuple(paper.listing.url_template))} - {None}

    async def get(self, http: Http, url: str | None) -> Page:
        """The page. A failed request is repeated after `retry_seconds` at the earliest."""
        if url is None:
            raise Permanent("the item has no URL")
        try:
            return await http.get(url, headers={**self._headers, **self._login_for(url)})
        except (Transient, Blocked) as ended:
            wait = max(ended.retry_after or 0.0, self._retry_seconds)
            raise type(ended)(ended.message, retry_after=wait) from None

    def _login_for(self, url: str) -> Mapping[str, str]:
        return self._login if self._login and host_or_none(url) in self._hosts else {}


def _login(header: YamlHeader, paper: Newspaper) -> dict[str, str]:
    if paper.auth is None:
        return {}
    if isinstance(paper.auth, HeaderAuth):
        return {paper.auth.header: _secret(header, "variable", paper.auth.variable)}
    user = _secret(header, "user_variable", paper.auth.user_variable)
    password = _secret(header, "password_variable", paper.auth.password_variable)
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def _secret(header: YamlHeader, key: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        message = f"auth.{key} is {variable}, but there is no such environment variable, or it is empty."
        raise yaml_error(header, ["auth", key], message, remedy=f"Set it: export {variable}=...")
    if not value.isprintable():
        raise yaml_error(header, ["auth", key], f"the environment variable {variable} cannot be sent as a header.")
    return value
