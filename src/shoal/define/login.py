"""A login: an author's function that makes an identity known to a site, before its requests are sent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from shoal.define.hooks import StageNames, stage_names
from shoal.define.policy import MAX_TIMEOUT_SECONDS, is_number
from shoal.define.providers import FunctionKind, ProviderRegistry, Signature, function_location
from shoal.errors import InvalidScraper
from shoal.model.run import check_name

if TYPE_CHECKING:
    from shoal.define.stage import AnyStage

# Whose a session is: each worker has its own, or all workers share one.
SessionScope = Literal["worker", "shared"]
DEFAULT_LOGIN_TIMEOUT = 60.0


class Login:
    """A function that logs an identity in, for some stages; None: for all.

    `max_age`: seconds after which a session is not used any more. `timeout`: seconds that it may take. `sessions`: see
    `SessionScope`.
    """

    def __init__(
        self,
        providers: ProviderRegistry,
        function: Callable[..., Any],
        *,
        stages: StageNames | None = None,
        max_age: float | None = None,
        sessions: SessionScope = "worker",
        timeout: float = DEFAULT_LOGIN_TIMEOUT,
    ) -> None:
        self._providers = providers
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        check_name("login", self.name)
        self.stages = stage_names(f"the login {self.where}", stages)
        if sessions not in get_args(SessionScope):
            raise InvalidScraper(f"sessions of {self.where} is {sessions!r}; it must be one of worker, shared.")
        if max_age is not None and not (is_number(max_age) and max_age > 0):
            raise InvalidScraper(f"max_age of {self.where} is {max_age!r}; it must be a number of seconds above 0.")
        if not (is_number(timeout) and 0 < timeout <= MAX_TIMEOUT_SECONDS):
            raise InvalidScraper(f"timeout of {self.where} is {timeout!r}; it must be seconds from 0 to 86400.")
        self.max_age = max_age
        self.shared = sessions == "shared"
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"<login {self.where}>"

    @property
    def where(self) -> str:
        """How messages name it."""
        return function_location(self.function)

    @functools.cached_property
    def source(self) -> str:
        """Its code; empty where there is none to read."""
        try:
            return inspect.getsource(self.function)
        except (OSError, TypeError):
            return ""

    @functools.cached_property
    def signature(self) -> Signature:
        return self._providers.login_signature(self.function)

    @property
    def uses_browser(self) -> bool:
        """Whether it asks for a Tab."""
        return any(provider.name == "Tab" for _, provider in self.signature.parameters)

    def is_for(self, stage: str) -> bool:
        return self.stages is None or stage in self.stages

    def check(self, stages: Mapping[str, AnyStage]) -> None:
        """Raises InvalidScraper for a declaration that cannot work."""
        if self.signature.kind is FunctionKind.ASYNC_GENERATOR:
            raise InvalidScraper(f"The login {self.where} yields; it must return nothing, or the headers to send.")
        if unknown := set(self.stages or ()) - set(stages):
            raise InvalidScraper(f"The login {self.where} is for the stage {min(unknown)!r}, which is no stage.")


def check_logins(logins: list[Login], stages: Mapping[str, AnyStage]) -> None:
    """Raises InvalidScraper for logins that cannot work, or not together."""
    for login in logins:
        login.check(stages)
    for stage in stages:
        found = [login for login in logins if login.is_for(stage)]
        if len(found) > 1:
            raise InvalidScraper(
                f"The stage {stage} has two logins, {found[0].where} and {found[1].where}.",
                remedy="Name the stages of each: @scraper.login(stages=[...]).",
            )
    names = [login.name for login in logins]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidScraper(f"Two logins are named {min(twice)!r}; rename one of the functions.")
