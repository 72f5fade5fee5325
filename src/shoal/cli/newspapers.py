"""`shoal newspapers`: check a folder of newspapers' files, take over existing ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import RED, Session
from shoal.observe.formatting import pluralize, printable

if TYPE_CHECKING:
    from shoal.recipes.newspapers.checking import CheckedFolder, FileProblem

app = typer.Typer()


@app.command()
@with_options
def check(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of files, or one file.")],
) -> None:
    """List all mistakes of all files, each with its line and what to do; exit 1 if there are any.

    Nothing is fetched. Notes are about what works but may not be meant.
    """
    from shoal.recipes.newspapers.checking import check_folder

    checked = check_folder(folder, Path.cwd())
    _print_problems(session, checked)
    if checked.mistakes:
        raise typer.Exit(1)


@app.command("import")
@with_options
def import_(
    session: Session,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The folder with existing files.")],
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help="Where the copies go.")],
) -> None:
    """Copy a folder of files, correct what is mechanical, and list the rest; exit 1 if mistakes are left."""
    from shoal.recipes.newspapers.importing import import_folder

    imported = import_folder(source, destination, Path.cwd())
    for change in imported.corrections:
        if session.json:
            session.record({"kind": "corrected", "file": str(change.path), "line": change.line, "text": change.message})
        else:
            session.data(f"{change.path}:{change.line}: {printable(change.message)}")
    session.note(
        f"{pluralize(imported.copied, 'file')} copied, {pluralize(len(imported.corrections), 'line')} changed."
    )
    _print_problems(session, imported.checked)
    if imported.checked.mistakes:
        raise typer.Exit(1)


def _print_problems(session: Session, checked: CheckedFolder) -> None:
    for problem in checked.problems:
        if session.json:
            session.record(_record(problem))
        else:
            line = f"{problem.path}:{problem.line}: {'note: ' if problem.note else ''}{printable(problem.message)}"
            session.data(line if problem.note else session.styled(line, RED))
            session.data(f"    {printable(problem.remedy)}")
    files = len({problem.path for problem in checked.mistakes})
    found = f"{pluralize(len(checked.mistakes), 'mistake')} in {pluralize(files, 'file')}" if files else "no mistakes"
    others = f" and {pluralize(checked.others, 'other scraper')}" if checked.others else ""
    session.note(f"{pluralize(checked.newspapers, 'newspaper')}{others}: {found}.")


def _record(problem: FileProblem) -> dict[str, object]:
    return {
        "kind": "note" if problem.note else "mistake",
        "file": str(problem.path),
        "line": problem.line,
        "text": problem.message,
        "remedy": problem.remedy,
    }
