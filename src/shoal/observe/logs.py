"""The log: events with values, written as text or JSON lines to a stream and as JSON lines to a file.

Built on structlog without its global configuration, so that one process can have several logs. The calling thread
renders a line and a writer thread writes it: a slow disk, a full disk or a blocked pipe delays no worker. Logging never
raises into the calling code.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, MutableMapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import structlog

from shoal.errors import InvalidSetting
from shoal.model.log import Log
from shoal.observe.log_text import Redactor, console_line, has_colour, json_line

MAX_QUEUED_LINES = 20_000
CLOSE_SECONDS = 2.0
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
LEVEL_OFF = 50  # above every level
FORMATS = ("console", "json")
Stream = TextIO | Callable[[str], None]


class Logs:
    """An open log: `log` is the logger, `close` writes the queued lines."""

    def __init__(self, log: Log, writers: list[QueueWriter]) -> None:
        self.log = log
        self._writers = writers

    def close(self) -> None:
        """Write the queued lines, for a limited time. Later events are dropped."""
        for writer in self._writers:
            writer.close()


def open_logs(
    *,
    format: str,
    level: str,
    file: Path | None,
    stream: Stream | None,
    secrets: tuple[str, ...] = (),
    stream_skips: Collection[str] = (),
) -> Logs:
    """Open a log.

    `stream` gets lines of `level` and above in the `format` "console" or "json"; it is a text stream, or a function
    that takes one line and may be called from another thread. `file` gets JSON lines of level info and above, or of
    debug when that is the `level`; it is appended to and created with its folder. `secrets` are redacted. Events of
    `stream_skips` are not written to the stream, because it belongs to a display that shows them otherwise.
    """
    if level not in LEVELS:
        raise InvalidSetting(f"{level!r} is not a log level: use {', '.join(LEVELS)}.")
    if format not in FORMATS:
        raise InvalidSetting(f"{format!r} is not a log format: use {' or '.join(FORMATS)}.")
    sinks: list[_Sink] = []
    if stream is not None:
        sinks.append(_stream_sink(stream, format, LEVELS[level], frozenset(stream_skips)))
    if file is not None:
        sinks.append(_Sink(min(LEVELS["info"], LEVELS[level]), json_line, _file_writer(file)))
    lowest = min((sink.level for sink in sinks), default=LEVEL_OFF)
    logger = structlog.wrap_logger(
        None,
        processors=[structlog.processors.format_exc_info, _WriteToSinks(sinks, Redactor(secrets))],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        context_class=dict,
    )
    # bind() turns structlog's lazy proxy into a logger once instead of at every call.
    return Logs(cast(Log, logger.bind()), [sink.writer for sink in sinks])


class QueueWriter:
    """Writes lines in a thread, through a bounded queue.

    `write` gets one or more complete lines. A full queue drops the newest lines and counts them. A failed write is
    reported on stderr once, under `name`; later lines are still written, since a full disk may be cleared.
    """

    def __init__(self, write: Callable[[str], None], name: str, *, finish: Callable[[], None] | None = None) -> None:
        self._write = write
        self._name = name
        self._finish = finish
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._dropped = 0
        self._has_reported = False
        self._thread = threading.Thread(target=self._write_queued, name="shoal-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._changed:
            if self._closing:
                return
            if len(self._lines) >= MAX_QUEUED_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            if len(self._lines) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Write the queued lines, for at most CLOSE_SECONDS."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _write_queued(self) -> None:
        while (text := self._next()) is not None:
            try:
                self._write(text)
            except Exception as error:
                if not self._has_reported:
                    self._has_reported = True
                    _print_error(f"Cannot write to {self._name}: {error}. Work continues; log lines are missing.")
        if self._finish is not None:
            with suppress(Exception):
                self._finish()

    def _next(self) -> str | None:
        """All queued lines as one text; None when the log is closed and the queue is empty."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait()
            text = "".join(self._lines)
            self._lines.clear()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _print_error(f"{dropped} log lines were dropped: writing to {self._name} is too slow.")
        return text or None


def _print_error(text: str) -> None:
    """Print to stderr, which may itself be the broken pipe."""
    with suppress(Exception):
        print(text, file=sys.stderr, flush=True)


class _Sink:
    def __init__(
        self,
        level: int,
        render: Callable[[str, dict[str, Any]], str],
        writer: QueueWriter,
        skips: frozenset[str] = frozenset(),
    ) -> None:
        self.level = level
        self.render = render
        self.writer = writer
        self.skips = skips


class _WriteToSinks:
    """The last structlog processor: redacts the values once and writes a line to each sink of that level."""

    def __init__(self, sinks: list[_Sink], redactor: Redactor) -> None:
        self._sinks = sinks
        self._redactor = redactor

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        level = method if method in LEVELS else "error"
        fields = self._redactor.redact(event)
        for sink in self._sinks:
            if LEVELS[level] >= sink.level and fields.get("event") not in sink.skips:
                try:
                    line = sink.render(level, fields)
                except Exception:  # for example, a number too large for JSON
                    line = sink.render(level, {name: str(value) for name, value in fields.items()})
                sink.writer.put(line)
        raise structlog.DropEvent


def _stream_sink(stream: Stream, format: str, level: int, skips: frozenset[str]) -> _Sink:
    if callable(stream):
        writer, colour = QueueWriter(lambda text: _each_line(stream, text), "the display"), False
    else:
        writer, colour = QueueWriter(lambda text: _write_text(stream, text), "the log's stream"), has_colour(stream)
    if format == "json":
        return _Sink(level, json_line, writer, skips)
    return _Sink(level, lambda method, fields: console_line(method, fields, colour=colour), writer, skips)


def _each_line(write_line: Callable[[str], None], text: str) -> None:
    for line in text.splitlines():
        write_line(line)


def _write_text(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _file_writer(path: Path) -> QueueWriter:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = FileIO(path, "ab")
    except OSError as error:
        raise InvalidSetting(
            f"The log file {path} cannot be written: {error.strerror}.",
            remedy="Choose another log_dir, or give this user write permission there.",
        ) from None

    file = _LogFile(handle)
    return QueueWriter(file.write, f"the log file {path}", finish=handle.close)


class _LogFile:
    """Starts a new line after a write that a full disk cut short, so that later lines stay complete."""

    def __init__(self, handle: FileIO) -> None:
        self._handle = handle
        self._ends_mid_line = False

    def write(self, text: str) -> None:
        data = ("\n" + text if self._ends_mid_line else text).encode()
        written = 0
        try:
            while written < len(data):
                written += self._handle.write(data[written:]) or 0
        finally:
            if written:
                self._ends_mid_line = not data[:written].endswith(b"\n")
