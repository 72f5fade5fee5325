"""Yellow Pages (S3): 51 states over ten worker processes with five proxies each; cities times categories as targets."""

from __future__ import annotations

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="yellowpages",
    about="a directory by city and category: 51 states over a pool of workers, each with its own proxies",
    scraper="yellowpages",
    stage="crawl_single_target",
    commands=(
        ("cp .env.example .env", "then put your values into it"),
        ("python state_assignments.py", "the states of each worker"),
        ("python generate_city_targets.py --states all", "store the targets"),
        ("shoal pool yellowpages --test", "workers 0 and 1, each with its own states"),
        ("shoal pool yellowpages", "all of them: checks, the plan, a question"),
        ("python export_companies.py companies.csv", "all companies as a file"),
        ("pytest", "the tests, on a saved page"),
    ),
    package="shoal.recipes.yellowpages",
    folder="project",
)
