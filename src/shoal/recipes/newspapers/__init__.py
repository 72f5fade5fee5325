"""Newspapers declared in YAML: listing pages that link to articles; a project with 24 of them, and their stand-in."""

from __future__ import annotations

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="newspapers",
    about="a folder of newspapers in YAML: singles in parallel, those of several countries one after another",
    scraper="pacific",
    file="configs/",
    stage="member",
    package="shoal.recipes.newspapers",
    folder="project",
    commands=(
        ("python -m shoal.recipes.newspapers.stand_in &", "24 invented newspapers on this machine"),
        ("shoal newspapers check configs/", "all mistakes of all files"),
        ("shoal run pacific --dry-run", "what would be started"),
        ("shoal run pacific", "all of them; the same command fetches tomorrow what is new then"),
        ("pytest", "the tests, on saved pages"),
    ),
)
