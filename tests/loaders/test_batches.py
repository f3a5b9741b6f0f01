"""PackedLoader's batches.

Whole expected values, padding, label conventions, buffers, prefetching, plain datasets.
"""

import gc
import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    batch_from_rows,
    context_indices,
    context_slice,
    loss_weights,
    unpack,
)
from packprep.loaders.ahead import _Queue, prefetched
from packprep.loaders.buffers import BlockPool
from packprep.schemas import STANDARD_COLUMNS, FormatError
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.tiny_shards import GOLDEN, PLAIN, RICH, Row, rich_row, write_output

from .test_shards import ROWS, row_of


def example(**options: Any) -> PackedLoader:
    """The format's worked example.

    Packs [1, 20, ..., 26] and [1, 10, 2 | 27, 2 | 1, 30, 2], in stored order.
    """
    return PackedLoader(
        PackedShards(GOLDEN / "v1-example"), **({"packs_per_batch": 2, "shuffle": False} | options)
    )


def rich(tmp_path: Path, *rows: Row) -> PackedShards:
    write_output(tmp_path / "rich", {"train": [rows]}, RICH, max_length=16)
    return PackedShards(tmp_path / "rich")


def lists(batch: PackedBatch) -> dict[str, Any]:
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name in (
            "tokens",
            "position_ids",
            "cu_seqlens",
            "max_seqlen",
            "labels",
            "document_ids",
            "loss_weights",
        )
        if (value := getattr(batch, name)) is not None
    }


def test_a_batch_is_its_packs_one_behind_the_other() -> None:
    (batch,) = example()
    assert lists(batch) == {
        "tokens": [1, 20, 21, 22, 23, 24, 25, 26, 1, 10, 2, 27, 2, 1, 30, 2],
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0, 1, 0, 1, 2],
        "cu_seqlens": [0, 8, 11, 13, 16],
        "max_seqlen": 8,
        "labels": [-100, 20, 21, 22, 23, 24, 25, 26, -100, 10, 2, -100, 2, -100, 30, 2],
        "document_ids": [1, 0, 1, 2],
    }
    dtypes = {
        name: getattr(batch, name).dtype.name
        for name in ("tokens", "position_ids", "labels", "document_ids")
    }
    assert set(dtypes.values()) == {"int64"}
    assert batch.cu_seqlens.dtype == np.int32
    assert type(batch.max_seqlen) is int
    assert (len(batch), batch.num_segments, batch.num_items, batch.num_real_tokens) == (
        16,
        4,
        12,
        16,
    )


def test_shifted_labels_are_of_the_next_token_and_stop_at_the_end_of_each_segment() -> None:
    (batch,) = example(labels="shifted")
    assert batch.labels is not None
    assert batch.labels.tolist() == [
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        -100,
        10,
        2,
        -100,
        2,
        -100,
        30,
        2,
        -100,
    ]
    assert next(iter(example(labels="none"))).labels is None


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_each_label_convention_converts_to_the_other(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]]
) -> None:
    out = tmp_path_factory.mktemp("labels") / "out"
    write_output(
        out, {"train": [[row_of(n, *pack) for n, pack in enumerate(lengths)]]}, max_length=20
    )
    shards = PackedShards(out)
    hf, shifted = (
        next(iter(PackedLoader(shards, len(lengths), labels=kind))) for kind in ("hf", "shifted")
    )
    assert hf.labels_as("shifted").tolist() == shifted.labels.tolist()
    assert shifted.labels_as("hf").tolist() == hf.labels.tolist()
    assert hf.labels_as("hf") is hf.labels


def test_stored_labels_are_used_and_padding_keeps_its_minus_100(tmp_path: Path) -> None:
    shards = rich(tmp_path, rich_row(0, 3, 4), rich_row(2, 1))
    (batch,) = PackedLoader(shards, 2, shuffle=False)
    assert batch.tokens.tolist() == [5, 5, 5, 0, 5, 5, 5, 5, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
    none = -100
    assert batch.labels is not None
    assert batch.labels.tolist() == [none, 5, 5, none, none, 5, 5, 5, *[none] * 4, *[none] * 8]
    assert batch.document_ids is not None
    assert batch.document_ids.tolist() == [0, 1, -1, 2, -1]
    assert batch.segment_lengths is not None
    assert batch.segment_lengths.tolist() == [3, 4, 0, 1, 0]
    assert batch.num_real_tokens == 8
    assert [values.tolist() for values in unpack(batch.tokens, batch)] == [
        [5, 5, 5],
        [5, 5, 5, 5],
        [5],
    ]
    (shifted,) = PackedLoader(shards, 2, shuffle=False, labels="shifted")
    assert shifted.labels is not None
    assert shifted.labels.tolist() == [5, 5, none, none, 5, 5, 5, none, *[none] * 4, *[none] * 8]


def test_further_columns_come_along_when_asked_for(tmp_path: Path) -> None:
    shards = rich(tmp_path, rich_row(0, 3), rich_row(1, 1))
    (batch,) = PackedLoader(
        shards, 2, shuffle=False, columns=["weight", "source"], pad_to=40, max_segments=6
    )
    assert batch.extra["weight"].dtype == np.float32
    assert batch.extra["weight"].tolist() == [0.5] * 3 + [0] * 5 + [0.5] + [0] * 31
    assert batch.extra["source"].tolist() == [0] * 6


PAIR_COLUMNS = ["pair_ids", "pair_sides", "document_ids"]


@pytest.mark.parametrize(
    "options",
    [{"pad_to": 24}, {"packs_per_batch": 3, "remainder": "fill"}, {"max_segments": 6}],
    ids=["padding", "filler packs", "segments that are not there"],
)
def test_columns_that_mark_filler_mark_that_of_the_loader_too(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    columns = (*PLAIN, STANDARD_COLUMNS["pair_ids"], STANDARD_COLUMNS["pair_sides"])
    row = {**row_of(0, 3, 2), "document_ids": [0, 0], "pair_ids": [0, 0], "pair_sides": [0, 1]}
    write_output(tmp_path / "pairs", {"train": [[row]]}, columns)
    shards = PackedShards(tmp_path / "pairs")
    (batch,) = PackedLoader(shards, **{"packs_per_batch": 1, "columns": PAIR_COLUMNS, **options})
    filler = batch.num_segments - 2
    assert filler
    assert {name: values.tolist() for name, values in batch.extra.items()} == {
        "pair_ids": [0, 0] + [-1] * filler,
        "pair_sides": [0, 1] + [-1] * filler,
        "document_ids": [0, 0] + [-1] * filler,
    }


def test_padding_is_segments_of_its_own_at_the_end_without_loss(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[row_of(1, 3), row_of(2, 2)]]}, max_length=8)
    (batch,) = PackedLoader(
        PackedShards(tmp_path / "out"), 2, shuffle=False, pad_to=24, loss_weights="segment"
    )
    assert lists(batch) == {
        "tokens": [1, 1, 1, 2, 2, *[0] * 19],
        "position_ids": [0, 1, 2, 0, 1, *range(8), *range(8), *range(3)],
        "cu_seqlens": [0, 3, 5, 13, 21, 24],
        "max_seqlen": 8,
        "labels": [-100, 1, 1, -100, 2, *[-100] * 19],
        "document_ids": [1, 2, -1, -1, -1],
        "loss_weights": [0, 0.5, 0.5, 0, 1, *[0] * 19],
    }
    (multiple,) = PackedLoader(PackedShards(tmp_path / "out"), 2, shuffle=False, pad_multiple=4)
    assert multiple.cu_seqlens.tolist() == [0, 3, 5, 8]


def test_max_segments_gives_the_same_shapes_for_every_batch(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    batches = [*PackedLoader(PackedShards(tmp_path / "out"), 2, max_segments=6)]
    assert {
        (len(b.tokens), len(b.cu_seqlens), len(b.document_ids), b.max_seqlen) for b in batches
    } == {(16, 7, 6, 8)}
    for batch in batches:
        assert batch.cu_seqlens[-1] == 16
        assert (np.diff(batch.cu_seqlens) >= 0).all()
        assert batch.position_ids.max() < batch.max_seqlen


def test_too_many_segments_for_max_segments_are_a_sentence(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    with pytest.raises(
        ValueError,
        match=r"a batch of 1 packs has \d segments with its padding, and max_segments is 2; ",
    ):
        [*PackedLoader(PackedShards(tmp_path / "out"), 1, max_segments=2, pad_to=12)]


packs = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6)


@given(
    packs,
    st.integers(1, 3),
    st.sampled_from([None, 80]),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
)
def test_whatever_the_shape_a_batch_holds_its_documents_and_sound_boundaries(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[list[int]],
    batch_size: int,
    pad_to: int | None,
    multiple: int,
    fixed: bool,
) -> None:
    out = tmp_path_factory.mktemp("shape") / "out"
    rows = [row_of(4 * n, *pack) for n, pack in enumerate(lengths)]
    write_output(out, {"train": [rows]}, max_length=24)
    loader = PackedLoader(
        PackedShards(out),
        batch_size,
        pad_to=pad_to,
        pad_multiple=multiple,
        max_segments=40 if fixed else None,
        remainder="fill",
        loss_weights="token",
    )
    seen = []
    for batch in loader:
        cu = batch.cu_seqlens
        assert (cu[0], cu[-1]) == (0, len(batch.tokens))
        assert (np.diff(cu) > 0).sum() + (np.diff(cu) == 0).sum() == batch.num_segments
        assert len(batch.tokens) % multiple == 0
        assert batch.position_ids.tolist() == [at for n in np.diff(cu) for at in range(n)]
        assert batch.max_seqlen >= np.diff(cu).max()
        assert batch.labels is not None
        assert batch.document_ids is not None
        assert ((batch.loss_weights > 0) == (batch.labels != -100)).all()
        for document, tokens in zip(
            batch.document_ids[batch.document_ids >= 0], unpack(batch.tokens, batch), strict=True
        ):
            assert set(tokens.tolist()) == {document}
            seen.append((int(document), len(tokens)))
    assert sorted(seen) == sorted(
        (4 * n + k, size) for n, pack in enumerate(lengths) for k, size in enumerate(pack)
    )


def test_all_batches_may_be_kept(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    loader = PackedLoader(PackedShards(tmp_path / "out"), 1, prefetch=2)
    one_by_one = [lists(batch) for batch in loader]
    assert [lists(batch) for batch in [*loader]] == one_by_one


def test_a_buffer_comes_back_only_when_no_view_of_it_is_left() -> None:
    pool = BlockPool(8, keep=2)
    array, block = pool.lend()
    view = array[2:4][:1]
    del array
    gc.collect()
    other, other_block = pool.lend()
    assert other_block is not block
    assert not np.shares_memory(view, other)
    del view
    assert pool.lend()[1] is block


def test_buffers_are_used_again_when_batches_are_let_go(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    addresses = set()
    for _ in range(5):
        for batch in PackedLoader(PackedShards(tmp_path / "out"), 1, prefetch=0):
            addresses.add(batch.tokens.ctypes.data)
    loader = PackedLoader(PackedShards(tmp_path / "out"), 1, prefetch=1)
    used = [batch.tokens.ctypes.data for _ in range(5) for batch in loader]
    assert len(set(used)) <= 4


def test_arrays_keep_their_values_when_their_batch_is_gone(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    loader = PackedLoader(PackedShards(tmp_path / "out"), 1, shuffle=False)
    kept = [batch.position_ids[:2] for batch in loader]
    assert len([*loader]) == 6
    assert [values.tolist() for values in kept] == [row["position_ids"][:2] for row in ROWS]


def test_the_prefetch_thread_ends_with_the_iteration(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]})
    loader = PackedLoader(PackedShards(tmp_path / "out"), 1, prefetch=2)

    def prefetching() -> list[str]:
        return [
            thread.name for thread in threading.enumerate() if thread.name == "packprep-prefetch"
        ]

    iterator = iter(loader)
    next(iterator)
    assert prefetching()
    iterator.close()  # type: ignore[attr-defined]
    assert not prefetching()
    assert len([*loader]) == 6
    assert not prefetching()


def test_an_error_of_the_prefetch_thread_is_raised_in_order(tmp_path: Path) -> None:
    wrong = {**ROWS[1], "cu_seqlens": [0, 7]}
    write_output(tmp_path / "out", {"train": [[ROWS[0], wrong, ROWS[2]]]})
    iterator = iter(PackedLoader(PackedShards(tmp_path / "out"), 1, shuffle=False))
    assert next(iterator).tokens.tolist() == ROWS[0]["tokens"]
    with pytest.raises(
        FormatError, match=r"data-00000-of-00001\.arrow pack 1: cu_seqlens are \[0, 7\]"
    ):
        next(iterator)


def test_batches_are_made_ahead_of_a_slow_reader_and_no_more_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    steps: list[int] = []
    iterator = prefetched(items(), 3, steps.append)
    for taken in range(5):
        assert next(iterator) == taken
        while len(made) < taken + 4:  # without a thread that works now this would never end
            time.sleep(0.001)
        time.sleep(0.03)
        assert made == [*range(taken + 4)]
        assert steps == [*range(taken + 1)]
    assert [*iterator] == [5, 6, 7, 8]


def test_a_reader_that_finds_no_batch_makes_it_itself() -> None:
    makers: set[str] = set()

    def items() -> Iterator[int]:
        for number in range(50):
            makers.add(threading.current_thread().name)
            yield number

    queue = _Queue(items(), 2)
    queue.take()
    assert queue.take() == [1]
    assert makers == {threading.current_thread().name}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("error", [None, RuntimeError("the disk is gone")])
def test_quick_and_slow_readers_see_the_same_batches_and_the_error_in_its_place(
    seed: int, error: RuntimeError | None
) -> None:
    random = np.random.default_rng(seed)

    def items() -> Iterator[int]:
        for number in range(200):
            if random.random() < 0.1:
                time.sleep(0.001)
            yield number
        if error:
            raise error

    seen: list[int] = []
    pauses = np.random.default_rng(seed + 10).choice([0, 0, 0, 0.0003, 0.003], 200)

    def read() -> None:
        for item in prefetched(items(), 2, lambda step: None):
            seen.append(item)
            if pauses[item]:
                time.sleep(pauses[item])

    if error:
        with pytest.raises(RuntimeError, match="the disk is gone"):
            read()
    else:
        read()
    assert seen == [*range(200)]


def test_a_batch_pickles_whole(tmp_path: Path) -> None:
    (batch,) = example(loss_weights="document")
    assert lists(pickle.loads(pickle.dumps(batch))) == lists(batch)


def test_rows_make_the_batch_that_the_loader_makes(tmp_path: Path) -> None:
    (batch,) = example()
    rows: Any = [dict(pack.columns) for pack in PackedShards(GOLDEN / "v1-example")]
    assert lists(batch_from_rows(rows)) == lists(batch)
    trl = [
        {"input_ids": row["tokens"], "seq_lengths": np.diff(row["cu_seqlens"]).tolist()}
        for row in rows
    ]
    expected = {name: value for name, value in lists(batch).items() if name != "document_ids"}
    assert lists(batch_from_rows(trl)) == expected


def test_rows_of_pairs_make_a_batch_with_the_columns_of_pairs() -> None:
    row = {"tokens": [5, 6, 7], "cu_seqlens": [0, 2, 3], "pair_ids": [4, 4], "pair_sides": [0, 1]}
    extra = batch_from_rows([row, row]).extra
    assert {name: (values.dtype.name, values.tolist()) for name, values in extra.items()} == {
        "pair_ids": ("int64", [4, 4, 4, 4]),
        "pair_sides": ("int8", [0, 1, 0, 1]),
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": [1, 2], "cu_seqlens": [0, 1]},
            r"row 0 of the batch: cu_seqlens are \[0, 1\]; expected 0, rising",
        ),
        (
            {"labels": [1]},
            r"a row has the columns labels; expected tokens and .*remove_unused_columns=False",
        ),
        (
            {"tokens": [1]},
            "a row has the columns tokens; expected cu_seqlens or seq_lengths among them",
        ),
        (
            {"tokens": [1, 2], "cu_seqlens": [0, 2], "labels": [1]},
            "the rows have 1 labels for 2 tokens",
        ),
    ],
)
def test_rows_that_are_no_packs_are_a_sentence(row: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        batch_from_rows([row])


def save_plain(directory: Path, table: pa.Table) -> Path:
    """Save as save_to_disk does: an Arrow stream and state.json, no manifest."""
    directory.mkdir()
    with pa.ipc.new_stream(str(directory / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0"}
    (directory / "state.json").write_text(json.dumps(state))
    return directory


def test_a_dataset_that_trl_packed_is_read_as_packs(tmp_path: Path) -> None:
    lengths = [np.diff(row["cu_seqlens"]).tolist() for row in ROWS]
    table = pa.table({"input_ids": [row["tokens"] for row in ROWS], "seq_lengths": lengths})
    shards = PackedShards(save_plain(tmp_path / "trl", table))
    assert repr(shards) == f"PackedShards('{tmp_path / 'trl'}': 6 packs)"
    assert [pack.cu_seqlens.tolist() for pack in shards] == [row["cu_seqlens"] for row in ROWS]
    assert [pack.position_ids.tolist() for pack in shards] == [row["position_ids"] for row in ROWS]
    assert shards.max_length == 8
    got = [lists(batch) for batch in PackedLoader(shards, 2, shuffle=False)]
    write_output(tmp_path / "out", {"train": [ROWS]})
    expected = [
        lists(batch) for batch in PackedLoader(PackedShards(tmp_path / "out"), 2, shuffle=False)
    ]
    for batch in expected:
        del batch["document_ids"]
    assert got == expected
    assert PackedShards(tmp_path / "trl").fingerprint == shards.fingerprint
    assert pickle.loads(pickle.dumps(shards))[3].tokens.tolist() == ROWS[3]["tokens"]
    with pytest.raises(
        FormatError, match=r"has no manifest\.json; expected the output of packprep build"
    ):
        shards.manifest  # noqa: B018


def test_a_pack_longer_than_its_manifest_says_is_refused(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]}, max_length=7)
    with pytest.raises(
        FormatError, match=r"out pack \d has 8 tokens; expected at most 7, the max_length of its"
    ):
        list(PackedLoader(PackedShards(tmp_path / "out"), 1, shuffle=False))


def test_files_of_a_plain_dataset_have_the_same_columns(tmp_path: Path) -> None:
    packs = {"tokens": [[1, 2]], "cu_seqlens": [[0, 2]]}
    directory = save_plain(tmp_path / "plain", pa.table(packs | {"document_ids": [[7]]}))
    other = pa.table(packs)
    with pa.ipc.new_stream(str(directory / "b.arrow"), other.schema) as writer:
        writer.write_table(other)
    names = [{"filename": name} for name in ("data-00000-of-00001.arrow", "b.arrow")]
    (directory / "state.json").write_text(json.dumps({"_data_files": names}))
    with pytest.raises(
        FormatError, match=r"^b\.arrow and data-00000-of-00001\.arrow have different columns"
    ):
        PackedShards(directory)


def test_padding_is_recognised_without_stored_document_ids(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]], "seq_lengths": [[2, 1], [2]]})
    shards = PackedShards(save_plain(tmp_path / "plain", table))
    first, last = (
        PackedLoader(shards, 2, shuffle=False, pad_to=8),
        PackedLoader(
            shards, 1, rank=1, world_size=3, shuffle=False, remainder="fill", pad_multiple=4
        ),
    )
    (batch,) = first
    assert batch.segment_lengths.tolist() == [2, 1, 2, 0]
    assert (batch.num_real_tokens, [values.tolist() for values in unpack(batch.tokens, batch)]) == (
        5,
        [[1, 2], [3], [4, 5]],
    )
    (batch,) = last
    assert batch.segment_lengths.tolist() == [2, 0]
    (filler,) = PackedLoader(
        shards, 1, rank=2, world_size=3, shuffle=False, remainder="fill", pad_multiple=4
    )
    assert (
        filler.segment_lengths.tolist(),
        filler.num_real_tokens,
        filler.cu_seqlens.tolist(),
    ) == (
        [0, 0],
        0,
        [0, 1, 4],
    )


@pytest.mark.parametrize("large", [False, True])
def test_a_plain_dataset_with_boundaries_is_read_whatever_its_integers(
    tmp_path: Path, large: bool
) -> None:
    def kind(value: pa.DataType) -> pa.DataType:
        return pa.large_list(value) if large else pa.list_(value)

    columns = {
        "tokens": pa.array([row["tokens"] for row in ROWS], kind(pa.uint16())),
        "cu_seqlens": pa.array([row["cu_seqlens"] for row in ROWS], kind(pa.int64())),
        "id": pa.array(range(len(ROWS))),
    }
    shards = PackedShards(save_plain(tmp_path / "plain", pa.table(columns)))
    for batch, row in zip(PackedLoader(shards, 1, shuffle=False), ROWS, strict=True):
        assert batch.tokens.tolist() == row["tokens"]
        assert batch.tokens.dtype == np.int64
        assert batch.cu_seqlens.tolist() == row["cu_seqlens"]
        assert batch.cu_seqlens.dtype == np.int32


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "has the columns text; expected tokens and cu_seqlens, or input_ids and"),
        (
            {"tokens": [[1.0]], "cu_seqlens": [[0, 1]]},
            r"column tokens is list<.*double>; expected a list of integers",
        ),
        (
            {"input_ids": [[1]], "seq_lengths": [[1]], "completion_mask": [[1]]},
            "has completion_mask but no labels; save it with labels",
        ),
    ],
)
def test_a_plain_dataset_without_packs_is_a_sentence(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        PackedShards(save_plain(tmp_path / "plain", pa.table(columns)))


def test_a_plain_dataset_with_wrong_lengths_is_found_as_the_pack_is_read(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2], [3]], "seq_lengths": [[2], [2]]})
    shards = PackedShards(save_plain(tmp_path / "plain", table))
    assert shards[0].tokens.tolist() == [1, 2]
    with pytest.raises(
        FormatError,
        match=r"pack 1: cu_seqlens are \[0, 2\]; expected 0, rising, to the pack's 1 tokens",
    ):
        shards[1]


def test_state_json_cannot_make_the_reader_leave_its_directory(tmp_path: Path) -> None:
    save_plain(tmp_path / "plain", pa.table({"tokens": [[1]], "cu_seqlens": [[0, 1]]}))
    state = {"_data_files": [{"filename": "../other.arrow"}]}
    (tmp_path / "plain" / "state.json").write_text(json.dumps(state))
    with pytest.raises(
        FormatError, match=r"names the file '\.\./other\.arrow'; expected a relative path inside"
    ):
        PackedShards(tmp_path / "plain")


def test_a_mapped_selection_of_a_dataset_is_refused(tmp_path: Path) -> None:
    save_plain(tmp_path / "plain", pa.table({"tokens": [[1]], "cu_seqlens": [[0, 1]]}))
    state = {"_data_files": [], "_indices_data_files": [{"filename": "indices.arrow"}]}
    (tmp_path / "plain" / "state.json").write_text(json.dumps(state))
    with pytest.raises(FormatError, match="saved with an indices mapping; call flatten_indices"):
        PackedShards(tmp_path / "plain")


def test_slices_for_context_parallel_ranks() -> None:
    cu = np.array([0, 4, 12], np.int32)
    assert context_indices(cu, 1, 2, "contiguous").tolist() == [6, 7, 8, 9, 10, 11]
    assert context_indices(cu, 0, 2, "zigzag").tolist() == [0, 3, 4, 5, 10, 11]
    assert context_indices(cu, 1, 2, "zigzag").tolist() == [1, 2, 6, 7, 8, 9]
    with pytest.raises(
        ValueError, match="segment 0 has 4 tokens; zigzag slices for cp_size=4 need multiples of 8"
    ):
        context_indices(cu, 0, 4, "zigzag")
    with pytest.raises(
        ValueError, match="12 tokens are not a multiple of cp_size=5; pass cp_size=5 to"
    ):
        context_indices(cu, 0, 5, "contiguous")
    with pytest.raises(ValueError, match="cp_rank is 2; expected 0 to 1"):
        context_indices(cu, 2, 2, "contiguous")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from(["contiguous", "zigzag"]),
)
def test_context_parallel_ranks_share_every_token_once_and_equally(
    lengths: list[int], size: int, layout: Any
) -> None:
    cu = np.cumsum([0, *(2 * size * length for length in lengths)]).astype(np.int32)
    shares = [context_indices(cu, rank, size, layout).tolist() for rank in range(size)]
    assert {len(share) for share in shares} == {cu[-1] // size}
    assert sorted(place for share in shares for place in share) == list(range(cu[-1]))


def test_a_sliced_batch_keeps_whole_boundaries_and_its_own_tokens(tmp_path: Path) -> None:
    loader = PackedLoader(
        rich(tmp_path, rich_row(0, 3, 4)),
        1,
        labels="shifted",
        cp_size=2,
        loss_weights="segment",
        columns=["weight"],
    )
    (batch,) = loader
    assert len(batch) % 4 == 0
    halves = [context_slice(batch, rank, 2) for rank in range(2)]
    assert np.concatenate([half.tokens for half in halves]).tolist() == batch.tokens.tolist()
    assert np.concatenate([half.labels for half in halves]).tolist() == batch.labels.tolist()
    assert (
        np.concatenate([half.extra["weight"] for half in halves]).tolist()
        == batch.extra["weight"].tolist()
    )
    assert sum(half.loss_weights.sum() for half in halves) == 2
    assert all(half.cu_seqlens.tolist() == batch.cu_seqlens.tolist() for half in halves)
    with pytest.raises(
        ValueError, match="the batch has unshifted labels, which lose one at the end of each slice"
    ):
        context_slice(example(packs_per_batch=1)[0], 0, 2)


def test_zigzag_slices_of_a_build_with_padded_segments(tmp_path: Path) -> None:
    from packprep import BuildConfig, build

    config = BuildConfig(
        sources=(str(write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts(40)])),),
        output=str(tmp_path / "out"),
        tokenizer=str(save_tokenizer(tmp_path / "tokenizer")),
        max_length=64,
        pad_segment_to_multiple=4,
    )
    build(config)
    shards = PackedShards(tmp_path / "out", verify=True)
    assert shards.segment_multiple == 4
    for batch in PackedLoader(
        shards, 2, labels="shifted", cp_size=2, cp_layout="zigzag", remainder="fill"
    ):
        shares = [context_slice(batch, rank, 2, "zigzag") for rank in range(2)]
        assert sorted(np.concatenate([share.tokens for share in shares])) == sorted(batch.tokens)
        own = int((batch.segment_lengths * (batch.document_ids >= 0)).sum())
        assert batch.num_real_tokens == own == sum(map(len, unpack(batch.tokens, batch)))
    with pytest.raises(
        ValueError,
        match=r"multiple of 4; zigzag slices for cp_size=4 need 8: build with --pad-segm",
    ):
        PackedLoader(shards, 2, labels="shifted", cp_size=4, cp_layout="zigzag")


def test_weights_of_each_mode() -> None:
    cu, mask = np.array([0, 1, 4, 6], np.int32), np.array([1, 0, 1, 1, 0, 0], bool)
    assert loss_weights(cu, mask).tolist() == [1, 0, 1, 1, 0, 0]
    assert loss_weights(cu, mask, "segment").tolist() == [1, 0, 0.5, 0.5, 0, 0]
    third = np.float32(1 / 3)
    assert loss_weights(cu, mask, "document", np.array([7, 7, 8])).tolist() == [
        third,
        0,
        third,
        third,
        0,
        0,
    ]
    with pytest.raises(ValueError, match="mode is 'document' but there are no document_ids"):
        loss_weights(cu, mask, "document")
    with pytest.raises(ValueError, match="mode is 'pack'; expected token, segment or document"):
        loss_weights(cu, mask, "pack")  # type: ignore[arg-type]


def test_a_batch_and_a_loader_are_printed_by_shapes_types_and_settings(tmp_path: Path) -> None:
    shards = rich(tmp_path, rich_row(0, 3, 4), rich_row(2, 1))
    loader = PackedLoader(
        shards, 2, shuffle=False, loss_weights="segment", columns=["weight"], prefetch=0
    )
    place = repr(str(tmp_path / "rich"))
    assert " ".join(repr(loader).split()) == (
        f"PackedLoader(PackedShards({place}, split='train': 2 packs, 20 tokens), 1 step of at most "
        "32 tokens, "
        "packs_per_batch=2, seed=0, epoch=0, rank=0, world_size=1, shuffle=False, labels='hf', "
        "loss_weights='segment', columns=['weight'], remainder='drop', prefetch=0)"
    )
    assert repr(loader[0]) == (
        "PackedBatch(tokens=int64[20], position_ids=int64[20], cu_seqlens=int32[6], max_seqlen=4,\n"
        "    labels=int64[20], label_kind='hf', document_ids=int64[5], segment_lengths=int32[5],\n"
        "    loss_weights=float32[20], extra={weight: float32[20]})"
    )
    assert repr(loader[0].torch()) == repr(loader[0])
