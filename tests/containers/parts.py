"""What images are built from when there is no registry: a Debian, its packages and wheels, kept in one folder.

All of it is fetched once, with the machine's own settings of apt-get and pip. The builds get it from a server in the
engine's own network, so they need no other.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.deployments import ROOT

SUITE = "bookworm"
# Has Compose v2, whose program needs nothing of its release.
NEWER_SUITE = "trixie"
PYTHON_VERSION = "3.11"
PACKAGES = (
    "python3",
    "python3-pip",
    "pgbouncer",
    "tor",
    "chromium-headless-shell",
    "fonts-liberation",
    "libatomic1",
    "tini",
)
EXTRAS = ("serve", "browser")
# As the slim images of Debian have it.
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/lib/apt/lists")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Parts:
    """Files that the images are made of. `debs` and `wheels` are folders that a build installs from."""

    folder: Path

    @property
    def debian(self) -> Path:
        return self.folder / "debian.tar"

    @property
    def compose_plugin(self) -> Path:
        return self.folder / "compose" / "docker-compose"


def prepare(folder: Path) -> Parts:
    """Fetch what is not there yet."""
    parts = Parts(folder)
    folder.mkdir(parents=True, exist_ok=True)
    packages = folder / "packages.txt"
    if not parts.debian.exists() or not packages.exists() or packages.read_text().split() != list(PACKAGES):
        _make_debian(parts)
        packages.write_text("\n".join(PACKAGES))
    if not parts.compose_plugin.exists():
        _fetch_compose(parts)
    _fetch_wheels(parts)
    return parts


def _archive() -> str:
    """The address of Debian's archive that this machine uses."""
    return _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian").split()[
        0
    ]


def _make_debian(parts: Parts) -> None:
    root, debs = parts.folder / "root", parts.folder / "served" / "debs"
    shutil.rmtree(root, ignore_errors=True)
    _run("debootstrap", "--variant=minbase", SUITE, str(root), _archive())
    _run("chroot", str(root), "apt-get", "-qq", "update")
    fetch = ("apt-get", "-qq", "install", "--yes", "--download-only", "--no-install-recommends")
    _run("chroot", str(root), *fetch, *PACKAGES)
    shutil.rmtree(debs, ignore_errors=True)
    debs.mkdir(parents=True)
    for deb in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        shutil.move(deb, debs / deb.name.replace("%3a", "."))
    (debs / "Packages").write_text("\n".join(_index_entry(deb) for deb in sorted(debs.glob("*.deb"))))
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    _run("tar", "--create", "--one-file-system", f"--directory={root}", f"--file={parts.folder}/new.tar", ".")
    (parts.folder / "new.tar").rename(parts.debian)
    shutil.rmtree(root)


def _index_entry(deb: Path) -> str:
    content = deb.read_bytes()
    about = _run("dpkg-deb", "--field", str(deb)).strip()
    return f"{about}\nFilename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def _fetch_compose(parts: Parts) -> None:
    folder = parts.folder / "compose"
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_archive()} {NEWER_SUITE} main\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    _run(*apt, "update")
    _run(*apt, "download", "docker-compose", folder=folder)
    (deb,) = folder.glob("docker-compose_*.deb")
    _run("dpkg-deb", "--extract", str(deb), str(folder / "package"))
    shutil.copy(folder / "package/usr/libexec/docker/cli-plugins/docker-compose", parts.compose_plugin)


def _fetch_wheels(parts: Parts) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [requirement for extra in EXTRAS for requirement in optional[extra]]
    wheels = parts.folder / "served" / "wheels"
    stamp = parts.folder / "wheels.sha256"
    constraints = ROOT / "requirements" / "dev.txt"
    now = hashlib.sha256("\n".join([*wanted, constraints.read_text()]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == now:
        return
    shutil.rmtree(wheels, ignore_errors=True)
    fetch = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--only-binary=:all:")
    _run(*fetch, f"--python-version={PYTHON_VERSION}", f"--constraint={constraints}", f"--dest={wheels}", *wanted)
    stamp.write_text(now)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def package_server(parts: Parts, address: str, port: int) -> Iterator[str]:
    """Serve packages and wheels to the builds; its address."""
    handler = functools.partial(_QuietHandler, directory=str(parts.folder / "served"))
    with http.server.ThreadingHTTPServer((address, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{port}"
        finally:
            server.shutdown()
            thread.join()


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
