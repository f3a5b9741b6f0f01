from typing import Any

from packprep.preview.goals import best, ties
from packprep.preview.sweep import Row


def row(**figures: Any) -> Row:
    return Row(max_length=8, strategy="", overflow="", **{"tokens_in": 1000, **figures})


SHARE = {"tokens_lost_share": 0.001}


def test_the_best_row_for_each_goal() -> None:
    rows = [
        row(utilization=0.9, cut=5, bias=-0.1, straggler=1.5, bytes=10),
        row(utilization=1.0, cut=9, bias=0.4, straggler=1.1, bytes=12),
        row(utilization=0.8, bias=0.9, straggler=2.0, bytes=11, cut=0, tokens_lost=1, **SHARE),
    ]
    assert best(rows) == {"padding": 1, "loss": 1, "cuts": 2, "bias": 0, "straggler": 1, "bytes": 0}


def test_goals_for_which_several_rows_are_exactly_equal_are_ties() -> None:
    better = row(utilization=0.9, cut=5, bias=-0.1, straggler=1.5, bytes=10)
    other = row(utilization=0.9, cut=4, bias=0.1, straggler=1.5, bytes=9)
    lossy = row(utilization=1.0, tokens_lost=500, tokens_lost_share=0.5)
    assert ties([better, other, lossy]) == ["padding", "loss", "bias", "straggler"]
    assert ties([better]) == ties([]) == []


def test_a_row_that_throws_much_away_is_best_for_nothing_unless_all_do() -> None:
    lossy = row(utilization=1.0, tokens_lost=500, tokens_lost_share=0.5)
    assert set(best([lossy, row(utilization=0.5, cut=3, straggler=9.0)]).values()) == {1}
    assert set(best([lossy]).values()) == {0}


def test_a_row_without_a_plan_is_never_best() -> None:
    none = Row(max_length=8, strategy="", overflow="", problem="no")
    assert {*best([none, row()]).values()} == {1}
    assert best([]) == {}
