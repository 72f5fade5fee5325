"""Pools of tokens against an API with limits: which token a request has, what its answer means, and who waits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.config import Settings
from shoal.config.egress import EgressConfig
from shoal.egress.tokens import TokenIdentity, TokenPool
from shoal.errors import EgressUnavailable, InvalidSetting
from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Page, Request
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.egress import BudgetKey, BudgetPolicy, BudgetView, ExitState, GrantRequest, GrantUse, exit_key
from shoal.model.redaction import redacted
from shoal.model.url_key import host_or_none
from shoal.model.worker import WorkerSpec
from shoal.observe.logs import open_logs
from shoal.wiring import open_ledger
from shoal.worker.egress import IdentityFetcher
from tests.support.token_api import TokenApi

LOG = open_logs(format="console", level="error", file=None, stream=None).log
TOKENS = {f"API_TOKEN_{number}": f"very-secret-token-{number}" for number in (1, 2, 3)}
MANY = {"core": (10_000, 3_600), "search": (1_000, 3_600)}


class Client:
    """Workers with a pool each, which share a ledger. Requests go out as an attempt's do."""

    def __init__(self, ledger: Ledger, given: dict[str, str], **options: Any) -> None:
        self.ledger = ledger
        self.config = EgressConfig(name="api", kind="tokens", env=("API_TOKEN_*",), given=given, **options)
        self.fetcher = HttpFetcher(connections=20, user_agent="test")
        self.pools: list[TokenPool] = []

    async def add_worker(self, **options: Any) -> TokenPool:
        name = f"worker-{len(self.pools)}"
        await self.ledger.workers.register(WorkerSpec(id=name, node="n", pid=1, lease_seconds=30))
        pool = TokenPool(self.config, log=LOG, **options)
        await pool.start()
        self.pools.append(pool)
        await self.sync()
        return pool

    async def sync(self) -> None:
        for _ in range(2):
            for number, pool in enumerate(self.pools):
                await pool.sync(self.ledger, f"worker-{number}")

    async def get(self, url: str, pool: TokenPool | None = None) -> Page:
        pool = pool or self.pools[0]
        identity = pool.choose(host_or_none(url) or "")
        return await IdentityFetcher(self.fetcher, identity).fetch(Request(url=url))

    async def budget(self, number: int = 1, resource: str = "core") -> BudgetView:
        key = exit_key("token", TOKENS[f"API_TOKEN_{number}"])
        found = {view.resource: view for _, view in await self.ledger.budgets.list("api", key)}
        return found[resource]


@asynccontextmanager
async def client(place: Path | str, tokens: int = 3, **options: Any) -> AsyncIterator[Client]:
    ledger: Ledger
    if isinstance(place, str):
        ledger = await open_ledger(Settings(ledger=place))
    else:
        ledger = await open_sqlite(place)
        await ledger.schema.migrate()
    made = Client(ledger, dict(list(TOKENS.items())[:tokens]), **options)
    await made.add_worker()
    try:
        yield made
    finally:
        for pool in made.pools:
            await pool.close()
        await made.fetcher.close()
        await ledger.close()


def by_token(api: TokenApi, status: int | None = None) -> Counter[str]:
    return Counter(call.token for call in api.calls if status in (None, call.status))


# -- which token --------------------------------------------------------------------------------------------------


async def test_requests_are_spread_over_the_tokens(sqlite_path: Path) -> None:  # S0.24
    with TokenApi(MANY) as api:
        async with client(sqlite_path, budget=BudgetPolicy(5_000, 3_600.0)) as made:
            for number in range(30):
                assert (await made.get(f"{api.url}/users/{number}")).status == 200
    assert min(by_token(api)[token] for token in TOKENS.values()) >= 5


async def test_one_attempt_may_use_several_tokens(sqlite_path: Path) -> None:
    with TokenApi({"core": (2, 3_600)}) as api:
        async with client(sqlite_path) as made:
            identity = made.pools[0].choose(host_or_none(api.url) or "")
            fetcher = IdentityFetcher(made.fetcher, identity)
            pages = [await fetcher.fetch(Request(url=f"{api.url}/users/{number}")) for number in range(6)]
            with pytest.raises(EgressUnavailable, match="all 3 tokens of api are spent") as caught:
                await fetcher.fetch(Request(url=f"{api.url}/users/7"))
    assert {page.status for page in pages} == {200}
    assert by_token(api) == dict.fromkeys(TOKENS.values(), 2)
    assert caught.value.retry_after is not None
    reset = 3_600 - time.time() % 3_600
    assert reset - 10 < caught.value.retry_after <= reset + 2
    assert isinstance(identity, TokenIdentity)


async def test_tokens_are_split_among_workers(sqlite_path: Path) -> None:
    with TokenApi(MANY) as api:
        async with client(sqlite_path, share="split") as made:
            for _ in range(2):
                await made.add_worker()
            for pool in made.pools:
                for number in range(4):
                    await made.get(f"{api.url}/users/{number}", pool)
    assert by_token(api) == dict.fromkeys(TOKENS.values(), 4)


async def test_no_call_to_the_ledger_is_added_per_request(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenApi(MANY) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(10_000, 3_600.0)) as made:
            exchanges = 0
            exchange = made.ledger.budgets._exchange  # type: ignore[attr-defined]

            async def counted(*args: Any) -> Any:
                nonlocal exchanges
                exchanges += 1
                return await exchange(*args)

            monkeypatch.setattr(made.ledger.budgets, "_exchange", counted)
            for number in range(200):
                await made.get(f"{api.url}/users/{number}")
    assert exchanges < 200 / 5, exchanges


# -- where a token goes -------------------------------------------------------------------------------------------


async def test_a_token_goes_to_the_host_of_the_attempt_only(sqlite_path: Path) -> None:
    with TokenApi(MANY) as api, TokenApi(MANY) as other:
        async with client(sqlite_path) as made:
            identity = made.pools[0].choose(host_or_none(api.url) or "")
            assert await identity.before_request(f"{api.url}/users/1", 0)
            assert await identity.before_request(f"{other.url}/users/1", 1) == {}
            fetcher = IdentityFetcher(made.fetcher, identity)
            assert (await fetcher.fetch(Request(url=f"{api.url}/to?url={other.url}/users/2"))).status == 401
    assert {call.token for call in other.calls} == {""}


@pytest.mark.parametrize(
    ("hosts", "url", "is_sent"),
    [
        ((), "https://api.example/x", True),
        ((), "http://api.example/x", False),
        ((), "https://other.example/x", False),
        ((), "https://api.example.evil.test/x", False),
        (("api.example", "other.example"), "https://other.example/x", True),
        (("*.example",), "https://a.b.example/x", True),
        (("*.example",), "https://badexample/x", False),
        (("api.example",), "http://api.example/x", False),
        (("http://api.example",), "http://api.example/x", True),
        (("api.example:8443",), "https://api.example:8443/x", True),
        (("api.example:8443",), "https://api.example/x", False),
    ],
)
async def test_hosts_that_get_tokens(sqlite_path: Path, hosts: tuple[str, ...], url: str, is_sent: bool) -> None:
    async with client(sqlite_path, hosts=hosts) as made:
        identity = made.pools[0].choose("api.example")
        headers = await identity.before_request(url, 0)
    assert bool(headers) is is_sent
    assert not is_sent or headers["Authorization"].startswith("Bearer very-secret-token-")


@pytest.mark.parametrize(
    ("hosts", "warned"),
    [
        ((), ["api.example"]),
        (("api.example", "other.example"), ["api.example", "other.example"]),
        (("http://api.example",), []),
    ],
)
async def test_plain_http_without_a_token_is_logged_once_for_each_host(
    sqlite_path: Path, hosts: tuple[str, ...], warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, str]] = []
    async with client(sqlite_path, hosts=hosts) as made:
        pool = made.pools[0]
        log = SimpleNamespace(warning=lambda event, **values: logged.append({"event": event, **values}))
        monkeypatch.setattr(pool, "_log", log)
        for _ in range(2):
            for host in ("api.example", "other.example", "third.example"):
                identity = pool.choose("api.example")
                for scheme in ("http", "https"):
                    await identity.before_request(f"{scheme}://{host}/x", 0)
        monkeypatch.undo()
    assert [each["host"] for each in logged] == warned
    for each in logged:
        assert each["event"] == "requests go out without a token: it is not sent over plain http"
        assert f'hosts = ["http://{each["host"]}"] in [egress.api]' in each["remedy"]


async def test_another_header(sqlite_path: Path) -> None:
    async with client(sqlite_path, tokens=1, header="X-Api-Key: k {token}") as made:
        identity = made.pools[0].choose("api.example")
        assert await identity.before_request("https://api.example/", 0) == {"X-Api-Key": "k very-secret-token-1"}


# -- what answers mean --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 429])
async def test_a_request_whose_token_is_spent_is_sent_again_with_another(sqlite_path: Path, status: int) -> None:
    """Somebody else has spent it: nobody here knew."""
    with TokenApi({"core": (500, 3_600)}, status=status) as api:
        api.spend(TOKENS["API_TOKEN_1"], 500)
        async with client(sqlite_path) as made:
            pages = [await made.get(f"{api.url}/users/{number}") for number in range(6)]
            assert {page.status for page in pages} == {200}
            assert (await made.budget()).free == 0
            await made.add_worker()
            for number in range(3):
                await made.get(f"{api.url}/users/{number}", made.pools[1])
    assert by_token(api, status) == {TOKENS["API_TOKEN_1"]: 1}, "all workers know after the first refusal"


@pytest.mark.parametrize("tells_pause", [True, False])
async def test_a_secondary_limit_rests_the_token_for_all_workers(sqlite_path: Path, tells_pause: bool) -> None:
    with TokenApi(MANY, per_second=0, tells_pause=tells_pause) as api:
        async with client(sqlite_path, tokens=2) as made:
            with pytest.raises(EgressUnavailable, match=r"asked to pause|refuses every token|busy") as caught:
                await made.get(f"{api.url}/users/1")
            wait = made.pools[0].wait()
            assert (wait is not None) is not tells_pause, "a second is not worth a word"
            assert len(api.calls) <= 7, "a second is waited for, but not for ever"
            if not tells_pause:
                assert len(api.calls) == 2, "each token once"
                assert caught.value.retry_after is not None
                assert 55 < caught.value.retry_after <= 60
                other = await made.add_worker()
                with pytest.raises(EgressUnavailable):
                    await made.get(f"{api.url}/users/1", other)
                assert len(api.calls) == 2, "the other worker knows"


async def test_a_bad_token_is_banned_and_the_others_go_on(sqlite_path: Path) -> None:
    bad = TOKENS["API_TOKEN_2"]
    with TokenApi(MANY, bad=frozenset({bad})) as api:
        async with client(sqlite_path) as made:
            while not by_token(api, 401):
                assert (await made.get(f"{api.url}/users/1")).status == 200
            for number in range(9):
                assert (await made.get(f"{api.url}/users/{number}")).status == 200
            await made.sync()
            view = await made.ledger.exits.get("api", exit_key("token", bad))
            assert (view.state, view.label) == (ExitState.BANNED, "API_TOKEN_2")
            assert "401: bad credentials" in view.why + view.error
    assert by_token(api, 401) == {bad: 1}


async def test_a_page_that_no_token_may_see_bans_none(sqlite_path: Path) -> None:
    with TokenApi(MANY, forbidden=frozenset({"/private"})) as api:
        async with client(sqlite_path) as made:
            for _ in range(3):
                await made.get(f"{api.url}/users/1")
            # Its token may have expired meanwhile, so it is asked for once more.
            with pytest.raises(EgressUnavailable, match="answers 401 to every token of api; correct API_TOKEN_"):
                await made.get(f"{api.url}/private")
            for _ in range(3):
                assert (await made.get(f"{api.url}/users/1")).status == 200
            assert (await made.get(f"{api.url}/private")).status == 401
            assert {record.state for record in made.pools[0].health.records.values()} == {ExitState.GOOD}
    assert by_token(api, 401) == dict.fromkeys(TOKENS.values(), 2)


async def test_the_last_page_is_refused_by_itself(sqlite_path: Path) -> None:
    """Nothing else is asked for that could be accepted: it is not refused for ever."""
    with TokenApi(MANY, forbidden=frozenset({"/private"})) as api:
        async with client(sqlite_path, tokens=1) as made:
            await made.get(f"{api.url}/users/1")
            with pytest.raises(EgressUnavailable):
                await made.get(f"{api.url}/private")
            assert (await made.get(f"{api.url}/private")).status == 401


async def test_a_token_that_expires_ends_no_item(sqlite_path: Path) -> None:
    """It was accepted before; now several pages are refused, again and again."""
    pages = frozenset({"/users/1", "/users/2", "/users/3"})
    with TokenApi(MANY) as api:
        async with client(sqlite_path, tokens=1, ban_after=6) as made:
            assert (await made.get(f"{api.url}/users/1")).status == 200
            api.bad = frozenset(TOKENS.values())
            for page in (*sorted(pages), *sorted(pages)):
                with pytest.raises(EgressUnavailable, match="correct API_TOKEN_1"):
                    await made.get(f"{api.url}{page}")
            with pytest.raises(
                EgressUnavailable, match="the only token of api is refused with 401; correct API_TOKEN_1 in"
            ):
                made.pools[0].choose("x")
    assert len(api.calls) == 7


async def test_a_refused_robots_txt_says_nothing(sqlite_path: Path) -> None:
    """Nothing is asked for before it, so that no token could be accepted."""
    with TokenApi(MANY, forbidden=frozenset({"/robots.txt"})) as api:
        async with client(sqlite_path, tokens=1, ban_after=1) as made:
            for _ in range(3):
                assert (await made.get(f"{api.url}/robots.txt")).status == 401
            assert (await made.get(f"{api.url}/users/1")).status == 200


async def test_tokens_that_are_refused_again_and_again_are_banned(sqlite_path: Path) -> None:
    with TokenApi(MANY, bad=frozenset(TOKENS.values())) as api:
        async with client(sqlite_path, ban_after=2) as made:
            for _ in range(2):
                with pytest.raises(EgressUnavailable, match="answers 401 to every token of api; correct API_TOKEN_"):
                    await made.get(f"{api.url}/users/1")
            with pytest.raises(
                EgressUnavailable, match="all 3 tokens of api are refused with 401; correct API_TOKEN_1, "
            ):
                made.pools[0].choose("x")
            other = await made.add_worker()
            wait = other.wait()
            assert wait is not None
            assert "refused with 401" in wait.why, "the other worker knows"
    assert len(api.calls) == 6


async def test_the_trial_of_a_bad_token_is_one_request(sqlite_path: Path) -> None:
    with TokenApi(MANY, bad=frozenset(TOKENS.values())) as api:
        async with client(sqlite_path, tokens=1) as made:
            pool, states = made.pools[0], []
            (record,) = pool.health.records.values()
            await made.ledger.exits.ban("api", record.key, 0.01, "by hand")
            while not record.own_trial:
                with suppress(EgressUnavailable):
                    pool.choose("x").release()
                await made.sync()
            with pytest.raises(EgressUnavailable, match="answers 401"):
                await made.get(f"{api.url}/users/1")
            states.append(record.state)
            assert states == [ExitState.BANNED]
    assert len(api.calls) == 1


async def test_kinds_of_calls_have_budgets_of_their_own(sqlite_path: Path) -> None:
    limits = {"core": (10_000, 3_600), "search": (3, 3_600)}
    with TokenApi(limits) as api:
        async with client(sqlite_path, tokens=1, budgets={"search": BudgetPolicy(3, 3_600.0)}) as made:
            for number in range(3):
                assert (await made.get(f"{api.url}/search/users?{number}")).status == 200
            with pytest.raises(EgressUnavailable, match="the only token of api is spent for search"):
                await made.get(f"{api.url}/search/users?4")
            assert (await made.get(f"{api.url}/users/1")).status == 200
            assert made.pools[0].wait() is None, "other calls can be made"
            await made.sync()
            assert (await made.budget(resource="core")).capacity == 10_000
    assert api.over == []


async def test_late_answers_do_not_lead_to_calls_too_many(sqlite_path: Path) -> None:
    with TokenApi({"core": (6, 3_600)}, late=0.3) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(6, 3_600.0)) as made:
            tries = (made.get(f"{api.url}/users/{number}") for number in range(20))
            results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Page) for result in results) == 6
    assert all(isinstance(result, Page | EgressUnavailable) for result in results)
    assert api.over == []


async def test_without_words_of_the_site_the_configured_budget_holds(sqlite_path: Path) -> None:
    with TokenApi(MANY, says=False) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(7, 3_600.0)) as made:
            results: list[int | str] = []
            for number in range(9):
                try:
                    results.append((await made.get(f"{api.url}/users/{number}")).status)
                except EgressUnavailable as error:
                    results.append(error.message)
    assert results == [200] * 7 + ["the only token of api is spent"] * 2
    assert len(api.calls) == 7


# -- shares -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_ends_gives_back_what_it_has_not_used(sqlite_path: Path) -> None:
    with TokenApi(MANY, says=False) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(100, 3_600.0)) as made:
            await made.get(f"{api.url}/users/1")
            assert (await made.budget()).free < 99
            await made.pools[0].close()
            assert (await made.budget()).free == 99


async def test_a_spent_token_rests_and_the_stage_waits(sqlite_path: Path) -> None:
    with TokenApi({"core": (1, 3_600)}) as api:
        async with client(sqlite_path, tokens=2) as made:
            pool = made.pools[0]
            for number in range(2):
                await made.get(f"{api.url}/users/{number}")
            wait = pool.wait()
            assert wait is not None
            assert wait.why == "all 2 tokens of api are spent"
            assert wait.until is not None
            assert wait.until <= 3_602
            with pytest.raises(EgressUnavailable, match="all 2 tokens of api are spent"):
                pool.choose("x")
            await made.ledger.exits.ban("api", exit_key("token", TOKENS["API_TOKEN_1"]), 7_200, "by hand")
            await made.sync()
            wait = pool.wait()
            assert wait is not None
            assert wait.why == "none of the 2 tokens of api can be used: 1 banned, 1 spent"


@pytest.mark.parametrize("told", ["nothing remains", "a pause"])
@pytest.mark.parametrize("on", ["sqlite", "postgres"])
async def test_what_the_site_told_another_worker_ends_its_share(
    request: pytest.FixtureRequest, on: str, told: str
) -> None:
    """At once, not when the share would end: that of a worker whose clock stands still never does."""
    place = request.getfixturevalue("sqlite_path" if on == "sqlite" else "migrated_postgres")
    with TokenApi({"core": (50, 3_600)}, tells_pause=False) as api:
        async with client(place, tokens=1, budget=BudgetPolicy(50, 3_600.0)) as made:
            other = await made.add_worker(now=lambda: 1_000.0)
            await made.get(f"{api.url}/users/1", other)
            (budget,) = other._budgets.values()
            assert budget.calls_left(1_000.0) > 0
            if told == "a pause":
                api.per_second = 0
            else:
                api.spend(TOKENS["API_TOKEN_1"], 50)
            with pytest.raises(EgressUnavailable):
                await made.get(f"{api.url}/users/2")
            async with asyncio.timeout(60):
                while budget.calls_left(1_000.0):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            with pytest.raises(EgressUnavailable, match="the only token of api is "):
                await made.get(f"{api.url}/users/3", other)
    assert "/users/3" not in {call.path for call in api.calls}


async def test_that_nothing_remains_is_told_whatever_else_was_said_meanwhile(sqlite_path: Path) -> None:
    """The answers to requests that were under way at the same time leave more; they were written before."""
    key = BudgetKey("api", exit_key("token", TOKENS["API_TOKEN_1"]), "core")
    with TokenApi({"core": (50, 3_600)}, late=0.2) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(50, 3_600.0)) as made:
            under_way = [asyncio.create_task(made.get(f"{api.url}/users/{n}")) for n in range(4)]
            async with asyncio.timeout(60):
                while len(api.calls) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            api.spend(TOKENS["API_TOKEN_1"], 50)
            with suppress(EgressUnavailable):
                await made.get(f"{api.url}/users/9")
            await asyncio.gather(*under_way, return_exceptions=True)
            await made.pools[0]._settle_all()
            assert [(stop.key, stop.resource) for stop in await made.ledger.budgets.stops("api")] == [
                (key.key, key.resource)
            ]


async def test_calls_that_another_worker_gave_back_are_found(sqlite_path: Path) -> None:
    with TokenApi(MANY, says=False) as api:
        async with client(sqlite_path, tokens=1, budget=BudgetPolicy(6, 3_600.0)) as made:
            key = BudgetKey("api", exit_key("token", TOKENS["API_TOKEN_1"]), "core")
            request = GrantRequest(grant=5, calls=6, seconds=60.0, policy=BudgetPolicy(6, 3_600.0))
            await made.ledger.budgets.take(key, request)
            with pytest.raises(EgressUnavailable):
                await made.get(f"{api.url}/users/1")
            assert made.pools[0].wait() is not None
            await made.ledger.budgets.settle(key, [GrantUse(grant=5, made=0, answered=())])
            await made.sync()
            assert (await made.get(f"{api.url}/users/1")).status == 200


# -- secrets and set-up -------------------------------------------------------------------------------------------


async def test_tokens_reach_neither_the_ledger_nor_any_text(sqlite_path: Path) -> None:
    with TokenApi(MANY, bad=frozenset({TOKENS["API_TOKEN_2"]})) as api:
        async with client(sqlite_path) as made:
            for number in range(6):
                await made.get(f"{api.url}/users/{number}")
            await made.sync()
            identity = made.pools[0].choose(host_or_none(api.url) or "")
            await identity.before_request(f"{api.url}/x", 0)
            texts = [repr(identity), repr(identity.exit), repr(made.pools[0].health.records), str(made.config.shown())]
            views = await made.ledger.exits.list("api")
            assert {view.label for view in views.rows} == set(TOKENS)
    stored = b"".join(path.read_bytes() for path in sqlite_path.parent.iterdir() if path.is_file())
    for token in TOKENS.values():
        assert token.encode() not in stored
        assert token not in "".join(texts)
        assert token not in redacted(f"GET https://api.example/?q={token}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"egress.api has no token: API_TOKEN_\* is not set"),
        ({"API_TOKEN_1": "two words"}, "the value of API_TOKEN_1 is no token"),
        ({"API_TOKEN_1": "line\nbreak-secret"}, "the value of API_TOKEN_1 is no token"),
    ],
)
async def test_pools_that_cannot_work_are_refused(given: dict[str, str], message: str) -> None:
    pool = TokenPool(EgressConfig(name="api", kind="tokens", env=("API_TOKEN_*",), given=given), log=LOG)
    with pytest.raises(InvalidSetting, match=message) as caught:
        await pool.start()
    assert "secret" not in str(caught.value)


async def test_the_same_token_in_two_variables_is_one() -> None:
    given = {"A": "very-secret-token-1", "B": " very-secret-token-1\n"}
    pool = TokenPool(EgressConfig(name="api", kind="tokens", env=("A", "B"), given=given), log=LOG, alone=True)
    await pool.start()
    assert [record.exit.label for record in pool.health.records.values()] == ["A"]


async def test_a_try_needs_no_ledger() -> None:
    pool = TokenPool(EgressConfig(name="api", kind="tokens", env=("A",), given={"A": "secret-x"}), log=LOG, alone=True)
    await pool.start()
    with TokenApi({"core": (2, 3_600)}) as api:
        fetcher = HttpFetcher(connections=2, user_agent="test")
        try:
            for number in range(2):
                identity = pool.choose(host_or_none(api.url) or "")
                page = await IdentityFetcher(fetcher, identity).fetch(Request(url=f"{api.url}/users/{number}"))
                assert page.status == 200
            with pytest.raises(EgressUnavailable, match="the only token of api is spent"):
                pool.choose(host_or_none(api.url) or "")
        finally:
            await fetcher.close()
            await pool.close()
    assert api.over == []
