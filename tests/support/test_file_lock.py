import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packprep.support.errors import ConfigError
from packprep.support.file_lock import STALE_AFTER, Holder, holder, lock_path, locked
from tests.helpers.errors import refused

HERE = socket.gethostname()


def taken(out: Path) -> Holder | None:
    """Lock the output and release it. Returns the stale holder of before."""
    with locked(out, "out is being built") as before:
        return before


def test_a_second_build_is_refused_with_host_and_pid(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked(out, "out is being built") as before:
        assert before is None
        with refused(ConfigError, "out is being built", os.getpid(), HERE, "out.lock"):
            taken(out)
        assert holder(out) == Holder(HERE, os.getpid(), alive=True)
    assert (holder(out), list(tmp_path.iterdir())) == (None, [])


def test_a_build_on_another_machine_counts_as_alive_while_it_touches_its_lock(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    lock_path(out).write_text(json.dumps({"host": "elsewhere", "pid": 7}))
    with refused(ConfigError, "by process 7 on elsewhere"):
        taken(out)
    assert holder(out) == Holder("elsewhere", 7, alive=True)
    old = time.time() - STALE_AFTER - 5
    os.utime(lock_path(out), (old, old))
    assert holder(out) == taken(out) == Holder("elsewhere", 7, alive=False)


@pytest.mark.parametrize("content", ["", '{"host": "a"}'])
def test_a_lock_that_was_not_written_to_its_end_is_stale(tmp_path: Path, content: str) -> None:
    lock_path(tmp_path / "out").write_text(content)
    assert taken(tmp_path / "out") is None


def test_on_a_file_system_without_locks_a_living_process_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    out = tmp_path / "out"
    with locked(out, "out is being built"), refused(ConfigError, "by process", os.getpid()):
        taken(out)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock_path(out).write_text(json.dumps({"host": HERE, "pid": gone.pid}))
    assert taken(out) == Holder(HERE, gone.pid, alive=False)
