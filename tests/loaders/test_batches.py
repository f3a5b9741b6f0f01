"""PackedLoader's batches: whole expected values, padding, labels, and how they are made ahead."""

import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    context_indices,
    context_slice,
    loss_weights,
    unpack,
)
from packprep.loaders.ahead import prefetched
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import GOLDEN, RICH, ROWS, Row, rich_row, row_of, write_output
from tests.helpers.zoo import Zoo


def example(**options: Any) -> PackedLoader:
    """The format's worked example.

    Packs [1, 20, ..., 26] and [1, 10, 2 | 27, 2 | 1, 30, 2], in stored order.
    """
    shards = PackedShards(GOLDEN / "v1-example")
    return PackedLoader(shards, **({"packs_per_batch": 2, "shuffle": False} | options))


def rich(tmp_path: Path, *rows: Row) -> PackedShards:
    write_output(tmp_path / "rich", {"train": [rows]}, RICH, max_length=16)
    return PackedShards(tmp_path / "rich")


FIELDS = ("tokens", "position_ids", "cu_seqlens", "max_seqlen", "labels", "document_ids")


def lists(batch: PackedBatch) -> dict[str, Any]:
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name in (*FIELDS, "loss_weights")
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
    wide = (batch.tokens, batch.position_ids, batch.labels, batch.document_ids)
    assert {values.dtype.name for values in wide} == {"int64"}
    assert batch.cu_seqlens.dtype == np.int32
    assert type(batch.max_seqlen) is int
    assert (len(batch), batch.num_segments, batch.num_items) == (16, 4, 12)
    assert batch.num_real_tokens == 16
    assert lists(pickle.loads(pickle.dumps(batch))) == lists(batch)


def test_stored_labels_and_further_columns_are_used_and_padding_keeps_its_minus_100(
    tmp_path: Path,
) -> None:
    shards = rich(tmp_path, rich_row(0, 3, 4), rich_row(2, 1))
    (batch,) = PackedLoader(shards, 2, shuffle=False)
    none = -100
    assert batch.tokens.tolist() == [5, 5, 5, 0, 5, 5, 5, 5, *[0] * 4, 5, *[0] * 7]
    assert batch.labels.tolist() == [none, 5, 5, none, none, 5, 5, 5, *[none] * 4, *[none] * 8]
    assert batch.document_ids.tolist() == [0, 1, -1, 2, -1]
    assert batch.segment_lengths.tolist() == [3, 4, 0, 1, 0]
    assert batch.num_real_tokens == 8
    assert [values.tolist() for values in unpack(batch.tokens, batch)] == [[5] * 3, [5] * 4, [5]]
    options: dict[str, Any] = {"columns": ["weight", "source"], "pad_to": 32, "max_segments": 6}
    (shifted,) = PackedLoader(shards, 2, shuffle=False, labels="shifted", **options)
    assert shifted.extra["weight"].dtype == np.float32
    assert shifted.extra["weight"].tolist() == [0.5 * (token > 0) for token in shifted.tokens]
    assert shifted.extra["source"].tolist() == [0] * 6
    assert shifted.labels.tolist() == [5, 5, none, none, 5, 5, 5, none, *[none] * 24]


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6),
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
    options: dict[str, Any] = {"pad_to": pad_to, "pad_multiple": multiple, "remainder": "fill"}
    options["max_segments"] = 40 if fixed else None
    shards, seen = PackedShards(out), []
    loader = PackedLoader(shards, batch_size, loss_weights="token", **options)
    shifted = PackedLoader(shards, batch_size, labels="shifted", **options)
    for batch, other in zip(loader, shifted, strict=True):
        cu = batch.cu_seqlens
        assert (cu[0], cu[-1]) == (0, len(batch.tokens))
        assert (np.diff(cu) >= 0).all()
        assert len(cu) == batch.num_segments + 1
        assert not fixed or len(cu) == 41
        assert pad_to is None or len(batch.tokens) == pad_to
        assert np.diff(cu).max() <= 24
        assert len(batch.tokens) % multiple == 0
        assert batch.position_ids.tolist() == [at for n in np.diff(cu) for at in range(n)]
        assert batch.max_seqlen >= np.diff(cu).max()
        assert ((batch.loss_weights > 0) == (batch.labels != -100)).all()
        assert batch.labels_as("shifted").tolist() == other.labels.tolist()
        assert other.labels_as("hf").tolist() == batch.labels.tolist()
        assert batch.labels_as("hf") is batch.labels
        documents = batch.document_ids[batch.document_ids >= 0]
        for document, tokens in zip(documents, unpack(batch.tokens, batch), strict=True):
            assert set(tokens.tolist()) == {document}
            seen.append((int(document), len(tokens)))
    assert sorted(seen) == sorted(
        (4 * n + k, size) for n, pack in enumerate(lengths) for k, size in enumerate(pack)
    )


def test_a_pack_with_more_tokens_or_segments_than_it_may_have_is_refused(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [ROWS]}, max_length=7)
    with pytest.raises(FormatError, match=r"out pack \d has 8 tokens; expected at most 7"):
        list(PackedLoader(PackedShards(tmp_path / "out"), 1, shuffle=False))
    with pytest.raises(ValueError, match=r"1 packs has \d segments .*and max_segments is 2; "):
        [*example(packs_per_batch=1, max_segments=2)]


def test_weights_of_each_mode() -> None:
    cu, mask = np.array([0, 1, 4, 6], np.int32), np.array([1, 0, 1, 1, 0, 0], bool)
    third = np.float32(1 / 3)
    assert loss_weights(cu, mask).tolist() == [1, 0, 1, 1, 0, 0]
    assert loss_weights(cu, mask, "segment").tolist() == [1, 0, 0.5, 0.5, 0, 0]
    of_documents = loss_weights(cu, mask, "document", np.array([7, 7, 8]))
    assert of_documents.tolist() == [third, 0, third, third, 0, 0]
    with pytest.raises(ValueError, match="mode is 'document' but there are no document_ids"):
        loss_weights(cu, mask, "document")
    with pytest.raises(ValueError, match="mode is 'pack'; expected token, segment, document, or a"):
        loss_weights(cu, mask, "pack")  # type: ignore[arg-type]


def test_turns_of_a_conversation_are_documents_with_weights_of_their_own(zoo: Zoo) -> None:
    shards = PackedShards(zoo["turns"], split="train")
    units = defaultdict[tuple[int, int], float](float)
    for batch in PackedLoader(shards, len(shards), columns=["turn_ids"], loss_weights="document"):
        for number, (first, last) in enumerate(pairwise(batch.cu_seqlens.tolist())):
            unit = int(batch.document_ids[number]), int(batch.extra["turn_ids"][number])
            units[unit] += float(batch.loss_weights[first:last].sum())
    assert len(units) > len({document for document, _ in units})
    np.testing.assert_allclose([*units.values()], 1, rtol=1e-5)


def test_a_batch_and_a_loader_are_printed_by_shapes_types_and_settings(tmp_path: Path) -> None:
    shards = rich(tmp_path, rich_row(0, 3, 4), rich_row(2, 1))
    options: dict[str, Any] = {"loss_weights": "segment", "columns": ["weight"], "prefetch": 0}
    loader = PackedLoader(shards, 2, shuffle=False, **options)
    assert " ".join(repr(loader).split()) == (
        f"PackedLoader({shards!r}, 1 step of at most 32 tokens, packs_per_batch=2, seed=0, "
        "epoch=0, rank=0, world_size=1, shuffle=False, labels='hf', "
        "loss_weights='segment', columns=['weight'], remainder='drop', prefetch=0)"
    )
    assert repr(loader[0]) == (
        "PackedBatch(tokens=int64[20], position_ids=int64[20], cu_seqlens=int32[6], max_seqlen=4,\n"
        "    labels=int64[20], label_kind='hf', document_ids=int64[5], segment_lengths=int32[5],\n"
        "    loss_weights=float32[20], extra={weight: float32[20]}, pack_boundaries=int32[3])"
    )
    assert repr(loader[0].torch()) == repr(loader[0])


def test_slices_for_context_parallel_ranks() -> None:
    cu = np.array([0, 4, 12], np.int32)
    assert context_indices(cu, 1, 2, "contiguous").tolist() == [6, 7, 8, 9, 10, 11]
    assert context_indices(cu, 0, 2, "zigzag").tolist() == [0, 3, 4, 5, 10, 11]
    assert context_indices(cu, 1, 2, "zigzag").tolist() == [1, 2, 6, 7, 8, 9]
    with pytest.raises(ValueError, match=r"segment 0 has 4 tokens; zigzag .* need multiples of 8"):
        context_indices(cu, 0, 4, "zigzag")
    with pytest.raises(ValueError, match="12 tokens are not a multiple of cp_size=5; pass"):
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


def test_slices_keep_whole_boundaries_and_every_token_once(tmp_path: Path) -> None:
    """Also of segments padded to a multiple, as of a build with --pad-segment-to-multiple 4."""
    rows = [rich_row(4 * number, 1 + number % 5, 7 - number % 6) for number in range(7)]
    shards = rich(tmp_path, *rows)
    shards.manifest.data["inputs"]["options"]["pad_segment_to_multiple"] = 4
    assert shards.segment_multiple == 4
    options: dict[str, Any] = {"labels": "shifted", "remainder": "fill", "columns": ["weight"]}
    for layout in ("contiguous", "zigzag"):
        options |= {"cp_layout": layout, "loss_weights": "segment"}
        for batch in PackedLoader(shards, 2, cp_size=2, **options):
            halves = [context_slice(batch, rank, 2, layout) for rank in range(2)]
            places = [context_indices(batch.cu_seqlens, rank, 2, layout) for rank in range(2)]
            assert sorted(np.concatenate(places).tolist()) == [*range(len(batch))]
            for half, place in zip(halves, places, strict=True):
                assert half.cu_seqlens.tolist() == batch.cu_seqlens.tolist()
                assert half.tokens.tolist() == batch.tokens[place].tolist()
                assert half.labels.tolist() == batch.labels[place].tolist()
                assert half.loss_weights.tolist() == batch.loss_weights[place].tolist()
                assert half.extra["weight"].tolist() == batch.extra["weight"][place].tolist()
            real = int((batch.segment_lengths * (batch.document_ids >= 0)).sum())
            assert batch.num_real_tokens == real == sum(map(len, unpack(batch.tokens, batch)))
    with pytest.raises(ValueError, match="multiple of 4; zigzag slices for cp_size=4 need 8: buil"):
        PackedLoader(shards, 2, cp_size=4, **options)
    with pytest.raises(ValueError, match="the batch has unshifted labels, which lose one at the"):
        context_slice(example(packs_per_batch=1)[0], 0, 2)


@pytest.fixture
def shards(tmp_path: Path) -> PackedShards:
    write_output(tmp_path / "out", {"train": [ROWS]})
    return PackedShards(tmp_path / "out")


def test_batches_and_their_arrays_may_be_kept(shards: PackedShards) -> None:
    loader = PackedLoader(shards, 1, prefetch=2, shuffle=False)
    one_by_one = [lists(batch) for batch in loader]
    assert [lists(batch) for batch in [*loader]] == one_by_one
    kept = [batch.position_ids[:2] for batch in loader]
    assert len([*loader]) == 6
    assert [values.tolist() for values in kept] == [row["position_ids"][:2] for row in ROWS]


def test_the_prefetch_thread_ends_with_the_iteration(shards: PackedShards) -> None:
    others = set(threading.enumerate())  # of tests before, whose iterators were not closed

    def prefetching() -> bool:
        names = {thread.name for thread in set(threading.enumerate()) - others}
        return "packprep-prefetch" in names

    loader = PackedLoader(shards, 1, prefetch=2)
    iterator: Any = iter(loader)
    next(iterator)
    assert prefetching()
    iterator.close()
    assert not prefetching()
    assert len([*loader]) == 6
    assert not prefetching()


def test_batches_are_made_ahead_of_a_slow_reader_and_no_more_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number
        raise RuntimeError("the disk is gone")

    steps: list[int] = []
    iterator = prefetched(items(), 3, steps.append)
    for taken in range(5):
        assert next(iterator) == taken
        while len(made) < taken + 4:  # without a thread that works now this would never end
            time.sleep(0.001)
        time.sleep(0.03)
        assert made == [*range(taken + 4)]
        assert steps == [*range(taken + 1)]
    assert [*islice(iterator, 4)] == [5, 6, 7, 8]
    with pytest.raises(RuntimeError, match="the disk is gone"):  # in its place
        next(iterator)


def test_an_iterator_that_its_own_thread_closes_ends_without_an_error() -> None:
    """As where the thread collects the garbage that a dropped iterator is in."""
    errors: list[BaseException] = []
    closed = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        try:
            iterator.close()
        except BaseException as error:
            errors.append(error)
        closed.set()

    iterator: Any = prefetched(items(), 2, lambda step: None)
    assert next(iterator) == 0
    assert closed.wait(600)
    assert errors == []
