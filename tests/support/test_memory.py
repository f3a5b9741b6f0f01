import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packprep.config.stages import Running
from packprep.support.linux import resident
from packprep.support.memory import MappedFiles
from packprep.tokens.token_files import slices_ahead


def test_short_memory_means_fewer_units_at_a_time() -> None:
    for memory, units in [(64_000_000_000, 4), (800_000_000, 2), (700_000_000, 0)]:
        running = Running(num_proc=4, max_memory=memory)
        assert slices_ahead(running, 64_000_000, isolated=False) == units


@pytest.mark.skipif(resident() is None, reason="the system does not say what a process holds")
@pytest.mark.parametrize(
    ("most", "coming", "let_go"),
    [(None, 0, False), (1 << 50, 0, False), (1 << 50, 1 << 50, True), (0, 0, True)],
)
def test_what_was_read_of_mapped_files_is_let_go_where_memory_is_short(
    tmp_path: Path, most: int | None, coming: int, let_go: bool
) -> None:
    content = np.random.default_rng(0).bytes(64_000_000)
    (tmp_path / "a").write_bytes(content)
    mapped = MappedFiles.open([tmp_path / "a"], most)

    def held() -> int:
        return resident()[1]  # type: ignore[index]

    before = held()
    assert mapped.files[0].to_pybytes() == content
    assert held() - before > 32_000_000
    mapped.relieve(coming)
    assert (held() - before < 8_000_000) == let_go
    assert mapped.files[0].to_pybytes() == content


@pytest.mark.long
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells a process's own peak of memory"
)
def test_the_peak_of_memory_is_not_that_of_the_process_a_build_is_started_from() -> None:
    child = "from packprep.support.memory import peak; print(peak())"
    parent = (
        "import subprocess, sys; held = b'x' * 800_000_000; subprocess.run([sys.executable, "
        f"'-c', {child!r}])"
    )
    told = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert 20_000_000 < int(told) < 600_000_000
