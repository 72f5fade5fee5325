"""The log: levels and formats, redaction, full disks and blocked pipes."""

import io
import json
import os
import pty
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidSetting
from shoal.model.log import Log
from shoal.observe.log_text import JsonStream, json_line
from shoal.observe.logs import Logs, open_logs


def written(use: Callable[[Log], object], *, format: str = "json", level: str = "info", **more: Any) -> str:
    stream = io.StringIO()
    logs = open_logs(format=format, level=level, file=None, stream=stream, **more)
    use(logs.log)
    logs.close()
    return stream.getvalue()


def test_a_json_line_has_time_level_event_and_values() -> None:
    (line,) = written(lambda log: log.bind(run="r1").warning("slow page", seconds=3.5)).splitlines()
    said = json.loads(line)
    assert said.pop("time").endswith("Z")
    assert list(json.loads(line)) == ["time", "level", "event", "run", "seconds"]
    assert said == {"level": "warning", "event": "slow page", "run": "r1", "seconds": 3.5}


def test_console_text_is_one_line_without_control_characters() -> None:
    text = written(lambda log: log.info("found\x1b[2J", title="a b", url="http://x/\x07"), format="console")
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "\x07" not in text
    assert ' info    found?[2J title="a b" url=' in text


@pytest.mark.parametrize(("level", "expected"), [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")])
def test_the_stream_gets_its_level_and_the_file_info_at_least(tmp_path: Path, level: str, expected: str) -> None:
    stream, file = io.StringIO(), tmp_path / "logs" / "run.jsonl"
    logs = open_logs(format="json", level=level, file=file, stream=stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(logs.log, name)(name[0])
    logs.close()
    assert "".join(json.loads(line)["event"] for line in stream.getvalue().splitlines()) == expected
    kept = "".join(json.loads(line)["event"] for line in file.read_text().splitlines())
    assert kept == ("diwe" if level == "debug" else "iwe")


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    for event in ("one", "two"):
        logs = open_logs(format="console", level="info", file=tmp_path / "l", stream=None)
        logs.log.info(event)
        logs.close()
    assert [json.loads(line)["event"] for line in (tmp_path / "l").read_text().splitlines()] == ["one", "two"]


@dataclass
class Login:
    address: str


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_are_redacted_everywhere(format: str) -> None:
    def use(log: Log) -> None:
        log.info("use tok3n", url="postgresql://me:pa55@h/db", nested={"k": ["http://u:pa55@h"]}, login=Login("tok3n"))
        try:
            raise ValueError("http://u:pa55@h and tok3n")
        except ValueError as error:
            log.error("failed", error=error, exc_info=True)

    text = written(use, format=format, secrets=("tok3n",))
    assert "pa55" not in text
    assert "tok3n" not in text
    assert text.count("***") >= 6
    assert "Traceback" in text


def test_a_mail_address_after_a_url_is_left_alone() -> None:
    said = json.loads(written(lambda log: log.info("x", url="http://h:80/x", mail="a@b.example")))
    assert (said["url"], said["mail"]) == ("http://h:80/x", "a@b.example")


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


@pytest.mark.parametrize("value", [Broken(), {object(): 1}, 1 << 80, float("nan"), "\ud800", b"\xff", {1, 2}, None])
@pytest.mark.parametrize("format", ["json", "console"])
def test_any_value_can_be_logged(value: object, format: str) -> None:
    text = written(lambda log: log.info("odd", value=value, level="mine"), format=format)
    assert "odd" in text
    text.encode()


def test_a_display_gets_its_lines_one_by_one() -> None:
    told: list[str] = []
    logs = open_logs(format="console", level="info", file=None, stream=told.append)
    logs.log.info("one")
    logs.log.info("two")
    logs.close()
    assert [line.split()[2] for line in told] == ["one", "two"]


def test_several_logs_are_independent() -> None:
    first, second = io.StringIO(), io.StringIO()
    one = open_logs(format="json", level="debug", file=None, stream=first)
    two = open_logs(format="console", level="error", file=None, stream=second)
    one.log.debug("mine")
    two.log.error("yours")
    one.close()
    two.close()
    assert "mine" in first.getvalue()
    assert "yours" not in first.getvalue()
    assert "mine" not in second.getvalue()


class FullDisk(io.StringIO):
    """Refuses until there is room again."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def until_written(logs: Logs, event: str, condition: Callable[[], bool]) -> None:
    """Log something and wait until its thread has dealt with it."""
    logs.log.info(event)
    seen = threading.Event()
    while not condition():
        assert not seen.wait(0.01)


def test_a_full_disk_is_reported_once_and_logging_continues(capsys: pytest.CaptureFixture[str]) -> None:
    disk, said = FullDisk(), ""

    def complained() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "No space left" in said

    logs = open_logs(format="json", level="info", file=None, stream=disk)
    until_written(logs, "lost", complained)
    logs.log.info("lost, too")
    disk.full = False
    until_written(logs, "kept", lambda: "kept" in disk.getvalue())
    logs.close()
    assert (said + capsys.readouterr().err).count("Cannot write to the log's stream") == 1


def test_a_closed_pipe_does_not_raise(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    logs = open_logs(format="json", level="info", file=None, stream=stream)
    for _ in range(100):
        logs.log.info("anybody there?")
    logs.close()
    assert capsys.readouterr().err.count("Broken pipe") == 1
    with suppress(BrokenPipeError):  # what Python itself still had in its buffer
        stream.close()


def test_an_unread_pipe_does_not_block() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        logs = open_logs(format="json", level="info", file=None, stream=stream)
        for number in range(2_000):
            logs.log.info("filler", number=number, text="x" * 100)  # far more than a pipe holds
        os.set_blocking(reading, False)
        assert os.read(reading, 1 << 20).startswith(b'{"time"')
        drain = threading.Thread(target=lambda: _read_all(reading))
        drain.start()
        logs.close()
    drain.join()


def _read_all(descriptor: int) -> None:
    os.set_blocking(descriptor, True)
    while os.read(descriptor, 1 << 16):
        pass
    os.close(descriptor)


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_only_on_a_terminal_and_without_no_color(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        logs = open_logs(format="console", level="info", file=None, stream=terminal)
        logs.log.info("hello")
        logs.close()
        assert (b"\x1b[" in os.read(ours, 4096)) != no_color
    os.close(ours)
    assert "\x1b" not in written(lambda log: log.info("hello"), format="console")


def test_bad_settings_raise_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="loud"):
        open_logs(format="json", level="loud", file=None, stream=None)
    with pytest.raises(InvalidSetting, match="xml"):
        open_logs(format="xml", level="info", file=None, stream=None)
    with pytest.raises(InvalidSetting, match="cannot be written"):
        open_logs(format="json", level="info", file=tmp_path / "file" / "log", stream=None)


def test_every_line_of_a_json_stream_is_json() -> None:  # S0.26
    """What others print becomes an event, the log's own lines pass, and nobody's line ends another's."""
    below = io.StringIO()
    stream = JsonStream(below)
    assert not stream.isatty()

    def print_in_parts(name: str) -> None:
        for number in range(200):
            print(name, number, file=stream)

    threads = [threading.Thread(target=print_in_parts, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json_line("info", {"event": "ours", "fact": 1}), end="", file=stream)
    print("{not json}", "", "Error: wrong", sep="\n", file=stream)
    stream.event("error", "Error: postgresql://me:hunter22@db/x\ncannot be reached")
    print("Go on? ", end="", file=stream, flush=True)
    lines = [json.loads(line) for line in below.getvalue().splitlines()]
    told = [(line["level"], line["event"]) for line in lines]
    assert sorted(told[:400]) == sorted(
        ("warning", f"{name} {number}") for name in ("one", "two") for number in range(200)
    )
    assert lines[400]["fact"] == 1
    assert told[401:] == [
        ("warning", "{not json}"),
        ("error", "wrong"),
        ("error", "postgresql://me:***@db/x\ncannot be reached"),
        ("warning", "Go on?"),
    ]
