"""Reads the CPU and memory load of this machine, or of the container that the process runs in.

Limits are those of the process's control groups (version 2 or 1) and of their visible parents, and those of the machine
as a whole; the tightest counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Fields of a line of /proc/stat: user nice system idle iowait irq softirq steal. Later fields are included in these.
_IDLE, _WAITING, _FIELDS = 3, 4, 8
_NO_LIMIT_V1 = 1 << 60


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Shares from 0 to 1, None where they are unknown.

    `cpu`: used CPU time of the allowed one, since the last reading. `cpu_throttled`: scheduling periods in which the
    CPU limit throttled the group. `memory`: used of the allowed; page cache that the kernel can drop counts as free.
    """

    cpu: float | None = None
    cpu_throttled: float | None = None
    memory: float | None = None


class _GroupUsage(msgspec.Struct, frozen=True):
    """CPU time of a group in seconds, its scheduling periods, and those in which its limit throttled it."""

    seconds: float
    periods: int
    throttled: int


class _CpuCounters(msgspec.Struct, frozen=True):
    """Counters that only grow: of the cores, in ticks, and of the groups that have a limit."""

    at: float
    busy: int
    all: int
    groups: Mapping[Path, _GroupUsage]


class Machine:
    """The load since the reading before. `cores`: those that this process may run on; None for all of them."""

    def __init__(
        self,
        *,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        cores: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._clock = clock
        if cores is None and hasattr(os, "sched_getaffinity"):
            cores = os.sched_getaffinity(0)
        self._cores = cores
        self._memory_groups = list(_groups(proc, cgroups, "memory"))
        self._cpu_groups = list(_groups(proc, cgroups, "cpu"))
        self._before = self._read_counters()

    def read_load(self) -> Load:
        before, now = self._before, self._read_counters()
        self._before = now
        return Load(cpu=_cpu(before, now), cpu_throttled=_cpu_throttled(before, now), memory=self._memory())

    def _memory(self) -> float | None:
        shares = [share for group in self._memory_groups if (share := _share_of_limit(group)) is not None]
        sizes = _numbers(self._proc / "meminfo", colon=True)
        if "MemAvailable" in sizes and sizes.get("MemTotal"):
            shares.append(1 - sizes["MemAvailable"] / sizes["MemTotal"])
        return min(1.0, max(0.0, *shares)) if shares else None

    def _read_counters(self) -> _CpuCounters:
        busy = everything = 0
        for line in _text(self._proc / "stat").splitlines():
            name, _, rest = line.partition(" ")
            number = name.removeprefix("cpu")
            if number.isdecimal() and (not self._cores or int(number) in self._cores):
                ticks = [int(tick) for tick in rest.split()[:_FIELDS]]
                everything += sum(ticks)
                busy += sum(ticks) - ticks[_IDLE] - ticks[_WAITING]
        limited = (group for group in self._cpu_groups if _quota(group) is not None)
        return _CpuCounters(self._clock(), busy, everything, {group: self._group_usage(group) for group in limited})

    def _group_usage(self, group: Path) -> _GroupUsage:
        stat = _numbers(group / "cpu.stat")
        if "usage_usec" in stat:
            seconds = stat["usage_usec"] / 1e6
        else:  # version 1: another controller has it
            same = self._cgroups / "cpuacct" / group.relative_to(self._cgroups / "cpu")
            seconds = (_number(same / "cpuacct.usage") or 0) / 1e9
        return _GroupUsage(seconds, stat.get("nr_periods", 0), stat.get("nr_throttled", 0))


def _cpu(before: _CpuCounters, now: _CpuCounters) -> float | None:
    shares = []
    if now.all > before.all:
        shares.append((now.busy - before.busy) / (now.all - before.all))
    for group, spent in now.groups.items():
        quota = _quota(group)
        if group in before.groups and quota is not None and now.at > before.at:
            shares.append((spent.seconds - before.groups[group].seconds) / (quota * (now.at - before.at)))
    return min(1.0, max(0.0, *shares)) if shares else None


def _cpu_throttled(before: _CpuCounters, now: _CpuCounters) -> float | None:
    shares = [
        (spent.throttled - earlier.throttled) / (spent.periods - earlier.periods)
        for group, spent in now.groups.items()
        if (earlier := before.groups.get(group)) is not None and spent.periods > earlier.periods
    ]
    return max(shares) if shares else None


def _groups(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's control group and of its parents, the innermost first.

    In a container the path in /proc may be the host's; then only the upper folders exist, which are the container's.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            root = cgroups / controller
        elif not names and (cgroups / "cgroup.controllers").exists():
            root = cgroups
        else:
            continue
        inner = root / path.strip("/")
        while inner != root:
            if inner.is_dir():
                yield inner
            inner = inner.parent
        yield root


def _quota(group: Path) -> float | None:
    """How many cores a group may use at once; None without a limit."""
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _share_of_limit(group: Path) -> float | None:
    """The share of its memory limit that a group uses; None without a limit. Inactive file pages count as free."""
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if used is None:
        limit, used = _number(group / "memory.limit_in_bytes"), _number(group / "memory.usage_in_bytes")
    if not limit or used is None or limit >= _NO_LIMIT_V1:
        return None
    stat = _numbers(group / "memory.stat")
    return (used - stat.get("total_inactive_file", stat.get("inactive_file", 0))) / limit


def _numbers(file: Path, *, colon: bool = False) -> dict[str, int]:
    """Lines of a name and a number, as `MemTotal: 24684100 kB` or `nr_periods 12`."""
    found = {}
    for line in _text(file).splitlines():
        name, _, rest = line.partition(":" if colon else " ")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0])
    return found


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    """The content; empty where the kernel has no such file."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
