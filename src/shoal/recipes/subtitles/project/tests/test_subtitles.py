from pathlib import Path

import pytest

from captions import NotCaptions, choose_track, file_name, to_text
from extract import outcome_of
from shoal import Files, Item, Notes, Permanent, Throttled, Transient
from shoal.testing import FakeHttp, yielded_by
from subtitles import DELETED_VIDEOS, channel, channel_id, short_hash, video

SITE = "http://videos.example"
SAVED = Path(__file__).parent / "saved"
WORDS = "Make a small loop,\nand pass the end <up> through it."


def saved(name: str) -> str:
    return (SAVED / name).read_text(encoding="utf-8")


def test_a_channel_leads_to_its_videos():
    url = f"{SITE}/@knots"
    http = FakeHttp({url: saved("channel.rss").encode()})
    first, second, record = yielded_by(channel, Item(url, partition=channel_id(url)), http)
    assert (first.stage, first.url, first.payload["video_id"]) == ("video", f"{SITE}/watch/knots-1", "knots-1")
    assert second.payload["title"] == '../../A "figure" of eight?'
    assert first.partition == second.partition == channel_id(url)
    assert record == {"channel": channel_id(url), "url": url, "name": "Knots"}
    assert first.priority > channel.item(url).priority, "a new channel is listed before the videos of others"


def test_a_video_that_was_deleted_is_added_again():
    url, gone = f"{SITE}/@knots", f"{SITE}/watch/knots-1"
    http = FakeHttp({url: saved("channel.rss").encode()})
    notes = Notes({DELETED_VIDEOS: {short_hash(gone): 2}})
    first, second, _ = yielded_by(channel, Item(url, partition=channel_id(url)), http, notes)
    assert (first.url, first.key, second.key) == (gone, f"{gone} 2", None)


def test_a_video_becomes_text(tmp_path):
    url = f"{SITE}/watch/knots-1"
    http = FakeHttp({url: saved("video.html"), f"{SITE}/captions/knots-1.en.vtt": saved("captions.vtt")})
    item = Item(url, partition="knots", payload={"video_id": "knots-1", "title": "A/bowline"})
    (record,) = yielded_by(video, item, http, Files(tmp_path))
    assert (record["language"], record["text"]) == ("en-GB", WORDS)
    assert (tmp_path / "knots" / "knots-1_A_bowline.txt").read_text() == f"{WORDS}\n"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (404, Permanent),
        (429, Throttled),
        (503, Transient),
        (TimeoutError("too slow"), TimeoutError),
        ("<html><title>Nothing</title><p>No video here.", Permanent),
        ("<html><title>Silent</title><video src='/a.mp4'></video>", Permanent),
    ],
)
def test_what_goes_wrong_is_told_apart(answer, outcome, tmp_path):
    url = f"{SITE}/watch/knots-1"
    with pytest.raises(outcome):
        yielded_by(video, Item(url), FakeHttp({url: answer}), Files(tmp_path))


@pytest.mark.parametrize(
    "message",
    [
        "No subtitles available",
        "Video unavailable. This video has been removed by the uploader",
        "Private video. Sign in if you've been granted access to this video",
        "This video has been deleted",
        "Sign in to confirm your age. This video may be inappropriate for some users.",
        "This video is age restricted",
        "'htp:/x' is not a valid URL",
        "Unsupported URL: http://videos.example/about",
    ],
)
def test_some_errors_are_permanent(message):
    assert isinstance(outcome_of(message), Permanent)


@pytest.mark.parametrize(
    "message",
    [
        "Connection timeout",
        "Rate limit exceeded",
        "Service unavailable",
        "HTTP Error 500: Internal Server Error",
        "HTTP Error 502: Bad Gateway",
        "Temporary failure in name resolution: network is unreachable",
        "Quota exceeded",
        "something that nobody has seen before",
    ],
)
def test_all_others_are_tried_again(message):
    assert isinstance(outcome_of(message), Transient)


@pytest.mark.parametrize(
    "captions",
    [
        saved("captions.vtt"),
        "1\r\n00:00:00,000 --> 00:00:02,000\r\n<i>Make a small loop,</i>\r\n\r\n2\r\n00:00:02,000 --> 00:00:04,000\r\n"
        "and pass the end &lt;up&gt; through it.\r\n",
        '{"events": [{"id": 1}, {"segs": [{"utf8": "Make a "}, {"utf8": "small loop,"}]}, {"segs": [{"utf8": "\\n"}]},'
        ' {"segs": [{"utf8": "and pass the end <up> through it."}]}]}',
        '<?xml version="1.0"?><tt xmlns="http://www.w3.org/ns/ttml"><body><div><p>Make a small loop,<br/>'
        "and pass the end &lt;up&gt; through it.</p></div></body></tt>",
        '<transcript><text start="0">Make a small loop,</text><text>and pass the end &amp;lt;up&amp;gt; through it.'
        "</text></transcript>",
    ],
    ids=["vtt", "srt", "json3", "ttml", "srv1"],
)
def test_every_format_is_read(captions):
    assert to_text(captions) == WORDS


@pytest.mark.parametrize(
    "captions",
    [
        "<!DOCTYPE x [<!ENTITY a 'aaaa'>]><transcript><text>&a;</text></transcript>",
        "<transcript><text>no end",
        '{"events": 7}',
        "[" * 100_000,
        "",
        "<html><title>Sorry</title></html>x",
    ],
)
def test_what_are_no_captions_is_refused(captions):
    with pytest.raises(NotCaptions):
        to_text(captions)


def test_control_characters_and_repeated_lines_are_dropped():
    cues = "".join(
        f"00:0{n}.000 --> 00:0{n}.900\n{text}\n\n" for n, text in enumerate(["a\u0000\u001b[1mb", "c", "c", "d"])
    )
    assert to_text(f"WEBVTT\n\n{cues}") == "a [1mb\nc\nd"


def test_the_wanted_language_is_taken_and_else_the_first():
    tracks = {
        name: [{"url": f"{name}.srv1", "ext": "srv1"}, {"url": f"{name}.json3", "ext": "json3"}]
        for name in ("de", "en")
    }
    assert choose_track({"subtitles": tracks}, ["en"]) == ("en", {"url": "en.json3", "ext": "json3"}, False)
    assert choose_track({"subtitles": {"live_chat": [{"url": "x"}], "fr": [{"url": "fr.vtt"}]}}, ["en"])[0] == "fr"
    made = {"automatic_captions": tracks}
    assert choose_track(made, ["en"]) is None
    assert choose_track(made, ["en"], auto=True)[2] is True


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A bowline", "k1_A bowline.txt"),
        ("../../etc/passwd", "k1_etc_passwd.txt"),
        ("CON", "k1_CON.txt"),
        ("a\u202egnp.exe\u0000", "k1_a gnp.exe.txt"),
        ("...", "k1_untitled.txt"),
        ('x: "y" | <z>?', "k1_x_ _y_ _ _z.txt"),
    ],
)
def test_file_names_are_safe(title, name):
    assert file_name("k1", title) == name


def test_a_long_title_is_cut():
    assert len(file_name("k" * 500, "\u26f5" * 500).encode()) <= 150
