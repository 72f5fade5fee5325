"""HTML forms: their fields with the values a browser would have, and the request that submitting one sends.

It follows the HTML standard: which controls belong to a form, which are sent, and how they are encoded.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote_from_bytes

from w3lib.encoding import resolve_encoding

from shoal.errors import Permanent
from shoal.fetch import urls
from shoal.fetch.body import WEB_ENCODINGS
from shoal.fetch.page import Request
from shoal.model.request import SecretName
from shoal.model.url_key import quoted

if TYPE_CHECKING:
    from shoal.fetch.page import Page

Fields = Mapping[str, Any]
# A value is a text, or a secret by name.
Pairs = list[tuple[str, Any]]
T_co = TypeVar("T_co", covariant=True)
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
PLAIN = "text/plain"
# The way up from each field is walked, so a deep page with very many of them would take minutes.
MAX_CONTROLS = 10_000
_NEW_LINE = re.compile(r"\r\n|\r|\n")
_SPACES = re.compile(r"[ \t\n\f\r]+")
_SUBMIT_TYPES = frozenset({"submit", "image"})
_NEVER_SENT = frozenset({"reset", "button"})
_DEFAULTS = {"range": "50", "color": "#000000"}
# The controls whose value is a text that the user may change.
_MULTILINE = frozenset({"hidden", "textarea"})
# How the standard names encodings that Python names otherwise.
_STANDARD_NAMES = {
    "cp932": "Shift_JIS",
    "cp949": "EUC-KR",
    "cp866": "IBM866",
    "big5hkscs": "Big5",
    "euc_jp": "EUC-JP",
    "iso2022_jp": "ISO-2022-JP",
    "mac-roman": "macintosh",
    "mac-cyrillic": "x-mac-cyrillic",
    "gb18030": "gb18030",
}


class ItemMaker(Protocol[T_co]):
    """What makes items: a stage."""

    @property
    def item(self) -> Callable[..., T_co]: ...


class _Option:
    __slots__ = ("disabled", "selected", "value")

    def __init__(self, value: str, *, selected: bool, disabled: bool) -> None:
        self.value = value
        self.selected = selected
        self.disabled = disabled


class _Control:
    """One control of a form, with its value as it is now."""

    __slots__ = ("checked", "direction", "disabled", "element", "kind", "multiple", "name", "options", "value")

    def __init__(self, element: Any, kind: str, name: str, *, disabled: bool) -> None:
        self.element = element
        self.kind = kind
        self.name = name
        self.disabled = disabled
        self.direction = (element.get("dirname") or "", _direction(element))
        self.value = ""
        self.checked = False
        self.multiple = False
        self.options: list[_Option] = []

    @property
    def is_choice(self) -> bool:
        return self.kind in ("checkbox", "radio")

    def values(self) -> list[str]:
        """The values it sends as it is now."""
        if self.kind == "select":
            return [option.value for option in self.options if option.selected and not option.disabled]
        if self.is_choice:
            return [self.value] if self.checked else []
        return [self.value]


class _Submission(NamedTuple):
    """What is sent, before it is encoded. `files`: the names of file fields."""

    url: str
    method: str
    enctype: str
    pairs: Pairs
    files: frozenset[str]
    headers: dict[str, str]


class Form:
    """A form of a page, made by `Page.form`.

    `action`: the URL it is sent to; `method`: GET or POST; `enctype`: how a POST is encoded. A button may change them.
    """

    def __init__(self, page: Page, element: Any) -> None:
        self._page = page
        self._element = element
        self._controls, self._buttons = _controls_of(element)
        self.action = _action(page, element.get("action"))
        self.method = _method(element.get("method"))
        self.enctype = _enctype(element.get("enctype"))
        self.encoding = _encoding(element.get("accept-charset"), page.encoding)

    def __repr__(self) -> str:
        return f"<Form {self.method} {self.action} fields={list(self.fields)}>"

    @property
    def fields(self) -> dict[str, str | list[str] | None]:
        """What would be sent, by name: a text, a list where a name has several values, None where nothing is sent."""
        found: dict[str, str | list[str] | None] = {}
        for name, controls in _by_name(self._controls).items():
            values = [value for control in controls if not control.disabled for value in control.values()]
            several = len(controls) > 1 and controls[0].kind != "radio"
            found[name] = values if several or controls[0].multiple else values[0] if values else None
        return found

    @property
    def buttons(self) -> list[str]:
        """The names of its submit buttons, else their values or texts."""
        return [button.name or button.value or _button_text(button) for button in self._buttons]

    def choices(self, name: str) -> list[str]:
        """The values that a select, checkboxes or radio buttons offer."""
        controls = self._named(name)
        options = [option.value for control in controls for option in control.options if not option.disabled]
        return options or [control.value for control in controls if control.is_choice and not control.disabled]

    def request(
        self, fields: Fields | None = None, *, submit: str | Literal[False] | None = None, extra: Any = None
    ) -> Request:
        """The request that a browser sends for these fields.

        `fields`: values by name. A text for an input, or `secret(...)`; for checkboxes and a multiple select a list of
        what is chosen; True or False for one checkbox; None leaves a field out. Fields that are not named keep the
        page's values. `submit`: the button that is pressed, by name, value, id or text; the first by default, False for
        none. `extra`: pairs that scripts of the page would add. Raises Permanent for a field, a choice or a button that
        there is not.
        """
        sent = self._submission(fields, submit, extra)
        if any(not isinstance(value, str) for _, value in sent.pairs):
            raise self._error("would be sent with a secret; use form.item or http.submit")
        if sent.method == "GET":
            return Request(url=f"{sent.url}?{_urlencoded(sent.pairs, self.encoding).decode('ascii')}")
        content_type, body = _body(sent, self.encoding)
        return Request(url=sent.url, method="POST", headers={"Content-Type": content_type, **sent.headers}, body=body)

    def arguments(
        self, fields: Fields | None = None, *, submit: str | Literal[False] | None = None, extra: Any = None
    ) -> tuple[str, dict[str, Any]]:
        """The request as the URL and the arguments of `stage.item` and `http.request`."""
        sent = self._submission(fields, submit, extra)
        has_secrets = any(not isinstance(value, str) for _, value in sent.pairs)
        is_plain = self.encoding == "utf-8" and (sent.method == "GET" or sent.enctype == URLENCODED)
        if has_secrets and not is_plain:
            raise self._error("has a secret and is not sent as UTF-8 pairs, so the secret would be stored")
        if sent.method == "GET":
            if has_secrets:
                return sent.url, {"params": sent.pairs}
            return f"{sent.url}?{_urlencoded(sent.pairs, self.encoding).decode('ascii')}", {}
        if is_plain:
            pairs = [(_lines(name), _lines(value) if isinstance(value, str) else value) for name, value in sent.pairs]
            return sent.url, {"method": "POST", "form": pairs, "headers": sent.headers}
        content_type, body = _body(sent, self.encoding)
        return sent.url, {"method": "POST", "body": body, "headers": {"Content-Type": content_type, **sent.headers}}

    def item(
        self,
        stage: ItemMaker[T_co],
        fields: Fields | None = None,
        *,
        submit: str | Literal[False] | None = None,
        extra: Any = None,
        **options: Any,
    ) -> T_co:
        """An item of a stage that submits the form. `options` are those of `stage.item`, such as `payload=`, `key=`."""
        url, request = self.arguments(fields, submit=submit, extra=extra)
        if "headers" in options:
            request["headers"] = {**request.get("headers", {}), **options.pop("headers")}
        return stage.item(url, **request, **options)

    def _submission(self, fields: Fields | None, submit: str | Literal[False] | None, extra: Any) -> _Submission:
        controls = self._filled(fields or {})
        button = self._pressed(submit)
        pairs = _entries(self._order(controls, button), button, self.encoding)
        pairs += [(name, _text(value)) for name, given in _pairs(extra) for value in _several(given)]
        action, method, enctype = self.action, self.method, self.enctype
        if button is not None:
            element = button.element
            action = _action(self._page, element.get("formaction")) if element.get("formaction") else action
            method = _method(element.get("formmethod")) if element.get("formmethod") else method
            enctype = _enctype(element.get("formenctype")) if element.get("formenctype") else enctype
        if not action.startswith(("http://", "https://")):
            raise self._error(f"is sent to {quoted(action)}, which is not an http address")
        if method not in ("GET", "POST"):
            raise self._error("has the method dialog, which sends nothing")
        url = action.partition("#")[0]
        if method == "GET":
            return _Submission(url.partition("?")[0], method, enctype, pairs, frozenset(), {})
        files = frozenset(control.name for control in controls if control.kind == "file")
        return _Submission(url, method, enctype, pairs, files, _referer(self._page.url, action))

    def _named(self, name: str) -> list[_Control]:
        controls = [control for control in self._controls if control.name == name]
        if not controls:
            raise self._error(f"has no field {name!r}{_hint(name, (each.name for each in self._controls))}")
        return controls

    def _filled(self, fields: Fields) -> list[_Control]:
        """Copies of the controls with the author's values."""
        copies = {id(control): _copy(control) for control in self._controls}
        for name, value in fields.items():
            controls = [copies[id(control)] for control in self._named(name)]
            enabled = [control for control in controls if not control.disabled]
            if not enabled:
                raise self._error(f"has the field {name!r} disabled; send it with extra=, as a script would")
            self._fill(name, enabled, value)
        return list(copies.values())

    def _fill(self, name: str, controls: list[_Control], value: Any) -> None:
        if value is None:
            for control in controls:
                control.disabled = True
            return
        first = controls[0]
        if first.kind == "file":
            raise self._error(f"has the file field {name!r}; files are not sent")
        if first.kind == "select":
            self._choose(name, [option for each in controls for option in each.options], value, many=first.multiple)
            return
        if first.is_choice:
            if isinstance(value, bool) and len(controls) == 1:
                first.checked = value
                return
            boxes = [_Option(each.value, selected=False, disabled=False) for each in controls]
            self._choose(name, boxes, value, many=first.kind == "checkbox")
            for control, box in zip(controls, boxes, strict=True):
                control.checked = box.selected
            return
        values = [_text(each) for each in _several(value)]
        if len(values) > len(controls):
            count = f"{len(controls)} field" + ("s" if len(controls) > 1 else "")
            raise self._error(f"has {count} named {name!r}, not {len(values)}; send more with extra=")
        for control, text in zip(controls, values, strict=False):
            keep = control.kind in _MULTILINE or not isinstance(text, str)
            control.value = text if keep else _NEW_LINE.sub("", text)

    def _choose(self, name: str, options: list[_Option], value: Any, *, many: bool) -> None:
        chosen = [_text(each) for each in _several(value)]
        if len(chosen) > 1 and not many:
            raise self._error(f"takes one value for {name!r}, not {len(chosen)}")
        offered = [option.value for option in options if not option.disabled]
        for text in chosen:
            if text not in offered:
                raise self._error(f"does not offer {text!r} for {name!r}{_hint(text, offered)}")
        for option in options:
            option.selected = option.value in chosen and not option.disabled
            if option.selected and not many:
                chosen = []  # of equal values the first

    def _pressed(self, submit: str | Literal[False] | None) -> _Control | None:
        if submit is False:
            return None
        enabled = [button for button in self._buttons if not button.disabled]
        if submit is None:
            return enabled[0] if enabled else None
        for called in zip(*map(_words, enabled), strict=True):
            found = [button for button, word in zip(enabled, called, strict=True) if word == submit]
            if len({(button.name, button.value) for button in found}) > 1:
                values = ", ".join(repr(button.value) for button in found)
                raise self._error(f"has several buttons {submit!r}; name one by its value: {values}")
            if found:
                return found[0]
        known = [word for button in enabled for word in _words(button)]
        raise self._error(f"has no button {submit!r}{_hint(submit, known)}")

    def _order(self, controls: list[_Control], button: _Control | None) -> Iterator[_Control]:
        """The controls and the button in the order of the page."""
        if button is None:
            yield from controls
            return
        position = {element: number for number, element in enumerate(_candidates(self._element))}
        yield from sorted((*controls, button), key=lambda control: position[control.element])

    def _error(self, what: str) -> Permanent:
        return Permanent(f"the form on {quoted(self._page.url)} {what}")


def find_form(page: Page, css: str | None, name: str | None, index: int) -> Form:
    """The form of a page that `Page.form` is asked for. Raises Permanent when there is none."""
    root = page.selector.root
    if css is not None:
        found = [each for each in (_enclosing_form(node.root) for node in page.css(css)) if each is not None]
        forms = list(dict.fromkeys(found))
        what = f" at {css!r}"
    else:
        forms, what = list(root.iter("form")), ""
    if name is not None:
        named = [form for form in forms if name in (form.get("name"), form.get("id"))]
        if not named:
            known = [word for form in forms for word in (form.get("name"), form.get("id")) if word]
            raise Permanent(f"{quoted(page.url)} has no form named {name!r}{_hint(name, known)}")
        forms = named
    if not -len(forms) <= index < len(forms):
        count = "no form" if not forms else f"only {len(forms)} form" + ("s" if len(forms) > 1 else "")
        raise Permanent(f"{quoted(page.url)} has {count}{what}")
    return Form(page, forms[index])


def _enclosing_form(node: Any) -> Any:
    if not hasattr(node, "tag"):
        return None  # a text or an attribute
    return node if node.tag == "form" else next(node.iterancestors("form"), None)


# --- the controls of a form


def _controls_of(form: Any) -> tuple[list[_Control], list[_Control]]:
    """The controls that have a name, and the submit buttons, both in the order of the page."""
    controls: list[_Control] = []
    buttons: list[_Control] = []
    for element in _candidates(form):
        kind = _kind(element)
        if kind in _NEVER_SENT or _is_within(element, "datalist"):
            continue
        control = _Control(element, kind, element.get("name") or "", disabled=_is_disabled(element))
        if kind in _SUBMIT_TYPES:
            control.value = element.get("value") or ""
            buttons.append(control)
        elif control.name:
            _read_value(control)
            controls.append(control)
    for radios in _by_name(control for control in controls if control.kind == "radio").values():
        for radio in [each for each in radios if each.checked][:-1]:
            radio.checked = False  # the last one wins
    return controls, buttons


def _candidates(form: Any) -> Iterator[Any]:
    """The controls whose owner is the form, wherever on the page they are."""
    own_id = form.get("id")
    root = form.getroottree().getroot()
    is_first = own_id is not None and next((each for each in root.iter() if each.get("id") == own_id), None) is form
    for number, element in enumerate(root.iter("input", "select", "textarea", "button")):
        if number >= MAX_CONTROLS:
            raise Permanent(f"the page has more than {MAX_CONTROLS} form fields")
        owner = element.get("form")
        if owner is not None:
            if is_first and owner == own_id:
                yield element
        elif next(element.iterancestors("form"), None) is form:
            yield element


def _kind(element: Any) -> str:
    """The type of a control: that of an input, `submit` and the like for a button, otherwise the name of its tag."""
    if element.tag == "button":
        kind = (element.get("type") or "").lower()
        return kind if kind in _NEVER_SENT else "submit"
    return (element.get("type") or "text").strip().lower() if element.tag == "input" else str(element.tag)


def _read_value(control: _Control) -> None:
    element = control.element
    if control.kind == "select":
        control.multiple = element.get("multiple") is not None
        control.options = _options(element, multiple=control.multiple)
    elif control.kind == "textarea":
        text = "".join(element.itertext())
        control.value = _NEW_LINE.sub("", text, count=1) if text[:1] in ("\r", "\n") else text
    elif control.is_choice:
        control.value = element.get("value", "on")
        control.checked = element.get("checked") is not None
    elif control.kind == "file":
        control.value = ""
    else:
        value = element.get("value", _DEFAULTS.get(control.kind, ""))
        control.value = value if control.kind in _MULTILINE else _NEW_LINE.sub("", value)


def _options(select: Any, *, multiple: bool) -> list[_Option]:
    options = []
    for element in select.iter("option"):
        value = element.get("value")
        if value is None:
            value = _SPACES.sub(" ", "".join(element.itertext())).strip()
        group = element.getparent()
        disabled = element.get("disabled") is not None or (
            group is not None and group.tag == "optgroup" and group.get("disabled") is not None
        )
        options.append(_Option(value, selected=element.get("selected") is not None, disabled=disabled))
    if multiple:
        return options
    for option in [each for each in options if each.selected][:-1]:
        option.selected = False
    size = select.get("size") or "1"
    if not any(option.selected for option in options) and (not size.isdigit() or int(size) <= 1):
        for option in (each for each in options if not each.disabled):
            option.selected = True
            break
    return options


def _is_disabled(element: Any) -> bool:
    if element.get("disabled") is not None:
        return True
    inner = element
    for outer in element.iterancestors():
        if outer.tag == "fieldset" and outer.get("disabled") is not None:
            legend = next(outer.iterchildren("legend"), None)
            if legend is None or inner is not legend:  # what is in its first legend stays usable
                return True
        inner = outer
    return False


def _is_within(element: Any, tag: str) -> bool:
    return next(element.iterancestors(tag), None) is not None


def _direction(element: Any) -> str:
    """The direction of a text, as `dirname` sends it."""
    for each in (element, *element.iterancestors()) if element.get("dirname") else ():
        if (direction := (each.get("dir") or "").lower()) in ("ltr", "rtl"):
            return direction
    return "ltr"


def _button_text(button: _Control) -> str:
    return _SPACES.sub(" ", "".join(button.element.itertext())).strip()


def _words(button: _Control) -> tuple[str, ...]:
    """By what a button may be chosen."""
    return button.name, button.value, button.element.get("id") or "", _button_text(button)


def _copy(control: _Control) -> _Control:
    copy = _Control(control.element, control.kind, control.name, disabled=control.disabled)
    copy.value, copy.checked, copy.multiple = control.value, control.checked, control.multiple
    copy.options = [_Option(each.value, selected=each.selected, disabled=each.disabled) for each in control.options]
    return copy


def _by_name(controls: Iterable[_Control]) -> dict[str, list[_Control]]:
    named: dict[str, list[_Control]] = {}
    for control in controls:
        named.setdefault(control.name, []).append(control)
    return named


# --- what is sent


def _entries(controls: Iterable[_Control], button: _Control | None, encoding: str) -> Pairs:
    """The names and values to send, in the order of the page."""
    entries: Pairs = []
    for control in controls:
        name = control.name
        if control.disabled:
            continue
        if control is button and control.kind == "image":
            prefix = f"{name}." if name else ""
            entries += [(f"{prefix}x", "0"), (f"{prefix}y", "0")]
            continue
        if not name:
            continue
        if control.kind == "hidden" and name.lower() == "_charset_":
            entries.append((name, _standard_name(encoding)))
            continue
        entries += [(name, value) for value in control.values()]
        if control.direction[0]:
            entries.append(control.direction)
    return entries


def _body(sent: _Submission, encoding: str) -> tuple[str, bytes]:
    """The Content-Type and the body of a POST."""
    if sent.enctype == MULTIPART:
        return _multipart(sent.pairs, encoding, sent.files)
    if sent.enctype == PLAIN:
        text = "".join(f"{name}={_lines(value)}\r\n" for name, value in sent.pairs)
        return PLAIN, text.encode(encoding, "xmlcharrefreplace")
    return URLENCODED, _urlencoded(sent.pairs, encoding)


def _urlencoded(pairs: Pairs, encoding: str) -> bytes:
    def escaped(text: str) -> str:
        plain = quote_from_bytes(_lines(text).encode(encoding, "xmlcharrefreplace"), safe=" *-._")
        return plain.replace("~", "%7E").replace(" ", "+")

    return "&".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs).encode("ascii")


def _multipart(pairs: Pairs, encoding: str, files: Collection[str]) -> tuple[str, bytes]:
    parts = []
    for name, value in pairs:
        head = f'Content-Disposition: form-data; name="{_quoted_name(name)}"'
        if name in files:
            head += '; filename=""\r\nContent-Type: application/octet-stream'
        parts.append(f"{head}\r\n\r\n{_lines(value)}\r\n".encode(encoding, "xmlcharrefreplace"))
    # Made of the content, so that the same submission has the same body and the same key.
    boundary = "----shoal" + hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    mark = f"--{boundary}".encode()
    body = b"".join(mark + b"\r\n" + part for part in parts) + mark + b"--\r\n"
    return f"{MULTIPART}; boundary={boundary}", body


def _quoted_name(name: str) -> str:
    return _lines(name).replace("\n", "%0A").replace("\r", "%0D").replace('"', "%22")


def _lines(text: str) -> str:
    return _NEW_LINE.sub("\r\n", text) if "\n" in text or "\r" in text else text


def _encoding(accepted: str | None, of_page: str) -> str:
    """Python's name of the encoding to send in: the first that the form accepts, else that of its page."""
    for label in (accepted or "").split():
        found = resolve_encoding(label)
        if found in WEB_ENCODINGS:
            of_page = found
            break
    return "utf-8" if of_page.startswith("utf-16") else of_page


def _standard_name(encoding: str) -> str:
    if encoding in _STANDARD_NAMES:
        return _STANDARD_NAMES[encoding]
    if encoding.startswith("cp"):
        return f"windows-{encoding[2:]}"
    return encoding.replace("iso8859", "ISO-8859").upper()


def _action(page: Page, written: str | None) -> str:
    # An empty action means the page itself, whatever its <base> is.
    return page.join(written) if written and written.strip(urls.HTML_WHITESPACE) else page.url


def _method(written: str | None) -> str:
    method = (written or "").strip().upper()
    return method if method in ("POST", "DIALOG") else "GET"


def _enctype(written: str | None) -> str:
    enctype = (written or "").strip().lower()
    return enctype if enctype in (MULTIPART, PLAIN) else URLENCODED


def _referer(page: str, target: str) -> dict[str, str]:
    """The Referer of browsers: some sites refuse a POST without it. The whole URL only goes to the same origin."""
    source, other = urls.parse_url(page), urls.parse_url(target)
    if source is None or other is None or not urls.is_http(source):
        return {}
    if source.origin == other.origin:
        return {"Referer": urls.without_credentials(page).partition("#")[0]}
    return {} if source.protocol == "https:" and other.protocol != "https:" else {"Referer": f"{source.origin}/"}


def _several(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _pairs(extra: Any) -> Iterable[tuple[str, Any]]:
    return extra.items() if isinstance(extra, Mapping) else extra or ()


def _text(value: Any) -> Any:
    """A value as it is sent; a secret stays a name until then."""
    if isinstance(value, SecretName):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _hint(word: str, known: Iterable[str]) -> str:
    options = [each for each in dict.fromkeys(known) if each]
    if close := difflib.get_close_matches(word, options, 1):
        return f"; did you mean {close[0]!r}?"
    if not options:
        return ""
    shown = ", ".join(repr(each) for each in options[:10])
    return f"; there is {shown}" + (" ..." if len(options) > 10 else "")
