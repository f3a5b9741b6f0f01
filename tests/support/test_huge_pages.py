import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import os, pathlib, sys
from packprep import hugepages
hugepages._ENABLED = pathlib.Path(sys.argv[3])
hugepages.begin_again()
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:3], sys.flags.utf8_mode)
"""
_ASKED = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("system", "command", "set_before", "expected"),
    [
        ("always [madvise] never", "build", None, _ASKED),
        ("always [madvise] never", "plan", None, _ASKED),
        ("always [madvise] never", "show", None, None),
        (
            "always [madvise] never",
            "build",
            "glibc.malloc.tcache_count=7",
            "glibc.malloc.tcache_count=7",
        ),
        ("[always] madvise never", "build", None, None),
        ("always madvise [never]", "build", None, None),
        (None, "build", None, None),
    ],
)
def test_a_process_that_tokenizes_begins_again_with_huge_pages_where_they_must_be_asked_for(
    system: str | None, command: str, set_before: str | None, expected: str | None, tmp_path: Path
) -> None:
    enabled = tmp_path / "enabled"
    if system is not None:
        enabled.write_text(system + "\n")
    others = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    given = {} if set_before is None else {"GLIBC_TUNABLES": set_before}
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", "-c", _CODE, command, "a name with spaces", str(enabled)],
        env=others | given,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed, _ = process.communicate(timeout=60)
    assert printed == f"{process.pid} {expected} {[command, 'a name with spaces']} 1\n"


def test_a_process_that_may_not_begin_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packprep.support import huge_pages

    tried = []

    def refused(*_: object) -> None:
        tried.append(True)
        raise PermissionError

    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_ENABLED", tmp_path / "enabled")
    monkeypatch.setattr(sys, "argv", ["packprep", "build"])
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(os, "execve", refused)
    huge_pages.begin_again()
    assert tried
