"""Builds that are interrupted on purpose.

Each is in a process forked from one that has everything imported.

The process that forks runs under a library (calls.c, compiled here with `cc`) which fails the N-th
call that a forked build makes on its files, pyarrow's calls included, or logs them. Without a
compiler only kills by time are there.
"""

import contextlib
import ctypes
import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import to_yaml
from packprep.output.staging import staging_path
from packprep.schemas import check_files, read_manifest
from packprep.schemas.files import MANIFEST
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.zoo import Zoo

ROOT = Path(__file__).parents[2]
SOAK = ROOT / "scripts/checks/soak.py"

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short": -1}
STAGES = ("tokenize", "pack", "sign off")
MAIN = "packprep.cli.main"


@dataclass(frozen=True)
class Ended:
    """End of a forked build: exit code, or minus the signal, and its standard error."""

    code: int
    err: str


def may_compile() -> bool:
    """True if this machine can compile the library that watches calls."""
    return shutil.which("cc") is not None and sys.platform == "linux"


def corpus(folder: Path) -> list[str]:
    """Two sources, and the arguments of a build of them.

    In some 20 slices and a dozen windows and shards.
    """
    files = (
        write_jsonl(folder / f"{name}.jsonl", texts(120, seed=seed))
        for seed, name in enumerate("ab", 1)
    )
    sizes = "--max-length 64 --unit-size 4KB --window 16KB --shard-size 30KB --holdout 0.2 -q"
    tokenizer = ["--tokenizer", str(save_tokenizer(folder / "tok")), "--engine", "hf"]
    return ["build", *map(str, files), *tokenizer, *sizes.split()]


def kind_of_build(folder: Path, kind: str, **sizes: int) -> list[str]:
    """Arguments of a build of a kind of the zoo, whose sources and settings are in the folder."""
    made = BuildConfig(**Zoo(folder).options(kind, folder) | sizes)
    settings = folder / f"{kind}.yaml"
    settings.write_text(to_yaml(made))
    return ["build", "-c", str(settings), "-q"]


def few_files(arguments: list[str]) -> list[str]:
    """The same sources in four slices, two windows and two shards.

    Few enough calls to let every one of them fail.
    """
    changed = {"4KB": "20KB", "16KB": "40KB", "30KB": "1MB", "0.2": "0"}
    return [changed.get(argument, argument) for argument in arguments]


def warm() -> None:
    """Import and compile everything that a build needs, so that a fork has it."""
    from packprep.engines.third_party import tell_libraries

    tell_libraries()  # else each fork would import torch when `datasets` looks for its DataLoader
    import datasets  # noqa: F401

    from packprep.cli import main  # noqa: F401
    from packprep.cli.commands import build, export, merge  # noqa: F401
    from packprep.derive import merge as merging  # noqa: F401
    from packprep.execute import pipeline  # noqa: F401
    from packprep.exports import export as exports  # noqa: F401
    from packprep.packing.warm import load_build

    load_build("uint16", ("int32", "int32"), "best_fit", "shuffle", None)


class Armed(Protocol):
    """Work of the preloaded library in a forked build."""

    def arm(self) -> Any:
        """Arm it in this process. Returns the library if it counts calls, else None."""
        ...


@dataclass(frozen=True)
class Fault:
    """Fault that the library makes in a forked build; see calls.c."""

    kind: str
    call: int
    what: int
    under: Path

    def arm(self) -> Any:
        library = ctypes.CDLL(None)
        library.fault_count.restype = ctypes.c_long
        kind, call = ctypes.c_char(self.kind.encode()), ctypes.c_long(self.call)
        under = ctypes.c_char_p(os.fsencode(self.under))
        library.fault_arm(kind, call, ctypes.c_int(self.what), under)
        return library


def forked(
    commands: Sequence[Sequence[str]],
    log: Path,
    fault: Armed | None = None,
    kill: Callable[[int], None] | None = None,
    main: str = MAIN,
) -> Ended:
    """`packprep ARGUMENTS` of each command in a fork, until one fails.

    kill: is given its pid while it runs. log: where its standard error goes.
    """

    def work() -> int:
        library = fault.arm() if fault is not None else None
        code = next(filter(None, (command(arguments, main) for arguments in commands)), 0)
        if library is not None:
            os.write(2, f"\ncalls {library.fault_count()}\n".encode())
        return code

    return in_fork(work, log, kill)


def in_fork(work: Callable[[], int], log: Path, kill: Callable[[int], None] | None = None) -> Ended:
    """Do some work in a fork, which ends with the exit code that it returns; see `forked`."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill is not None:
        kill(pid)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))


def command(arguments: Sequence[str], main: str = MAIN) -> int:
    """`packprep ARGUMENTS` in this process. Returns its exit code.

    main: module of the command line.
    """
    sys.argv = ["packprep", *arguments]
    try:
        importlib.import_module(main).main()
    except SystemExit as stopped:
        sys.stderr.flush()
        return int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 71


def stage_of(output: Path) -> str:
    """Stage of a killed build.

    "before" anything, one of STAGES, or "after" its output was there.
    """
    staging = staging_path(output)
    if not (staging / "build.json").exists():
        signed = "sign off" if (staging / MANIFEST).exists() else "before"
        return "after" if (output / MANIFEST).exists() else signed
    if (staging / MANIFEST).exists() or (staging / "names.json").exists():
        return "sign off"
    sealed = any((staging / "tokens").rglob("files.json"))
    return "pack" if sealed else "tokenize"


def absent_or_complete(output: Path) -> bool:
    """True if an output is absent, or complete to the last byte."""
    return not output.exists() or check_files(output, read_manifest(output), "sha256") == []


def clear(output: Path) -> None:
    """Take away everything that builds of an output leave."""
    for path in output.parent.glob(output.name + "*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_in(
    stage: str, output: Path, delay: float, stage_of: Callable[[Path], str] = stage_of
) -> Callable[[int], None]:
    """Kills a build some seconds after it is seen in a stage."""

    def kill(pid: int) -> None:
        deadline = time.monotonic() + 60
        while stage_of(output) != stage and time.monotonic() < deadline:
            if _ended(pid):
                return
            time.sleep(0.0005)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    return kill


def kill_workers(random: Random, most: int, killed: list[int]) -> Callable[[int], None]:
    """Kills `most` worker processes of an isolated build, each up to 3 s after it was started."""

    def kill(pid: int) -> None:
        seen: set[int] = set()
        while len(seen) < most and not _ended(pid):
            children = Path(f"/proc/{pid}/task").glob("*/children")
            with contextlib.suppress(OSError):  # a thread has ended
                for worker in {int(word) for path in children for word in path.read_text().split()}:
                    if worker not in seen:
                        time.sleep(random.random() * 3)
                        os.kill(worker, signal.SIGKILL)
                        seen.add(worker)
                        killed.append(worker)
            time.sleep(0.01)

    return kill


def small_disk(folder: Path, size: int) -> None:
    """Mount, or resize, a file system in memory of this many bytes.

    Only where `under_shim` gave a place for mounts.
    """
    folder.mkdir(exist_ok=True)
    new = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    how = ["-o", f"remount,size={size}"] if folder.is_mount() else new
    subprocess.run(["mount", *how, folder], check=True)


def may_mount() -> bool:
    """True if this user can have mounts of their own."""
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(command, capture_output=True).returncode == 0


def under_shim(
    program: Path, arguments: list[str], **settings: Any
) -> "subprocess.CompletedProcess[str]":
    """Run `python PROGRAM ARGUMENTS --inside`, with the library where a compiler makes it.

    Where this user may have mounts of their own, it gets a place for them. --shim and --mounts tell
    it so. settings: of subprocess.run.
    """
    with tempfile.TemporaryDirectory() as folder:
        shim, mounts = may_compile(), may_mount()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        if shim:
            library, source = f"{folder}/calls.so", str(Path(__file__).with_name("calls.c"))
            make = ["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
            subprocess.run(make, check=True)
            environment["LD_PRELOAD"] = library
        more = ["--inside", *["--shim"] * shim, *["--mounts"] * mounts]
        alone = ["unshare", "-Urm"] if mounts else []
        command = [*alone, sys.executable, str(program), *arguments, *more]
        return subprocess.run(command, env=environment, text=True, **settings)
