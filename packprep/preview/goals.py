"""The best of many plans, by goal."""

from collections.abc import Callable, Sequence

from packprep.preview.sweep import Row

_MOST_LOST = 0.01  # share of tokens that a best row may lose


_MEASURES: dict[str, Callable[[Row], float]] = {
    "padding": lambda row: -row.utilization,
    "loss": lambda row: row.tokens_lost,
    "cuts": lambda row: row.cut,
    "bias": lambda row: abs(row.bias),
    "straggler": lambda row: row.straggler,
    "bytes": lambda row: row.bytes / max(1, row.tokens_in - row.tokens_lost),
}
"""The figure to minimize, by goal."""


def best(rows: Sequence[Row]) -> dict[str, int]:
    """Number of the best row for each goal; {} without rows.

    Ties go to the row that loses, pads and cuts less. A row that loses more than 1% of the tokens
    is never best, unless all rows do: dropping documents makes all other figures look good.
    padding: highest utilization; loss: fewest tokens lost; cuts: fewest documents cut; bias:
    lengths mix most; straggler: most even steps; bytes: smallest size per kept token.
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
    """Goals for which several rows are exactly equal.

    `best` chooses one of these by their other figures.
    """
    planned = [rows[number] for number in _comparable(rows)]
    values = {goal: sorted(map(measure, planned)) for goal, measure in _MEASURES.items()}
    return [goal for goal, least in values.items() if len(least) > 1 and least[0] == least[1]]


def _comparable(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows that can be best."""
    planned = [number for number, row in enumerate(rows) if not row.problem]
    return [number for number in planned if rows[number].tokens_lost_share <= _MOST_LOST] or planned
