"""What is left of the machine, read from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.autoscale.machine import Load, Machine

GIB = 1 << 30


class Kernel:
    """Folders that look like /proc and /sys/fs/cgroup of a machine with two cores, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.now = 100.0
        self.cores(busy=0, idle=0)
        self.write(self.proc / "meminfo", f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {12 * GIB >> 10} kB\n")

    def write(self, file: Path, text: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cores(self, *, busy: int, idle: int) -> None:
        """Both alike; user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
        line = f"{busy} 0 0 {idle} 0 0 0 0 0 0"
        self.write(self.proc / "stat", f"cpu  {busy * 2} 0 0 {idle * 2} 0 0 0 0 0 0\ncpu0 {line}\ncpu1 {line}\nctxt 9")

    def groups(self, **files: object) -> None:
        """Files of the control groups; two underscores stand for a slash, one for a dot in `cpu_max`."""
        for name, text in files.items():
            folder, _, file = name.rpartition("__")
            controller, _, rest = file.partition("_")
            self.write(self.cgroups / folder.replace("__", "/") / f"{controller}.{rest}", text)

    def machine(self) -> Machine:
        return Machine(proc=self.proc, cgroups=self.cgroups, cores={0, 1}, clock=lambda: self.now)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def rounded(load: Load) -> Load:
    assert load.cpu is not None
    assert load.memory is not None
    return Load(cpu=round(load.cpu, 6), cpu_throttled=load.cpu_throttled, memory=round(load.memory, 6))


def test_without_limits_the_machine_counts(kernel: Kernel) -> None:
    machine = kernel.machine()
    kernel.cores(busy=60, idle=40)
    assert rounded(machine.read_load()) == Load(cpu=0.6, cpu_throttled=None, memory=0.25)


def test_only_the_allowed_cores_count(kernel: Kernel) -> None:
    machine = Machine(proc=kernel.proc, cgroups=kernel.cgroups, cores={1})
    kernel.write(kernel.proc / "stat", "cpu  100 0 0 100 0 0 0 0\ncpu0 100 0 0 0 0 0 0 0\ncpu1 20 0 0 60 20 0 0 0")
    assert machine.read_load().cpu == pytest.approx(0.2)


def test_a_container_of_version_2(kernel: Kernel) -> None:
    """Half a core, of which 0.45 were used while the machine idled; a GiB, of which 0.7 are in use for real."""
    kernel.write(kernel.proc / "self" / "cgroup", "0::/")
    kernel.write(kernel.cgroups / "cgroup.controllers", "cpu memory")
    kernel.groups(
        cpu_max="50000 100000",
        cpu_stat="usage_usec 1000000\nnr_periods 10\nnr_throttled 1\nthrottled_usec 5",
        memory_max=GIB,
        memory_current=int(0.9 * GIB),
        memory_stat=f"anon 5\ninactive_file {int(0.2 * GIB)}",
    )
    machine = kernel.machine()
    kernel.now += 10
    kernel.cores(busy=10, idle=90)
    kernel.groups(cpu_stat="usage_usec 5500000\nnr_periods 110\nnr_throttled 81\nthrottled_usec 5")
    load = machine.read_load()
    assert load.cpu == pytest.approx(0.9)
    assert load.cpu_throttled == pytest.approx(0.8)
    assert load.memory == pytest.approx(0.7)


def test_the_limit_of_an_outer_group_counts(kernel: Kernel) -> None:
    """A service without a limit of its own in a slice that has one."""
    kernel.write(kernel.proc / "self" / "cgroup", "0::/system.slice/shoal.service")
    kernel.write(kernel.cgroups / "cgroup.controllers", "cpu memory")
    kernel.write(kernel.cgroups / "system.slice/shoal.service/memory.max", "max")
    kernel.write(kernel.cgroups / "system.slice/shoal.service/memory.current", GIB)
    kernel.write(kernel.cgroups / "system.slice/memory.max", 2 * GIB)
    kernel.write(kernel.cgroups / "system.slice/memory.current", int(1.8 * GIB))
    kernel.write(kernel.cgroups / "system.slice/shoal.service/cpu.max", "max 100000")
    assert kernel.machine().read_load().memory == pytest.approx(0.9)


def test_a_container_of_version_1(kernel: Kernel) -> None:
    """/proc names the host's path, which cannot be seen from inside: the folders at the top are ours."""
    kernel.write(
        kernel.proc / "self" / "cgroup",
        "9:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/",
    )
    kernel.groups(
        cpu__cpu_cfs_quota_us=200_000,
        cpu__cpu_cfs_period_us=100_000,
        cpu__cpu_stat="nr_periods 0\nnr_throttled 0\nthrottled_time 0",
        cpuacct__cpuacct_usage=0,
        memory__memory_limit_in_bytes=GIB,
        memory__memory_usage_in_bytes=int(0.6 * GIB),
        memory__memory_stat=f"inactive_file 0\ntotal_inactive_file {int(0.1 * GIB)}",
    )
    machine = kernel.machine()
    kernel.now += 10
    kernel.groups(cpuacct__cpuacct_usage=15_000_000_000)
    assert rounded(machine.read_load()) == Load(cpu=0.75, cpu_throttled=None, memory=0.5)


def test_no_limit_of_version_1_is_a_huge_number_or_minus_one(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self" / "cgroup", "9:memory:/\n5:cpu,cpuacct:/")
    kernel.groups(
        cpu__cpu_cfs_quota_us=-1,
        cpu__cpu_cfs_period_us=100_000,
        memory__memory_limit_in_bytes=9223372036854771712,
        memory__memory_usage_in_bytes=15 * GIB,
    )
    machine = kernel.machine()
    kernel.now += 10
    kernel.cores(busy=3, idle=7)
    assert rounded(machine.read_load()) == Load(cpu=0.3, cpu_throttled=None, memory=0.25)


def test_without_kernel_files_the_load_is_unknown(tmp_path: Path) -> None:
    machine = Machine(proc=tmp_path / "no", cgroups=tmp_path / "none")
    assert machine.read_load() == Load(cpu=None, cpu_throttled=None, memory=None)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux has /proc")
def test_this_machine() -> None:
    """Real files: memory is in use, and a process that computes keeps a core busy."""
    machine = Machine()
    began = os.times()
    while os.times().user - began.user < 0.3:
        sum(range(1_000))
    load = machine.read_load()
    assert load.cpu is not None
    assert load.cpu >= 0.5 / len(os.sched_getaffinity(0))
    assert load.memory is not None
    assert 0 < load.memory < 1
