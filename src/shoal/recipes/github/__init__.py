"""GitHub developers in three stages: found by search, profiled, enhanced with social links and repositories."""

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="github",
    about="developers on GitHub in three stages, with API tokens and views of the ledger as tables",
    scraper="github",
    stage="username",
    package="shoal.recipes.github",
    folder="project",
    commands=(
        ("cp .env.example .env", "then put your tokens into .env"),
        ("shoal try github --stage profile --key NAME", "one developer, nothing stored"),
        ("shoal run github", "all stages in this process; Ctrl-C stops it, the same command continues it"),
        (
            "shoal enqueue github",
            "or for workers: `shoal worker github --stage profile` in as many terminals as you like",
        ),
        ("shoal export latest --stage profile -o developers.csv", "the profiles as a file"),
        ("pytest", "the tests, on invented answers"),
    ),
)
