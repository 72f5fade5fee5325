import sys
from pathlib import Path

import pytest
from yt_dlp.extractor.common import InfoExtractor

import extract
from captions import NotCaptions, choose_track, file_name, to_text
from extract import outcome_of
from shoal import Files, Item, Notes, Permanent, Throttled, Transient
from shoal.testing import FakeHttp, yielded_by
from subtitles import DELETED_VIDEOS, channel, channel_id, short_hash, video

SITE = "http://videos.example"
SAVED = Path(__file__).parent / "saved"
RATE_LIMITED = (
    "Video unavailable. This content isn't available, try again later. Your account has been rate-limited by YouTube "
    "for up to an hour."
)
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
    ("reason", "captions", "outcome", "said"),
    [
        ("Private video. Sign in if you've been granted access to this video", {}, Permanent, "Private video"),
        (RATE_LIMITED, {}, Transient, "rate-limited"),
        ("Sign in to confirm you\u2019re not a bot", {}, Transient, "not a bot"),
        (None, {}, Permanent, "No subtitles available"),
        ("Sign in to see all of it", {"en": [{"url": f"{SITE}/1.vtt"}]}, None, ""),
    ],
)
def test_a_site_that_refuses_a_video_is_not_one_without_captions(
    reason, captions, outcome, said, tmp_path, monkeypatch
):
    class Refusing(InfoExtractor):
        _VALID_URL = r"http://videos\.example/watch/(?P<id>.+)"

        def _real_extract(self, url):
            self.report_warning("No JavaScript runtime: some formats may be missing", only_once=True)
            if reason is not None:
                self.raise_no_formats(reason, expected=True)  # only a warning: the video itself is not wanted
            return {"id": self._match_id(url), "title": "A video", "formats": [], "subtitles": captions}

    monkeypatch.setattr(
        extract._Extractor, "add_default_info_extractors", lambda self: self.add_info_extractor(Refusing())
    )
    http = FakeHttp({f"{SITE}/1.vtt": saved("captions.vtt")})
    item = Item(f"{SITE}/watch/1", partition="knots")
    if outcome is None:
        (record,) = yielded_by(video, item, http, Files(tmp_path))
        assert record["text"] == WORDS
    else:
        with pytest.raises(outcome, match=said):
            yielded_by(video, item, http, Files(tmp_path))


@pytest.mark.parametrize("link", ["http://[bad/", "javascript:alert(1)", "//", f"{SITE}/{'x' * 10_000}"])
def test_a_bad_link_does_not_hide_the_others(link):
    """What is no address is left out by the worker, which logs it."""
    url = f"{SITE}/@knots"
    feed = saved("channel.rss").replace(f"{SITE}/watch/knots-1", link)
    _, second, record = yielded_by(channel, Item(url, partition=channel_id(url)), FakeHttp({url: feed.encode()}))
    assert (second.url, record["name"]) == (f"{SITE}/watch/knots-2", "Knots")


def test_what_yt_dlp_did_not_expect_is_tried_again(tmp_path, monkeypatch):
    def fail(*arguments, **named):
        raise KeyError("videoDetails is not available in your country")

    monkeypatch.setattr(extract._Extractor, "extract_info", fail)
    with pytest.raises(Transient, match="yt-dlp failed: KeyError"):
        yielded_by(video, Item(f"{SITE}/watch/1"), FakeHttp({}), Files(tmp_path))


@pytest.mark.parametrize(
    "message",
    [
        "No subtitles available",
        "This video is no longer available because the YouTube account associated with it has been terminated.",
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
        RATE_LIMITED,
        "Unable to download video data: connection terminated",
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


def calls(function):
    """How many functions a call calls, whatever the machine does meanwhile."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("tag", ["p", "text"])
def test_nested_captions_cost_as_much_as_they_are_long(tag):
    def nested(depth):
        inner = "".join(f"<{tag}>{number}<br/>" for number in range(depth))
        return f"<tt><body>{inner}{f'</{tag}>' * depth}</body></tt>"

    assert to_text(nested(400)).split("\n") == [str(number) for number in range(400)]
    assert calls(lambda: to_text(nested(400))) < 2.5 * calls(lambda: to_text(nested(200)))


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


@pytest.mark.parametrize("video_id", ["_abcDEF1234", "abcDEF1234_", "-abc_DEF-1-"])
def test_ids_stay_as_they_are(video_id):
    assert file_name(video_id, "T") == f"{video_id}_T.txt"


def test_ids_that_must_be_changed_stay_apart():
    names = {file_name(video_id, "T") for video_id in ("a/b", "a_b", "a:b", "", "\udc00", "k" * 100, "k" * 101)}
    assert len(names) == 7
    assert not [name for name in names if set(name) & set("/:")]
