"""The order of an epoch and the loader's place in it.

Pure, equal on all ranks, resumable at any world size.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, PackedLoader, PackedShards
from packprep.loaders.order import EpochOrder
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import row_of, write_output


def whole(order: EpochOrder) -> list[int]:
    return order.take(np.arange(order.packs))


def numbered(directory: Path, packs_per_shard: list[int]) -> PackedShards:
    """Packs of one document whose id is the pack's number."""
    firsts = np.cumsum([0, *packs_per_shard]).tolist()
    shards = [
        [row_of(first + n, 1 + (first + n) % 3) for n in range(count)]
        for first, count in zip(firsts, packs_per_shard, strict=False)
    ]
    write_output(directory, {"train": shards}, vocab_size=1000)
    return PackedShards(directory)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """29 packs in shards of 7, 0, 9, 1, 5, 4 and 3."""
    return numbered(tmp_path_factory.mktemp("order") / "out", [7, 0, 9, 1, 5, 4, 3])


def packs_of(batch: PackedBatch) -> list[int]:
    assert batch.document_ids is not None
    return [int(document) for document in batch.document_ids]


def packs_in(loader: Any) -> list[list[int]]:
    return [packs_of(batch) for batch in loader]


def stream(loaders: list[PackedLoader], steps: int | None = None) -> list[int]:
    """The packs of all ranks' batches in global order.

    Of each step, the first of every rank, then the second.
    """
    taken: list[int] = []
    for number, batches in enumerate(zip(*loaders, strict=True)):
        taken += [pack for packs in zip(*map(packs_of, batches), strict=True) for pack in packs]
        if number + 1 == steps:
            break
    return taken


def ranks(shards: PackedShards, world: int, batch: int, **options: Any) -> list[PackedLoader]:
    options["world_size"] = world
    return [PackedLoader(shards, batch, rank=rank, **options) for rank in range(world)]


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(SIZES, st.integers(0, 2**64), st.integers(0, 5), st.integers(0, 4), st.data())
def test_every_pack_comes_once_and_any_rising_places_are_those_of_the_whole_order(
    packs: list[int], seed: int, epoch: int, window: int, data: st.DataObject
) -> None:
    order = EpochOrder(tuple(packs), seed=seed, epoch=epoch, window=window)
    everything = whole(order)
    assert sorted(everything) == list(range(sum(packs)))
    places = sorted(data.draw(st.sets(st.sampled_from([*range(sum(packs))]))) if everything else [])
    assert order.take(np.array(places, np.int64)) == [everything[place] for place in places]


def test_the_order_is_pinned_so_that_states_of_today_resume_tomorrow() -> None:
    assert whole(EpochOrder((3, 2, 4), seed=7, epoch=1, window=2)) == [8, 6, 3, 5, 4, 7, 0, 2, 1]
    assert whole(EpochOrder((3, 0, 2), seed=7, epoch=1, window=0)) == [0, 1, 2, 3, 4]  # as stored


WORLDS = st.sampled_from([1, 2, 3, 4, 8])


@given(WORLDS, WORLDS, st.integers(1, 2), st.integers(1, 2), st.integers(1, 29))
def test_resuming_at_any_step_and_world_size_continues_the_global_stream(
    shards: PackedShards, old: int, new: int, batch: int, then: int, step: int
) -> None:
    everything = stream(ranks(shards, 1, 1, seed=3))
    loaders = ranks(shards, old, batch, seed=3, prefetch=0)
    steps = len(shards) // (old * batch)
    assert [len(loader) for loader in loaders] == [steps] * old
    before = stream(loaders, min(step, steps))
    assert before == everything[: min(step, steps) * old * batch]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    resumed = ranks(shards, new, then, seed=99, prefetch=0)  # the seed is the state's
    for loader in resumed:
        loader.load_state_dict(states[0])
    rest = everything[len(before) :]
    assert stream(resumed) == rest[: len(rest) // (new * then) * new * then]
    assert [*map(packs_of, resumed[0])] == packs_in(ranks(shards, new, then, seed=3)[0])


def test_a_remainder_is_dropped_or_filled_with_packs_without_loss(shards: PackedShards) -> None:
    dropped = packs_in(PackedLoader(shards, 4, shuffle=False))
    assert dropped == [[first, first + 1, first + 2, first + 3] for first in range(0, 28, 4)]
    *_, last = PackedLoader(shards, 4, shuffle=False, remainder="fill")
    assert packs_of(last) == [28, -1, -1, -1]
    assert last.labels is not None
    assert (last.labels[-3:] == -100).all()
    assert last.num_real_tokens == len(last) - 3
    for world in range(1, 8):
        filled = ranks(shards, world, 3, remainder="fill", prefetch=0)
        steps = -(-29 // (3 * world))
        assert [(len(each), len([*each])) for each in filled] == [(steps, steps)] * world
    lone = PackedLoader(shards, 1, rank=2, world_size=3, remainder="fill", shuffle=False)[9]
    assert packs_of(lone) == [-1]
    assert (lone.tokens.tolist(), lone.cu_seqlens.tolist(), lone.num_items) == ([0], [0, 1], 0)


def test_iterating_again_starts_at_the_beginning_but_once_where_a_state_says(
    shards: PackedShards,
) -> None:
    loader = PackedLoader(str(shards.path), 5)
    first = packs_in(loader)
    assert packs_in(loader) == first
    next(iter(loader))
    other = PackedLoader(shards, 5)
    other.load_state_dict(loader.state_dict())
    assert packs_in(other) == first[1:]
    assert packs_in(other) == first


def test_set_epoch_starts_that_epoch_but_keeps_the_place_of_a_state_of_it(
    shards: PackedShards,
) -> None:
    loader = PackedLoader(shards, 5, epoch=2)
    expected = packs_in(loader)
    next(iter(loader))
    resumed = PackedLoader(shards, 5)
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(2)
    assert packs_in(resumed) == expected[1:]
    resumed.set_epoch(3)
    assert resumed.state_dict()["packs"] == 0
    assert packs_in(resumed) == packs_in(PackedLoader(shards, 5, epoch=3))


def test_a_state_of_another_dataset_or_version_is_refused(
    shards: PackedShards, tmp_path: Path
) -> None:
    state = PackedLoader(numbered(tmp_path / "other", [7, 22]), 1).state_dict()
    with pytest.raises(FormatError, match=r"state belongs to shards with fingerprint [0-9a-f]+; "):
        PackedLoader(shards, 1).load_state_dict(state)
    with pytest.raises(FormatError, match="state has version 2; expected 1"):
        PackedLoader(shards, 1).load_state_dict(state | {"version": 2})
    copy = numbered(tmp_path / "copy", [7, 0, 9, 1, 5, 4, 3])  # the same content, elsewhere
    PackedLoader(copy, 1).load_state_dict(PackedLoader(shards, 1).state_dict())


def test_a_batch_by_number_is_that_of_the_iteration(shards: PackedShards) -> None:
    loader = PackedLoader(shards, 3, rank=1, world_size=2)
    assert packs_in(loader[step] for step in range(len(loader))) == packs_in(loader)
    with pytest.raises(IndexError, match="step 4 is out of range; the epoch has 4 steps"):
        loader[4]


TOKENS = {"packs_per_batch": None, "max_tokens": 16}
ZIGZAG = {"cp_size": 2, "labels": "shifted", "cp_layout": "zigzag"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2; expected 0 to 1"),
        ({"packs_per_batch": 10, "world_size": 3}, "29 packs, too few .* of 10 on each of 3 ranks"),
        ({"packs_per_batch": 0}, "packs_per_batch is 0; expected 1 or more"),
        (
            {"packs_per_batch": None},
            "packs_per_batch is None, max_tokens None and sequences_per_step None",
        ),
        (
            {"max_tokens": 8},
            "packs_per_batch is 1, max_tokens 8 and sequences_per_step None; pass one of",
        ),
        (TOKENS | {"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        (TOKENS | {"max_tokens": 7}, "max_tokens is 7 and a pack of .* has up to 8; choose 8 or"),
        (TOKENS | {"pad_to": 12}, "pad_to is 12 and max_tokens 16; expected 16 or more"),
        (TOKENS | {"world_size": 19}, "29 packs, too few for one .* 16 tokens on .* 19"),
        ({"prefetch": -1}, "prefetch is -1; expected 0 or more"),
        ({"epoch": -1}, "epoch is -1; expected 0 or more"),
        ({"world_size": 0}, "world_size is 0; expected 1 or more"),
        ({"labels": "next"}, "labels is 'next'; expected one of hf, shifted, none"),
        ({"labels": "none", "loss_weights": "token"}, "loss_weights need labels"),
        ({"remainder": "keep"}, "remainder is 'keep'; expected one of drop, fill"),
        ({"pad_to": 7}, "pad_to is 7; 1 packs of at most 8 tokens need 8 or more"),
        ({"max_segments": 0}, "max_segments is 0; expected 1 or more"),
        ({"columns": ["cu_seqlens"]}, "no column 'cu_seqlens' of tokens or segments"),
        ({"cp_size": 2}, "labels='hf' loses a label at the end of each slice"),
        (ZIGZAG, r"multiple of 1; zigzag .* cp_size=2 need 4: build with --pad-segment-to-multi"),
    ],
)
def test_settings_that_cannot_work_are_a_sentence(
    shards: PackedShards, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PackedLoader(shards, **({"packs_per_batch": 1} | options))


GROUPS: list[tuple[dict[str, str], int | None, int]] = [  # variables, group, processes
    ({}, None, 1),
    ({"RANK": "1", "WORLD_SIZE": "2"}, None, 2),  # torchrun, before the group is made
    ({"RANK": "0", "WORLD_SIZE": "1"}, None, 1),
    ({"WORLD_SIZE": "2"}, None, 1),  # of something else
    ({"RANK": "0", "WORLD_SIZE": "two"}, None, 1),
    ({}, 3, 3),
    ({"RANK": "1", "WORLD_SIZE": "2"}, 1, 1),  # the group is right
]


@pytest.mark.parametrize(("variables", "group", "processes"), GROUPS)
def test_a_loader_of_one_of_several_processes_must_know_which(
    shards: PackedShards,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    group: int | None,
    processes: int,
) -> None:
    early = PackedLoader(shards, 1, prefetch=0)
    resumed = PackedLoader(shards, 1)
    resumed.load_state_dict(early.state_dict() | {"packs": 4})
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if group is not None:
        distributed: Any = pytest.importorskip("torch.distributed")
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_world_size", lambda: group)
        monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    attempts: list[Any] = [
        lambda: PackedLoader(shards, 1),
        lambda: PackedLoader(shards, 1, rank=0),
        lambda: PackedLoader(shards, max_tokens=16, world_size=2),
        lambda: next(iter(early)),
        lambda: early[3],
        lambda: next(iter(resumed)),
        lambda: early.set_epoch(1),
    ]
    if find_spec("torch"):
        attempts.append(lambda: next(iter(early.dataloader())))
    for attempt in attempts:
        if processes == 1:
            attempt()
        else:
            with pytest.raises(ValueError, match=rf"^the training has {processes} .* pass rank"):
                attempt()
    alone = PackedLoader(shards, 1, rank=0, world_size=1)
    assert sorted(pack for batch in alone for pack in packs_of(batch)) == [*range(29)]
    shares = [PackedLoader(shards, 1, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(stream(shares)) == sorted({*stream(shares)})
