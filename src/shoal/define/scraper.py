"""A scraper: a name, one or more stages, where to start."""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
import inspect
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, Unpack, get_args, get_type_hints, overload

import msgspec

from shoal.define.author_code import error_summary, is_loading
from shoal.define.context import secret_variable
from shoal.define.hooks import HookEvent, HookRegistry, StageNames
from shoal.define.login import DEFAULT_LOGIN_TIMEOUT, Login, SessionScope, check_logins
from shoal.define.policy import RETRY_OPTIONS, RetryOptions, StagePolicy, strictest
from shoal.define.providers import ProviderRegistry, ProviderScope
from shoal.define.stage import AnyStage, Stage, StageOptions
from shoal.errors import InvalidScraper, ShoalError
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.redaction import MIN_SECRET_LENGTH, hide_everywhere, redacted, secret_texts, without_secret_settings
from shoal.model.run import Run, RunSpec, StageSpec, check_name

if TYPE_CHECKING:
    from shoal.service.run import RunReport

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Seed = str | NewItem
Seeds = Iterable[Seed] | AsyncIterable[Seed]
Source = Seed | Seeds | Callable[[], Seeds] | Callable[[Any], Seeds]
Mode = str | None
# Writes the files of a run below a folder, and returns where and how many records are new. Called with the ledger.
FolderWriter = Callable[[Any, Run, Path], Awaitable[tuple[Path, int]]]
MODES = ("single", "distributed")
_BOOL_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What msgspec says of a value of another type, and what it wants in plain words.
_EXPECTED = re.compile("Expected `(bool|int|float)(?: \\| null)?`, got `")
_MEANT = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_SECRET = "secret of a scraper"
# A text that is never stored in a ledger or printed: `token: Secret = ""` in the class of a scraper's settings.
Secret = Annotated[str, _SECRET]


class Scraper:
    """What an author declares: a name, stages, settings, providers, hooks. `shoal run file.py` finds it in the file.

    `mode`: "single" (one `shoal run` at a time; the default) or "distributed" (shared, on PostgreSQL). `settings`: a
    class (dataclass, pydantic model, Struct) that functions may ask for, filled from `[scrapers.NAME.settings]`. Those
    of the type `Secret`, and those whose names sound like it (`api_key`, `password`), are not stored with a run.
    `robots`: obey robots.txt; left out, the configuration decides (it does by default). `headers` go with every
    request. `cookies`: keep them, per lane. `views`: a folder with `postgres.sql` and `sqlite.sql`, the views that its
    runs create in the ledger's database; a relative path is meant from the scraper's file. `start_remedy`: what to do
    when a new run has no items to start with; without it, a run whose sources give none has nothing to do. `one_run`:
    its last run is continued though it has ended, unless a fresh one is asked for. `retries`, `backoff_factor`,
    `backoff_cap`, `backoff_jitter`: of its stages that do not say otherwise.
    """

    def __init__(  # noqa: PLR0913 - a declaration, all by keyword
        self,
        name: str,
        *,
        mode: Mode = None,
        settings: type | None = None,
        robots: bool | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: bool = True,
        views: str | Path | None = None,
        start_remedy: str = "",
        one_run: bool = False,
        **retry_options: Unpack[RetryOptions],
    ) -> None:
        check_name("scraper", name)
        if mode is not None and mode not in MODES:
            raise InvalidScraper(f"mode is {mode!r}; it must be one of {', '.join(MODES)}.")
        self.name = name
        self.mode = mode
        self.robots = robots
        self.headers = dict(headers or {})
        self.cookies = cookies
        self._views = None if views is None else Path(views)
        self.start_remedy = start_remedy
        self.one_run = one_run
        _check_known(retry_options, RETRY_OPTIONS, "A scraper has no argument")
        self.retry_options: RetryOptions = retry_options
        StagePolicy().replace(**retry_options)  # refuses invalid values here
        self.settings_type = settings
        self.providers = ProviderRegistry(name, settings)
        self.hooks = HookRegistry(name, self.providers)
        self.settings: Any = None
        self.stages: dict[str, AnyStage] = {}
        self.logins: list[Login] = []
        self.preflight_hooks: list[Callable[..., Any]] = []
        self.start_hooks: list[Callable[..., Any]] = []
        self.finish_hooks: list[Callable[..., Any]] = []
        # Set for a scraper that a file declares: the settings in that file, and files to include in `code_version`.
        self.file_settings: Mapping[str, Any] = {}
        self.files: list[Path] = []
        # What the operator asked of this run: only days of this period, what earlier runs have too, where files go.
        self.since: dt.date | None = None
        self.until: dt.date | None = None
        self.from_scratch = False
        self.output_folder = ""
        self.write_folder: FolderWriter | None = None
        self._sources: list[Source] = []
        self._configured: Mapping[str, Any] = {}
        self._secrets: tuple[str, ...] | None = None
        self._revealed: dict[str, str] = {}
        self.find_secret: Callable[[str], str] = secret_variable

    def __repr__(self) -> str:
        return f"<scraper {self.name}>"

    def rename(self, name: str) -> None:
        """Run under another name: the same code for another list, or as a member of a collection."""
        check_name("scraper", name)
        self.name = name

    @overload
    def stage(self, function: Callable[P, T], /) -> Stage[P, T]: ...

    @overload
    def stage(self, /, **options: Unpack[StageOptions]) -> Callable[[Callable[P, T]], Stage[P, T]]: ...

    def stage(
        self, function: Callable[P, T] | None = None, /, **options: Unpack[StageOptions]
    ) -> Stage[P, T] | Callable[[Callable[P, T]], Stage[P, T]]:
        """Make a function a stage of this scraper, with `StageOptions`. Plain URLs go to the first stage."""
        _check_known(options, StageOptions.__annotations__, "A stage has no option")

        def decorate(function: Callable[P, T]) -> Stage[P, T]:
            stage = Stage(self, function, options)
            self.add_stage(stage)
            return stage

        return decorate if function is None else decorate(function)

    def add_stage(self, stage: AnyStage) -> None:
        check_name("stage", stage.name)
        if stage.name in self.stages:
            raise InvalidScraper(f"The scraper {self.name} has two stages named {stage.name!r}: give one a name=.")
        self.stages[stage.name] = stage

    @overload
    def provide(self, function: F, /) -> F: ...

    @overload
    def provide(self, /, *, scope: ProviderScope = "worker") -> Callable[[F], F]: ...

    def provide(self, function: F | None = None, /, *, scope: ProviderScope = "worker") -> F | Callable[[F], F]:
        """Make a function the provider of the type that it returns or yields: other functions ask for it by that type.

        What comes after its `yield` is the tear-down. `scope="worker"`: set up once, when it is first asked for, and
        torn down when the worker leaves. `scope="attempt"`: for each attempt. It may ask for other values by type.
        """

        def decorate(function: F) -> F:
            self.providers.add(function, scope)
            return function

        return decorate if function is None else decorate(function)

    def start(self, *sources: Source) -> None:
        """Add what a run starts with: items, URLs, iterables of them, or functions that return them.

        A function with a parameter gets the scraper's settings.
        Sources are read again when a run is resumed before all of them were stored; duplicates are dropped.
        """
        self._sources.extend(sources)

    @overload
    def before_request(self, function: F, /) -> F: ...

    @overload
    def before_request(self, /, *, stages: StageNames) -> Callable[[F], F]: ...

    def before_request(self, function: F | None = None, /, *, stages: StageNames | None = None) -> F | Callable[[F], F]:
        """Call a function before each request of an item: its page's, and those of its handler's Http.

        It asks for the `Request`, and returns a changed one, or None to leave it. `stages` restricts it to some stages.
        Hooks are called in the order of their declaration; `def` in a thread, `async def` in the event loop.
        """
        return self._hook(HookEvent.REQUEST, function, stages)

    @overload
    def after_response(self, function: F, /) -> F: ...

    @overload
    def after_response(self, /, *, stages: StageNames) -> Callable[[F], F]: ...

    def after_response(self, function: F | None = None, /, *, stages: StageNames | None = None) -> F | Callable[[F], F]:
        """Call a function after each response, before its status is judged.

        It asks for the `Page`, and returns another one, or None to leave it; it may raise what ends an attempt.
        """
        return self._hook(HookEvent.RESPONSE, function, stages)

    @overload
    def on_record(self, function: F, /) -> F: ...

    @overload
    def on_record(self, /, *, stages: StageNames) -> Callable[[F], F]: ...

    def on_record(self, function: F | None = None, /, *, stages: StageNames | None = None) -> F | Callable[[F], F]:
        """Call a function with each record, its first parameter, before it is stored.

        The annotation of that parameter names the type of the records it is called for. It returns another record, or
        None to keep this one; `raise Dropped("why")` leaves the record out.
        """
        return self._hook(HookEvent.RECORD, function, stages)

    def _hook(self, event: HookEvent, function: F | None, stages: StageNames | None) -> F | Callable[[F], F]:
        def decorate(function: F) -> F:
            self.hooks.add(event, function, stages)
            return function

        return decorate if function is None else decorate(function)

    @overload
    def login(self, function: F, /) -> F: ...

    @overload
    def login(
        self,
        /,
        *,
        stages: StageNames | None = None,
        max_age: float | None = None,
        sessions: SessionScope = "worker",
        timeout: float = DEFAULT_LOGIN_TIMEOUT,
    ) -> Callable[[F], F]: ...

    def login(
        self,
        function: F | None = None,
        /,
        *,
        stages: StageNames | None = None,
        max_age: float | None = None,
        sessions: SessionScope = "worker",
        timeout: float = DEFAULT_LOGIN_TIMEOUT,
    ) -> F | Callable[[F], F]:
        """Call a function before the first request of each identity, and again when its session has ended.

        It asks for `Http` or `Tab`, `Log`, the settings and values of the worker. The cookies that it gets belong to
        the identity; it may return headers to send, such as a token. `stages` restricts it to some stages. `max_age`:
        a session of so many seconds is not used any more. `sessions="shared"`: all workers use one session, for a site
        that allows one at a time. `timeout`: seconds for one login.
        """

        def decorate(function: F) -> F:
            login = Login(self.providers, function, stages=stages, max_age=max_age, sessions=sessions, timeout=timeout)
            self.logins.append(login)
            return function

        return decorate if function is None else decorate(function)

    def preflight(self, function: F) -> F:
        """Call a function among the checks of `shoal pool`, before anything is changed or started.

        It may ask for the settings, `Log` and values of the worker. The text that it returns is shown;
        `raise CheckFailed("what", remedy="...")`, or any other error, starts nothing.
        """
        self.preflight_hooks.append(function)
        return function

    def on_start(self, function: F) -> F:
        """Call a function once when a run begins or is resumed, before its items are stored."""
        self.start_hooks.append(function)
        return function

    def on_finish(self, function: F) -> F:
        """Call a function once when a run has finished, in one of its processes."""
        self.finish_hooks.append(function)
        return function

    def run(  # noqa: PLR0913 - all by keyword
        self,
        *,
        fresh: bool = False,
        resume: bool = False,
        urls: str | Path | Iterable[Seed] | AsyncIterable[Seed] | None = None,
        stage: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        output: str | Path | None = None,
        idempotency_key: str | None = None,
        quiet: bool = False,
        **settings: Any,
    ) -> RunReport:
        """Run to the end in this process, and return what became of it: `shoal run` as a function call.

        It blocks, also inside a running event loop (a notebook). An unfinished run is resumed; `fresh` starts a new
        one, `resume` resumes the last one though it has ended. `urls`: the path of a file, or URLs and items; `stage`:
        which stage they are for. `limit`: stop after so many items; `timeout`: after so many seconds. `output`: export
        the records to this file. `idempotency_key`: one run for this key, however often it is called. `settings`: by
        the names of the configuration (`ledger=`, `concurrency=`, `log_level=` ...); they overrule all other sources.
        Progress is shown on stderr unless `quiet`. Ctrl-C drains, then KeyboardInterrupt is raised.
        """
        if is_loading():
            raise InvalidScraper(
                f"{self.name}.run() was called while its file is imported.",
                remedy='Put the call below `if __name__ == "__main__":`.',
            )
        from shoal.service.run import run_from_code

        return run_from_code(
            self,
            fresh=fresh,
            resume=resume,
            urls=urls,
            stage=stage,
            limit=limit,
            timeout=timeout,
            output=output,
            idempotency_key=idempotency_key,
            quiet=quiet,
            settings=settings,
        )

    def obeys_robots(self, configured: bool) -> bool:
        """Whether robots.txt is obeyed: as set in the code, else as configured."""
        return configured if self.robots is None else self.robots

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    @property
    def first_stage(self) -> AnyStage:
        return next(iter(self.stages.values()))

    async def seeds(self) -> AsyncIterator[NewItem]:
        """The items that `start` was given, one by one. URLs become items of the first stage."""
        for source in self._sources:
            try:
                async for seed in _iter_source(source, self.settings):
                    if not isinstance(seed, str | NewItem):
                        raise InvalidScraper(f"{self.name}.start() takes items and URLs, not {seed!r:.80}.")
                    yield self.first_stage.item(seed) if isinstance(seed, str) else seed
            except ShoalError:
                raise
            except Exception as error:
                raise InvalidScraper(f"A source of {self.name}.start() failed: {error_summary(error)}.") from error

    def configure(
        self,
        *,
        settings: Mapping[str, Any],
        stages: Mapping[str, Mapping[str, Any]],
        retry_defaults: Mapping[str, Any] | None = None,
        retry_table: Mapping[str, Any] | None = None,
        retry_overrides: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Apply the configuration: the author's settings, and changes to stages.

        `variables`: where the author's settings come from that variables give, for errors.

        `retry_*` give some of `RETRY_OPTIONS`: for all scrapers, in this one's table, and for this one call.
        """
        unknown = set(stages) - set(self.stages)
        if unknown:
            raise InvalidScraper(
                f"The configuration names the stage {min(unknown)!r}, but {self.name} has {', '.join(self.stages)}.",
                remedy=f"Correct [scrapers.{self.name}.stages].",
            )
        for name, stage in self.stages.items():
            stage.policy = stage.policy.with_config(
                defaults=retry_defaults or {},
                table=retry_table or {},
                stage=stages.get(name, {}),
                overrides=retry_overrides or {},
            )
        if settings or self.settings_type is not None:
            self.settings = _convert_settings(
                self.name, self.settings_type, {**self.file_settings, **settings}, variables or {}
            )
        self._configured = {**self.file_settings, **settings}
        self._secrets = None

    def reveal_secret(self, name: str) -> str:
        """The value of a secret that a request needs. It is one of `secrets` from now on. Raises SecretMissing."""
        value = self._revealed.get(name)
        if value is None:
            value = self._revealed[name] = self.find_secret(name)
            hide_everywhere(value)
            self._secrets = None
        return value

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not be printed or stored: secret settings, values of secret headers, secrets of requests."""
        if self._secrets is None:
            fields = _secret_fields(self.settings_type)
            given = {**self._configured, **_settings_values(self.settings)}
            headers = [self.headers, *(stage.headers for stage in self.stages.values())]
            # Without `Bearer` and the like before a token.
            carried = [value.split()[-1] for each in headers for value in secret_texts(each)]
            carried += self._revealed.values()
            long = (text for text in carried if len(text) >= MIN_SECRET_LENGTH)
            self._secrets = tuple(dict.fromkeys((*secret_texts(given, fields), *long)))
        return self._secrets

    @property
    def settings_text(self) -> str:
        """The author's settings with their secrets, to compare them; never to be shown."""
        return repr(sorted(_settings_values(self.settings).items()))

    def check(self) -> Scraper:
        """Raises InvalidScraper for a declaration that cannot work, before anything starts."""
        if not self.stages:
            raise InvalidScraper(
                f"The scraper {self.name} has no stages.", remedy=f"Decorate a function with @{self.name}.stage."
            )
        self.providers.check()
        for stage in self.stages.values():
            stage.check()
        self.hooks.check(self.stages)
        check_logins(self.logins, self.stages)
        for hook in (*self.start_hooks, *self.finish_hooks):
            self.providers.hook_signature(hook)
        for function in self.preflight_hooks:
            self.providers.preflight_signature(function)
        return self

    @property
    def views_folder(self) -> Path | None:
        """The folder of its views, if it declares any."""
        if self._views is None or self._views.is_absolute():
            return self._views
        return Path(inspect.unwrap(self.first_stage.function).__code__.co_filename).parent / self._views

    @property
    def host_lane(self) -> LanePolicy:
        """The policy of hosts' lanes, which all stages share whose lane is the host."""
        return strictest([stage.policy for stage in self.stages.values() if stage.by_host] or [StagePolicy()])

    def run_spec(self, *, in_lanes: bool = True) -> RunSpec:
        """The spec of a run of this scraper. Stages whose lane is the host share the strictest of their policies."""
        shared = self.host_lane
        return RunSpec(
            scraper=self.name,
            stages=tuple(
                StageSpec(
                    stage.name,
                    max_attempts=stage.policy.retries + 1,
                    lane=shared if stage.by_host or not in_lanes else stage.policy.lane(),
                )
                for stage in self.stages.values()
            ),
            settings=without_secret_settings(self._configured, _secret_fields(self.settings_type)),
            code_version=self.code_version,
        )

    @property
    def extent(self) -> dict[str, Any]:
        """What the operator asked of this run, as settings: the period, and whether to begin from scratch. Empty: no
        period, and only what is new.
        """
        days = {"since": self.since, "until": self.until}
        named: dict[str, Any] = {name: day.isoformat() for name, day in days.items() if day is not None}
        return named | ({"from_scratch": True} if self.from_scratch else {})

    @extent.setter
    def extent(self, extent: Mapping[str, Any]) -> None:
        days = {name: dt.date.fromisoformat(extent[name]) for name in ("since", "until") if name in extent}
        self.since, self.until = days.get("since"), days.get("until")
        self.from_scratch = bool(extent.get("from_scratch"))

    @property
    def code_version(self) -> str | None:
        """A fingerprint of the files of its functions, which differs for workers with different code."""
        functions = [
            *(inspect.unwrap(stage.function) for stage in self.stages.values()),
            *(stage.error_function for stage in self.stages.values() if stage.error_function is not None),
            *map(inspect.unwrap, self.providers.functions),
            *map(inspect.unwrap, self.hooks.functions),
            *(inspect.unwrap(login.function) for login in self.logins),
        ]
        files = {function.__code__.co_filename for function in functions if _has_code(function)}
        files |= {str(file) for file in self.files}
        digest = hashlib.sha256()
        try:
            # By content, because paths differ between machines.
            for content in sorted(Path(file).read_bytes() for file in files):
                digest.update(content)
        except OSError:
            return None
        return digest.hexdigest()[:12] if files else None


def _check_known(given: Iterable[str], known: Collection[str], message: str) -> None:
    if unknown := set(given) - set(known):
        close = difflib.get_close_matches(min(unknown), known, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidScraper(f"{message} {min(unknown)!r}.{hint}")


def _has_code(function: Callable[..., Any]) -> bool:
    return hasattr(function, "__code__")


async def _iter_source(source: Source, settings: Any) -> AsyncIterator[Seed]:
    made: Any = source
    if callable(source):
        function: Any = source
        takes_settings = any(each.default is each.empty for each in inspect.signature(source).parameters.values())
        made = function(settings) if takes_settings else function()
    if isinstance(made, str | NewItem):
        yield made
    elif isinstance(made, AsyncIterable):
        async for seed in made:
            yield seed
    elif isinstance(made, Iterable):
        for seed in made:
            yield seed
    else:
        if inspect.iscoroutine(made):
            made.close()
        raise InvalidScraper(f"start() takes items, URLs, iterables and generator functions, not {source!r}.")


def _secret_fields(kind: type | None) -> set[str]:
    """The names of fields with the type `Secret` or pydantic's SecretStr."""
    if kind is None:
        return set()
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # a name under TYPE_CHECKING
        return set()
    return {name for name, hint in hints.items() if _is_secret(hint)}


def _is_secret(hint: Any) -> bool:
    if getattr(hint, "get_secret_value", None) is not None or _SECRET in getattr(hint, "__metadata__", ()):
        return True
    return any(_is_secret(inner) for inner in get_args(hint))


def _settings_values(settings: Any) -> dict[str, Any]:
    """The fields of the author's settings, defaults included."""
    if settings is None:
        return {}
    names = getattr(settings, "__struct_fields__", None) or getattr(type(settings), "__annotations__", {})
    return {name: _reveal_secret(getattr(settings, name, None)) for name in names}


def _reveal_secret(value: Any) -> Any:
    """pydantic's SecretStr hides its text."""
    reveal = getattr(value, "get_secret_value", None)
    return value if reveal is None else reveal()


def _convert_settings(scraper: str, kind: type | None, given: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
    if kind is None:
        if given:
            raise InvalidScraper(
                f"[scrapers.{scraper}.settings] is given, but the scraper declares no settings.",
                remedy=f"Write Scraper({scraper!r}, settings=YourClass), or remove the table.",
            )
        return None
    try:
        if (validate := getattr(kind, "model_validate", None)) is not None:
            return validate(dict(given))
        # Not strict: what comes from a variable is a text, also where a number is meant.
        return msgspec.convert(_with_bools(kind, given), kind, strict=False)
    except (ValueError, TypeError) as problem:
        raise InvalidScraper(
            f"The settings of {scraper} are invalid: {_validation_message(problem, kind, given)}.",
            remedy=f"Correct {variables.get(_wrong_setting(problem, kind), f'[scrapers.{scraper}.settings]')}.",
        ) from None


def _with_bools(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values with texts such as `yes` as bools where these are meant, as in Shoal's own settings."""
    try:
        hints = get_type_hints(kind)
    except Exception:  # a name under TYPE_CHECKING
        return dict(given)
    return {
        name: _BOOL_WORDS.get(value.strip().lower(), value)
        if isinstance(value, str) and hints.get(name) in (bool, bool | None)
        else value
        for name, value in given.items()
    }


def _validation_message(problem: Exception, kind: type, given: Mapping[str, Any]) -> str:
    """The error without the values, which may be secrets; for a plain field of the wrong type what is allowed, and what
    it is unless it is a secret.
    """
    if (errors := getattr(problem, "errors", None)) is not None:
        found = errors(include_input=False, include_url=False)
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
    what, _, path = " ".join(str(problem).split()).partition(" - at ")
    name = path.strip("`").removeprefix("$.")
    if (meant := _EXPECTED.match(what)) is not None:
        is_shown = name in given and name not in _secret_fields(kind)
        what = f"it is {redacted(repr(given[name]))}, and must be " if is_shown else "it must be "
        what += _MEANT[meant[1]]
    return f"{name}: {what}" if name else what


def _wrong_setting(problem: Exception, kind: type) -> str:
    """The name of the first setting that is wrong; empty when the error names none."""
    return re.split(r"[.:\[]", _validation_message(problem, kind, {}), maxsplit=1)[0]
