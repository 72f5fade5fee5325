"""Addresses of ledgers: the path of a file, or a PostgreSQL server in any form that libpq reads.

A server is given by a URL (`postgresql://` or `postgres://`, all parts optional) or by pairs (`host=db.internal
dbname=shoal`). Both become one form, `PostgresAddress.url`, which the rest of Shoal uses. Other text that looks like an
address is refused: used as a path, it would create a new and empty ledger.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from shoal.errors import BadLedgerUrl
from shoal.model.redaction import HIDDEN, redacted

_IN_MEMORY = ":memory:"
# A single letter before the colon is the drive of a Windows path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_POSTGRES = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_PAIR = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)", re.DOTALL)
_BEGINS_WITH_PAIR = re.compile(r"\s*[A-Za-z_]\w*\s*=")
_BAD_IN_HOST = re.compile(r"[\s$<>{}|\\^`\"'@?#]")
_PASSWORD = re.compile(r"((?:^|/|^\w+:)[^:/?#@]*):(?!/).*@", re.DOTALL)
_ESCAPES = (
    "Use postgresql://user@host:5432/database and PGPASSWORD; in an address, / ? # @ : of a password are written "
    "%2F %3F %23 %40 %3A."
)

# Parameters of libpq that the driver supports or sends to the server. A URL may also have any setting of the server.
_OPTIONS = {
    "application_name",
    "connect_timeout",
    "gsslib",
    "krbsrvname",
    "options",
    "passfile",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
}
# The other parameters of libpq. Ignoring `channel_binding=require` would be less safe than requested.
_NOT_SUPPORTED = {
    "channel_binding",
    "client_encoding",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "max_protocol_version",
    "min_protocol_version",
    "replication",
    "require_auth",
    "requirepeer",
    "sslcertmode",
    "sslcompression",
    "sslcrldir",
    "sslkeylogfile",
    "sslsni",
    "tcp_user_timeout",
}


class PostgresAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a PostgreSQL server, as libpq reads it. Empty parts were not given.

    `hosts`: names, addresses, or folders with a socket; `ports`: none, one for all hosts, or one for each.
    """

    user: str = ""
    password: str = ""
    hosts: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    database: str = ""
    options: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The form that the driver, urlsplit and PostgreSQL's own tools read in the same way."""
        login = quote(self.user, safe="")
        if self.password:
            login += f":{quote(self.password, safe='')}"
        query = dict(self.options)
        if any(host.startswith("/") for host in self.hosts):  # a folder with a socket cannot be the host part of a URL
            where = ""
            query = {"host": ",".join(map(_bracketed, self.hosts)), "port": ",".join(self.ports), **query}
        elif not self.hosts:
            where, query = "", {"port": ",".join(self.ports), **query}
        else:
            ports = self.ports if len(self.ports) == len(self.hosts) else self.ports[:1] * len(self.hosts)
            each = zip(self.hosts, ports or [""] * len(self.hosts), strict=True)
            where = ",".join(f"{_bracketed(host)}{f':{port}' if port else ''}" for host, port in each)
        text = "&".join(f"{name}={quote(value)}" for name, value in query.items() if value)
        address = f"postgresql://{login}{'@' if login else ''}{where}/{quote(self.database, safe='')}"
        return f"{address}?{text}" if text else address

    @property
    def connect_timeout(self) -> float | None:
        """Seconds that a login may take; None when not given or 0."""
        seconds = int(self.options.get("connect_timeout", "0"))
        return float(max(seconds, 2)) if seconds else None  # libpq uses 2 for 1, too

    def checked(self, shown: str) -> PostgresAddress:
        """The address, if the driver supports it. `shown` is its text in messages."""
        for port in self.ports:
            if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
                raise _not_postgres_error(shown, "its host or its port cannot be read")
        if len(self.ports) > 1 and len(self.ports) != len(self.hosts):
            raise BadLedgerUrl(
                f"{shown} has {len(self.hosts)} hosts and {len(self.ports)} ports.",
                remedy="Give one port for all hosts, or one for each.",
            )
        if any(not host or (_BAD_IN_HOST.search(host) and not host.startswith("/")) for host in self.hosts):
            raise _not_postgres_error(shown, "its host or its port cannot be read")
        for name in self.options:
            if name in _NOT_SUPPORTED:
                raise BadLedgerUrl(
                    f"{shown} has the option {name}, which Shoal's PostgreSQL driver does not support.",
                    remedy="Omit it.",
                )
        timeout = self.options.get("connect_timeout", "0")
        if not (timeout.isascii() and timeout.isdigit()):
            raise _not_postgres_error(shown, "connect_timeout is no number of seconds")
        return self


def ledger_address(text: str) -> Path | PostgresAddress:
    """Parse a ledger's address. Raises BadLedgerUrl when it is neither a file nor a PostgreSQL server."""
    found = postgres_address(text)
    if found is not None:
        return found
    if _IN_MEMORY in text:
        raise BadLedgerUrl(f"{redacted_address(text)} is an in-memory database; a ledger must be a file.")
    if text.lower().startswith("sqlite://"):
        return _sqlite_file(text)
    if (reason := reason_not_a_path(text)) is not None:
        raise BadLedgerUrl(f"{redacted_address(text)} is not a ledger: {reason}.")
    path = Path(text).expanduser()
    if path.is_dir():
        raise BadLedgerUrl(f"{path} is a folder; a ledger is a file.", remedy="Name a file in it, such as ledger.db.")
    return path


def postgres_address(text: str) -> PostgresAddress | None:
    """The server of a URL or of pairs; None for other text. Raises BadLedgerUrl when it cannot be parsed."""
    if _POSTGRES.match(text):
        return _from_url(text).checked(redacted_address(text))
    if _BEGINS_WITH_PAIR.match(text) and "://" not in text.partition("=")[0]:
        return _from_pairs(text)
    return None


def reason_not_a_path(text: str) -> str | None:
    """Why a text that looks like an address is not used as the path of a file; None for a path."""
    if (scheme := _SCHEME.match(text)) is not None:
        return f"{scheme[1]}: is no address that is known here; a file of that name is written ./{scheme[1]}:..."
    if "://" in text:
        return "what stands before :// is not known"
    if _BEGINS_WITH_PAIR.match(text):
        return "it looks like pairs such as host=... dbname=...; a file of that name is written ./..."
    if "@" in text and ":" in text.rpartition("@")[0] and not text.startswith(("/", ".", "~")):
        return "it looks like an address without postgresql:// before it"
    return None


def redacted_address(text: str) -> str:
    """An address for a message. The whole text is one address, so no character of a password can end it early."""
    return redacted(_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def _sqlite_file(text: str) -> Path:
    rest = text[len("sqlite://") :]
    if not rest.startswith("/") or "?" in rest:
        raise BadLedgerUrl(
            f"{redacted_address(text)} is not a SQLite address: three slashes and an absolute path are needed."
        )
    path = Path("/" + unquote(rest).lstrip("/"))
    if path.is_dir():
        raise BadLedgerUrl(f"{path} is a folder; a ledger is a file.", remedy="Name a file in it, such as ledger.db.")
    return path


def _from_url(text: str) -> PostgresAddress:
    """Parsed here, because urlsplit supports one host only and loses an empty one when it rebuilds the URL."""
    rest = _POSTGRES.sub("", text, count=1).partition("#")[0]
    place, _, query = rest.partition("?")
    authority, _, database = place.partition("/")
    login, _, where = authority.rpartition("@")
    user, _, password = login.partition(":")
    hosts, ports = [], []
    for spec in where.split(",") if where else []:
        host, port = _host_and_port(spec)
        hosts.append(unquote(host))
        ports.append(unquote(port))
    if hosts == [""]:  # a port alone
        hosts = []
    given = {"user": unquote(user), "password": unquote(password), "dbname": unquote(database)}
    given |= {"host": ",".join(hosts), "port": ",".join(ports) if any(ports) else ""}
    # As in libpq, the query overrides the parts before it.
    query_parameters = dict(parse_qsl(query, keep_blank_values=True))
    if "database" in query_parameters:
        query_parameters["dbname"] = query_parameters.pop("database")
    return _from_parameters({name: value for name, value in given.items() if value} | query_parameters)


def _host_and_port(spec: str) -> tuple[str, str]:
    if spec.startswith("[") and "]" in spec:
        host, _, port = spec[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = spec.partition(":")
    return host, port


def _from_pairs(text: str) -> PostgresAddress | None:
    """`host=a dbname=b password='c d'`. None when the first name is not a parameter of libpq."""
    found: dict[str, str] = {}
    position = 0
    known = {"host", "port", "dbname", "user", "password"} | _OPTIONS | _NOT_SUPPORTED
    while position < len(text.rstrip()):
        match = _PAIR.match(text, position)
        if match is None or match[1].lower() not in known:
            if not found:
                return None
            what = f"{match[1]} is no parameter of PostgreSQL" if match is not None else "a pair in it cannot be read"
            raise BadLedgerUrl(
                f"{redacted_address(text)} is not a PostgreSQL address: {what}.",
                remedy="Write name=value with spaces between the pairs, and values with spaces in single quotes.",
            )
        value = match[2]
        if value.startswith("'"):
            value = value[1:-1]
        found[match[1].lower()] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        position = match.end()
    return _from_parameters(found).checked(redacted_address(text))


def _from_parameters(given: dict[str, str]) -> PostgresAddress:
    options = {name: value for name, value in given.items() if name not in _PARTS}
    hosts = tuple(host.strip("[]") for host in given.get("host", "").split(",") if given.get("host"))
    ports = tuple(given.get("port", "").split(",")) if given.get("port") else ()
    return PostgresAddress(
        user=given.get("user", ""),
        password=given.get("password", ""),
        hosts=hosts,
        ports=ports,
        database=given.get("dbname", ""),
        options=options,
    )


_PARTS = ("host", "port", "dbname", "user", "password")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("/") else quote(host, safe="/%.-_~:")


def _not_postgres_error(shown: str, why: str) -> BadLedgerUrl:
    return BadLedgerUrl(f"{shown} is not a PostgreSQL address: {why}.", remedy=_ESCAPES)


def split_connect_timeout(url: str) -> tuple[str, float | None]:
    """The URL without `connect_timeout`, which the driver takes separately, and its value."""
    found = _parsed(url)
    if found is None or "connect_timeout" not in found.options:
        return url, None
    options = {name: value for name, value in found.options.items() if name != "connect_timeout"}
    return msgspec.structs.replace(found, options=options).url, found.connect_timeout


def without_password(ledger: str) -> str:
    """An address that can be shown and pasted; the password is passed in another way."""
    found = _parsed(ledger)
    if found is None:
        return ledger
    options = {name: value for name, value in found.options.items() if name != "sslpassword"}
    return msgspec.structs.replace(found, password="", options=options).url


def secrets_of(ledger: str) -> tuple[str, ...]:
    """The passwords of a ledger's address, in every form that may appear in a message."""
    found = _parsed(ledger)
    if found is None:
        return ()
    # A password that equals a visible part of the address cannot be redacted.
    visible = (found.user, *found.hosts, found.database)
    hidden = {word for word in (found.password, found.options.get("sslpassword", "")) if word and word not in visible}
    return tuple(hidden | {quote(word, safe="") for word in hidden})


def _parsed(ledger: str) -> PostgresAddress | None:
    try:
        return postgres_address(ledger)
    except BadLedgerUrl:
        return None
