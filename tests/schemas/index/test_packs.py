"""Packs that are gathered from an index are those that a build writes, column by column."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.loaders.indexed import IndexRows, compiled_copy
from packprep.output.shard_writer import ShardLayout, record_batch
from packprep.schemas import Column, FormatError
from packprep.schemas.index.packs import IndexBatch
from packprep.schemas.index.runs import Copy, copy_runs
from packprep.schemas.index.token_store import WindowRows
from packprep.schemas.index_table import IndexTable
from packprep.schemas.names import list_array
from packprep.schemas.views import ListView
from packprep.tokens.index_shards import copy_compiled
from packprep.windows.index_rows import columns_of_index, index_batches
from packprep.windows.placement import Packs
from packprep.windows.planner import plan_window, resized
from tests.helpers.documents import (
    labelled_columns,
    make_documents,
    tokenizer,
    tokens_of,
    with_columns,
)
from tests.helpers.index_files import window_of
from tests.test_laws import configs

COPIES: list[Copy] = [copy_runs, copy_compiled]
if (compiled := compiled_copy()) is not None:
    COPIES.append(compiled)


def index_of(packs: Packs, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """All packs in one record batch of an index."""
    (batch,) = index_batches(packs, [(0, len(packs))], columns)
    return batch


def gathered(
    packs: Packs,
    rows: WindowRows,
    layout: ShardLayout,
    config: BuildConfig,
    copy: Copy = copy_runs,
    batch: pa.RecordBatch | None = None,
) -> IndexBatch:
    columns = columns_of_index(config)
    table = IndexTable(
        columns=columns,
        files=(),
        windows=(),
        shards=(),
        bos_id=layout.bos_id,
        pad_id=layout.pad_id,
    )
    stored = index_of(packs, columns) if batch is None else batch
    return IndexBatch(
        stored, rows, layout.columns, table, config.max_length, "the index", copy=copy
    )


def as_index(config: BuildConfig) -> BuildConfig:
    options = {name: getattr(config, name) for name in vars(config)}
    return BuildConfig(**options | {"materialize": "index"})


@settings(max_examples=300)
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
    config, policy = as_index(config), tokenizer()
    columns: tuple[Column, ...] = ()
    documents = make_documents(texts, policy)
    if config.input_ids_column is not None:
        trained = [[bits.random() < 0.4 for _ in tokens] for tokens in tokens_of(documents)]
        documents = with_columns(documents, trained, as_mask=as_mask)
        columns = labelled_columns()
    documents, rows = window_of(documents, bits.randint(0, len(texts)))
    packs = plan_window(documents, policy, config, seed=config.seed).packs
    layout = ShardLayout.from_config(config, policy, columns)
    if len(packs) and "labels" in [column.name for column in layout.columns]:
        packs = resized(packs, bits.randint(0, 2), config)  # filler packs
    if not len(packs):
        return
    expected = record_batch(packs, 0, len(packs), layout)
    index = gathered(packs, rows, layout, config, copy)
    assert index.record_batch("packprep").equals(expected)
    dtypes = {column.name: column.numpy_dtype for column in layout.columns}
    packs_read = IndexRows(index, dtypes)
    for pack, row in enumerate(expected.to_pylist()):
        assert {name: values.tolist() for name, values in packs_read.all(pack).items()} == row
        assert packs_read.tokens(pack) == len(row["tokens"])
        wide = np.empty(len(row["tokens"]), np.int64)  # as the loader has it
        packs_read.fill("tokens", pack, wide)
        assert wide.tolist() == row["tokens"]


@pytest.fixture
def plan() -> tuple[Packs, WindowRows, ShardLayout, BuildConfig]:
    """Documents of 5, 3 and 4 tokens in packs of 8, in input order."""
    config = BuildConfig(max_length=8, order="input", materialize="index", strategy="greedy")
    documents, rows = window_of(make_documents([3, 1, 2], tokenizer()), 2)
    packs = plan_window(documents, tokenizer(), config, seed=0).packs
    return packs, rows, ShardLayout.from_config(config, tokenizer()), config


def changed(batch: pa.RecordBatch, column: str, values: list[int]) -> pa.RecordBatch:
    offsets: Any = batch.column(column)
    view = ListView(np.asarray(offsets.offsets, np.int32), np.array(values, np.int32))
    number = batch.schema.get_field_index(column)
    return batch.set_column(number, batch.schema.field(number), list_array(view))


def test_an_index_holds_rows_starts_and_lengths(
    plan: tuple[Packs, WindowRows, ShardLayout, BuildConfig],
) -> None:
    packs, _, _, config = plan
    assert index_of(packs, columns_of_index(config)).to_pylist() == [
        {"store_rows": [0, 1], "document_starts": [0, 0], "lengths": [5, 3]},
        {"store_rows": [2], "document_starts": [0], "lengths": [4]},
    ]


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("store_rows", [0, 1, 3], "pack 1: segment 0: it is no segment of a document"),
        ("store_rows", [0, -2, 2], "pack 0: segment 1: it is no segment of a document"),
        ("document_starts", [0, -1, 0], "pack 0: segment 1: it is no segment of a document"),
        ("document_starts", [0, 1, 0], "pack 0: segment 1: it ends after its document"),
        ("lengths", [5, 0, 4], "pack 0: segment 1: it is no segment of a document"),
        ("lengths", [5, 4, 4], "pack 0: it has more than 8 tokens"),
        ("lengths", [5, 3, 5], "pack 1: segment 0: it ends after its document"),
    ],
)
def test_a_segment_outside_its_document_is_refused_before_it_is_read(
    plan: tuple[Packs, WindowRows, ShardLayout, BuildConfig],
    column: str,
    values: list[int],
    sentence: str,
) -> None:
    packs, rows, layout, config = plan
    batch = changed(index_of(packs, columns_of_index(config)), column, values)
    with pytest.raises(FormatError) as refused:
        gathered(packs, rows, layout, config, batch=batch)
    assert str(refused.value) == f"the index {sentence}; restore the file or build again"
