"""What `shoal init --recipe NAME` says and writes, and that the newspaper's project runs."""

from __future__ import annotations

import pytest

from shoal.demo.shop import Shop
from shoal.recipes import RECIPES, find_project
from shoal.recipes.github.stand_in import GitHubStandIn
from shoal.templates import ProjectTemplate
from tests.support.project import Project


def test_a_project_with_a_newspaper(project: Project) -> None:
    project.shoal("init", ".", "--recipe", "newspaper")
    assert "2 passed" in project.run_own_tests()
    paper = project.folder / "configs/fiji/times.yaml"
    with Shop(per_category=21, latency=(0, 0)).serving() as shop:
        paper.write_text(paper.read_text().replace("http://127.0.0.1:8001", shop.url))
        project.shoal("run", "fiji.times")
        titles = {truth.title for truth in shop.facts().products.values() if truth.category == "Garden"}
    assert {record["title"] for record in project.export()} == titles


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_its_own_next_commands_and_nothing_that_is_not_shown(recipe: str) -> None:
    found = find_project(recipe)
    assert found.next_commands(".") == list(found.commands) != []
    assert (found.site_command, found.try_arguments, found.run_arguments) == ("", "", "")


def test_the_commands_of_countries_can_be_done_in_their_order() -> None:
    """Its lists are of the stand-in, which tor cannot reach; the browser is checked with a scraper that has one."""
    project: ProjectTemplate = find_project("countries")
    commands = [command for command, _ in project.commands]
    (lists,) = [at for at, (_, meaning) in enumerate(project.commands) if "urls/*.txt" in meaning]
    starts = [at for at, command in enumerate(commands) if command.startswith("shoal start")]
    assert lists < min(starts)
    assert commands.index("shoal db migrate") < commands.index("shoal doctor india") < starts[-1]


def test_the_example_of_user_names_is_of_the_stand_in() -> None:
    text = dict(find_project("github").files())["usernames.example.txt"]
    names = [line.removeprefix("@") for line in text.splitlines() if not line.startswith("#")]
    people = GitHubStandIn().people
    assert names == [people.login(0), people.login(1)]
