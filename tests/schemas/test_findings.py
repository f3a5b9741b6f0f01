"""Findings are counted, and the first of each kind are kept; StopAtFirst raises instead."""

import numpy as np
import pytest

from packprep.schemas import Finding, Findings, FormatError
from packprep.schemas.findings import StopAtFirst


def finding(number: int) -> Finding:
    return Finding(kind="id", file="a.arrow", pack=number, what="it is wrong")


def test_a_finding_reads_as_its_place_and_what_is_wrong() -> None:
    whole = Finding(kind="id", file="a.arrow", pack=0, segment=2, token=5, what="x")
    assert str(whole) == "a.arrow pack 0 segment 2 token 5: x"
    assert str(Finding(kind="id", file="a.arrow", what="x")) == "a.arrow: x"
    assert str(Finding(kind="id", what="x")) == "x"


def test_all_are_counted_and_the_first_of_each_kind_kept_of_several_files_too() -> None:
    findings, later = Findings(keep=3), Findings(keep=3)
    made: list[int] = []

    def make(number: int) -> Finding:
        made.append(number)
        return finding(number)

    findings.many("id", np.arange(0), make)
    assert (len(findings), dict(findings.kept), list(findings)) == (0, {}, [])
    findings.many("id", np.arange(10, 12), make)
    later.many("id", np.arange(20, 1_000_020), make)
    later.many("id", np.arange(5), make)
    later.add(Finding(kind="other", what="x"))
    assert made == [10, 11, 20, 21, 22]
    findings.update(later)
    assert len(findings) == 1_000_008
    assert findings.counts == {"id": 1_000_007, "other": 1}
    assert [found.pack for found in findings] == [10, 11, 20, None]


def test_stop_at_first_raises_the_first_sentence() -> None:
    with pytest.raises(FormatError, match=r"^a\.arrow pack 4: it is wrong$"):
        StopAtFirst().many("id", np.array([4, 5]), finding)
    StopAtFirst().many("id", np.array([], np.int64), finding)
    with pytest.raises(FormatError, match="as it was"):
        StopAtFirst().damaged(FormatError("as it was"), "a.arrow")


def test_a_damaged_part_names_its_file_once() -> None:
    findings = Findings()
    findings.damaged(FormatError("a.arrow column tokens holds nulls"), "a.arrow", 3)
    assert [*map(str, findings)] == ["a.arrow pack 3: column tokens holds nulls"]
