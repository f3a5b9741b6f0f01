"""Cores and memory that this process may use: defaults of every build and thread pool.

A container or a job of a cluster has a part of the machine, and is killed or slowed down when it
takes more. The least of these counts:

machine   all cores and memory
affinity  cores that this process may run on
cgroup    quotas of Linux control groups, version 1 and 2: those of this process and of all groups
          around it (cpu.max, memory.max; cpu.cfs_quota_us, memory.limit_in_bytes)
Slurm     SLURM_CPUS_PER_TASK, SLURM_MEM_PER_NODE
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packprep.support.linux import LINUX

_UNLIMITED = 1 << 60  # version 1 has a number near 2**63 where there is no limit
_MIB = 1 << 20


class Limit(NamedTuple):
    """A number of cores or bytes, and what it comes from."""

    value: int
    source: str


def usable_cores(root: Path = Path("/")) -> Limit:
    """Cores that this process may use, at least 1; a quota of part of a core counts as a core.

    root: directory that has proc and sys.
    """
    limits = [Limit(os.cpu_count() or 1, "machine")]
    if hasattr(os, "sched_getaffinity"):
        limits.append(Limit(len(os.sched_getaffinity(0)), "affinity"))
    limits += _cores_of_groups(root)
    if (cores := _number(os.environ.get("SLURM_CPUS_PER_TASK", ""))) is not None:
        limits.append(Limit(cores, "SLURM_CPUS_PER_TASK"))
    return min((limit for limit in limits if limit.value > 0), key=lambda limit: limit.value)


def usable_memory(root: Path = Path("/")) -> Limit:
    """Bytes of memory that this process may use. root: directory that has proc and sys."""
    limits = [Limit(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "machine")]
    limits += _memory_of_groups(root)
    if (size := _number(os.environ.get("SLURM_MEM_PER_NODE", ""))) is not None:
        limits.append(Limit(size * _MIB, "SLURM_MEM_PER_NODE"))  # 0: all of the node
    return min((limit for limit in limits if limit.value > 0), key=lambda limit: limit.value)


def _cores_of_groups(root: Path) -> Iterator[Limit]:
    for folder in _groups(root, ""):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        yield from _cores(quota, period, _named(folder / "cpu.max", root))
    for folder in _groups(root, "cpu"):
        quota, period = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        yield from _cores(quota, period, _named(folder / "cpu.cfs_quota_us", root))


def _cores(quota: str, period: str, source: str) -> Iterator[Limit]:
    """Example: a quota of 150000 in a period of 100000 is 2 cores; "max" and -1 are no limit."""
    microseconds, each = _number(quota), _number(period)
    if microseconds and each:
        yield Limit(-(-microseconds // each), source)


def _memory_of_groups(root: Path) -> Iterator[Limit]:
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _groups(root, controller):
            size = _number(_text(folder / name))
            if size is not None and size < _UNLIMITED:
                yield Limit(size, _named(folder / name, root))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of those around it, innermost first.

    controller: of version 1, such as "cpu"; "" for version 2.
    """
    group = _own_group(root, controller)
    mount = _mount(root, controller) if group is not None else None
    if group is None or mount is None:
        return
    path, mounted = mount
    # A container sees its own group as the root of the mount, or only its host's name of it.
    inside = group.removeprefix(mounted) if mounted != "/" else group
    folder = path / inside.strip("/")
    if ".." in inside or not folder.is_dir():
        folder = path
    while True:
        yield folder
        if folder == path:
            return
        folder = folder.parent


def _own_group(root: Path, controller: str) -> str | None:
    """Name of this process's group. Lines are like 4:cpu,cpuacct:/a/b, in version 2 0::/a/b."""
    if not LINUX:
        return None
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, group = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            return group
    return None


def _mount(root: Path, controller: str) -> tuple[Path, str] | None:
    """Folder in which groups are mounted, and the group that is mounted there.

    Lines are like: 25 23 0:22 /docker/x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
    """
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(" ", 2), "", ""][:3]
        if kind == ("cgroup" if controller else "cgroup2") and (
            not controller or controller in options.split(",")
        ):
            mounted, path = fields.split(" ")[3:5]
            return root / path.strip("/"), mounted
    return None


def _named(path: Path, root: Path) -> str:
    return f"cgroup /{path.relative_to(root)}"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
