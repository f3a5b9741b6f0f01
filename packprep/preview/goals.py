"""The best of many plans, by goal."""

from collections.abc import Callable, Sequence

from packprep.preview.sweep import Row

_MUCH = 0.01  # of the tokens lost


_MEASURES: dict[str, Callable[[Row], float]] = {
    "padding": lambda row: -row.utilization,
    "loss": lambda row: row.tokens_lost,
    "cuts": lambda row: row.cut,
    "bias": lambda row: abs(row.bias),
    "straggler": lambda row: row.straggler,
    "bytes": lambda row: row.bytes / max(1, row.tokens_in - row.tokens_lost),
}
"""The figure that is least in the best row, by goal."""


def best(rows: Sequence[Row]) -> dict[str, int]:
    """The number of the best row for each goal.

    Of equal rows the one that loses, pads and cuts less. {} without rows.

    A row that loses more than 1% of the tokens is best for nothing, unless all do: a plan can be
    made to look good in every other column by throwing documents away. padding: highest
    utilization; loss: fewest tokens lost; cuts: fewest documents not in one piece; bias: lengths
    mix most; straggler: most even steps; bytes: smallest on disk for what is kept of the tokens.
    """
    planned = _comparable(rows)

    def after(row: Row) -> tuple[float, ...]:
        return row.tokens_lost, -row.utilization, row.cut, abs(row.bias), row.straggler

    return {
        goal: min(planned, key=lambda number: (measure(rows[number]), *after(rows[number])))
        for goal, measure in _MEASURES.items()
        if planned
    }


def ties(rows: Sequence[Row]) -> list[str]:
    """Goals for which several rows are best, exactly equal.

    `best` names one of them by their other figures.
    """
    planned = [rows[number] for number in _comparable(rows)]
    values = {goal: sorted(map(measure, planned)) for goal, measure in _MEASURES.items()}
    return [goal for goal, least in values.items() if len(least) > 1 and least[0] == least[1]]


def _comparable(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows that can be best for something."""
    planned = [number for number, row in enumerate(rows) if not row.problem]
    return [number for number in planned if rows[number].tokens_lost_share <= _MUCH] or planned
