import ast
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from packprep.support import linux

ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(not linux.LINUX, reason="only Linux can do it")

HUGE = "glibc.malloc.hugetlb=1"
MADVISE = "always [madvise] never"
_CODE = """
import os, pathlib, sys
from packprep.support import linux
linux._HUGE_PAGES = pathlib.Path(sys.argv[3])
linux.begin_with_huge_pages()
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:3], sys.flags.utf8_mode)
"""


def test_a_process_that_begins_again_has_its_number_arguments_and_flags(tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text(MADVISE + "\n")
    arguments = ["build", "a name with spaces"]
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", "-c", _CODE, *arguments, str(tmp_path / "enabled")],
        env={name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"},
        stdout=subprocess.PIPE,
        text=True,
    )
    printed, _ = process.communicate(timeout=600)
    assert printed == f"{process.pid} {HUGE} {arguments} 1\n"


def test_a_process_that_tokenizes_begins_again_where_huge_pages_must_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refused(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        tried.append(environment["GLIBC_TUNABLES"])
        raise PermissionError  # as a sandbox does; the process continues

    monkeypatch.setattr(os, "execve", refused)
    monkeypatch.setattr(linux, "_HUGE_PAGES", tmp_path / "enabled")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for system, command, expected in [
        (None, "build", []),
        (MADVISE, "build", [HUGE]),
        (MADVISE, "show", []),
        ("[always] madvise never", "build", []),
    ]:
        if system is not None:
            (tmp_path / "enabled").write_text(system + "\n")
        monkeypatch.setattr(sys, "argv", ["packprep", command])
        tried.clear()
        linux.begin_with_huge_pages()
        assert tried == expected, (system, command)
    (tmp_path / "enabled").write_text(MADVISE)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7")
    linux.begin_with_huge_pages()
    assert tried == []


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system: the switch is off, and neither the C library nor /proc may be asked."""

    def fail(*asked: object) -> None:
        pytest.fail(f"asked for {asked}")

    monkeypatch.setattr(linux, "LINUX", False)
    monkeypatch.setattr(sys, "argv", ["packprep", "build"])
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(os, "execve", fail)
    monkeypatch.setattr(linux, "_c_function", fail)
    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr(Path, "write_text", fail)


PORTABLE: dict[str, tuple[Callable[[], object], object]] = {
    "begin_with_huge_pages": (lambda: linux.begin_with_huge_pages(), None),
    "limit_arenas": (lambda: linux.limit_arenas(4), None),
    "reserve": (lambda: linux.reserve(-1, 4096), None),
    "begin_to_store": (lambda: linux.begin_to_store(-1, 0, 4096), None),
    "exchange": (lambda: linux.exchange(Path("one"), Path("other")), False),
    "release": (lambda: linux.release(0, 4096), None),
    "end_with_parent": (lambda: linux.end_with_parent(), None),
    "offer_to_be_killed": (lambda: linux.offer_to_be_killed(), None),
    "resident": (lambda: linux.resident(), None),
    "peak_resident": (lambda: linux.peak_resident(), None),
    "processor": (lambda: linux.processor(), None),
}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", PORTABLE)
def test_elsewhere_a_function_does_nothing_and_says_so(name: str) -> None:
    call, expected = PORTABLE[name]
    assert call() == expected


def test_the_portable_side_of_every_function_is_tested() -> None:
    tree = ast.parse(Path(linux.__file__).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    public = {name for name in functions if not name.startswith("_")}
    assert public == {*PORTABLE}


@on_linux
def test_two_directories_are_exchanged_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name / f"of {name}").mkdir(parents=True)
    assert linux.exchange(tmp_path / "one", tmp_path / "other") is True
    assert [each.name for each in sorted(tmp_path.glob("*/*"))] == ["of other", "of one"]
    assert linux.exchange(tmp_path / "one", tmp_path / "missing") is False


@on_linux
def test_a_reserved_file_takes_the_disk_and_keeps_its_length(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        linux.reserve(file.fileno(), 1 << 20)
        linux.begin_to_store(file.fileno(), 0, 1 << 20)
        found = os.fstat(file.fileno())
    assert (found.st_size, found.st_blocks * 512 >= 1 << 20) == (0, True)


@on_linux
def test_a_process_ends_with_its_parent() -> None:
    child = (
        "import os, sys, time; from packprep.support import linux; linux.end_with_parent(); "
        "linux.offer_to_be_killed(); "
        "print(os.getpid(), open('/proc/self/oom_score_adj').read(), flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f"{child!r}], stdout=subprocess.PIPE, text=True); print(child.stdout.readline())"
    )
    told = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert told[1] == "1000"
    with contextlib.suppress(FileNotFoundError):  # there is no such process any more
        for _ in range(200):
            if Path(f"/proc/{told[0]}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.05)
        pytest.fail(f"process {told[0]} outlived its parent")


def test_no_other_module_asks_linux_for_anything() -> None:
    asking = re.compile(r"^ *(import|from) ctypes|[\"'](linux[\"']|/proc/|/sys/)", re.MULTILINE)
    second = ROOT / "packprep" / "next"
    modules = [p for p in (ROOT / "packprep").rglob("*.py") if second not in p.parents]
    alone = ROOT / "packprep" / "in_trainer.py"  # it uses public names of packprep only
    found = {path for path in modules if asking.search(path.read_text())}
    assert found - {alone} == {Path(linux.__file__)}
