"""Kernels are compiled once each, and kept in the first folder that takes them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config

from packprep.packing.kernels import disk_cache
from packprep.packing.kernels.compiled import Kernel, Out, compiling
from packprep.support.arrays import Int32


def add(values: Int32, number: int, out: Out[Int32]) -> None:
    for i in range(values.size):
        out[i] = values[i] + number


def test_a_kernel_is_compiled_once_for_read_only_arrays_and_numbers_of_any_width() -> None:
    kernel, out = Kernel(add), np.zeros(2, np.int32)
    values = np.array([1, 2], np.int32)
    compiled = kernel.load()
    kernel(values, 1, out)
    values.setflags(write=False)
    kernel(values, np.int32(1), out)
    assert out.tolist() == [2, 3]
    assert len(compiled.signatures) == 1


@pytest.mark.parametrize("values", [np.array([1, 2]), np.array([1, 0, 2], np.int32)[::2]])
def test_an_array_of_other_elements_or_with_gaps_is_copied_to_be_read_only(values: Any) -> None:
    kernel, out = Kernel(add), np.zeros(2, np.int32)
    kernel(values, 1, out)
    assert out.tolist() == [2, 3]
    for wrong in (np.zeros(2, np.int64), np.zeros(4, np.int32)[::2]):
        with pytest.raises(TypeError, match="No matching definition"):
            kernel(values, 1, wrong)


def test_two_threads_that_need_a_kernel_compile_it_once() -> None:
    kernel = Kernel(add)
    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(lambda _: kernel.load(), range(2))]
    assert results[0] is results[1]


def double(values: Int32, out: Out[Int32]) -> None:
    for i in range(values.size):
        out[i] = values[i] * 2


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Folders to try: one that cannot be made, because a file has its name, and two that can."""
    (tmp_path / "file").write_text("")
    paths = [tmp_path / "file" / "kernels", tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(disk_cache, "cache_folders", lambda source: paths)
    return paths


def compiled_lines() -> list[str]:
    """Lines about compiling while a fresh process would call the kernel."""
    lines: list[str] = []
    out = np.zeros(2, np.int32)
    with compiling(lines.append):
        Kernel(double)(np.array([1, 2], np.int32), out)
    assert out.tolist() == [2, 4]
    return lines


def test_a_kernel_is_written_to_the_first_folder_that_can_be_and_read_from_any(
    folders: list[Path],
) -> None:
    assert compiled_lines() == ["compiling kernels (first run)"]
    (warmed,) = folders[1].iterdir()
    assert not folders[2].exists()
    assert compiled_lines() == []
    folders[1].rename(folders[2])  # the folder after those that cannot be made
    folders[1].write_text("")
    assert compiled_lines() == []
    assert [path.name for path in folders[2].iterdir()] == [warmed.name]


def test_without_any_folder_a_kernel_is_compiled_in_every_run_and_a_line_says_so(
    folders: list[Path],
) -> None:
    del folders[1:]
    for _ in range(2):
        assert compiled_lines() == [
            "compiling kernels (in every run: no folder to keep them can be written; set "
            "NUMBA_CACHE_DIR)"
        ]


def test_a_damaged_kernel_and_one_of_other_code_are_compiled_again(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel holds code of other modules too, so a change of any of them counts."""
    compiled_lines()
    (path,) = folders[1].iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert (compiled_lines() != [], compiled_lines()) == (True, [])
    monkeypatch.setattr(disk_cache, "_stamp", lambda source: b"another version")
    assert (compiled_lines() != [], compiled_lines()) == (True, [])
    assert len(list(folders[1].iterdir())) == 1


def test_kernels_are_kept_beside_their_module_or_in_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.cache_folders(Path("/site/packing/gather.py")) == [
        Path("/site/packing/__pycache__"),
        tmp_path / "packprep" / "kernels",
    ]


_TWO_KERNELS = """
import sys
import numpy as np
from packprep.packing.kernels.gather import add_ends
from packprep.packing.kernels.deal import queue_by_key
out, queue = np.empty(3, np.int32), np.empty(2, np.int32)
add_ends(np.array([7], np.int32), np.array([0, 1]), np.array([0, 3]), np.array([True]), 1, 2, out)
print(out.tolist(), "numba.np.arrayobj" in sys.modules)
queue_by_key(np.array([1, 0], np.int32), np.array([0, 1], np.uint32), queue)
print(queue.tolist())
"""


@pytest.mark.long
def test_a_kernel_in_the_cache_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    def run() -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", _TWO_KERNELS]
        return subprocess.check_output(command, env=environment, text=True).splitlines()

    assert run() == ["[1, 7, 2] True", "[1, 0]"]
    for file in tmp_path.rglob("*queue_by_key*"):
        file.unlink()
    assert run() == ["[1, 7, 2] False", "[1, 0]"]


@pytest.mark.long
def test_a_build_of_the_sample_leaves_nothing_to_compile_in_a_read_only_image(
    tmp_path: Path,
) -> None:
    kernels = tmp_path / "kernels"

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "packprep", *words]
        environment = os.environ | {"NUMBA_CACHE_DIR": str(kernels)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    run("sample", "data")
    options = ("--tokenizer", "data/tokenizer", "--max-length", "512")
    assert "compiling kernels (first run)" in run("build", "data/prose.jsonl", "-o", "a", *options)
    kept = sorted(kernels.iterdir())
    kernels.chmod(0o555)
    words = ("build", "data/prose.jsonl", "-o", "b", "--seed", "7", "--window", "100KB", *options)
    assert "compiling" not in run(*words)
    assert sorted(kernels.iterdir()) == kept


def test_numba_never_replaces_the_streams_of_the_process() -> None:
    """Its colours would, in the thread that compiles while another one writes an error."""
    code = """
import io, sys
import {module}
from numba.core import errors
sys.stderr = before = io.StringIO()
errors.init = lambda: sys.exit("streams replaced")
errors.TypingError("message")
assert sys.stderr is before
"""
    for module in ("packprep.packing.api", "packprep.trees.merge", "packprep.loaders"):
        subprocess.run([sys.executable, "-c", code.format(module=module)], check=True)
