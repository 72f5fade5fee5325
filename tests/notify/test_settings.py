"""The settings of alerts are checked when they are read, and addresses are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config import Settings, load_settings
from shoal.errors import InvalidSetting
from shoal.model.redaction import redacted

TELEGRAM = "tgram://123456789:abcdefghijklmnopqrstuvwx-abcdefghij/12315544/"
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general"
MAIL = "mailto://me:s%40same@mail.example.com?from=shoal@example.com&to=me@example.com"


def load(folder: Path, **flags: str) -> Settings:
    return load_settings(flags, environ={}, folder=folder)


def test_several_addresses_in_a_text_or_a_list(tmp_path: Path) -> None:
    assert load(tmp_path, notify=f" {MAIL}\n{SLACK} ").notify.urls == (MAIL, SLACK)
    (tmp_path / "shoal.toml").write_text(f'notify = ["{MAIL}", "{SLACK}"]')
    assert load(tmp_path).notify.urls == (MAIL, SLACK)
    assert load(tmp_path, notify="").notify.urls == ()


@pytest.mark.parametrize("text", ["just words", "mailto:me@example.com", f"{MAIL} secret-token-1234"])
def test_an_invalid_address_is_refused_and_not_printed(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load(tmp_path, notify=text)
    assert "of notify (from --set notify) is not an address" in refused.value.message
    assert not any(word in str(refused.value) for word in text.split())


@pytest.mark.parametrize(
    "message",
    [
        f"cannot reach {TELEGRAM}",
        "POST /bot123456789:abcdefghijklmnopqrstuvwx-abcdefghij/sendMessage",
        f"bad address {SLACK}",
        "token TIiajkdnlazkcOXrIdevi7FQ refused",
        "login with s@same or s%40same failed",
    ],
)
def test_secret_parts_of_an_address_are_not_printed(tmp_path: Path, message: str) -> None:
    settings = load(tmp_path, notify=f"{TELEGRAM} {SLACK} {MAIL}")
    shown = redacted(message, settings.secrets())
    for secret in ("abcdefghijklmnopqrstuvwx", "TIiajkdnlazkcOXrIdevi7FQ", "s@same", "s%40same"):
        assert secret not in shown
    assert shown.split()[0] == message.split(maxsplit=1)[0]
    assert "***" in shown
    assert repr(settings.notify) == "Addresses(tgram://*** slack://*** mailto://***)"


def test_secrets_of_a_scraper_s_table_are_secrets_too(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        f'[scrapers.books]\nnotify = "{TELEGRAM}"\nstall_after = 5\nerror_share = "20%"'
    )
    settings = load(tmp_path)
    assert TELEGRAM in settings.secrets()
    assert settings.with_scraper_table("books").notify.urls == (TELEGRAM,)
    assert settings.with_scraper_table("books").stall_after == 5
    assert not settings.with_scraper_table("other").notify
    assert load(tmp_path, stall_after="7").with_scraper_table("books").stall_after == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("notify_on", "finish applause"), ("error_share", "20"), ("error_share", "120%"), ("stall_after", "0")],
)
def test_bad_values_are_explained(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} is '{value}' .* it must be "):
        load(tmp_path, **{name: value})


def test_notify_on_accepts_any_order(tmp_path: Path) -> None:
    assert load(tmp_path, notify_on=" Errors finish ").notify_on == "finish errors"
    assert load(tmp_path, notify_on="").notify_on == ""
