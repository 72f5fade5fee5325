"""Turns the text of a message into an item: a URL, or JSON (a string, or an object with the fields of an item)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.errors import InvalidItem, ShoalError
from shoal.feeds.lines import MAX_LINE
from shoal.feeds.url_file import item_from_json
from shoal.model.item import NewItem, PreparedItem, prepare

_decode_string = msgspec.json.Decoder(str).decode
_BOM = "\ufeff"


def read_message(body: bytes, make: Callable[..., NewItem], stage: str) -> PreparedItem:
    """The checked item of a message; `stage` is that of items without one. Raises InvalidItem with the reason.

    `make` calls the author's functions for lanes and partitions: whatever they raise makes the message invalid, since
    it would be raised again with every delivery.
    """
    if len(body) > MAX_LINE:
        raise InvalidItem(f"The message is longer than {MAX_LINE >> 20} MiB.")
    try:
        text = body.decode().strip().removeprefix(_BOM)
    except UnicodeDecodeError:
        raise InvalidItem("The message is not valid UTF-8.") from None
    if not text:
        raise InvalidItem("The message is empty.")
    try:
        if text[0] == "{":
            item = item_from_json(text, make, "message")
        elif text[0] == '"':
            item = make(_decode_string(text))
        else:
            item = make(text)
        return prepare(item, stage)
    except msgspec.DecodeError as error:
        raise InvalidItem(f"The message is not valid JSON: {error}.") from None
    except ShoalError as error:
        raise InvalidItem(error.message) from None
    except Exception as error:
        raise InvalidItem(f"{type(error).__name__}: {error}") from error
