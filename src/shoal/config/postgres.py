"""The ledger's PostgreSQL address from parts (`--db-host`, `PGHOST` ...), a service, and the separate password."""

from __future__ import annotations

import configparser
import getpass
from collections.abc import Container, Mapping
from pathlib import Path

import msgspec

from shoal.config.sources import Origin, RawValue, Variables, os_error_text
from shoal.errors import BadLedgerUrl, InvalidSetting
from shoal.model.ledger_url import PostgresAddress, postgres_address, redacted_address
from shoal.model.redaction import HIDDEN

PART_VARIABLES = {
    "db_host": ("PGHOST", "DB_HOST"),
    "db_port": ("PGPORT", "DB_PORT"),
    "db_name": ("PGDATABASE", "DB_NAME"),
    "db_user": ("PGUSER", "DB_USER"),
}
PASSWORD_VARIABLES = ("PGPASSWORD", "DB_PASSWORD")
# The names of older systems and of container images. They count where POSTGRES_HOST is set: without it they are meant
# for the server of a container, which reads the others.
HOST_ALIAS = "POSTGRES_HOST"
PART_ALIASES = {"db_host": HOST_ALIAS, "db_port": "POSTGRES_PORT", "db_name": "POSTGRES_DB", "db_user": "POSTGRES_USER"}
PASSWORD_ALIAS = "POSTGRES_PASSWORD"
PASSWORD_FILE_VARIABLES = ("DB_PASSWORD_FILE",)
# The driver reads these from the environment itself, but not from `.env`.
OPTION_VARIABLES = {
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
SERVICE_FILE = "~/.pg_service.conf"


class PostgresParts:
    """The parts of a PostgreSQL address that flags and variables give."""

    def __init__(self, flags: Mapping[str, str], variables: Variables, *, current: Path, project: Path) -> None:
        self._variables = variables
        self._current, self._project = current, project
        self._flags = [name for name in PART_VARIABLES if name in flags]
        self._has_aliases = variables.first((HOST_ALIAS,)) is not None
        self._given = {
            part: RawValue(flags[part], Origin("flag", flag_of(part))) if part in flags else self._variable(part, names)
            for part, names in PART_VARIABLES.items()
        }

    def _variable(self, part: str, names: tuple[str, ...]) -> RawValue | None:
        return self._variables.first(names) or (
            self._variables.first((PART_ALIASES[part],)) if self._has_aliases else None
        )

    def ledger(self) -> RawValue | None:
        """The address from the parts, if they name a host or a database."""
        main_part = self._given["db_host"] or self._given["db_name"]
        if main_part is None:
            return None
        texts = {part: given.text(part) if given else "" for part, given in self._given.items()}
        address = PostgresAddress(
            user=texts["db_user"],
            hosts=tuple((texts["db_host"] or "localhost").split(",")),
            ports=self._ports(),
            database=texts["db_name"],
        )
        return RawValue(self._with_password(self._with_options(address)).url, main_part.origin)

    def reject_flags_with(self, ledger: RawValue) -> None:
        """Refuse flags beside a given ledger: to ignore them could write to the wrong database."""
        if self._flags:
            raise InvalidSetting(
                f"{flag_of(self._flags[0])} is given, but the ledger is already named by {ledger.origin}.",
                remedy="Give one of the two.",
            )

    def complete_url(self, ledger: str) -> str:
        """The normalized PostgreSQL address, completed from a service and from variables as PostgreSQL's own tools do.

        Raises InvalidSetting when it names neither a host nor a database even then.
        """
        try:
            address = postgres_address(ledger)
        except BadLedgerUrl:
            return ledger  # opening it gives the error
        if address is None:
            return ledger
        if HIDDEN in (address.password, address.options.get("sslpassword")):
            raise InvalidSetting(
                f"The password in {redacted_address(ledger)} is {HIDDEN}, the placeholder of a hidden password.",
                remedy="Leave it out of the address, and set PGPASSWORD or DB_PASSWORD_FILE.",
            )
        address = self._from_variables(self._from_service(address))
        if not address.hosts and not address.database:
            raise InvalidSetting(
                f"{redacted_address(ledger)} names neither a host nor a database; PGHOST and PGDATABASE are not set.",
                remedy="Write postgresql://user@host:5432/database; perhaps a variable in it was empty.",
            )
        return self._with_password(self._with_options(address)).url

    def _from_service(self, address: PostgresAddress) -> PostgresAddress:
        """The address completed from its service in libpq's service file."""
        options = dict(address.options)
        variable = self._variables.first(("PGSERVICE",))
        name = options.pop("service", "") or (str(variable.value) if variable else "")
        if not name:
            return address
        named = self._variables.first(("PGSERVICEFILE",))
        file = Path(str(named.value) if named else SERVICE_FILE).expanduser()
        services = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            services.read_string((self._folder_of(named) / file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"The service {name!r} of the ledger's address cannot be looked up: {file}: {os_error_text(error)}.",
                remedy="Set PGSERVICEFILE to the service file, or write the address in full.",
            ) from None
        except configparser.Error:
            raise InvalidSetting(f"{file} is not a service file.", remedy="Correct it, or PGSERVICEFILE.") from None
        if name not in services:
            raise InvalidSetting(
                f"{file} has no service {name!r}.", remedy="Add it there, or name the file with PGSERVICEFILE."
            )
        given = dict(services[name])
        merged = {key: value for key, value in given.items() if key not in _SERVICE_KEYS}
        found = PostgresAddress(
            user=address.user or given.get("user", ""),
            password=address.password or given.get("password", ""),
            hosts=address.hosts or tuple(filter(None, given.get("host", "").split(","))),
            ports=address.ports or tuple(filter(None, given.get("port", "").split(","))),
            database=address.database or given.get("dbname", ""),
            options={**merged, **options},
        )
        try:
            return found.checked(f"The service {name!r}")
        except BadLedgerUrl as error:
            raise InvalidSetting(error.message, remedy=f"Correct {file}.") from None

    def _from_variables(self, address: PostgresAddress) -> PostgresAddress:
        """The address completed from PGHOST, PGPORT, PGDATABASE and PGUSER."""
        given = {name: self._variables.first((name,)) for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER")}
        text = {name: str(found.value) if found else "" for name, found in given.items()}
        hosts = address.hosts or tuple(filter(None, text["PGHOST"].split(",")))
        ports = address.ports
        if not ports and given["PGPORT"] is not None:
            ports = _ports(given["PGPORT"], "PGPORT")
        return msgspec.structs.replace(
            address,
            hosts=hosts,
            ports=ports,
            database=address.database or text["PGDATABASE"],
            user=address.user or text["PGUSER"],
        )

    def _with_password(self, address: PostgresAddress) -> PostgresAddress:
        """The address with its password; the driver needs a user beside it, by default the system's."""
        password = address.password or self.password()
        user = address.user or (getpass.getuser() if password else "")
        return msgspec.structs.replace(address, user=user, password=password)

    def _with_options(self, address: PostgresAddress) -> PostgresAddress:
        """The address with connection options from variables; its own options have precedence."""
        found = {name: self._variables.first((variable,)) for name, variable in OPTION_VARIABLES.items()}
        given = {name: str(value.value) for name, value in found.items() if value is not None}
        return msgspec.structs.replace(address, options={**address.options, **_missing(given, address.options)})

    def password(self) -> str:
        file = self._variables.first(PASSWORD_FILE_VARIABLES)
        given = self._variables.first(PASSWORD_VARIABLES)
        if given is None and file is None and self._has_aliases:
            given = self._variables.first((PASSWORD_ALIAS,))
        if given is not None:
            return str(given.value)
        if file is None:
            return ""
        try:
            return (self._folder_of(file) / str(file.value)).read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSetting(
                f"The password file {file.value} (from {file.origin}) cannot be read: {os_error_text(error)}.",
                remedy="Correct DB_PASSWORD_FILE or the file's permissions.",
            ) from None

    def _folder_of(self, given: RawValue | None) -> Path:
        return self._project if given is not None and given.origin.is_of_project else self._current

    def _ports(self) -> tuple[str, ...]:
        given = self._given["db_port"]
        return () if given is None else _ports(given, "db_port")


_SERVICE_KEYS = ("user", "password", "host", "port", "dbname")


def _ports(given: RawValue, name: str) -> tuple[str, ...]:
    """One port, or several with commas between them."""
    ports = tuple(given.text(name).split(","))
    if not all(port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535 for port in ports):
        raise given.invalid(name, "a port number from 1 to 65535")
    return ports


def _missing(given: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in there}


def flag_of(name: str, own_options: Container[str] = ()) -> str:
    """How a setting is given on the command line: by an option of all commands or of this one, or by `--set`."""
    has_option = name == "ledger" or name in PART_VARIABLES or name in own_options
    # Of the settings of `shoal serve`, as serve_port, the options have no such prefix.
    return "--" + name.removeprefix("serve_").replace("_", "-") if has_option else f"--set {name}"
