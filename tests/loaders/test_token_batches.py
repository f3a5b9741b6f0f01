"""Batches of at most so many tokens, or of about so many sequences: equal steps on all ranks."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk
from hypothesis import given
from hypothesis import strategies as st

from packprep import build
from packprep.loaders import Pack, PackedBatch, PackedLoader, PackedShards, batch_from_rows
from packprep.loaders.order import SequenceSchedule
from packprep.loaders.shape import BatchShape, ShapeSettings
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import numbered_shards
from tests.helpers.zoo import Zoo


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """23 packs of 6, 7 and 8 tokens in three shards."""
    return numbered_shards(tmp_path_factory.mktemp("numbered") / "out", 23)


def packs_of(batch: PackedBatch) -> list[int]:
    """Numbers of the packs of a batch, from its documents; [] for filler."""
    return sorted({int(document) // 3 for document in batch.document_ids if document >= 0})


def order_of(shards: PackedShards, **options: Any) -> list[int]:
    return [packs_of(batch)[0] for batch in PackedLoader(shards, 1, **options)]


def runs_by_hand(shards: PackedShards, order: list[int], budget: int) -> list[list[int]]:
    """Next fit, one pack after another."""
    runs: list[list[int]] = []
    room = -1
    for pack in order:
        size = len(shards[pack].tokens)
        if size > room:
            runs, room = [*runs, []], budget
        runs[-1].append(pack)
        room -= size
    return [sorted(run) for run in runs]


def loaders_of(shards: PackedShards, size: int, **options: Any) -> list[PackedLoader]:
    options |= {"world_size": size, "prefetch": 0}
    return [PackedLoader(shards, rank=rank, **options) for rank in range(size)]


def packs_in(loaders: list[PackedLoader], steps: int | None = None) -> list[list[int]]:
    """The packs of each batch, of the first `steps` steps, rank after rank."""
    batches = itertools.islice(zip(*loaders, strict=True), steps)
    return [packs_of(batch) for step in batches for batch in step]


BUDGETS, RANKS = st.integers(8, 40), st.integers(1, 3)


@given(BUDGETS, RANKS, st.sampled_from(["drop", "fill"]), st.booleans(), st.integers(0, 2))
def test_ranks_share_the_runs_of_the_order(
    shards: PackedShards, budget: int, size: int, remainder: Any, shuffle: bool, epoch: int
) -> None:
    order: dict[str, Any] = {"shuffle": shuffle, "epoch": epoch}
    runs = runs_by_hand(shards, order_of(shards, **order), budget)
    loaders = loaders_of(shards, size, max_tokens=budget, remainder=remainder, **order)
    steps = -(-len(runs) // size) if remainder == "fill" else len(runs) // size
    assert [len(loader) for loader in loaders] == [steps] * size
    found = packs_in(loaders)
    assert found == (runs + [[]] * size)[: steps * size]
    assert all(len(batch) <= budget for loader in loaders for batch in loader)
    assert [packs_of(loaders[0][step]) for step in range(steps)] == found[::size]


@given(RANKS, RANKS, st.integers(1, 4), st.integers(8, 20))
def test_a_state_resumes_the_stream_at_another_number_of_ranks(
    shards: PackedShards, first: int, second: int, stop: int, budget: int
) -> None:
    before = loaders_of(shards, first, max_tokens=budget, seed=5)
    stream = packs_in(before, stop)
    states = [loader.state_dict() for loader in before]
    assert all(state == states[0] for state in states)
    assert all(isinstance(value, int) for value in states[0].values())
    after = loaders_of(shards, second, max_tokens=budget)
    for loader in after:
        loader.load_state_dict(states[0])
    stream += packs_in(after)
    assert stream == runs_by_hand(shards, order_of(shards, seed=5), budget)[: len(stream)]


def steps_by_hand(counts: list[int], wanted: int, size: int, fill: bool) -> list[int]:
    """Ends of the steps: for each multiple of `wanted`, the place with the nearest count."""
    places = range(0, len(counts) + 1, size)
    read = {place: sum(counts[:place]) for place in places}
    steps = min(read[places[-1]] // wanted, len(places) - 1)
    ends = [0]
    for step in range(1, steps + 1):
        near = min(places, key=lambda each: (abs(read[each] - step * wanted), each))
        ends.append(min(max(near, ends[-1] + size), places[-1] - (steps - step) * size))
    return ends[1:] + ([len(counts)] if fill and ends[-1] < len(counts) else [])


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 30), RANKS, st.booleans()
)
def test_steps_end_where_the_sequences_are_nearest_and_resume_at_any_end(
    counts: list[int], wanted: int, size: int, fill: bool
) -> None:
    def schedule(start: int) -> SequenceSchedule:
        return SequenceSchedule(
            np.array(counts), [len(counts)], wanted, start=start, world_size=size, fill=fill
        )

    if sum(counts) / len(counts) * size > wanted:
        with pytest.raises(ValueError, match="choose more, or build shorter packs"):
            schedule(0)
        return
    ends = steps_by_hand(counts, wanted, size, fill)
    for done, start in enumerate([0, *ends]):
        later = schedule(start)
        assert [later.end(step) for step in range(len(later))] == ends[done:]


@given(st.integers(9, 20), RANKS, RANKS, st.sampled_from(["drop", "fill"]), st.data())
def test_ranks_have_equal_packs_in_steps_of_sequences_and_resume(
    shards: PackedShards, wanted: int, size: int, other: int, remainder: Any, data: st.DataObject
) -> None:
    settings: dict[str, Any] = {"sequences_per_step": wanted, "remainder": remainder}
    order = order_of(shards, epoch=1)
    ends = steps_by_hand([3] * len(order), wanted, size, remainder == "fill")
    loaders = loaders_of(shards, size, epoch=1, **settings)
    assert [len(loader) for loader in loaders] == [len(ends)] * size
    found = packs_in(loaders)
    for step, (first, end) in enumerate(itertools.pairwise([0, *ends])):
        of_ranks = found[step * size : (step + 1) * size]
        assert sorted(itertools.chain(*of_ranks)) == sorted(order[first:end])
        assert end == len(order) or {*map(len, of_ranks)} == {(end - first) // size}
    stop = data.draw(st.integers(1, len(ends)))
    before = loaders_of(shards, size, epoch=1, **settings)
    stream = packs_in(before, stop)
    for ranks in (size, other):
        after = loaders_of(shards, ranks, **settings)
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        rest = packs_in(after)
        assert ranks != size or stream + rest == found
        flat = sorted(itertools.chain(*rest))
        assert flat == sorted(order[ends[stop - 1] :][: len(flat)])


def test_a_step_is_cut_into_micro_batches_that_keep_its_weights(shards: PackedShards) -> None:
    loader = PackedLoader(
        shards, sequences_per_step=9, loss_weights=2, columns=["document_ids"], pad_multiple=16
    )
    batch, torch = loader[1], pytest.importorskip("torch")
    parts = batch.micro_batches(2)
    assert {len(part.pack_boundaries) for part in parts[:-1]} == {3}
    end = int(batch.pack_boundaries[-1])
    assert [*itertools.chain(*(part.pack_numbers for part in parts))] == [*batch.pack_numbers]
    for name in ("tokens", "position_ids", "labels", "loss_weights"):
        joined = [value for part in parts for value in getattr(part, name)]
        assert joined == list(getattr(batch, name)[:end])
    assert all(part.max_seqlen == max(part.cu_seqlens[1:] - part.cu_seqlens[:-1]) for part in parts)
    for one, other in zip(parts, batch.torch().micro_batches(2), strict=True):
        assert one.cu_seqlens.tolist() == other.cu_seqlens.tolist()
        assert torch.equal(torch.from_numpy(one.extra["document_ids"]), other.extra["document_ids"])
    for setting in ({"pad_to": 99}, {"max_segments": 9}):
        with pytest.raises(ValueError, match="leave out pad_to and max_segments"):
            PackedLoader(shards, sequences_per_step=9, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("member", ["text", "index", "trees", "pairs", "phases", "epochs"])
def test_sequences_are_counted_in_every_kind_of_output(zoo: Zoo, member: str) -> None:
    sides: dict[str, Any] = {"sides": "both"} if member == "pairs" else {}
    output = PackedShards(zoo[member], split="train")
    loader = PackedLoader(output, sequences_per_step=12, trees=member == "trees", **sides)
    rows = (batch.rows.get("row_ids", batch.document_ids) for batch in loader)
    held = [len(each) // (2 if sides else 1) for each in rows]
    assert abs(sum(held) / len(held) - 12) < 3
    assert repr(loader).count("sequences_per_step=12") == 1


def test_threads_give_the_same_batches_and_padding_counts(shards: PackedShards) -> None:
    plain = packs_in(loaders_of(shards, 1, max_tokens=16))
    loader = PackedLoader(shards, max_tokens=16)
    assert [packs_of(batch) for batch in loader] == plain
    pytest.importorskip("torch")
    assert [packs_of(batch.numpy()) for batch in loader.dataloader()] == plain
    shape = BatchShape(max_tokens=30, pad_to=32)
    fixed = PackedLoader(shards, shape=shape, labels="shifted")
    assert {len(batch) for batch in fixed} == {32}
    free = PackedLoader(shards, shape=shape, pad_to=None, cp_size=2, labels="shifted")
    assert {len(batch) for batch in free} <= {*range(0, 29, 4)}
    assert {*ShapeSettings.__annotations__, "packs_per_batch"} == {*vars(shape)}


def test_shards_that_are_not_mapped_have_no_batches_of_tokens(shards: PackedShards) -> None:
    unmapped = PackedShards(shards.path, mmap=False)  # would be read whole
    with pytest.raises(ValueError, match="batches of max_tokens need the lengths of all packs"):
        PackedLoader(unmapped, max_tokens=16)


def test_an_index_gives_the_batches_and_packs_of_its_shards(zoo: Zoo, tmp_path: Path) -> None:
    full = tmp_path / "full"
    build(replace(zoo.config("index"), output=str(full), materialize="shards"))
    for split in ("train", "validation"):
        of_shards, of_index = (PackedShards(path, split=split) for path in (full, zoo["index"]))
        for settings in ({"max_tokens": 150}, {"packs_per_batch": 2}):
            assert tokens_of(of_shards, settings) == tokens_of(of_index, settings)
        for one, two in zip(of_shards, of_index, strict=True):
            assert plain(one) == plain(two)
    rows = load_from_disk(zoo["index"] / "train")
    with pytest.raises(FormatError, match=r"an index .*which has no tokens; read it with PackedSh"):
        batch_from_rows([rows[0]])


def tokens_of(shards: PackedShards, settings: Any) -> list[list[int]]:
    batches = [batch.tokens.tolist() for batch in PackedLoader(shards, **settings)]
    assert len(batches) > 3
    return batches


def plain(pack: Pack) -> dict[str, Any]:
    return {name: (str(each.dtype), each.tolist()) for name, each in pack.columns.items()}
