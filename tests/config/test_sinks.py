"""`[sinks.NAME]` in shoal.toml: checked at the start, secrets hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config import Settings, load_settings
from shoal.errors import InvalidSetting

GOOD = """
[sinks.warehouse]
kind = "postgresql"
url_env = "WAREHOUSE"
table = "{scraper}.{stage}"
scrapers = "shop"
stages = ["page", "list"]
batch = 100

[sinks.hook]
kind = "webhook"
url = "https://example.com/hooks/T0K3N-of-the-hook"
secret_env = "HOOK_SECRET"
"""


def load(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "shoal.toml").write_text(text)
    return load_settings({}, environ=environ, folder=folder)


def test_sinks_are_read(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD, WAREHOUSE="postgresql://me:hush-hush@db/x", HOOK_SECRET="the-hook-secret")
    warehouse, hook = settings.sinks.values()
    assert (warehouse.cursor, warehouse.batch_size, warehouse.which.scrapers) == ("sink:warehouse", 100, ("shop",))
    assert warehouse.which.stages == ("page", "list")
    assert warehouse.place == "postgresql://me:***@db/x"
    assert hook.secret == "the-hook-secret"
    shown = str(warehouse.shown()) + str(hook.shown())
    for secret in ("hush-hush", "the-hook-secret", "T0K3N-of-the-hook"):
        assert secret not in shown
        assert secret in " ".join(settings.secrets())


def test_a_variable_that_is_not_set_stops_no_other_command(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)
    assert [sink.missing for sink in settings.sinks.values()] == [("WAREHOUSE",), ("HOOK_SECRET",)]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('url = "postgresql://x"', "has no kind"),
        ('kind = "kafka"\nurl = "x"', "must be postgresql, jsonl"),
        ('kind = "postgresql"', "needs url or url_env"),
        ('kind = "postgresql"\nurl = "postgresql://a/b"\nurl_env = "X"', "needs url or url_env"),
        ('kind = "jsonl"\nurl = "s3://a/b"', "no option of a sink of the kind jsonl"),
        ('kind = "jsonl"', "needs path"),
        ('kind = "webhook"\nurl = "postgresql://a/b"', "does not begin with http:// or https://"),
        ('kind = "jsonl"\npath = "out/{run}"', "braces around something else"),
        ('kind = "jsonl"\npath = "out"\nbatch = 0', "a whole number from 1 to 100000"),
        ('kind = "jsonl"\npath = "out"\nscrapers = []', "a name or a list of names"),
        ('kind = "jsonl"\npath = "out"\nscraper = "x"', "did you mean scrapers"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, table: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        load(tmp_path, f"[sinks.mine]\n{table}\n")
