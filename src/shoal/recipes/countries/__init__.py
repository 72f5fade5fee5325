"""Price registers of four countries (S1): lists of URLs, single or distributed, through Tor and a browser."""

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="countries",
    about="lists of URLs of several countries, single or distributed, through Tor and a browser",
    scraper="argentina",
    stage="argentine_drug",
    file="countries.py",
    commands=(
        ("shoal demo countries", "all of it on a stand-in site, with local exits in the place of tor"),
        ("pytest", "the tests, on saved pages"),
        (
            "cp .env.example .env",
            "then the database into .env, your URLs into urls/*.txt, their selectors into countries.py",
        ),
        ("shoal start argentina --urls-file urls/argentina.txt", "single: runs here and now, through tor"),
        ("shoal db migrate", "once, on the PostgreSQL that .env names"),
        ("shoal doctor india", "tor, the browser, the database, and whether the exit has another address"),
        ("shoal start india --urls-file urls/india.txt", "distributed: prints the run and the command of its workers"),
    ),
    package="shoal.recipes.countries",
    folder="project",
)
