"""A PostgreSQL named by its parts, and the password, which is always looked up apart."""

from __future__ import annotations

import getpass
from collections.abc import Container, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from shoal.config.sources import Given, Origin, Variables, reason
from shoal.errors import InvalidSetting
from shoal.model.redaction import POSTGRES_SCHEMES

PART_VARIABLES = {
    "db_host": ("PGHOST", "DB_HOST"),
    "db_port": ("PGPORT", "DB_PORT"),
    "db_name": ("PGDATABASE", "DB_NAME"),
    "db_user": ("PGUSER", "DB_USER"),
}
PASSWORD_VARIABLES = ("PGPASSWORD", "DB_PASSWORD")
PASSWORD_FILE_VARIABLES = ("DB_PASSWORD_FILE",)
HIDDEN = "***"
# The driver reads these from the environment by itself, but not from `.env`: there they would be ignored in silence.
TLS_VARIABLES = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT"}


class Parts:
    """What flags and variables say about a PostgreSQL server."""

    def __init__(self, flags: Mapping[str, str], variables: Variables, folder: Path) -> None:
        self._variables = variables
        self._folder = folder
        self._flags = [name for name in PART_VARIABLES if name in flags]
        self._given = {
            part: Given(flags[part], Origin("flag", flag_of(part))) if part in flags else variables.first(names)
            for part, names in PART_VARIABLES.items()
        }

    def ledger(self) -> Given | None:
        """The address that the parts make, if they name a host or a database."""
        deciding = self._given["db_host"] or self._given["db_name"]
        if deciding is None:
            return None
        texts = {part: given.text(part) if given else "" for part, given in self._given.items()}
        host, port = texts["db_host"] or "localhost", self._port()
        where = f"[{host}]{port}" if ":" in host else f"{host}{port}"
        query = self._with_tls("")
        if host.startswith("/"):  # a folder with a socket in it
            where, query = port, f"host={quote(host, safe='')}"
        login = login_text(texts["db_user"], self.password())
        address = f"postgresql://{login}{where}/{quote(texts['db_name'], safe='')}"
        return Given(f"{address}?{query}" if query else address, deciding.origin)

    def refuse_flags_beside(self, ledger: Given) -> None:
        """Ignoring a flag because the ledger is named elsewhere could mean to write to the wrong database."""
        if self._flags:
            raise InvalidSetting(
                f"{flag_of(self._flags[0])} is given, but the ledger is already named by {ledger.origin}.",
                remedy="Give one of the two.",
            )

    def completed(self, ledger: str) -> str:
        """A PostgreSQL address with its login in the one safe spelling; password and TLS are added if it had none."""
        if not ledger.startswith(POSTGRES_SCHEMES):
            return ledger
        try:
            address = urlsplit(ledger)
        except ValueError:
            return ledger  # whoever opens it says what is wrong with it
        address = address._replace(query=self._with_tls(address.query))
        login, at, host = address.netloc.rpartition("@")
        user, colon, password = login.partition(":")
        if unquote(password) == HIDDEN:
            raise InvalidSetting(
                f"The password in {ledger} is {HIDDEN}, which stands for one that was not printed.",
                remedy="Leave it out of the address, and set PGPASSWORD or DB_PASSWORD_FILE.",
            )
        if not colon and "password=" not in address.query:
            password = quote(self.password(), safe="")
        if not at and not password:
            return address.geturl()
        return address._replace(netloc=login_text(unquote(user), unquote(password)) + host).geturl()

    def _with_tls(self, query: str) -> str:
        """The query of an address, and what variables say about TLS unless it says so itself."""
        for name, variable in TLS_VARIABLES.items():
            given = self._variables.first((variable,))
            if given is not None and f"{name}=" not in query:
                query += f"{'&' if query else ''}{name}={quote(str(given.value))}"
        return query

    def password(self) -> str:
        given = self._variables.first(PASSWORD_VARIABLES)
        if given is not None:
            return str(given.value)
        file = self._variables.first(PASSWORD_FILE_VARIABLES)
        if file is None:
            return ""
        try:
            return (self._folder / str(file.value)).read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"The password file {file.value} (from {file.origin}) cannot be read: {reason(error)}.",
                remedy="Correct DB_PASSWORD_FILE or the file's permissions.",
            ) from None

    def _port(self) -> str:
        given = self._given["db_port"]
        if given is None:
            return ""
        text = given.text("db_port")
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535):
            raise given.wrong("db_port", "a port number from 1 to 65535")
        return f":{text}"


def login_text(user: str, password: str) -> str:
    """`user:password@`, escaped. A password needs a user before it: that of the system, as PostgreSQL's tools do."""
    if not password:
        return f"{quote(user, safe='')}@" if user else ""
    return f"{quote(user or getpass.getuser(), safe='')}:{quote(password, safe='')}@"


def flag_of(name: str, own_options: Container[str] = ()) -> str:
    """How a setting is given on the command line: by an option that every command has, by one of the command's own, or
    by its name."""
    named = name == "ledger" or name in PART_VARIABLES or name in own_options
    return "--" + name.replace("_", "-") if named else f"--set {name}"
