"""The log: events with facts, as text for people, as JSON lines for programs, and as JSON lines in a file.

Built on structlog without its global configuration, so that several logs can live in one process. A line is made by
whoever logs and written by a thread: a slow disk, a full one, or a pipe that nobody reads holds up no worker. A log
never raises into the code that logs.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import structlog

from shoal.errors import InvalidSetting
from shoal.model.log import Log
from shoal.observe.logtext import Cleaner, console_line, has_colour, json_line
from shoal.observe.outlet import Outlet

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
NOTHING = 50  # a level that nobody logs at
FORMATS = ("console", "json")
Stream = TextIO | Callable[[str], None]


class Logs:
    """An open log. `log` is what code logs with; `close` writes what is left."""

    def __init__(self, log: Log, outlets: list[Outlet]) -> None:
        self.log = log
        self._outlets = outlets

    def close(self) -> None:
        """Write what is left, for a short while at most. What is logged after that is dropped."""
        for outlet in self._outlets:
            outlet.close()


def open_logs(
    *,
    format: str,
    level: str,
    file: Path | None,
    stream: Stream | None,
    secrets: tuple[str, ...] = (),
) -> Logs:
    """Open a log.

    `stream` gets lines of `level` and above in the `format` "console" or "json"; it is a text stream, or a function
    that takes one line and may be called from another thread. `file` gets JSON lines of level info and above, or of
    debug when that is the `level`; it is appended to, and made with its folder. `secrets` are blotted out.
    """
    if level not in LEVELS:
        raise InvalidSetting(f"{level!r} is no log level: use {', '.join(LEVELS)}.")
    if format not in FORMATS:
        raise InvalidSetting(f"{format!r} is no log format: use {' or '.join(FORMATS)}.")
    sinks: list[_Sink] = []
    if stream is not None:
        sinks.append(_stream_sink(stream, format, LEVELS[level]))
    if file is not None:
        sinks.append(_Sink(min(LEVELS["info"], LEVELS[level]), json_line, _file_outlet(file)))
    lowest = min((sink.level for sink in sinks), default=NOTHING)
    logger = structlog.wrap_logger(
        None,
        processors=[structlog.processors.format_exc_info, _Writing(sinks, Cleaner(secrets))],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        context_class=dict,
    )
    # Binding makes a real logger of the lazy one, once instead of at every call.
    return Logs(cast(Log, logger.bind()), [sink.outlet for sink in sinks])


class _Sink:
    def __init__(self, level: int, render: Callable[[str, dict[str, Any]], str], outlet: Outlet) -> None:
        self.level = level
        self.render = render
        self.outlet = outlet


class _Writing:
    """The end of structlog's chain: cleans the facts once and hands a line to each sink that wants it."""

    def __init__(self, sinks: list[_Sink], cleaner: Cleaner) -> None:
        self._sinks = sinks
        self._cleaner = cleaner

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        level = method if method in LEVELS else "error"
        facts = self._cleaner.clean(event)
        for sink in self._sinks:
            if LEVELS[level] >= sink.level:
                try:
                    line = sink.render(level, facts)
                except Exception:  # a number too large for JSON, say
                    line = sink.render(level, {name: str(value) for name, value in facts.items()})
                sink.outlet.put(line)
        raise structlog.DropEvent


def _stream_sink(stream: Stream, format: str, level: int) -> _Sink:
    if callable(stream):
        outlet, colour = Outlet(lambda text: _each_line(stream, text), "the display"), False
    else:
        outlet, colour = Outlet(lambda text: _write_text(stream, text), "the log's stream"), has_colour(stream)
    if format == "json":
        return _Sink(level, json_line, outlet)
    return _Sink(level, lambda method, facts: console_line(method, facts, colour=colour), outlet)


def _each_line(tell: Callable[[str], None], text: str) -> None:
    for line in text.splitlines():
        tell(line)


def _write_text(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _file_outlet(path: Path) -> Outlet:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = FileIO(path, "ab")
    except OSError as error:
        raise InvalidSetting(
            f"The log file {path} cannot be written: {error.strerror}.",
            remedy="Choose another log_dir, or give this user the right to write there.",
        ) from None

    file = _LogFile(handle)
    return Outlet(file.write, f"the log file {path}", finish=handle.close)


class _LogFile:
    """Whole lines, also after a write that got half through on a disk that was full."""

    def __init__(self, handle: FileIO) -> None:
        self._handle = handle
        self._torn = False

    def write(self, text: str) -> None:
        data = ("\n" + text if self._torn else text).encode()
        written = 0
        try:
            while written < len(data):
                written += self._handle.write(data[written:]) or 0
        finally:
            if written:
                self._torn = not data[:written].endswith(b"\n")
