"""Limits of fake control groups, and of a child in a real one where the machine allows."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from packprep.support import limits
from packprep.support.limits import Limit, usable_cores, usable_memory

GROUPS = Path("/sys/fs/cgroup")


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


def test_the_narrowest_of_nested_groups_of_version_2_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/pod/cpu.max": "400000 100000",
        "sys/fs/cgroup/pod/memory.max": "8589934592",
        "sys/fs/cgroup/pod/app/cpu.max": "max 100000",
        "sys/fs/cgroup/pod/app/memory.max": "max",
    }
    root = tree(tmp_path, "0::/pod/app", V2, files)
    assert usable_cores(root) == (4, "cgroup /sys/fs/cgroup/pod/cpu.max")
    assert usable_memory(root) == (8 << 30, "cgroup /sys/fs/cgroup/pod/memory.max")


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("100000 100000", 1)]
)
def test_a_part_of_a_core_counts_as_a_core(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(tmp_path, "0::/a", V2, {"sys/fs/cgroup/a/cpu.max": quota})
    assert usable_cores(root) == (cores, "cgroup /sys/fs/cgroup/a/cpu.max")


def test_in_a_namespace_the_mount_itself_is_the_group(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "200000 100000", "sys/fs/cgroup/memory.max": "2147483648"}
    for group in ("0::/", "0::/../../docker/x", "0::/not/mounted/here"):
        root = tree(tmp_path, group, V2, files)
        assert usable_cores(root) == (2, "cgroup /sys/fs/cgroup/cpu.max")
        assert usable_memory(root) == (2 << 30, "cgroup /sys/fs/cgroup/memory.max")


V1 = """\
25 23 0:22 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
26 23 0:23 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory"""
GROUPS_V1 = "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm/job_7"


def test_groups_of_version_1_count(tmp_path: Path) -> None:
    cpu, memory = "sys/fs/cgroup/cpu,cpuacct/slurm", "sys/fs/cgroup/memory/slurm"
    files = {
        f"{cpu}/cpu.cfs_quota_us": "-1",
        f"{cpu}/cpu.cfs_period_us": "100000",
        f"{cpu}/job_7/cpu.cfs_quota_us": "600000",
        f"{cpu}/job_7/cpu.cfs_period_us": "100000",
        f"{memory}/memory.limit_in_bytes": "17179869184",
        f"{memory}/job_7/memory.limit_in_bytes": "9223372036854771712",
    }
    root = tree(tmp_path, GROUPS_V1, V1, files)
    assert usable_cores(root) == (6, f"cgroup /{cpu}/job_7/cpu.cfs_quota_us")
    assert usable_memory(root) == (16 << 30, f"cgroup /{memory}/memory.limit_in_bytes")


def test_a_container_of_version_1_sees_its_group_as_the_mount(tmp_path: Path) -> None:
    mounts = "26 23 0:23 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824"}
    root = tree(tmp_path, "4:memory:/docker/x", mounts, files)
    assert usable_memory(root) == (1 << 30, "cgroup /sys/fs/cgroup/memory/memory.limit_in_bytes")


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


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A new control group of 2 GB, of either version; skips where this user may not make one."""
    version_2 = "memory" in _read(GROUPS / "cgroup.controllers").split()
    name = "memory.max" if version_2 else "memory.limit_in_bytes"
    folder = GROUPS if version_2 else GROUPS / "memory"
    path = folder / f"packprep-test-{os.getpid()}"
    try:
        if not (folder / "cgroup.procs").exists():
            raise FileNotFoundError(errno.ENOENT, "there are none")
        path.mkdir()
        (path / name).write_text(str(2 << 30))
    except OSError as error:
        if path.exists():
            path.rmdir()
        pytest.skip(f"no control group can be made: {error.strerror}")
    yield path
    path.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_env_names_the_limits_of_a_real_control_group(real_group: Path) -> None:
    code = (
        f"open('{real_group}/cgroup.procs', 'w').write('0');"
        "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]);"
        "import sys; sys.argv = ['packprep', 'env', '--json'];"
        "from packprep.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    machine = json.loads(done.stdout)["machine"]
    assert (machine["usable_cores"], machine["usable_memory_bytes"]) == (1, 2 << 30)
    assert machine["memory_from"].startswith(f"cgroup {real_group}/memory")
