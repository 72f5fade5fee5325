"""Configuration: read once, checked, frozen; every value knows where it came from.

Precedence: flags, the environment (`SHOAL_POOL_SIZE`), `.env`, `shoal.toml`, `[tool.shoal]` of `pyproject.toml`, the
default. The files are those of the project: the nearest folder, from the current one upwards, that has any of them or a
ledger (`shoal.project`). Unknown names are errors.

A table `[scrapers.NAME]` overrides the files' other values for one scraper; see `Settings.for_scraper`.

The ledger is one value: a path or a URL. PostgreSQL may be given by parts instead: `--db-host`, `--db-port`,
`--db-name`, `--db-user`, or `PGHOST`/`DB_HOST`, `PGPORT`/`DB_PORT`, `PGDATABASE`/`DB_NAME`, `PGUSER`/`DB_USER` in the
environment or `.env`. Parts count only when they name a host or a database. A given `ledger` overrides parts from
variables; beside it a `--db-...` flag is refused, because ignoring it could write to the wrong database. The password
comes from `PGPASSWORD`, `DB_PASSWORD` or the file that `DB_PASSWORD_FILE` names, never from a flag; it also completes a
ledger URL that has none.
"""

from shoal.config.load import load_settings
from shoal.config.settings import NAMES, Mode, ScraperConfig, Settings, StageConfig
from shoal.config.sources import Origin
from shoal.config.values import Addresses
from shoal.model.redaction import redacted
from shoal.model.run import DeadLimit

__all__ = [
    "NAMES",
    "Addresses",
    "DeadLimit",
    "Mode",
    "Origin",
    "ScraperConfig",
    "Settings",
    "StageConfig",
    "load_settings",
    "redacted",
]
