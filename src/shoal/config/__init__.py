"""Configuration: read once, checked, frozen, and every value knows where it came from.

A flag outranks the environment (`SHOAL_POOL_SIZE`), which outranks `.env`, then `shoal.toml`, then `[tool.shoal]` of
`pyproject.toml`, then the default. The files are those of the current folder. Unknown names are errors.

A scraper may have a table of its own, `[scrapers.NAME]`, which outranks the files' other values;
`Settings.for_scraper` gives what holds for it.

The ledger is one value: a path or a URL. A PostgreSQL may be named by its parts instead: `--db-host`, `--db-port`,
`--db-name`, `--db-user`, or `PGHOST`/`DB_HOST`, `PGPORT`/`DB_PORT`, `PGDATABASE`/`DB_NAME`, `PGUSER`/`DB_USER` in the
environment or `.env`. Parts count only when they name a host or a database, and a given `ledger` wins over them; a
`--db-...` flag beside a given ledger is refused, because ignoring it could write to the wrong database. The password
comes from `PGPASSWORD`, `DB_PASSWORD` or the file `DB_PASSWORD_FILE` names, never from a flag; it also completes a
ledger URL that has none.
"""

from shoal.config.load import load_settings
from shoal.config.scrapers import Mode, ScraperConfig, StageConfig
from shoal.config.settings import NAMES, Settings
from shoal.config.sources import Origin
from shoal.model.redaction import redacted
from shoal.model.run import DeadLimit

__all__ = [
    "NAMES",
    "DeadLimit",
    "Mode",
    "Origin",
    "ScraperConfig",
    "Settings",
    "StageConfig",
    "load_settings",
    "redacted",
]
