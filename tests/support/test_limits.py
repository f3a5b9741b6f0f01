"""Limits of control groups, which are folders of files here."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from packprep.support import limits
from packprep.support.limits import Limit, usable_cores, usable_memory


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 cores and 256 GB, outside of Slurm."""
    monkeypatch.setattr(limits, "LINUX", True)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 62_500_000)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)


def tree(root: Path, group: str, mountinfo: str, files: Mapping[str, str]) -> Path:
    """A machine with these control groups."""
    own = {"proc/self/cgroup": group, "proc/self/mountinfo": mountinfo}
    for name, content in {**own, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def test_the_machine_counts_and_the_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert usable_cores(tmp_path) == (128, "machine")
    assert usable_memory(tmp_path) == (256_000_000_000, "machine")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5})
    assert usable_cores(tmp_path) == (3, "affinity")


V1 = """\
25 23 0:22 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
26 23 0:23 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory"""
DOCKER_V1 = "26 23 0:23 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
CPU, MEMORY = "cpu,cpuacct/slurm", "memory/slurm"
NESTED = {"pod/cpu.max": "400000 100000", "pod/memory.max": "8589934592"}
NESTED |= {"pod/app/cpu.max": "max 100000", "pod/app/memory.max": "max"}
MOUNTED = {"cpu.max": "200000 100000", "memory.max": "2147483648"}
SLURM = {f"{CPU}/cpu.cfs_quota_us": "-1", f"{CPU}/cpu.cfs_period_us": "100000"}
SLURM |= {f"{CPU}/job_7/cpu.cfs_quota_us": "600000", f"{CPU}/job_7/cpu.cfs_period_us": "100000"}
SLURM |= {f"{MEMORY}/memory.limit_in_bytes": "17179869184"}
SLURM |= {f"{MEMORY}/job_7/memory.limit_in_bytes": "9223372036854771712"}


@pytest.mark.parametrize(
    ("group", "mounts", "files", "cores", "memory"),
    [
        ("0::/pod/app", V2, NESTED, (4, "pod/cpu.max"), (8 << 30, "pod/memory.max")),
        *(
            (group, V2, MOUNTED, (2, "cpu.max"), (2 << 30, "memory.max"))
            for group in ("0::/", "0::/../../docker/x", "0::/not/mounted/here")
        ),
        *(
            ("0::/a", V2, {"a/cpu.max": f"{quota} 100000"}, (cores, "a/cpu.max"), None)
            for quota, cores in ((150_000, 2), (50_000, 1), (100_000, 1))
        ),
        (
            "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm/job_7",
            V1,
            SLURM,
            (6, f"{CPU}/job_7/cpu.cfs_quota_us"),
            (16 << 30, f"{MEMORY}/memory.limit_in_bytes"),
        ),
        (
            "4:memory:/docker/x",
            DOCKER_V1,
            {"memory/memory.limit_in_bytes": "1073741824"},
            None,
            (1 << 30, "memory/memory.limit_in_bytes"),
        ),
    ],
    ids=["nested", *["namespace"] * 3, *["part of a core"] * 3, "version 1", "docker, version 1"],
)
def test_the_narrowest_group_of_either_version_counts(
    tmp_path: Path, group: str, mounts: str, files: dict[str, str], cores: Any, memory: Any
) -> None:
    inside = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    root = tree(tmp_path, group, mounts, inside)
    for found, expected in ((usable_cores(root), cores), (usable_memory(root), memory)):
        if expected is None:
            assert found.source == "machine"
        else:
            assert found == (expected[0], f"cgroup /sys/fs/cgroup/{expected[1]}")


def test_slurm_counts_and_0_is_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "8192")
    assert usable_cores(tmp_path) == (4, "SLURM_CPUS_PER_TASK")
    assert usable_memory(tmp_path) == (8 << 30, "SLURM_MEM_PER_NODE")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "many")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")
    assert usable_cores(tmp_path).source == usable_memory(tmp_path).source == "machine"


@pytest.mark.parametrize("content", ["", "x", "1:2", "0::", ":::::", "\x00"])
def test_files_that_nobody_expected_are_no_limit(tmp_path: Path, content: str) -> None:
    files = {"sys/fs/cgroup/cpu.max": content, "sys/fs/cgroup/memory.max": content}
    root = tree(tmp_path, content, content, files)
    assert usable_cores(root) == Limit(128, "machine")
    root = tree(tmp_path, "0::/", V2, files)
    assert usable_memory(root) == Limit(256_000_000_000, "machine")
