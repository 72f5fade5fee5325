"""`shoal completion`: print the shell script that completes commands and options."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

# Set by the scripts when a shell asks for completions; typer derives it from the program's name.
VARIABLE = "_SHOAL_COMPLETE"


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@with_options
def completion(session: Session, shell: Annotated[Shell, typer.Argument(help="The shell it is for.")]) -> None:
    """Print the script that makes your shell complete commands.

    For bash, put `source <(shoal completion bash)` into ~/.bashrc; zsh and fish alike.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    session.data(get_completion_script(prog_name="shoal", complete_var=VARIABLE, shell=shell.value))


def register_shells() -> None:
    """Register the shells when one of them asks for completions; otherwise nothing is imported."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
