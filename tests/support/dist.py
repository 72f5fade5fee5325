"""What `make dist` builds, used as a stranger uses it: installed from the wheel, without the repository.

`python -m tests.support.dist` (`make dist`) builds sdist and wheel, checks both, and tries the wheel with every Python
from 3.11 on that it finds: in an empty environment, from an empty folder.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A demo takes a minute; a busy machine may need many times that.
PATIENCE = 1_800.0
# Every interpreter of the environment loads this: nothing of the repository may be opened, wherever a path comes from.
_GUARD = """
import os, sys
def _guard(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith({root!r}) and not path.startswith({allowed!r}):
            raise PermissionError(f"the repository was used: {{path}}")
sys.addaudithook(_guard)
"""


class WheelError(Exception):
    """The wheel does not do what it should."""


def build(target: Path, *kinds: str) -> list[Path]:
    """Build `--wheel` or `--sdist` (both without a kind) with the pinned build backend."""
    target.mkdir(parents=True, exist_ok=True)
    run_command(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *kinds, str(ROOT)], target, {}
    )
    return sorted(target.glob("shoal-*"))


def missing_files(wheel: Path) -> list[str]:
    """The files of src/shoal that the wheel lacks, built dashboard included, caches excluded."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    source = ROOT / "src"
    wanted = (path.relative_to(source) for path in (source / "shoal").rglob("*") if path.is_file())
    ignored = {"__pycache__", ".pytest_cache", ".shoal", ".DS_Store"}
    return sorted(str(path) for path in wanted if not ignored & set(path.parts) and str(path) not in packed)


class Installed:
    """An environment with the wheel, and an empty folder to work in.

    `borrowed`: a folder of packages that the environment uses besides its own, instead of installing dependencies.
    """

    def __init__(
        self, folder: Path, python: str, wheel: Path, *, extra: str = "", borrowed: Path | None = None
    ) -> None:
        self._environment = folder / "environment"
        self.work = folder / "work"
        self.work.mkdir()
        pip = _pip(self.program("python"))
        run_command([python, "-m", "venv", "--without-pip", str(self._environment)], folder, {})
        (site,) = self._environment.glob("lib/python*/site-packages")
        if borrowed is not None:
            (site / "borrowed.pth").write_text(f"{borrowed}\n")
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        options = ["--no-deps", "--no-index"] if borrowed else ["--only-binary", ":all:"]
        run_command([*pip, "install", "--quiet", *options, wanted], folder, None)
        self.site = site
        guard = _GUARD.format(root=f"{ROOT}{os.sep}", allowed=str(borrowed or self._environment))
        (site / "repository_guard.py").write_text(guard)
        (site / "repository_guard.pth").write_text("import repository_guard\n")

    def program(self, name: str) -> Path:
        return self._environment / "bin" / name

    def run(self, name: str, *arguments: str, folder: Path | None = None) -> str:
        """Run a program of the environment; its output."""
        return run_command([str(self.program(name)), *arguments], folder or self.work, self._variables())

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        command = [str(self.program(name)), *arguments]
        return subprocess.Popen(command, cwd=self.work, env=self._variables(), stderr=subprocess.PIPE, text=True)

    def _variables(self) -> dict[str, str]:
        home = str(self.work.parent)
        return {"PATH": f"{self.program('')}:/usr/bin:/bin", "HOME": home, "TMPDIR": home}

    def try_run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment that may fail."""
        return subprocess.run(
            [str(self.program(name)), *arguments],
            cwd=self.work,
            env=self._variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def add(self, wheel: Path, extra: str) -> None:
        """Install one more extra. By uv, which needs no file of the repository in the environment, as pip would."""
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(self.program("python"))]
        run_command([*uv, "--only-binary", ":all:", f"shoal[{extra}] @ {wheel.as_uri()}"], self.work, None)


def try_wheel(installed: Installed, *, projects: Sequence[str], demos: Sequence[str]) -> Iterator[str]:
    """Use what is installed; yields a line about each step. Raises WheelError.

    `projects`: names for `shoal init --recipe`; `demos`: names for `shoal demo`.
    """
    version = installed.run("shoal", "--version").strip()
    if version != PROJECT["version"]:
        raise WheelError(f"shoal --version says {version}; pyproject.toml says {PROJECT['version']}")
    where = installed.run("python", "-c", "import shoal; print(shoal.__file__)").strip()
    if not where.startswith(str(installed.site)):
        raise WheelError(f"shoal is imported from {where}")
    yield f"shoal {version} from {Path(where).relative_to(installed.site)}"
    yield f"shoal serve: {_serve(installed)}"
    for project in projects:
        installed.run("shoal", "init", project, "--recipe", project)
        said = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=installed.work / project)
        yield f"shoal init --recipe {project}: its tests: {said.splitlines()[-1]}"
    for demo in demos:
        installed.run("shoal", "demo", demo)  # its exit code says whether everything was found
        yield f"shoal demo {demo}: exit 0"


def _serve(installed: Installed) -> str:
    """Start the server, ask it for its health and its page, stop it."""
    with installed.start("shoal", "serve", "--port", "0") as process:
        assert process.stderr is not None
        try:
            url = _first_link(process.stderr)
            health = urllib.request.urlopen(f"{url}healthz", timeout=60).status
            page = urllib.request.urlopen(url, timeout=60).read().decode()
            (script,) = set(re.findall(r'src="(?:\./|/)?(assets/index-[^"]+\.js)"', page))
            size = len(urllib.request.urlopen(url + script, timeout=60).read())
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    return f"/healthz {health}, dashboard with a script of {size} bytes, exit {process.returncode}"


def _first_link(lines: Iterable[str]) -> str:
    said = ""
    for line in lines:
        said += line
        if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
            return found[0]
    raise WheelError(f"shoal serve ended without a link:\n{said}")


def pythons() -> dict[str, str]:
    """The interpreters from 3.11 on, by version, the first of each on PATH and in pyenv."""
    newer = [f"python3.{minor}" for minor in range(11, 20)]
    candidates = [path for path in map(shutil.which, newer) if path]
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for name in newer for path in sorted(home.glob(f"versions/*/bin/{name}"))]
    found: dict[str, str] = {}
    for candidate in candidates:
        asked = subprocess.run(
            [candidate, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0:
            found.setdefault(asked.stdout.strip(), candidate)
    return dict(sorted(found.items(), key=lambda entry: [int(part) for part in entry[0].split(".")]))


def claimed_pythons() -> list[str]:
    """The versions that the classifiers name, oldest first."""
    named = [text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text]
    return sorted(named, key=lambda text: int(text.removeprefix("3.")))


def untried_pythons(tried: Iterable[str]) -> list[str]:
    """The versions that are claimed and not among these."""
    return [version for version in claimed_pythons() if version not in set(tried)]


def check_claims(tried: Iterable[str]) -> None:
    """Raises WheelError unless every version that is claimed was tried."""
    if untried := untried_pythons(tried):
        raise WheelError(f"not tried with Python {', '.join(untried)}, which pyproject.toml claims: install it")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder outside the repository."""
    with tempfile.TemporaryDirectory(prefix="shoal-dist-") as folder:
        yield Path(folder).resolve()


def _pip(python: Path) -> list[str]:
    """The pip of this environment, for another one that has none."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]


def run_command(command: Sequence[str], folder: Path, variables: dict[str, str] | None) -> str:
    """The output of a command. `variables`: all of its environment; None: that of this process."""
    environment = None if variables is None else {"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    if ended.returncode:
        raise WheelError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main() -> None:
    """Build, check and try everything; the report goes to standard output."""
    from shoal.recipes import RECIPES
    from shoal.templates import TEMPLATES
    from tests.support.dist_extras import RECIPE_EXTRAS, install_each_alone, try_missing

    began = time.monotonic()
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    built = build(target)
    wheel = next(path for path in built if path.suffix == ".whl")
    _say(f"built {', '.join(f'{path.name} ({path.stat().st_size >> 10} KiB)' for path in built)}")
    if missing := missing_files(wheel):
        raise WheelError(f"the wheel lacks {', '.join(missing[:5])}")
    run_command([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], target, None)
    _say("twine check: passed")
    found = pythons()
    _say(f"found Python {', '.join(found)}")
    if untried := untried_pythons(found):
        _say(f"not found: Python {', '.join(untried)}, which pyproject.toml claims; so this fails at its end")
    for version, python in found.items():
        with scratch_folder() as folder:
            installed = Installed(folder, python, wheel)
            for line in try_missing(installed):
                _say(f"{version}: {line}")
            installed.add(wheel, ",".join(("serve", "testing", *RECIPE_EXTRAS.values())))
            for line in try_wheel(installed, projects=(*TEMPLATES, *RECIPES), demos=("shop", *RECIPES)):
                _say(f"{version}: {line}")
        for line in install_each_alone(wheel, python):
            _say(f"{version}: {line}")
    check_claims(found)
    _say(f"done in {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except WheelError as error:
        sys.exit(str(error))
