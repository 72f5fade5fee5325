"""yt-dlp on Shoal's HTTP client: its requests obey the rate of the host, robots.txt and the egress of the stage.

yt-dlp blocks, so it runs in a thread. Each request that it makes is sent by the event loop and waited for. What its
errors mean for the item is decided by their text (`outcome_of`).
"""

import asyncio
import io
import re
from concurrent.futures import CancelledError, Future

from yt_dlp import DownloadError, YoutubeDL
from yt_dlp.globals import plugin_dirs
from yt_dlp.networking.common import RequestHandler, Response
from yt_dlp.networking.exceptions import HTTPError, TransportError

from shoal import Http, Page, Permanent, Transient

plugin_dirs.value = []  # no code of ~/.config/yt-dlp or of other packages is run
OPTIONS = {
    "quiet": True,
    "no_warnings": True,
    "noprogress": True,
    "cachedir": False,
    "skip_download": True,
    "ignore_no_formats_error": True,  # the video itself is never asked for
    "format": "best",  # without it yt-dlp runs ffmpeg to see what it could merge
    "extract_flat": "in_playlist",
    "extractor_retries": 0,  # Shoal repeats the item, later
    "js_runtimes": {},
}
# S4.7: what a retry may change, even when the text also says that a video is unavailable.
TRANSIENT = re.compile(
    r"rate.?limit|too many requests|quota|try again later|temporar(y|ily)|timed? ?-?out"
    r"|connection .{0,20}(terminated|reset|refused|closed|aborted|broken|lost|failed)|not a bot",
    re.IGNORECASE,
)
# S4.6: what no retry can change.
PERMANENT = re.compile(
    r"no (subtitles|captions)"
    r"|video (is )?(unavailable|not available|no longer available)"
    r"|private video|video is private"
    r"|video .{0,60}(deleted|removed)|account .{0,60}(deleted|removed|terminated)|deleted video"
    r"|age.?restricted|confirm your age|inappropriate for some users"
    r"|members-only|available to this channel's members|requires payment"
    r"|(not made this video available|not available) in your country"
    r"|invalid url|not a valid url|unsupported url|incomplete youtube id",
    re.IGNORECASE,
)
# Warnings that do not say why a video has nothing.
ASIDE = re.compile(r"\bformats?\b|falling back", re.IGNORECASE)
MAX_REASON = 100


def outcome_of(message: str) -> Permanent | Transient:
    """What an error of yt-dlp means: permanent when its text says so; everything else is tried again."""
    is_final = PERMANENT.search(message) and not TRANSIENT.search(message)
    return Permanent(message) if is_final else Transient(message)


async def extract(http: Http, url: str, **options: object) -> dict:
    """What yt-dlp finds out about a video, a channel or a playlist. Raises an outcome of Shoal."""
    sender = _Sender(http, asyncio.get_running_loop())

    def run() -> dict:
        with _Extractor(sender, {**OPTIONS, "logger": _Silent(), **options}) as extractor:
            found = extractor.extract_info(url, download=False)
            reason = extractor.refusal(found)
            if reason is not None:
                raise DownloadError(reason)
            return extractor.sanitize_info(found)

    try:
        return await asyncio.to_thread(run)
    except Exception as error:
        if sender.error is not None:  # robots.txt, a time-out, a broken connection, no free proxy
            raise sender.error from None
        # What is no DownloadError is a defect of yt-dlp, or a page that it did not expect.
        is_own = isinstance(error, DownloadError)
        message = _plain(str(error)) if is_own else f"yt-dlp failed: {type(error).__name__}: {error}"
        outcome = outcome_of(message) if is_own else Transient(message)
        if isinstance(outcome, Transient) and sender.refused is not None:
            sender.refused.check()  # by its status: 429 closes the host for everybody, 403 is a block, 404 the end
        raise outcome from None
    finally:
        sender.close()


def _plain(message: str) -> str:
    """An error without the colours, the prefix and the request for a bug report."""
    text = re.sub(r"\x1b\[[\d;]*m", "", message).removeprefix("ERROR: ")
    text = re.sub(r"^\[[\w:+-]+\] (\S+: )?", "", text)
    text = text.partition("; please report this issue")[0].partition(" (caused by ")[0].strip()
    return re.sub(r"^Unable to download [^:]+: HTTP Error (\d+): (.+)", r"\2 (HTTP \1)", text)


class _Silent:
    """What yt-dlp says goes nowhere: its errors are raised, and become the error of the attempt."""

    def debug(self, message: str) -> None:
        pass

    info = warning = error = debug


class _Sender:
    """Sends requests of a thread on the event loop. `error`: what ended the last; `refused`: a bad answer to it."""

    def __init__(self, http: Http, loop: asyncio.AbstractEventLoop) -> None:
        self._http = http
        self._loop = loop
        self._waiting: Future | None = None
        self._closed = False
        self.error: Exception | None = None
        self.refused: Page | None = None

    def send(self, method: str, url: str, headers: dict, body: bytes | None) -> Page:
        if self._closed:
            raise TransportError("the attempt has ended")
        sending = self._http.request(method, url, headers=headers, body=body, check=False)
        self._waiting = asyncio.run_coroutine_threadsafe(sending, self._loop)
        try:
            page = self._waiting.result()
        except CancelledError:
            raise TransportError("the attempt has ended") from None
        except Exception as error:
            self.error = error
            raise TransportError(str(error)) from error
        self.error = None
        self.refused = None if page.status < 400 else page
        return page

    def close(self) -> None:
        """The attempt has ended, perhaps by its time-out: the thread must not wait, or send anything more."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()


class _ShoalRH(RequestHandler):
    """What yt-dlp sends its requests with. Files of this machine and other schemes are refused."""

    _SUPPORTED_URL_SCHEMES = ("http", "https")
    _SUPPORTED_PROXY_SCHEMES = None
    _SUPPORTED_FEATURES = None
    sender: _Sender

    def _check_extensions(self, extensions: dict) -> None:
        extensions.clear()  # time-outs, cookies and TLS are Shoal's

    def _send(self, request: object) -> Response:
        # Not yt-dlp's own default headers: Shoal says who it is.
        headers = dict(request.headers)
        if cookies := self.cookiejar.get_cookie_header(request.url):
            headers["Cookie"] = cookies
        page = self.sender.send(request.method, request.url, headers, request.data)
        answer = Response(io.BytesIO(page.body), page.url, dict(page.headers), page.status, _reason(page))
        if page.status >= 400:
            raise HTTPError(answer)
        return answer


def _reason(page: Page) -> str | None:
    """What a page with an error says in its title: `Private video`."""
    if page.status < 400 or page.content_type != "text/html":
        return None
    return " ".join((page.css("title::text").get() or "").split())[:MAX_REASON] or None


class _Extractor(YoutubeDL):
    """yt-dlp with Shoal's client. `refusal` says why a video has nothing, which yt-dlp only warns of."""

    def __init__(self, sender: _Sender, options: dict) -> None:
        self._sender = sender
        self._warnings: list[str] = []
        super().__init__(options)

    def build_request_director(self, handlers: object, preferences: object = None) -> object:
        director = super().build_request_director([_ShoalRH])
        for handler in director.handlers.values():
            handler.sender = self._sender
        return director

    def report_warning(self, message: object, *args: object, **named: object) -> None:
        if str(message).startswith("["):  # of an extractor, about what it was asked for
            self._warnings.append(str(message))
        super().report_warning(message, *args, **named)

    def refusal(self, found: dict | None) -> str | None:
        """Why a video has neither formats nor captions, if its extractor said so: private, a rate limit, ..."""
        if found is None:
            return "yt-dlp found nothing"
        if found.get("_type", "video") != "video" or any(
            found.get(name) for name in ("formats", "url", "subtitles", "automatic_captions")
        ):
            return None
        reasons = [message for message in self._warnings if not ASIDE.search(message)]
        known = (message for message in reasons if TRANSIENT.search(message) or PERMANENT.search(message))
        return next(known, reasons[-1] if reasons else None)

    def process_ie_result(self, ie_result: dict, download: bool = True, extra_info: dict | None = None) -> dict:
        try:
            return super().process_ie_result(ie_result, download, extra_info)
        except ValueError:
            if "playlist" not in (extra_info or {}):
                raise
            return ie_result  # one link of a channel that is no address: the others are listed
