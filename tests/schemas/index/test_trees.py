"""Trees that are gathered from an index are those that a build writes, column by column."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.loaders.indexed import IndexRows, compiled_copy
from packprep.output.shard_writer import ShardLayout, record_batch
from packprep.schemas import FormatError
from packprep.schemas.index.packs import IndexBatch
from packprep.schemas.index.runs import Copy, copy_runs
from packprep.schemas.index.token_store import WindowRows
from packprep.schemas.index_table import IndexTable
from packprep.schemas.names import list_array
from packprep.schemas.views import ListView
from packprep.tokens.index_shards import copy_compiled
from packprep.windows.index_rows import index_batches
from packprep.windows.placement import Packs
from tests.helpers.index_files import window_of
from tests.helpers.trees import Window, plan_and_layout, tree_documents, windows

COPIES: list[Copy] = [copy_runs, copy_compiled]
if (compiled := compiled_copy()) is not None:
    COPIES.append(compiled)


def planned(
    window: Window, cut: int = 0, *, as_mask: bool = True, **options: Any
) -> tuple[Packs, WindowRows, ShardLayout]:
    """Packs of the trees of a window, its token files, and its columns."""
    documents = tree_documents(*window, as_mask=as_mask)
    cut = min(cut, len(documents))
    in_file = documents.id - np.where(np.arange(len(documents)) < cut, 0, cut)
    documents = replace(documents, values={**documents.values, "turn_rows": in_file})
    documents, rows = window_of(documents, cut)
    plan, layout, _ = plan_and_layout(documents, min_loss_tokens=0, materialize="index", **options)
    return plan.packs, rows, layout


def gathered(
    batch: pa.RecordBatch,
    rows: WindowRows,
    layout: ShardLayout,
    copy: Copy = copy_runs,
) -> IndexBatch:
    table = IndexTable(
        columns=layout.index,
        files=(),
        windows=(),
        shards=(),
        bos_id=layout.bos_id,
        pad_id=layout.pad_id,
    )
    return IndexBatch(batch, rows, layout.columns, table, layout.max_length, "the index", 5, copy)


@settings(max_examples=200)
@given(
    window=windows(),
    max_length=st.integers(2, 24),
    min_shared=st.integers(1, 4),
    as_mask=st.booleans(),
    cut=st.integers(0, 12),
    copy=st.sampled_from(COPIES),
    options=st.sampled_from(
        [
            {},
            {"overflow": "truncate"},
            {"overflow": "truncate", "truncation_side": "left"},
            {"stride": 1},
            {"stride": 1, "train_overlap": True},
            {"packs_multiple_of": 4, "remainder": "fill"},
            {"max_segments_per_pack": 2},
        ]
    ),
)
def test_an_index_of_trees_gives_the_record_batches_of_a_build(
    window: Window,
    max_length: int,
    min_shared: int,
    as_mask: bool,
    cut: int,
    copy: Copy,
    options: dict[str, Any],
) -> None:
    packs, rows, layout = planned(
        window, cut, as_mask=as_mask, max_length=max_length, min_shared=min_shared, **options
    )
    packs = packs.filled(1) if "remainder" in options else packs
    if not len(packs):
        return
    expected = record_batch(packs, 0, len(packs), layout)
    [stored] = index_batches(packs, [(0, len(packs))], layout.index)
    index = gathered(stored, rows, layout, copy)
    assert index.record_batch("packprep").to_pydict() == expected.to_pydict()
    assert index.record_batch("packprep").equals(expected)
    in_packs = IndexRows(index, {column.name: column.numpy_dtype for column in layout.columns})
    for pack, row in enumerate(expected.to_pylist()):
        assert {name: values.tolist() for name, values in in_packs.all(pack).items()} == row
    parts = [(pack, pack + 1) for pack in range(len(packs))]
    single = index_batches(packs, parts, layout.index)
    assert pa.Table.from_batches(single).to_pylist() == stored.to_pylist()


ROWS = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [7, 8]]
MASKS = [[False] * 3 + [True], [False] * 3 + [True], [False, False, True], [True, True]]
WINDOW: Window = (ROWS, [0, 0, 0, 1], MASKS)


def test_an_index_of_trees_holds_parents_and_rows() -> None:
    packs, _, layout = planned(WINDOW, max_length=16, order="input")
    [batch] = index_batches(packs, [(0, len(packs))], layout.index)
    assert batch.to_pylist() == [
        {
            "lengths": [2, 1, 1, 1, 1, 2],
            "segment_parents": [-1, 0, 1, 1, 0, -1],
            "row_store_rows": [0, 1, 2, 3],
            "row_starts": [0, 0, 0, 0],
            "row_segments": [2, 3, 4, 5],
            "row_trained": [1, 1, 1, 1],
            "row_label_starts": [3, 3, 2, 1],
        }
    ]


@pytest.mark.parametrize(
    ("column", "place", "value", "sentence"),
    [
        ("segment_parents", 2, 2, "segment 2: it is no segment of a tree"),
        ("segment_parents", 2, -2, "segment 2: it is no segment of a tree"),
        ("row_store_rows", 1, 4, "row 1: it is no row of its trees"),
        ("row_store_rows", 1, -1, "row 1: it is no row of its trees"),
        ("row_starts", 2, -1, "row 2: it is no row of its trees"),
        ("row_segments", 3, 6, "row 3: it is no row of its trees"),
        ("row_segments", 1, 1, "row 1: it is no row of its trees"),
        ("row_segments", 3, 4, "segment 5: it is no segment of a tree"),
        ("row_starts", 0, 1, "segment 2: it ends after its document"),
        ("lengths", 5, 3, "segment 5: it ends after its document"),
    ],
)
def test_a_wrong_tree_is_refused_before_it_is_read(
    column: str, place: int, value: int, sentence: str
) -> None:
    packs, rows, layout = planned(WINDOW, max_length=16, order="input")
    [batch] = index_batches(packs, [(0, len(packs))], layout.index)
    number = batch.schema.get_field_index(column)
    stored: Any = batch.column(number)
    values = np.array(stored.values)
    values[place] = value
    view = ListView(np.asarray(stored.offsets, np.int32), values)
    planted = batch.set_column(number, batch.schema.field(number), list_array(view))
    with pytest.raises(FormatError) as refused:
        gathered(planted, rows, layout)
    assert str(refused.value) == f"the index pack 5: {sentence}; restore the file or build again"


def test_labels_outside_their_document_are_refused_before_they_are_read() -> None:
    """Of two equal rows, the first has the tokens here, and the second has the labels."""
    window: Window = ([[1, 2], [1, 2]], [0, 0], [[False, False], [False, True]])
    packs, rows, layout = planned(window, max_length=16)
    [batch] = index_batches(packs, [(0, len(packs))], layout.index)
    starts = batch.schema.get_field_index("row_starts")
    view = ListView(np.array([0, 2], np.int32), np.array([0, 1], np.int32))
    planted = batch.set_column(starts, batch.schema.field(starts), list_array(view))
    index = gathered(planted, rows, layout)
    with pytest.raises(FormatError, match="segment 0: it ends after its document"):
        index.record_batch("packprep")
