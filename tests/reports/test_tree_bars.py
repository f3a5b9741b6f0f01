from packprep.reports.tree_bars import TreeBar, tree_bars, trees_of


def lines(bars: list[TreeBar]) -> list[list[tuple[int | None, float, float, str]]]:
    """Segment, left and right edge, and style of the bars of each line."""
    found: dict[int, list[tuple[int | None, float, float, str]]] = {}
    for bar in bars:
        edge = (bar.segment, bar.x, bar.x + bar.width + 1, bar.css)
        found.setdefault(bar.y, []).append(edge)
    assert [*found] == sorted(found)
    return [*found.values()]


def test_trees_of_a_pack_begin_at_its_roots() -> None:
    assert trees_of([-1, 0, 1, -1, -1, 4]) == [range(3), range(3, 4), range(4, 6)]


def test_answers_stand_right_of_their_prompt() -> None:
    drawn = tree_bars([-1, 0, 0], [6, 4, 2], [0, 1, 1])
    assert lines(drawn.bars) == [
        [(0, 0, 600, "c0"), (1, 600, 1000, "c1")],
        [(None, 0, 600, "filler"), (2, 600, 800, "c1")],
    ]
    assert [bar.rows for bar in drawn.bars] == [2, 1, 0, 1]
    assert (drawn.rows, drawn.shown, drawn.longest) == (2, 2, 10)
    assert (drawn.tokens, drawn.row_tokens) == (12, 18)


def test_turns_go_on_from_the_row_above() -> None:
    drawn = tree_bars([-1, 0, 1], [5, 2, 3], [1, 1, 1])
    assert lines(drawn.bars) == [
        [(0, 0, 500, "c0")],
        [(None, 0, 500, "filler"), (1, 500, 700, "c1")],
        [(None, 0, 700, "filler"), (2, 700, 1000, "c0")],
    ]
    assert (drawn.tokens, drawn.row_tokens) == (10, 5 + 7 + 10)


def test_a_copy_of_a_row_is_grey() -> None:
    drawn = tree_bars([-1, 0], [4, 4], [2, 1])
    assert lines(drawn.bars) == [
        [(0, 0, 500, "c0")],
        [(None, 0, 500, "filler")],
        [(None, 0, 500, "filler"), (1, 500, 1000, "c1")],
    ]


def test_many_rows_are_counted_and_the_first_are_drawn() -> None:
    drawn = tree_bars([-1, *[0] * 40], [8, *range(1, 41)], [0, *[1] * 40])
    assert (drawn.rows, drawn.shown) == (40, 16)
    assert len(lines(drawn.bars)) == 16
    assert drawn.longest == 48


def test_a_run_of_few_tokens_is_still_visible() -> None:
    drawn = tree_bars([-1, 0], [1, 9999], [1, 1])
    assert drawn.bars[0].width == 1.5
