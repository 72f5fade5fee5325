"""Price registers of four countries (S1): lists of URLs, single or distributed, through Tor and a browser."""

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="countries",
    about="lists of URLs of several countries, single or distributed, through Tor and a browser",
    scraper="argentina",
    stage="argentine_drug",
    file="countries.py",
    site_command="python -m shoal.recipes.countries.stand_in --port 8002",
    try_arguments="http://127.0.0.4:8002/argentina/drug/1",
    run_arguments="argentina --urls-file urls/argentina.txt",
    commands=(
        ("shoal demo countries", "all of it on a stand-in site, with local exits in the place of tor"),
        ("pytest", "the tests, on saved pages"),
        ("shoal doctor", "tor, the browser, the database, and whether the exit has another address"),
        ("shoal start argentina --urls-file urls/argentina.txt", "single: runs here and now"),
        ("shoal db migrate", "once, on the PostgreSQL that .env names"),
        ("shoal start india --urls-file urls/india.txt", "distributed: prints the run and the command of its workers"),
    ),
    package="shoal.recipes.countries",
    folder="project",
)
