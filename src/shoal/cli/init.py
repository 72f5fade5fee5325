"""`shoal init`: create a project to start from."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import DIM, Session


@with_options
def init(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it is made if need be.")] = Path(),
    recipe: Annotated[
        str, typer.Option(help="What to start from: shop, pages, crawl, api, newspaper, or a recipe (docs/recipes).")
    ] = "shop",
) -> None:
    """Make a project: a scraper that works, its settings, and a test with a saved page. Overwrites nothing."""
    from shoal.recipes import find_project
    from shoal.templates import write_project

    chosen = find_project(recipe)
    texts = dict(chosen.files())
    write_project(folder, texts, recipe=chosen.name)
    commands = [
        (_with_program_path(command), meaning) for command, meaning in chosen.next_commands(shlex.quote(str(folder)))
    ]
    if session.json:
        session.record(
            {
                "folder": str(folder),
                "recipe": chosen.name,
                "files": list(texts),
                "next": [command for command, _ in commands],
            }
        )
        return
    session.data(f"Made in {folder.resolve()}: {', '.join(texts)}.")
    session.note("\nNext:")
    width = max(len(command) for command, _ in commands)
    for command, meaning in commands:
        note = session.styled(f"# {meaning}", DIM) if meaning else ""
        session.note(f"  {command.ljust(width)}  {note}".rstrip())


def _with_program_path(command: str) -> str:
    """The command with the path of its program, unless PATH finds the one of this Python environment."""
    program, _, rest = command.partition(" ")
    here = Path(sys.executable).with_name(program)
    on_path = shutil.which(program)
    if not here.exists() or (on_path is not None and Path(on_path).parent == here.parent):
        return command
    return f"{shlex.quote(str(here))} {rest}".rstrip()
