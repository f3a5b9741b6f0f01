"""Which messages are trained; the turns themselves are in test_turns.py, by whole renderings."""

import pytest

from packprep.chat.turn_locator import TrainOn, trained_messages


@pytest.mark.parametrize(
    ("roles", "train_on", "expected"),
    [
        ("uaua", "assistant", ([1, 3], 0)),
        ("uaua", "last-turn", ([3], 2)),
        ("uaatau", "last-turn", ([1, 2, 4], 0)),
        ("suata", "last-turn", ([2, 4], 1)),
        ("au", "assistant", ([0], -1)),
        ("u", "assistant", ([], -1)),
        ("ua", "all", ([], -1)),
    ],
)
def test_which_messages_are_trained(
    roles: str, train_on: TrainOn, expected: tuple[list[int], int]
) -> None:
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    assert trained_messages([names[role] for role in roles], train_on) == expected
