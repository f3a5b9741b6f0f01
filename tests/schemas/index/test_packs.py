"""Packs that are gathered from an index are those that a build writes, column by column."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.loaders.indexed import IndexRows, compiled_copy
from packprep.output.shard_writer import ShardLayout, record_batch
from packprep.packing.kernels.gather import copy_compiled
from packprep.schemas import Column, FormatError
from packprep.schemas.index.runs import Copy, copy_runs
from packprep.schemas.index.stored_plan import IndexBatch
from packprep.schemas.index.token_store import WindowRows
from packprep.schemas.index_table import IndexTable
from packprep.schemas.names import list_array
from packprep.schemas.views import ListView
from packprep.windows.index_rows import index_batches
from packprep.windows.placement import Packs
from packprep.windows.planner import plan_window, resized
from tests.helpers.documents import (
    labelled_columns,
    make_documents,
    tokenizer,
    tokens_of,
    with_columns,
)
from tests.helpers.examples import share_of_examples
from tests.helpers.index_files import window_of
from tests.helpers.trees import Window, plan_and_layout, tree_documents, windows
from tests.test_laws import configs

COPIES: list[Copy] = [copy_runs, copy_compiled]
if (compiled := compiled_copy()) is not None:
    COPIES.append(compiled)
Planned = tuple[Packs, WindowRows, ShardLayout]


def index_of(packs: Packs, layout: ShardLayout) -> pa.RecordBatch:
    """All packs in one record batch of an index."""
    (batch,) = index_batches(packs, [(0, len(packs))], layout.index)
    return batch


def gathered(
    stored: pa.RecordBatch, rows: WindowRows, layout: ShardLayout, copy: Copy = copy_runs
) -> IndexBatch:
    """The packs of a record batch of an index, the first of which is pack 5."""
    ids: Any = {"bos_id": layout.bos_id, "pad_id": layout.pad_id}
    table = IndexTable(columns=layout.index, files=(), windows=(), shards=(), **ids)
    return IndexBatch(stored, rows, layout.columns, table, layout.max_length, "the index", 5, copy)


def planted(batch: pa.RecordBatch, column: str, values: list[int]) -> pa.RecordBatch:
    """The batch with other values of a column."""
    number = batch.schema.get_field_index(column)
    stored: Any = batch.column(number)
    view = ListView(np.asarray(stored.offsets, np.int32), np.array(values, np.int32))
    return batch.set_column(number, batch.schema.field(number), list_array(view))


def check_equal(packs: Packs, rows: WindowRows, layout: ShardLayout, copy: Copy) -> None:
    """The index of these packs gives the record batch that a build writes."""
    if not len(packs):
        return
    expected = record_batch(packs, 0, len(packs), layout)
    index = gathered(index_of(packs, layout), rows, layout, copy)
    assert index.record_batch("packprep").equals(expected)
    packs_read = IndexRows(index, {column.name: column.numpy_dtype for column in layout.columns})
    for pack, row in enumerate(expected.to_pylist()):
        assert {name: values.tolist() for name, values in packs_read.all(pack).items()} == row
        assert packs_read.tokens(pack) == len(row["tokens"])
        wide = np.empty(len(row["tokens"]), np.int64)  # as the loader has it
        packs_read.fill("tokens", pack, wide)
        assert wide.tolist() == row["tokens"]
    parts = [(pack, pack + 1) for pack in range(len(packs))]
    single = pa.Table.from_batches(list(index_batches(packs, parts, layout.index)))
    assert single.to_pylist() == index_of(packs, layout).to_pylist()


@settings(max_examples=share_of_examples(2))
@given(
    configs() | configs(labels=True),
    st.lists(st.integers(0, 40), max_size=12),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from(COPIES),
)
def test_an_index_gives_the_record_batches_of_a_build(
    config: BuildConfig, texts: list[int], bits: random.Random, as_mask: bool, copy: Copy
) -> None:
    config, policy = replace(config, materialize="index"), tokenizer()
    columns: tuple[Column, ...] = ()
    documents = make_documents(texts, policy)
    if config.input_ids_column is not None:
        trained = [[bits.random() < 0.4 for _ in tokens] for tokens in tokens_of(documents)]
        documents = with_columns(documents, trained, as_mask=as_mask)
        columns = labelled_columns()
    documents, rows = window_of(documents, bits.randint(0, len(texts)))
    packs = plan_window(documents, policy, config.pack_rules(), seed=config.seed).packs
    layout = ShardLayout.of(config.pack_rules(), config.writing, policy, columns)
    if len(packs) and "labels" in [column.name for column in layout.columns]:
        packs = resized(packs, bits.randint(0, 2), config.pack_order.name)  # filler packs
    check_equal(packs, rows, layout, copy)


def planned_trees(window: Window, cut: int = 0, *, as_mask: bool = True, **options: Any) -> Planned:
    """Packs of the trees of a window, its token files, and its columns."""
    documents = tree_documents(*window, as_mask=as_mask)
    cut = min(cut, len(documents))
    in_file = documents.id - np.where(np.arange(len(documents)) < cut, 0, cut)
    documents = replace(documents, values={**documents.values, "turn_rows": in_file})
    documents, rows = window_of(documents, cut)
    plan, layout, _ = plan_and_layout(documents, min_loss_tokens=0, materialize="index", **options)
    return plan.packs, rows, layout


TREE_OPTIONS: list[dict[str, Any]] = [
    *({}, {"overflow": "truncate"}, {"overflow": "truncate:left"}),
    *({"stride": 1}, {"stride": 1, "train_overlap": True}, {"max_segments_per_pack": 2}),
    {"packs_multiple_of": "4:fill"},
]


@given(
    window=windows(),
    cut=st.integers(0, 12),
    copy=st.sampled_from(COPIES),
    options=st.fixed_dictionaries(
        {
            "max_length": st.integers(2, 24),
            "share_prefixes": st.integers(1, 4),
            "as_mask": st.booleans(),
        }
    ),
    more=st.sampled_from(TREE_OPTIONS),
)
def test_an_index_of_trees_gives_the_record_batches_of_a_build(
    window: Window, cut: int, copy: Copy, options: dict[str, Any], more: dict[str, Any]
) -> None:
    packs, rows, layout = planned_trees(window, cut, **options, **more)
    packs = packs.filled(1) if "packs_multiple_of" in more else packs
    check_equal(packs, rows, layout, copy)


def documents_of_5_3_and_4() -> Planned:
    """Documents of 5, 3 and 4 tokens in packs of 8, in input order."""
    config = BuildConfig(max_length=8, order="input", materialize="index", strategy="greedy")
    documents, rows = window_of(make_documents([3, 1, 2], tokenizer()), 2)
    packs = plan_window(documents, tokenizer(), config.pack_rules(), seed=0).packs
    return (packs, rows, ShardLayout.of(config.pack_rules(), config.writing, tokenizer()))


ROWS = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [7, 8]]
MASKS = [[False] * 3 + [True], [False] * 3 + [True], [False, False, True], [True, True]]


def two_trees() -> Planned:
    return planned_trees((ROWS, [0, 0, 0, 1], MASKS), max_length=16, order="input")


def test_an_index_holds_rows_starts_and_lengths_and_the_parents_of_trees() -> None:
    packs, _, layout = documents_of_5_3_and_4()
    assert index_of(packs, layout).to_pylist() == [
        {"store_rows": [0, 1], "document_starts": [0, 0], "lengths": [5, 3]},
        {"store_rows": [2], "document_starts": [0], "lengths": [4]},
    ]
    packs, _, layout = two_trees()
    assert index_of(packs, layout).to_pylist() == [
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


NO_SEGMENT, NO_ROW = "it is no segment of a document", "it is no row of its trees"
NO_NODE, AFTER = "it is no segment of a tree", "it ends after its document"


@pytest.mark.parametrize(
    ("make", "column", "place", "value", "words"),
    [
        (documents_of_5_3_and_4, "store_rows", 2, 3, f"pack 6: segment 0: {NO_SEGMENT}"),
        (documents_of_5_3_and_4, "store_rows", 1, -2, f"pack 5: segment 1: {NO_SEGMENT}"),
        (documents_of_5_3_and_4, "document_starts", 1, -1, f"pack 5: segment 1: {NO_SEGMENT}"),
        (documents_of_5_3_and_4, "document_starts", 1, 1, f"pack 5: segment 1: {AFTER}"),
        (documents_of_5_3_and_4, "lengths", 1, 0, f"pack 5: segment 1: {NO_SEGMENT}"),
        (documents_of_5_3_and_4, "lengths", 1, 4, "pack 5: it has more than 8 tokens"),
        (documents_of_5_3_and_4, "lengths", 2, 5, f"pack 6: segment 0: {AFTER}"),
        (two_trees, "segment_parents", 2, 2, f"pack 5: segment 2: {NO_NODE}"),
        (two_trees, "segment_parents", 2, -2, f"pack 5: segment 2: {NO_NODE}"),
        (two_trees, "row_store_rows", 1, 4, f"pack 5: row 1: {NO_ROW}"),
        (two_trees, "row_store_rows", 1, -1, f"pack 5: row 1: {NO_ROW}"),
        (two_trees, "row_starts", 2, -1, f"pack 5: row 2: {NO_ROW}"),
        (two_trees, "row_segments", 3, 6, f"pack 5: row 3: {NO_ROW}"),
        (two_trees, "row_segments", 1, 1, f"pack 5: row 1: {NO_ROW}"),
        (two_trees, "row_segments", 3, 4, f"pack 5: segment 5: {NO_NODE}"),
        (two_trees, "row_starts", 0, 1, f"pack 5: segment 2: {AFTER}"),
        (two_trees, "lengths", 5, 3, f"pack 5: segment 5: {AFTER}"),
    ],
)
def test_what_lies_outside_its_document_or_tree_is_refused_before_it_is_read(
    make: Any, column: str, place: int, value: int, words: str
) -> None:
    packs, rows, layout = make()
    batch = index_of(packs, layout)
    stored: Any = batch.column(column)
    values = stored.values.to_pylist()
    values[place] = value
    with pytest.raises(FormatError, match=f"the index {words}; restore the file or build again"):
        gathered(planted(batch, column, values), rows, layout)


def test_labels_outside_their_document_are_refused_before_they_are_read() -> None:
    """Of two equal rows, the first has the tokens here, and the second has the labels."""
    window: Window = ([[1, 2], [1, 2]], [0, 0], [[False, False], [False, True]])
    packs, rows, layout = planned_trees(window, max_length=16)
    wrong = planted(index_of(packs, layout), "row_starts", [0, 1])
    with pytest.raises(FormatError, match="segment 0: it ends after its document"):
        gathered(wrong, rows, layout).record_batch("packprep")
