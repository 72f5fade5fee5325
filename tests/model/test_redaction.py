"""One rule for what must not be seen, and that it leaves the rest alone."""

import msgspec
import pytest

from shoal.model.redaction import is_secret_name, redacted, redacted_value, without_secret_settings


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:s3cret@h/db refused us",
        "postgresql://me:s3c/ret?s3cret@h/db",
        "postgresql:/me:s3cret@h/db",
        "me:s3cret@h/db",
        "host=h password=s3cret user=me",
        "host=h password='s3cret \\' s3cret' user=me",
        "https://me:s3cret@shop.example/a",
        "https://s3crettoken@shop.example/a",
        "GET https://api.example/v1?page=2&token=s3cret,s3cret&x=1: 404",
        "https://maps.example/?key=s3cret#top",
        "https://files.example/a?X-Amz-Signature=s3cret&X-Amz-Credential=s3cret%2Fx",
        "https://shop.example/a;jsessionid=s3cret?x=1",
        "Authorization: Bearer s3cret.abc",
        "the site refused Bearer s3cret1234567",
        "Cookie: session=s3cret; id=s3cret",
        "{'api_key': 's3cret', 'n': 1}",
        '{"clientSecret":"s3cret\\"s3cret","n":[1]}',
        "KeyError: access_token=s3cret",
        "X-Api-Key: s3cret",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    shown = redacted(text)
    assert "s3c" not in shown
    assert "***" in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/@user/page?keyword=a&page=2",
        "mail somebody@shop.example at 12:30, or mailto:a@b.example",
        "Basic information about tokens is missing",
        "12 of 30 items; lane 127.0.0.1:8000 waits",
        "password authentication failed for user me",
        '{"key":"https://shop.example/1","tokens":null,"cookies":true}',
        "https://shop.example/monkey=1/key=2?primary=key",
    ],
)
def test_the_rest_is_left_alone(text: str) -> None:
    assert redacted(text) == text


def test_names_that_sound_secret() -> None:
    secret = "api_key apiKey API-KEY X-Auth-Token password db_password client.secret sessionid accessKeyId PRIVATE_KEY"
    assert all(is_secret_name(name) for name in secret.split())
    plain = "key keyword monkey region max_pages password_variable token_file author primary_key"
    assert not any(is_secret_name(name) for name in plain.split())
    assert is_secret_name("key", bare_key=True)


def test_values_stay_json() -> None:
    value = {"url": "https://u:s3cret@h/", "detail": [{"token": "s3cret", "n": 1}], "password": None, "auth": False}
    shown = redacted_value(value)
    assert shown == {
        "url": "https://u:***@h/",
        "detail": [{"token": "***", "n": 1}],
        "password": None,
        "auth": False,
    }
    compact = msgspec.json.encode(value).decode()
    assert msgspec.json.decode(redacted(compact)) == shown


def test_settings_are_stored_without_secrets() -> None:
    given = {"api_key": "s3cret", "region": "north", "login": {"user": "me", "password": "s3cret"}, "own": "s3cret"}
    assert without_secret_settings(given, {"own"}) == {
        "api_key": "***",
        "region": "north",
        "login": {"user": "me", "password": "***"},
        "own": "***",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"password": ["hunter2hunter2"]}', '{"password": "***"}'),
        ('{"tokens": {"a": "hunter2hunter2"}, "n": 1}', '{"tokens": "***", "n": 1}'),
        ("{'list': [{'token': 'hunter2hunter2'}]}", "{'list': [{'token': '***'}]}"),
        ('headers={"Authorization": secret("API_KEY")}', 'headers={"Authorization": secret("API_KEY")}'),
        ("{'Authorization': {'$secret': 'API_KEY'}}", "{'Authorization': {'$secret': 'API_KEY'}}"),
    ],
)
def test_lists_objects_and_names_of_secrets(text: str, shown: str) -> None:
    assert redacted(text) == shown
