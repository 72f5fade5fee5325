"""Requests of items: what is stored, what the key is, what is sent."""

from typing import Any

import pytest

from shoal.define.context import outgoing_request
from shoal.errors import InvalidItem
from shoal.fetch.page import Request
from shoal.model.item import NewItem, prepare
from shoal.model.request import ItemRequest, decode_request, make_request, request_text, secret, with_query

URL = "https://api.example/search"


def made(**parts: Any) -> ItemRequest:
    request, _ = make_request(**parts)
    assert request is not None
    return request


def sent(request: ItemRequest | None, url: str = URL, **headers: str) -> Request:
    """The request as it is sent after it was stored and read again."""
    stored = None if request is None else decode_request(request_text(request))
    return outgoing_request(url, stored, headers, {"API_KEY": "s3cret-value", "PIN": "1234"}.__getitem__)


def key_of(url: str = URL, **parts: Any) -> str | None:
    request, query = make_request(**parts)
    return prepare(NewItem(url=with_query(url, query) if query else url, request=request), "list").key


def test_nothing_given_is_a_plain_get() -> None:
    assert make_request() == (None, "")
    assert make_request(method="get") == (None, "")


@pytest.mark.parametrize(
    ("parts", "body", "content_type"),
    [
        ({"json": {"q": "Łódź", "n": [1, None]}}, '{"q":"Łódź","n":[1,null]}'.encode(), "application/json"),
        ({"form": {"q": "a b", "n": 1, "on": True, "none": None}}, b"q=a+b&n=1&on=true", "x-www-form-urlencoded"),
        ({"form": [("tag", "x"), ("tag", "y")]}, b"tag=x&tag=y", "x-www-form-urlencoded"),
        ({"form": {"tag": ["x", "y"]}}, b"tag=x&tag=y", "x-www-form-urlencoded"),
        ({"body": "<q/>", "headers": {"content-type": "text/xml"}}, b"<q/>", "text/xml"),
        ({"body": b"\xff\x00"}, b"\xff\x00", None),
    ],
)
def test_a_body_is_sent_as_given_after_it_was_stored(parts: Any, body: bytes, content_type: str | None) -> None:
    request = sent(made(**parts))
    assert (request.method, request.body) == ("POST", body)
    found = {name.lower(): value for name, value in request.headers.items()}.get("content-type")
    assert found is content_type is None or str(content_type) in str(found)


def test_headers_of_the_request_outrank_those_of_the_stage() -> None:
    request = sent(made(method="PUT", headers={"accept": "text/csv"}), **{"Accept": "text/html", "X-Team": "a"})
    assert request.method == "PUT"
    assert {name.lower(): value for name, value in request.headers.items()} == {"accept": "text/csv", "x-team": "a"}


def test_secrets_are_stored_by_name_and_sent_by_value() -> None:
    request = made(
        headers={"Authorization": secret("API_KEY", format="Bearer {}")},
        params={"page": 2, "key": secret("API_KEY")},
        json={"login": {"pin": secret("PIN")}, "names": ["a", secret("API_KEY")]},
    )
    text = request_text(request)
    assert "s3cret" not in text
    assert "1234" not in text
    assert "API_KEY" in text
    out = sent(request)
    assert out.headers["Authorization"] == "Bearer s3cret-value"
    assert out.url == f"{URL}?key=s3cret-value"
    assert out.body == b'{"login":{"pin":"1234"},"names":["a","s3cret-value"]}'


def test_plain_parameters_belong_to_the_url_and_so_to_the_key() -> None:
    assert make_request(params={"q": ["a", "b c"], "n": 1}) == (None, "q=a&q=b+c&n=1")
    assert with_query("https://a.example/x?y=1#part", "q=2") == "https://a.example/x?y=1&q=2#part"
    assert with_query("https://a.example/x?", "q=2") == "https://a.example/x?q=2"


def test_method_and_body_are_part_of_the_key_and_headers_are_not() -> None:
    assert key_of() is None  # the URL is the key
    assert key_of(headers={"Accept": "text/csv"}) is None
    keys = [
        key_of(method="POST"),
        key_of(method="DELETE"),
        key_of(json={"a": 1}),
        key_of(json={"a": 2}),
        key_of(form={"a": 1}),
        key_of(body="a=1"),
        key_of(url=URL + "/x", json={"a": 1}),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(json={"a": 1, "b": 2}) == key_of(json={"b": 2, "a": 1})
    assert key_of(json={"a": 1}) == key_of(json={"a": 1}, headers={"Accept": "text/csv"})
    assert str(keys[0]).startswith(f"POST {URL} ")


def test_a_key_that_is_given_overrules() -> None:
    request = made(json={"page": 1})
    assert prepare(NewItem(url=URL, key="page-1", request=request), "list").key == "page-1"


def test_the_key_of_a_very_long_url_fits() -> None:
    a, b = (key_of(url=f"{URL}?q={letter * 6000}", json=1) for letter in "ab")
    assert a != b
    assert len(str(a)) < 200


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"json": 1, "form": {}}, "json and form are given; a request has one body"),
        ({"method": "GET", "json": 1}, "A GET request has no body"),
        ({"method": "SE ND"}, "method is 'SE ND'"),
        ({"body": {"a": 1}}, "body must be text or bytes, not dict; give a value as json="),
        ({"form": "a=1"}, "form must be a dict or a list of pairs, not str"),
        ({"form": ["a"]}, "'a' is no pair"),
        ({"form": {"a": object()}}, "The field a of form must be text or a number"),
        ({"headers": {"X Y": "1"}}, "'X Y' is not the name of a header"),
        ({"headers": {"X-Y": "1\r\nZ: 2"}}, "The header X-Y must be one line of text"),
        ({"headers": {"Authorization": "Bearer abc"}}, "Authorization of an item would be stored"),
        ({"headers": {"X-Api-Key": "abc"}}, "X-Api-Key of an item would be stored"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(parts: Any, message: str) -> None:
    with pytest.raises(InvalidItem, match=message.replace("(", r"\(")):
        make_request(**parts)


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidItem, match="request cannot be stored as JSON"):
        prepare(NewItem(url=URL, request=made(json={"x": object()})), "list")
    with pytest.raises(InvalidItem, match="1,048,576 are allowed"):
        prepare(NewItem(url=URL, request=made(body="x" * (1 << 20))), "list")


@pytest.mark.parametrize(("name", "template"), [("NOT A NAME", "{}"), ("", "{}"), ("A", "Bearer"), ("A", "{} {}")])
def test_a_bad_secret_is_refused(name: str, template: str) -> None:
    with pytest.raises(InvalidItem):
        secret(name, format=template)
