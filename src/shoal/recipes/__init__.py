"""Complete systems, each a small scraper that a user could have written, with a stand-in of its site.

A recipe is a package: `PROJECT` in it says what `shoal init --recipe NAME` copies from its folder `project`, and `DEMO`
in its module `demo` how `shoal demo NAME` runs that project against the stand-in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.templates import TEMPLATES, ProjectTemplate

if TYPE_CHECKING:
    from shoal.demo.recipe import RecipeDemo

RECIPES: tuple[str, ...] = ("github", "countries", "newspapers", "yellowpages", "subtitles")


def find_project(name: str) -> ProjectTemplate:
    """What `shoal init --recipe NAME` makes: a recipe or a template. Raises UsageError."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    if name in RECIPES:
        return _recipe_project(name)
    known = [*TEMPLATES.values(), *map(_recipe_project, RECIPES)]
    listed = "; ".join(f"{each.name} ({each.about})" for each in known)
    raise UsageError(f"There is no recipe {name!r}.", remedy=f"Choose one of: {listed}.")


def find_demo(name: str) -> RecipeDemo:
    """The demo of a recipe. Raises UsageError."""
    if name not in RECIPES:
        raise UsageError(
            f"There is no demo of {name!r}.",
            remedy=f"Choose one of {', '.join(('shop', *RECIPES))}.",
        )
    demo: RecipeDemo = import_module(f"shoal.recipes.{name}.demo").DEMO
    return demo


def _recipe_project(name: str) -> ProjectTemplate:
    project: ProjectTemplate = import_module(f"shoal.recipes.{name}").PROJECT
    return project
