"""Captions as plain text: JSON3, WebVTT, SRT, XML (TTML, srv1 to srv3); which captions to take; names of files.

Everything here comes from a site: tags are removed, entities are decoded once, and control characters are dropped.
"""

import hashlib
import html
import json
import re
import unicodedata
from itertools import pairwise
from xml.etree import ElementTree

FORMATS = ("json3", "vtt", "srt", "ttml", "srv3", "srv2", "srv1", "xml")
MAX_NAME_BYTES = 150
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<[\d:.]+>")
_SKIPPED_BLOCKS = ("NOTE", "STYLE", "REGION", "WEBVTT")


class NotCaptions(ValueError):
    """The file is not one of the known formats, or it is damaged."""


def to_text(body: str) -> str:
    """The words of a caption file, one line for each line that is shown. Raises NotCaptions."""
    text = body.removeprefix("\ufeff").lstrip()
    if text.startswith("{"):
        lines = _json3(text)
    elif text.startswith("<"):
        lines = _xml(text)
    elif text.startswith("WEBVTT") or "-->" in text:
        lines = _cues(text)
    else:
        raise NotCaptions("these are no captions: neither JSON3, WebVTT, SRT nor XML")
    cleaned = [" ".join(_printable(line).split()) for text in lines for line in text.splitlines()]
    shown = [line for line in cleaned if line]
    # Captions that scroll repeat each line in the next cue.
    return "\n".join(shown[:1] + [line for before, line in pairwise(shown) if line != before])


def _json3(text: str) -> list[str]:
    try:
        events = json.loads(text)["events"]
        return ["".join(part.get("utf8", "") for part in event.get("segs") or ()) for event in events]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotCaptions(f"damaged JSON3: {type(error).__name__}") from None


def _cues(text: str) -> list[str]:
    """The cues of WebVTT and SRT: blocks with a line `00:01 --> 00:02`; what is below it is shown."""
    shown = []
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.strip("\n").split("\n")
        timing = next((number for number, line in enumerate(lines) if "-->" in line), None)
        if timing is not None and not lines[0].startswith(_SKIPPED_BLOCKS):
            shown.append(html.unescape(_TAG.sub("", "\n".join(lines[timing + 1 :]))))
    return shown


def _xml(text: str) -> list[str]:
    # A document type can define entities that grow without end, or read files.
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise NotCaptions("XML captions with a document type are refused")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise NotCaptions(f"damaged XML: {error}") from None
    for element in root.iter():
        if _name(element) == "br":
            element.tail = "\n" + (element.tail or "")
    shown, waiting = [], [root]
    while waiting:
        element = waiting.pop()
        if _name(element) in ("p", "text"):
            # All its words, with those of cues inside it. srv1 escapes its text twice.
            shown.append(html.unescape("".join(element.itertext())))
        else:
            waiting.extend(reversed(element))
    return shown


def _name(element: ElementTree.Element) -> str:
    """The name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _printable(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return "".join(character if character.isprintable() else " " for character in text)


def choose_track(info: dict, languages: list[str], *, auto: bool = False) -> tuple[str, dict, bool] | None:
    """The language, the caption file and whether it was made by a machine; None when the video has no captions.

    The languages in their order, each also with a region (`en-GB` for `en`), then the first one there is. Captions made
    by a machine only with `auto`, and only when nobody wrote any.
    """
    for name, is_auto in (("subtitles", False), ("automatic_captions", True)):
        if is_auto and not auto:
            continue
        found = {language: tracks for language, tracks in (info.get(name) or {}).items() if language != "live_chat"}
        for language in _in_order(list(found), languages):
            tracks = [track for track in found[language] if track.get("url")]
            if tracks:
                return language, min(tracks, key=_preference), is_auto
    return None


def _in_order(available: list[str], wanted: list[str]) -> list[str]:
    matches = [each for want in wanted for each in available if each == want]
    matches += [each for want in wanted for each in available if each.startswith(f"{want}-")]
    return list(dict.fromkeys(matches + available))


def _preference(track: dict) -> int:
    extension = track.get("ext")
    return FORMATS.index(extension) if extension in FORMATS else len(FORMATS)


def file_name(video_id: str, title: str) -> str:
    """`<id>_<title>.txt` as every file system takes it: no separators, no hidden or reserved names, 150 bytes.

    An id that must be changed for that gets a hash, so that two ids never have the same name.
    """
    safe_id = re.sub(r"[^A-Za-z0-9_-]+", "_", video_id)[:64] or "video"
    if safe_id != video_id:
        safe_id = f"{safe_id[:48]}-{hashlib.sha256(video_id.encode('utf-8', 'replace')).hexdigest()[:8]}"
    plain = unicodedata.normalize("NFC", _printable(title))
    words = re.sub(r'[/\\<>:"|?*]+', "_", plain).split()
    safe_title = " ".join(words).strip(". _")
    room = MAX_NAME_BYTES - len(f"{safe_id}_.txt")
    short = safe_title.encode()[:room].decode("utf-8", "ignore").rstrip(". _")
    return f"{safe_id}_{short or 'untitled'}.txt"
