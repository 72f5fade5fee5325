"""A library that is missing is named, with the extra that installs it, in one sentence."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import ShoalError

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def use_parquet() -> None:
    importlib.import_module("shoal.export.tables").require_pyarrow()


def use_zstd() -> None:
    compression = importlib.import_module("shoal.storage.compression")
    compression.require_compression(compression.Compression.ZSTD)


def use_s3() -> None:
    importlib.import_module("shoal.storage.objects").require_obstore()


def use_sessions() -> None:
    importlib.import_module("shoal.worker.session_store").SessionCipher("0" * 64)


def use_browser() -> None:
    importlib.import_module("shoal.fetch.chromium").check_playwright()


def use_chrome() -> None:
    importlib.import_module("shoal.fetch.impersonate")


def use_articles() -> None:
    importlib.import_module("shoal").Page.of("https://example.com/", "<p>One</p>").article()


def use_rabbitmq() -> None:
    importlib.import_module("shoal.feeds.source").open_source("amqp://127.0.0.1/?queue=tasks")


def use_redis() -> None:
    importlib.import_module("shoal.feeds.source").open_source("redis://127.0.0.1/0?list=tasks")


def use_sink(module: str) -> Callable[[], None]:
    return lambda: importlib.import_module("shoal.sinks.brokers").require_broker(module)


def use_subtitles() -> None:
    importlib.import_module("shoal.recipes.subtitles.demo").DEMO.stand_in()


def use_serve() -> None:
    importlib.import_module("shoal.cli.serve")._server_module()


def use_metrics() -> None:
    importlib.import_module("shoal.observe.exposition").check_prometheus_client()


CASES = [
    ("parquet", "pyarrow", use_parquet),
    ("zstd", "zstandard", use_zstd),
    ("s3", "obstore", use_s3),
    ("sessions", "cryptography", use_sessions),
    ("browser", "playwright", use_browser),
    ("chrome", "curl_cffi", use_chrome),
    ("chrome", "brotli", use_chrome),
    ("chrome", "zstandard", use_chrome),
    ("articles", "trafilatura", use_articles),
    ("articles", "lxml_html_clean", use_articles),
    ("brokers", "aio_pika", use_rabbitmq),
    ("brokers", "redis", use_redis),
    ("brokers", "aio_pika", use_sink("aio_pika")),
    ("brokers", "redis", use_sink("redis.asyncio")),
    ("subtitles", "yt_dlp", use_subtitles),
    ("serve", "fastapi", use_serve),
    ("serve", "starlette", use_serve),
    ("serve", "pydantic", use_serve),
    ("serve", "uvicorn", use_serve),
    ("serve", "websockets", use_serve),
    ("serve", "prometheus_client", use_serve),
    ("serve", "prometheus_client", use_metrics),
]
# Modules that import a library when they are imported, or remember it.
FRESH = (
    *("shoal.control", "shoal.fetch.impersonate", "shoal.feeds.amqp", "shoal.feeds.redis"),
    *("trafilatura", "justext", "lxml.html.clean", "uvicorn.protocols"),
)


@pytest.mark.parametrize(("extra", "library", "use"), CASES, ids=[f"{extra}-{library}" for extra, library, _ in CASES])
def test_a_missing_library_is_named_with_its_extra(
    extra: str, library: str, use: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FRESH:  # whatever other tests of this process have imported before
        importlib.import_module(name)
    for name in list(sys.modules):
        if any(name == fresh or name.startswith(f"{fresh}.") for fresh in FRESH):
            monkeypatch.delitem(sys.modules, name)
        if name == library or name.startswith(f"{library}."):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ShoalError) as caught:
        use()
    said = f"{caught.value.message} {caught.value.remedy}"
    assert library.replace("_", "-") in said.lower().replace("_", "-")
    assert f"pip install 'shoal[{extra}]'" in said
    assert caught.value.message.count(". ") == 0, "one sentence"


def test_every_library_of_an_extra_is_tried() -> None:
    """Besides apprise, which runs in a process of its own (tests/notify), and what only tests need."""
    tried = {(extra, library.replace("_", "-")) for extra, library, _ in CASES}
    declared = {
        (extra, text.partition(">")[0].lower().replace("_", "-"))
        for extra, texts in EXTRAS.items()
        if extra not in ("all", "testing", "notify")
        for text in texts
    }
    assert declared == tried
