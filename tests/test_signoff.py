import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's own peak of memory")
def test_the_peak_of_memory_is_not_that_of_the_process_a_build_is_started_from() -> None:
    child = "from packprep.signoff import _peak_memory; print(_peak_memory())"
    parent = f"import subprocess, sys; held = b'x' * 800_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    told = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert 20_000_000 < int(told) < 600_000_000
