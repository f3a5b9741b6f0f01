from packprep.summing import summed


def test_numbers_are_added_key_by_key_and_tables_inside_tables_too() -> None:
    assert summed([{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 5}}]) == {"a": 4, "b": {"c": 2, "d": 5}}


def test_nothing_adds_up_to_nothing() -> None:
    assert summed([]) == {}
