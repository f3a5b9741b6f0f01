"""Rows of token ids that another tool packed become the documents they hold."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import build
from packprep.inspect.moved import Moved
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas.boundaries import boundaries_of
from packprep.support.errors import ConfigError
from packprep.tokens.boundaries import split_at_boundaries
from tests.helpers.corpus import write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config

ROWS = [[1, 5, 6, 2, 1, 7, 2, 1, 8], [9, 9, 2], [], [2, 2], [4]]


def options(folder: Path, boundaries: str, **more: Any) -> dict[str, Any]:
    rows = [{"ids": ids, "w": [-i for i in ids]} for ids in ROWS]
    places = {"sources": write_jsonl(folder / "rows.jsonl", rows), "output": folder / "out"}
    ids = {"input_ids_column": "ids", "vocab_size": 10, "max_length": 8, "boundaries": boundaries}
    return places | ids | more


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=6),
    st.sampled_from(["eos", "bos"]),
    st.integers(0, 3),
)
def test_each_row_is_split_as_a_row_by_itself(
    rows: list[list[int]], kind: Any, skipped: int
) -> None:
    """skipped: rows before those of a slice, whose offsets do not begin at 0."""
    both = [[9] * 3] * skipped + rows
    column, beside = (
        pa.array([[sign * id_ for id_ in row] for row in both], pa.list_(pa.int32()))
        for sign in (1, -1)
    )
    columns = {"ids": column, "w": beside, "score": [*range(-skipped, len(rows))]}
    parts, of, numbers = split_at_boundaries(pa.table(columns)[skipped:], (kind, 2))
    assert parts["score"].to_pylist() == of.tolist()
    assert parts["w"].to_pylist() == [[-i for i in part] for part in parts.to_pydict()["ids"]]
    expected = []
    for row, ids in enumerate(rows):
        bounds = boundaries_of(np.array(ids, np.int32), kind, 2).tolist()
        cuts = list(itertools.pairwise(bounds)) if ids else [(0, 0)]
        expected += [
            (row, number if len(cuts) > 1 else -1, ids[a:b]) for number, (a, b) in enumerate(cuts)
        ]
    found = zip(of.tolist(), numbers.tolist(), parts["ids"].to_pylist(), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize("materialize", ["shards", "index"])
@pytest.mark.parametrize(
    ("boundaries", "documents", "split"),
    [
        ("eos:2", [[1, 5, 6, 2], [1, 7, 2], [1, 8], [9, 9, 2], [2], [2], [4]], 2),
        ("bos:1", [[1, 5, 6, 2], [1, 7, 2], [1, 8], [9, 9, 2], [2, 2], [4]], 1),
    ],
)
def test_a_build_packs_the_documents_of_packed_rows(
    tmp_path: Path, materialize: str, boundaries: str, documents: list[list[int]], split: int
) -> None:
    build(config(**options(tmp_path, boundaries, carry="w", materialize=materialize)))
    output = tmp_path / "out"
    packed = [each.tokens.tolist() for pack in PackedShards(output) for each in pack.segments()]
    assert sorted(packed) == sorted(documents)
    report = read_report(output)
    assert report["documents"]["in"] == len(documents) + 1  # the row without ids
    assert (report["turns"]["rows"], report["turns"]["split_rows"]) == (len(ROWS), split)
    assert not verify(output, level="full", moved=Moved(root=tmp_path)).findings


@pytest.mark.parametrize(
    ("boundaries", "words"),
    [
        ("eof", "boundaries is 'eof'"),
        ("eos", "the id of EOS is not known; give it, such as boundaries eos:2"),
        ("bos:10", "boundaries bos:10 is outside of the vocabulary of 10"),
    ],
)
def test_a_boundary_that_is_not_known_is_refused(
    tmp_path: Path, boundaries: str, words: str
) -> None:
    with refused(ConfigError, words):
        build(config(**options(tmp_path, boundaries)))
