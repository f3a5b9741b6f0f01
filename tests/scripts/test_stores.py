import re
import sys
from pathlib import Path

from packprep.output.remote_lock import PROVEN
from tests.helpers.store_servers import SERVERS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "checks"))

import stores  # noqa: E402


def test_the_table_of_the_documentation_is_what_the_script_checks() -> None:
    page = (ROOT / "docs" / "many-machines.md").read_text()
    assert "\n".join(stores.table()) in page


def test_each_guarantee_has_tests_and_each_server_is_checked() -> None:
    for path, parts in stores.GUARANTEES.values():
        tests = re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
        for part in parts:
            assert any(part in name for name in tests), (path, part)
    assert {*stores.SERVERS, *stores.REFUSED} == set(SERVERS)


def test_stores_are_proven_by_a_server_that_the_script_checks() -> None:
    """Others of `PROVEN` are second names of the same clients."""
    protocols = {SERVERS[name].protocol for name in stores.SERVERS}
    assert protocols | {"s3a", "gcs", "abfs"} == set(PROVEN)
