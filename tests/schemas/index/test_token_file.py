"""Token files as an index reads them: only what they hold, and nothing outside of them."""

import numpy as np
import pyarrow as pa
import pytest

from packprep.schemas import FormatError
from packprep.schemas.index.token_file import TokenFiles, TokenFileView
from packprep.schemas.index.token_store import Located
from tests.helpers.index_files import token_file

TABLE = pa.table(
    {
        "tokens": pa.array([[5, 6, 7], [], [8], [9, 10]], pa.list_(pa.uint16())),
        "labels": pa.array([[1, 0, 1], [], [1], [0, 0]], pa.list_(pa.int8())),
        "group": pa.array(["a", "b", "a", "b"], pa.large_string()),
        "note": ["a", None, "a", "b"],
        "quality": pa.array([0.5, 1.5, 2.5, 3.5], pa.float64()),
    }
)


def at(view: TokenFileView, *rows: int) -> Located:
    """Documents of a file."""
    return Located(TokenFiles([view], [0], [0]), np.array(rows))


@pytest.mark.parametrize("cuts", [(), (2,), (1, 1, 3)])
def test_documents_are_looked_up_in_any_order(cuts: tuple[int, ...]) -> None:
    view = TokenFileView(token_file(TABLE, cuts), "the file", 4)
    assert view.names == set(TABLE.column_names)
    rows = [3, 0, 0, 1]
    located = at(view, *rows)
    for name in ("tokens", "labels"):
        values, index = located.pointers(name).spanned(9)
        documents = [
            values[first : first + length].tolist()
            for first, length in zip(index, located.lengths(name), strict=True)
        ]
        assert documents == [TABLE[name].to_pylist()[row] for row in rows]
    assert located.numbers("quality").tolist() == [3.5, 0.5, 0.5, 1.5]
    with pytest.raises(FormatError) as missing:
        located.lengths("turn_ids")
    assert str(missing.value) == (
        "the file has no column turn_ids; restore the file or build again"
    )


def test_a_file_with_other_documents_is_refused() -> None:
    with pytest.raises(FormatError) as other:
        TokenFileView(token_file(TABLE), "the file", 5)
    assert str(other.value) == "the file has 4 documents; the manifest lists 5"
    with pytest.raises(FormatError, match=r"the file is not a token file: .*; restore it"):
        TokenFileView(pa.py_buffer(b"no Arrow at all"), "the file", 4)
    nulls = pa.table({"tokens": pa.array([[1], None], pa.list_(pa.int32()))})
    with pytest.raises(FormatError) as null:
        at(TokenFileView(token_file(nulls), "the file", 2), 0).lengths("tokens")
    assert str(null.value) == (
        "the file is not a token file: it has nulls; restore it or build again"
    )


@pytest.mark.parametrize("value", [-1, 1 << 20])
def test_an_offset_outside_the_values_is_refused_when_it_is_used(value: int) -> None:
    content = bytearray(token_file(TABLE))
    offsets = np.array([0, 3, 3, 4, 6], np.int32).tobytes()
    place = content.index(offsets)  # of the tokens, which come first
    content[place + 8 : place + 12] = np.int32(value).tobytes()
    view = TokenFileView(pa.py_buffer(bytes(content)), "the file", 4)
    assert at(view, 3).lengths("tokens").tolist() == [2]
    with pytest.raises(FormatError) as outside:
        at(view, 2).lengths("tokens")
    assert str(outside.value) == (
        "the file column tokens has list offsets outside its values; restore the file or build "
        "again"
    )


@pytest.mark.parametrize("name", ["group", "note"])
def test_a_column_without_numbers_hinders_nobody_who_does_not_ask_for_it(name: str) -> None:
    view = TokenFileView(token_file(TABLE, (1,)), "the file", 4)
    assert at(view, 2).numbers("quality").tolist() == [2.5]
    with pytest.raises(FormatError, match=r"the file is not a token file: .*; restore it"):
        at(view, 2).numbers(name)


def test_a_column_of_numbers_has_no_value_per_token() -> None:
    with pytest.raises(FormatError) as numbers:
        at(TokenFileView(token_file(TABLE), "the file", 4), 0).lengths("quality")
    assert str(numbers.value) == (
        "the file is not a token file: quality has no value per token; restore it or build again"
    )
