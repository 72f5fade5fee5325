"""Forms: what a browser would send for them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from shoal.errors import Permanent
from shoal.fetch.form import Form
from shoal.fetch.page import Page, Request

URL = "http://shop.example/dir/page?old=1#top"


def form(inner: str, attributes: str = "", **asked: Any) -> Form:
    return Page.of(URL, f"<meta charset=utf-8><body><form {attributes}>{inner}</form>").form(**asked)


def sent(request: Request) -> list[tuple[str, str]]:
    """The pairs of a request, in their order."""
    text = urlsplit(request.url).query if request.method == "GET" else (request.body or b"").decode("ascii")
    return parse_qsl(text, keep_blank_values=True)


def test_a_get_form_replaces_the_query_of_its_action() -> None:
    search = form("<input name=q><input type=hidden name=lang value=en>", 'action="/search?drop=this#x" method=GET')
    request = search.request({"q": "rake & hoe ~"})
    assert (request.method, request.body) == ("GET", None)
    assert request.url == "http://shop.example/search?q=rake+%26+hoe+%7E&lang=en"


def test_an_empty_action_is_the_page_itself_even_with_a_base() -> None:
    page = Page.of(URL, "<base href=http://other.example/><form method=post></form><form action=x></form>")
    assert page.form().request().url == "http://shop.example/dir/page?old=1"
    assert page.form(index=1).request().url == "http://other.example/x?"


CONTROLS = """
<input name=text value="a&#10;b"> <input value=unnamed> <input name=none disabled value=x>
<input name=odd type=nonsense>
<input type=hidden name=token value="t&#10;u"> <input type=checkbox name=box checked> <input type=checkbox name=off>
<input type=checkbox name=many value=1 checked> <input type=checkbox name=many value=2> <input type=checkbox name=many
value=3 checked> <input type=radio name=pick value=a checked> <input type=radio name=pick value=b checked>
<textarea name=area>
 first
second</textarea>
<select name=one><option disabled>no<option value=first>1<option>  two  words </select>
<select name=chosen><option selected>x<option selected>y<option>z</select>
<select name=sized size=3><option>x</select>
<select name=several multiple><option selected>x<option>y<option selected>z<optgroup disabled><option
selected>w</optgroup></select>
<input type=range name=range> <input type=color name=colour> <input type=file name=file>
<fieldset disabled><legend><input name=legend value=yes></legend><legend><input name=second value=no></legend><input
name=inside value=no></fieldset>
<datalist><input name=suggested value=no></datalist>
<input type=reset name=reset value=r> <button type=button name=script>s</button>
<input type=image name=map> <button name=go value=1>Go</button> <input type=submit name=go2 value=Second>
"""


def test_every_kind_of_control_sends_what_a_browser_sends() -> None:
    assert sent(form(CONTROLS, "method=post").request(submit="go")) == [
        ("text", "ab"),
        ("odd", ""),
        ("token", "t\r\nu"),
        ("box", "on"),
        ("many", "1"),
        ("many", "3"),
        ("pick", "b"),
        ("area", " first\r\nsecond"),
        ("one", "first"),
        ("chosen", "y"),
        ("several", "x"),
        ("several", "z"),
        ("range", "50"),
        ("colour", "#000000"),
        ("file", ""),
        ("legend", "yes"),
        ("go", "1"),
    ]


@pytest.mark.parametrize(
    ("submit", "pairs"),
    [
        (None, [("map.x", "0"), ("map.y", "0")]),
        ("go", [("go", "1")]),
        ("Go", [("go", "1")]),
        ("Second", [("go2", "Second")]),
        (False, []),
    ],
)
def test_the_pressed_button_is_sent(submit: Any, pairs: list[tuple[str, str]]) -> None:
    assert [pair for pair in sent(form(CONTROLS).request(submit=submit)) if pair[0][:2] in ("ma", "go")][2:] == pairs


def test_fields_are_filled_by_their_kind() -> None:
    filled = form(CONTROLS, "method=post").request(
        {
            "text": 7,
            "box": False,
            "off": True,
            "many": ["2", 3],
            "pick": "a",
            "area": "x\ny",
            "one": "two words",
            "several": ["y"],
            "colour": None,
            "token": "",
        },
        submit=False,
        extra=[("js", 1), ("js", "2")],
    )
    assert [pair for pair in sent(filled) if pair[0] not in ("odd", "range", "file", "legend")] == [
        ("text", "7"),
        ("token", ""),
        ("off", "on"),
        ("many", "2"),
        ("many", "3"),
        ("pick", "a"),
        ("area", "x\r\ny"),
        ("one", "two words"),
        ("chosen", "y"),
        ("several", "y"),
        ("js", "1"),
        ("js", "2"),
    ]


def test_fields_and_choices_can_be_read() -> None:
    page_form = form("<input name=a value=1><input name=b value=1><input name=b value=2>" + CONTROLS)
    fields = page_form.fields
    assert (fields["a"], fields["b"], fields["box"], fields["off"]) == ("1", ["1", "2"], "on", None)
    assert (fields["pick"], fields["several"], fields["many"]) == ("b", ["x", "z"], ["1", "3"])
    assert "go" not in fields
    assert page_form.buttons == ["map", "go", "go2"]
    assert (page_form.choices("one"), page_form.choices("pick")) == (["first", "two words"], ["a", "b"])
    before = page_form.fields
    page_form.request({"a": "changed"})
    assert page_form.fields == before, "a request does not change the form"


def test_repeated_texts_are_filled_in_their_order() -> None:
    rows = form("<input name=row value=1><input name=row value=2><input name=row value=3>")
    assert sent(rows.request({"row": ["x", "y"]})) == [("row", "x"), ("row", "y"), ("row", "3")]
    with pytest.raises(Permanent, match="has 3 fields named 'row', not 4"):
        rows.request({"row": list("abcd")})


def test_controls_outside_belong_to_the_form_they_name() -> None:
    html = """<input form=f name=before value=1> <form id=g></form> <form id=f><input name=in value=2><input form=g
        name=away></form> <form id=f><input name=twin></form> <button form=f name=b value=9>"""
    assert sent(Page.of(URL, html).form(name="f").request()) == [("before", "1"), ("in", "2"), ("b", "9")]
    assert Page.of(URL, html).form(name="g").fields == {"away": ""}
    assert Page.of(URL, html).form(index=2).fields == {"twin": ""}


def test_a_button_may_change_action_method_and_encoding() -> None:
    buttons = "<button>a</button><button name=b formaction=/other formmethod=post formenctype=text/plain>b</button>"
    made = form(f"<input name=q value='x y'>{buttons}", "action=/first")
    assert made.request().url == "http://shop.example/first?q=x+y"
    request = made.request(submit="b")
    assert (request.url, request.method, request.body) == ("http://shop.example/other", "POST", b"q=x y\r\nb=\r\n")


def test_the_charset_is_that_of_the_form_or_of_the_page() -> None:
    inner = '<input name=q><input type=hidden name=_charset_ value="">'
    page = Page.of(URL, f"<form>{inner}</form>".encode(), headers={"Content-Type": "text/html; charset=windows-1252"})
    assert page.form().request({"q": "é€☃"}).url.endswith("?q=%E9%80%26%239731%3B&_charset_=windows-1252")
    accepting = form(inner, 'accept-charset="nonsense iso-8859-2 utf-8"')
    assert accepting.request({"q": "ž"}).url.endswith("?q=%BE&_charset_=ISO-8859-2")
    wide = Page.of(URL, f"<form>{inner}</form>".encode("utf-16"), headers={})
    assert wide.form().request({"q": "é"}).url.endswith("?q=%C3%A9&_charset_=UTF-8")


def test_multipart_has_every_field_and_the_same_body_each_time() -> None:
    fields = "<input name='a\"b' value=x><input type=file name=f><input name=t>"
    made = form(fields, "method=post enctype=multipart/form-data")
    request = made.request({"t": "é\n2"})
    boundary = request.headers["Content-Type"].removeprefix("multipart/form-data; boundary=")
    parts = (request.body or b"").split(f"--{boundary}".encode())
    assert parts == [
        b"",
        b'\r\nContent-Disposition: form-data; name="a%22b"\r\n\r\nx\r\n',
        b'\r\nContent-Disposition: form-data; name="f"; filename=""\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\r\n",
        b'\r\nContent-Disposition: form-data; name="t"\r\n\r\n\xc3\xa92\r\n',
        b"--\r\n",
    ]
    assert made.request({"t": "é\n2"}) == request


@pytest.mark.parametrize(
    ("action", "referer"),
    [("/x", "http://shop.example/dir/page?old=1"), ("http://other.example/", "http://shop.example/")],
)
def test_a_post_says_where_it_comes_from(action: str, referer: str) -> None:
    assert form("", f"method=post action={action}").request().headers["Referer"] == referer


def test_forms_are_found_by_selector_name_and_position() -> None:
    html = "<form id=a><input name=q class=s></form><form name=b><p class=s></form><form></form>"
    page = Page.of(URL, html)
    assert page.form(".s").fields == {"q": ""}
    assert [page.form("form", index=number)._element.get("name") for number in (0, 1, -1)] == [None, "b", None]
    assert page.form(name="a").fields == {"q": ""}
    assert page.form(name="b").fields == {}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"css": "#none"}, "has no form at '#none'"),
        ({"index": 5}, "has only 1 form"),
        ({"name": "serch"}, "has no form named 'serch'; did you mean 'search'?"),
    ],
)
def test_a_form_that_there_is_not(asked: Any, message: str) -> None:
    with pytest.raises(Permanent, match=r"http://shop.example/dir/page.*") as caught:
        form("", "name=search", **asked)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"fields": {"emial": "x"}}, "has no field 'emial'; did you mean 'email'?"),
        ({"fields": {"zzz": "x"}}, "has no field 'zzz'; there is 'email', 'size', 'gone', 'f'"),
        ({"fields": {"size": "smal"}}, "does not offer 'smal' for 'size'; did you mean 'small'?"),
        ({"fields": {"size": ["small", "large"]}}, "takes one value for 'size', not 2"),
        ({"fields": {"gone": "x"}}, "has the field 'gone' disabled; send it with extra="),
        ({"fields": {"f": "x"}}, "has the file field 'f'; files are not sent"),
        ({"submit": "sent"}, "has no button 'sent'; did you mean 'send'?"),
        ({"submit": "twice"}, "has several buttons 'twice'; name one by its value: '1', '2'"),
    ],
)
def test_what_a_form_does_not_have_is_an_error_with_a_hint(asked: Any, message: str) -> None:
    made = form(
        "<input name=email><select name=size><option>small<option>large</select><input name=gone disabled>"
        "<input type=file name=f><button name=send>S</button><button name=twice value=1>T</button>"
        "<button name=twice value=2>T</button>"
    )
    with pytest.raises(Permanent) as caught:
        made.request(**asked)
    assert caught.value.message.startswith(f"the form on 'http://shop.example/dir/page?old=1#top' {message}")


@pytest.mark.parametrize("attributes", ["action=mailto:a@b.example", "action=javascript:go()", "method=dialog"])
def test_a_form_that_sends_nothing_over_http(attributes: str) -> None:
    with pytest.raises(Permanent, match="the form on "):
        form("", attributes).request()


def test_a_page_with_too_many_fields_is_refused() -> None:
    with pytest.raises(Permanent, match="more than 10000 form fields"):
        form("<input name=a>" * 10_001)
    assert len(sent(form("<input name=a>" * 9_000).request())) == 9_000
