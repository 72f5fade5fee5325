"""What replaces `breakpoint()`, and when; the prompt itself: tests/cli/test_terminal.py."""

import sys
from collections.abc import Callable

import pytest

from shoal.observe.breakpoints import Breakpoints


@pytest.fixture(autouse=True)
def python_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of pytest, which has a hook of its own."""
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)


def test_the_hook_of_another_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append("here"))
    with Breakpoints(lambda: None):
        breakpoint()
    assert stopped == ["here"]


def test_breakpoints_that_are_switched_off_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    events: list[str] = []
    with Breakpoints(lambda: None) as breakpoints:
        breakpoints.on_prompt(lambda: events.append("enter"), lambda: events.append("leave"))
        breakpoint()
    assert events == []


def test_another_debugger_keeps_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.len")
    events: list[str] = []
    with Breakpoints(lambda: None) as breakpoints:
        breakpoints.on_prompt(lambda: events.append("enter"), lambda: events.append("leave"))
        hook: Callable[[str], int] = sys.breakpointhook
        assert [hook("ab"), hook("abc")] == [2, 3]
    assert events == ["enter"]
    assert sys.breakpointhook is sys.__breakpointhook__
