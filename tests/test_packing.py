"""Plans: strategies against plain twins, constraints, orders, bounds, figures, the sampler."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import ConfigError, MultipackSampler, pack_lengths
from packprep.config import grammar
from packprep.packing import strategies
from packprep.packing.kernels.deal import ORDERS
from packprep.packing.plan import PackPlan
from packprep.packing.repack import exchanged
from packprep.packing.strategies import NO_LIMIT, STRATEGIES, Items
from packprep.support.hashing import Purpose, stream
from tests.helpers import reference
from tests.helpers.reference import Pack, contents, fill

Instance = tuple[list[int], int]

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def packs_of(plan: PackPlan) -> list[Pack]:
    """Packs of a plan that is one."""
    plan.check()
    ends = zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
    return [plan.order[first:last].tolist() for first, last in ends]


@st.composite
def instances(draw: st.DrawFn, most: int = 40, capacity: int = 40) -> Instance:
    """Lengths and a capacity.

    Few distinct lengths as often as many, documents of the full length, no documents.
    """
    size = draw(st.integers(1, capacity))
    pool = draw(st.lists(st.integers(1, size), min_size=1, max_size=8))
    lengths = st.sampled_from(pool) if draw(st.booleans()) else st.integers(1, size)
    return draw(st.lists(lengths, max_size=most)), size


def test_options_and_plans_name_the_same_strategies() -> None:
    assert {*grammar.STRATEGIES} == {*STRATEGIES, "wrapped"}  # which cuts, and plans nothing
    assert grammar.ONE_BY_ONE == strategies.ONE_BY_ONE


@given(instances(), st.integers(0, 3))
def test_best_fit_equals_best_fit_decreasing_document_by_document(
    instance: Instance, seed: int
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "best_fit", seed)
    plan.check()
    packs = reference.best_fit(lengths, capacity)
    assert sorted(plan.fills.tolist()) == sorted(fill(pack, lengths) for pack in packs)


@given(instances(), st.sampled_from(["first_fit", "knapsack"]))
def test_first_fit_and_knapsack_have_the_contents_of_both_reference_packers(
    instance: Instance, strategy: str
) -> None:
    packed = contents(packs_of(pack_lengths(*instance, strategy)), instance[0])
    assert packed == contents(reference.first_fit(*instance), instance[0])
    assert packed == contents(reference.knapsack(*instance), instance[0])


@given(instances(), st.integers(1, 6))
def test_strategies_in_input_order_make_the_packs_of_their_references(
    instance: Instance, slots: int
) -> None:
    for strategy, expected in {
        "greedy": reference.greedy(*instance, slots),
        "first_fit_input": reference.first_fit(*instance, slots, decreasing=False),
        "stream": sorted(reference.stream(*instance, slots)),
    }.items():
        plan = pack_lengths(*instance, strategy, order="input", max_segments_per_pack=slots)
        assert packs_of(plan) == expected


@given(instances(), st.integers(2, 6), st.lists(st.integers(1, 3), min_size=40, max_size=40))
def test_first_fit_in_input_order_takes_atoms_where_tokens_and_segments_fit(
    instance: Instance, slots: int, sizes: list[int]
) -> None:
    """Each atom is `sizes` documents of 1 token, the last with the rest of its tokens."""
    totals, capacity = instance
    sizes = [min(total, size, slots) for total, size in zip(totals, sizes, strict=False)]
    lengths: list[int] = []
    for total, size in zip(totals, sizes, strict=True):
        lengths += [1] * (size - 1) + [total - size + 1]
    atoms = np.repeat(np.arange(len(totals)), sizes)
    options: Any = {"order": "input", "atoms": atoms, "max_segments_per_pack": slots}
    plan = pack_lengths(lengths, capacity, "first_fit_input", **options)
    packs: list[list[int]] = []
    for atom, (total, size) in enumerate(zip(totals, sizes, strict=True)):
        for pack in packs:
            tokens, segments = sum(totals[a] for a in pack), sum(sizes[a] for a in pack)
            if tokens + total <= capacity and segments + size <= slots:
                pack.append(atom)
                break
        else:
            packs.append([atom])
    assert [list(dict.fromkeys(atoms[pack].tolist())) for pack in packs_of(plan)] == packs


@given(instances(), st.integers(1, 6))
def test_no_strategy_needs_more_packs_than_the_packer_that_it_improves(
    instance: Instance, slots: int
) -> None:
    online = reference.best_fit(*instance, decreasing=False)
    stream = packs_of(pack_lengths(*instance, "stream"))
    assert len(stream) <= min(len(online), len(reference.stream(*instance)))
    optimal = packs_of(pack_lengths(*instance, "optimal"))
    assert len(optimal) <= len(reference.best_fit(*instance))
    limited = packs_of(pack_lengths(*instance, "best_fit", max_segments_per_pack=slots))
    assert len(limited) <= len(reference.best_fit(*instance, slots))


@st.composite
def constraints(draw: st.DrawFn) -> tuple[list[int], int, dict[str, Any]]:
    """Lengths, a capacity and options that can be together: atoms of up to three documents, ..."""
    lengths, capacity = draw(instances())
    slots = draw(st.none() | st.integers(3, 6))
    options: dict[str, Any] = {"order": draw(st.sampled_from(ORDERS))}
    if draw(st.booleans()):
        sizes = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), max_size=12))
        lengths, capacity = [length for atom in sizes for length in atom], 27
        options["atoms"] = [number for number, atom in enumerate(sizes) for _ in atom]
    else:
        slots = draw(st.none() | st.integers(1, 5))
        options["shuffle_documents"] = draw(st.booleans())
    if draw(st.booleans()):
        numbers = draw(st.lists(st.integers(-2, 2), min_size=40, max_size=40))
        atoms = options.get("atoms", range(len(lengths)))
        options["groups"] = [numbers[atom] for atom in atoms]
    options |= {"max_segments_per_pack": slots, "seed": draw(st.integers(0, 3))}
    options["repack"] = options["order"] != "input" and draw(st.booleans())
    return lengths, capacity, options


@every_strategy
@given(drawn=constraints())
def test_all_constraints_are_obeyed_at_once(
    strategy: str, drawn: tuple[list[int], int, dict[str, Any]]
) -> None:
    lengths, capacity, options = drawn
    plan = pack_lengths(lengths, capacity, strategy, **options)
    packs = packs_of(plan)
    assert all(pack == sorted(pack) for pack in packs)
    assert all(len(pack) <= (options["max_segments_per_pack"] or 40) for pack in packs)
    assert packs_of(pack_lengths(lengths, capacity, strategy, **options)) == packs
    if options["repack"] and strategy not in (*strategies.ONE_BY_ONE, "balanced"):
        plain = pack_lengths(lengths, capacity, strategy, **options | {"repack": False})
        assert plan.num_packs == plain.num_packs  # of so few, 0.025 % is none
    groups, atoms = options.get("groups"), options.get("atoms")
    assert groups is None or all(len({groups[d] for d in pack}) == 1 for pack in packs)
    assert plan.bound <= plan.num_packs
    if atoms is not None:
        atoms_of_packs = [sorted({atoms[d] for d in pack}) for pack in packs]
        assert sorted(atom for pack in atoms_of_packs for atom in pack) == sorted({*atoms})
    elif options["order"] == "input":
        assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
    if options["order"] == "length":
        longest = [max(lengths[d] for d in pack) for pack in packs]
        assert longest == sorted(longest, reverse=True)


@every_strategy
def test_any_integers_are_lengths_and_seeds_and_a_million_tokens_a_pack(strategy: str) -> None:
    plain = pack_lengths([5, 6, 2, 3], 8, strategy)
    strided = np.repeat(np.array([5, 6, 2, 3], np.int32), 2)[::2]
    wider = [np.array([5, 6, 2, 3], each) for each in (np.uint8, np.int16, np.int64, np.uint64)]
    for lengths in (strided, *wider):
        assert pack_lengths(lengths, 8, strategy).order.tolist() == plain.order.tolist()
    for seed in (-1, 2**64 + 5):
        pack_lengths([5, 6, 2, 3], 8, strategy, seed).check()
    plan = pack_lengths(np.random.default_rng(0).integers(1, 200_000, 3000), 1 << 20, strategy)
    plan.check()
    assert plan.utilization > 0.85


DIGESTS = {
    "best_fit": "2bd4c37e",
    "first_fit": "3cce2832",
    "knapsack": "3cce2832",
    "optimal": "e720443a",
    "stream": "1aa2e958",
    "greedy": "e3de5fc1",
    "first_fit_input": "d27aa5c3",
    "balanced": "d7ef6928",
}

UP_TO_241 = np.arange(1000) * 7919 % 241 + 1
PINNED: list[tuple[Any, int, dict[str, Any]]] = [
    (UP_TO_241, 512, {}),
    (UP_TO_241[:200] ** 2 // 60 + 1, 1024, {"max_segments_per_pack": 6, "order": "balanced"}),
    (UP_TO_241[:150], 300, {"groups": np.arange(150) % 3, "repack": True, "cost": (9.0, 1.0)}),
    (UP_TO_241[:150], 723, {"atoms": np.arange(150) // 3, "order": "length"}),
]


@every_strategy
def test_plans_are_the_same_on_every_machine_and_in_any_thread(strategy: str) -> None:
    """Pinned: another digest means other bytes for every dataset built with these settings."""

    def digest(_: int) -> str:
        made = hashlib.sha256()
        for lengths, capacity, options in PINNED:
            plan = pack_lengths(lengths, capacity, strategy, 3, **options)
            made.update(plan.order.astype("<i8").tobytes() + plan.offsets.astype("<i8").tobytes())
        return made.hexdigest()[:8]

    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(digest, range(4))} == {DIGESTS[strategy]}


def instruction_lengths(count: int) -> Any:
    """Distribution a: instruction data, mean 247 tokens, packs of 2,048."""
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(np.log(250) - 0.405, 0.9, count), 1, 2048).astype(np.int32)


@pytest.mark.parametrize("evened", [strategies._EVENED, 0])  # 0: planned on counts, as very many
@given(instance=instances(), order=st.sampled_from(ORDERS), extra=st.none() | st.integers(0, 10))
def test_balanced_makes_exactly_the_packs_asked_for(
    evened: int, instance: Instance, order: str, extra: int | None
) -> None:
    lengths, capacity = instance
    if not lengths:
        return
    fewest = pack_lengths(lengths, capacity, "optimal").num_packs
    packs = None if extra is None else min(len(lengths), fewest + extra)
    with mock.patch.object(strategies, "_EVENED", evened):
        plan = pack_lengths(lengths, capacity, "balanced", order=order, num_packs=packs)
    plan.check()
    assert plan.num_packs == packs if packs else plan.num_packs <= fewest


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([3, 0], {}, r"lengths\[1\] is 0 and a pack holds 1 to 8"),
        ([3, 1, 1, 1, 1, 9], {}, r"lengths\[5\] is 9 and a pack holds 1 to 8"),
        (np.array([1, 2**32 + 1]), {}, r"lengths\[1\] is 4,294,967,297 and a pack"),
        ([1.5], {}, r"float64 of shape \(1,\), expected a 1-D array"),
        ([1], {"max_length": 0}, "max_length is 0 but must be a whole number from 1 to"),
        ([1], {"max_length": 2**24 + 1}, "16777217 but .* from 1 to 16,777,216"),
        ([1], {"max_segments_per_pack": 0}, "max_segments_per_pack is 0 but"),
        ([1], {"strategy": "bestfit"}, "strategy is 'bestfit'; did you mean 'best_fit'"),
        ([1], {"strategy": "wrapped"}, "strategy is 'wrapped', expected one of best_fit"),
        ([1], {"order": "shufle"}, "order is 'shufle'; did you mean 'shuffle'"),
        ([1, 2], {"groups": [1]}, r"groups must hold an integer for each of 2 documents"),
        ([1, 2], {"atoms": [1, 0]}, r"atoms\[1\] is 0, less than the one before"),
        ([1, 2, 3], {"atoms": np.array([0, 1, 0], np.uint64)}, r"atoms\[2\] is 0, less than"),
        ([5, 5, 5], {"atoms": [0, 3, 3]}, "atom 3 has 10 tokens but a pack holds 8"),
        ([1, 1], {"atoms": [4, 4], "max_segments_per_pack": 1}, "atom 4 has 2 doc.* holds 1"),
        ([1, 1], {"atoms": [4, 4], "groups": [0, 1]}, "document 1 is in atom 4 but not in"),
        ([5, 5], {"strategy": "balanced", "num_packs": 1}, "cannot make 1 packs: .* at least 2"),
        ([5, 5], {"strategy": "balanced", "num_packs": 3}, "cannot make 3 packs: 2 documents"),
        ([5, 5], {"num_packs": 2}, "num_packs is for strategy balanced"),
        (
            [5, 5],
            {"strategy": "balanced", "num_packs": 2, "groups": [0, 1]},
            "num_packs is for strategy balanced without groups",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    lengths: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        pack_lengths(**{"lengths": lengths, "max_length": 8, **options})
    assert "\n" not in str(error.value)


def plan_of(packs: list[list[int]], lengths: list[int], max_length: int = 8) -> PackPlan:
    order = np.array([document for pack in packs for document in pack], np.int64)
    offsets = np.cumsum([0, *map(len, packs)], dtype=np.int64)
    return PackPlan(np.array(lengths, np.int32), max_length, order, offsets)


def test_figures_of_a_plan_computed_by_hand() -> None:
    plan = plan_of([[0, 3], [1, 2]], [5, 6, 2, 3])
    assert (plan.num_packs, plan.fills.tolist(), plan.utilization) == (2, [8, 8], 1.0)
    assert (plan.bound, plan.gap, plan.gap_share) == (2, 0, 0.0)
    none = plan_of([], [])
    assert (none.utilization, none.gap_share, none.bias, none.straggler(8)) == (1.0, 0.0, 0.0, 1.0)


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_bias_and_straggler_are_those_of_the_plain_formulas(
    packs: list[list[int]], ranks: int
) -> None:
    lengths = [length for pack in packs for length in pack]
    numbers = iter(range(len(lengths)))
    numbered = [[next(numbers) for _ in pack] for pack in packs]
    plan = plan_of(numbered, lengths, 250)
    assert plan.bias == pytest.approx(reference.bias(numbered, lengths), abs=1e-9)
    assert plan.straggler(ranks, (3, 2)) == pytest.approx(
        reference.straggler(numbered, lengths, ranks, 3, 2)
    )


@pytest.mark.parametrize(
    ("order", "offsets", "words"),
    [
        ([0, 1, 2], [0, 2, 3], "pack 0 of the plan has 11 tokens but a pack holds 8"),
        ([0, 1, 2], [0, 1, 1, 3], "pack 1 of the plan has no documents: offsets must rise"),
        ([0, 1, 1], [0, 1, 3], "document 2 is in no pack of the plan"),
        ([0, 1, 3], [0, 1, 3], "document 2 is in no pack of the plan"),
        ([0, 1, 2, 0], [0, 1, 2, 3, 4], "the plan orders 4 documents, .* expected all 3"),
        ([0, 1, 2], [0, 2], r"offsets array\(\[0, 2\]\); expected"),
        ([0, 1, 2], [1, 3], r"offsets array\(\[1, 3\]\); expected"),
        ([0.0], [0, 1], r"order of the plan is array\(\[0\.\]\), expected a 1-D array of integers"),
        ([0], "ab", "offsets of the plan is 'ab', expected a 1-D array"),
    ],
)
def test_an_invalid_plan_is_refused_with_its_first_fault(
    order: list[Any], offsets: Any, words: str
) -> None:
    if isinstance(offsets, list):
        offsets = np.array(offsets, np.int64)
    plan = PackPlan(np.array([5, 6, 2], np.int32), 8, np.array(order), offsets)
    with pytest.raises(ConfigError, match=words):
        plan.check()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    st.data(),
)
def test_a_plan_that_breaks_a_constraint_is_refused(atoms: list[list[int]], data: Any) -> None:
    """atoms: a group for each document of each atom."""
    group = [number for atom in atoms for number in atom]
    atom = [number for number, each in enumerate(atoms) for _ in each]
    pack_of = data.draw(st.lists(st.integers(0, 2), min_size=len(group), max_size=len(group)))
    packs = [[at for at, pack in enumerate(pack_of) if pack == wanted] for wanted in range(3)]
    packs = [pack for pack in packs if pack]
    limit = data.draw(st.none() | st.integers(1, 6))
    faults = [
        ("but a pack holds", limit is not None and max(map(len, packs)) > limit),
        ("of another group", any(len({group[at] for at in pack}) > 1 for pack in packs)),
        (
            "into two packs",
            any(
                {atom[at] for at in a} & {atom[at] for at in b}
                for a in packs
                for b in packs
                if a is not b
            ),
        ),
    ]
    constraints: Any = {"groups": np.array(group), "atoms": np.array(atom)}
    plan = plan_of(packs, [1] * len(group), 99)
    plan = replace(plan, max_segments_per_pack=limit, **constraints)
    for words in [words for words, is_broken in faults if is_broken][:1]:
        with pytest.raises(ConfigError, match=words):
            plan.check()
        return
    plan.check()


def bound(lengths: list[int], capacity: int, **constraints: Any) -> int:
    """Lower bound of a plan that has no packs yet."""
    none = (np.zeros(0, np.int64), np.zeros(1, np.int64))
    return PackPlan(np.array(lengths, np.int32), capacity, *none, **constraints).bound


lengths_to_30 = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(lengths_to_30, st.integers(30, 60), st.none() | st.integers(1, 4))
def test_the_bound_is_at_most_the_optimum_and_at_least_l1_and_l2(
    lengths: list[int], capacity: int, slots: int | None
) -> None:
    best = bound(lengths, capacity, max_segments_per_pack=slots)
    assert best <= reference.fewest_packs(lengths, capacity, slots or 99)
    least = [-(-sum(lengths) // capacity), -(-len(lengths) // (slots or 99))]
    assert best >= max(*least, reference.l2(lengths, capacity))


@given(st.lists(st.integers(11, 30), min_size=1, max_size=9))
def test_the_bound_is_exact_when_all_documents_are_longer_than_a_third_of_a_pack(
    lengths: list[int],
) -> None:
    assert bound(lengths, 30) == reference.fewest_packs(lengths, 30)


def lengths_like_the_web(count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(6.2, 1.1, count), 1, 4096).astype(np.int32)


@pytest.mark.parametrize(("ranks", "most"), [(8, 1.01), (64, 1.02)])
@pytest.mark.parametrize("cost", [(0.0, 1.0), (24576.0, 1.0)])
@pytest.mark.parametrize("strategy", ["best_fit", "stream", "greedy"])
def test_balanced_order_gives_every_rank_the_same_work_without_extra_packs(
    strategy: str, cost: tuple[float, float], ranks: int, most: float
) -> None:
    lengths = lengths_like_the_web(60_000)
    shuffled = pack_lengths(lengths, 4096, strategy)
    options: Any = {"order": "balanced", "balance_ranks": ranks, "cost": cost}
    balanced = pack_lengths(lengths, 4096, strategy, **options)
    balanced.check()
    assert balanced.num_packs == shuffled.num_packs
    assert balanced.straggler(ranks, cost) <= most < shuffled.straggler(ranks, cost)


# As many documents of a length as in short texts: many of 100 tokens, one of 900.
LENGTHS = np.random.default_rng(1).lognormal(5, 0.6, 20_000).clip(20, 900).astype(np.int32)


def neighbours(plan: PackPlan) -> set[tuple[int, int]]:
    """Pairs of documents that follow each other in a pack, the smaller number first."""
    inside = np.ones(len(plan.order) - 1, np.bool_)
    inside[plan.offsets[1:-1] - 1] = False
    pairs = np.sort(np.stack([plan.order[:-1], plan.order[1:]]), axis=0)[:, inside]
    return set(zip(*pairs.tolist(), strict=True))


def in_common(one: PackPlan, other: PackPlan) -> float:
    return len(neighbours(one) & neighbours(other)) / len(neighbours(one))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_length", [1024, 4096, 32768])
def test_another_seed_gives_nearly_all_documents_other_neighbours(
    strategy: str, max_length: int
) -> None:
    one, other = (pack_lengths(LENGTHS, max_length, strategy, seed, repack=True) for seed in (0, 1))
    assert in_common(one, other) < 0.01
    if strategy in ("best_fit", "first_fit", "knapsack", "optimal"):
        plain = pack_lengths(LENGTHS, max_length, strategy)
        assert abs(plain.num_packs - one.num_packs) <= 0.00025 * plain.num_packs
    if strategy not in ("greedy", "first_fit_input"):  # fuller or emptier by the order of documents
        assert abs(LENGTHS.sum() / max_length * (1 / one.num_packs - 1 / other.num_packs)) < 0.0005


@given(instances(), st.integers(0, 3), st.booleans())
def test_exchanged_documents_leave_the_length_of_every_pack_as_it_was(
    instance: tuple[list[int], int], seed: int, heavy: bool
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "optimal", seed)
    weights = np.arange(len(lengths), dtype=np.int32) % 3 + 1 if heavy else None
    array = np.array(lengths, np.int32)
    settings: dict[str, Any] = {"order": "shuffle", "shuffle_documents": False, "num_packs": None}
    settings |= {"ranks": 8, "cost": (1.0, 1.0), "slots": NO_LIMIT, "seed": seed}
    counts = np.bincount(array, minlength=capacity + 1)
    items = Items(array, counts, weights=weights, max_length=capacity, **settings)
    order = exchanged(plan.order, plan.offsets, items)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    for values in (items.lengths, items.weights):
        if values is not None and len(lengths):
            sums = (
                np.add.reduceat(values[each], plan.offsets[:-1]) for each in (plan.order, order)
            )
            before, after = (each.tolist() for each in sums)
            assert before == after


UP_TO_99 = np.random.default_rng(0).integers(1, 100, 1000)


def samplers(world: int, **options: Any) -> list[MultipackSampler]:
    return [
        MultipackSampler(UP_TO_99, 256, 2, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def documents(batches: list[list[list[int]]]) -> list[int]:
    return [document for batch in batches for pack in batch for document in pack]


def test_sequential_is_first_fit_in_input_order_and_ranks_take_turns() -> None:
    """As in axolotl's allocate_sequentially: first fit without sorting, bins dealt round robin."""
    sampler = MultipackSampler([5, 3, 4, 1, 2, 6], max_length=8, sequential=True)
    assert (len(sampler), sampler.efficiency) == (3, 21 / 24)
    assert list(sampler) == [[[0, 1]], [[2, 3, 4]], [[5]]]
    lengths, bins = [100, 2000, 200, 1800, 300, 1700], [[0, 2, 4], [1], [3], [5]]
    both: Any = {"lengths": lengths, "max_length": 2048, "sequential": True}
    by_rank = [list(MultipackSampler(**both, rank=rank, world_size=2)) for rank in range(2)]
    assert by_rank == [[[bins[0]], [bins[2]]], [[bins[1]], [bins[3]]]]
    assert list(MultipackSampler(**both, batch_size=4)) == [bins]


def test_every_epoch_is_packed_again_and_equally_for_the_same_seed() -> None:
    first, again = (MultipackSampler(UP_TO_99, 256, seed=5) for _ in range(2))
    epochs = []
    for epoch in range(3):
        first.set_epoch(epoch)
        again.set_epoch(epoch)
        epochs.append(list(first))
        assert epochs[-1] == list(again)
    together = [{tuple(pack) for batch in batches for pack in batch} for batches in epochs]
    assert len(together[0] & together[1]) < 0.1 * len(together[0])
    again.set_epoch(0)
    assert list(again) == epochs[0]


def test_group_size_and_max_segments_limit_which_documents_share_a_pack() -> None:
    sampler = MultipackSampler(UP_TO_99, 256, group_size=50, max_segments_per_pack=4)
    groups = sampler.plan.groups
    assert groups is not None
    assert np.bincount(groups).tolist() == [50] * 20
    packs = [pack for batch in sampler for pack in batch]
    assert all(len(set(groups[pack])) == 1 for pack in packs)
    assert max(map(len, packs)) <= 4


def test_order_ranks_cost_and_number_of_packs_are_those_of_pack_lengths() -> None:
    options: dict[str, Any] = {"order": "balanced", "balance_ranks": 3, "cost": (1.0, 2.0)}
    options["num_packs"] = 250
    sampler = MultipackSampler(UP_TO_99, 256, world_size=4, strategy="balanced", **options)
    seed = int(stream(0, Purpose.EPOCH, 0))
    expected = pack_lengths(UP_TO_99, 256, "balanced", seed, shuffle_documents=True, **options)
    assert sampler.plan.num_packs == 250
    assert sampler.plan.order.tolist() == expected.order.tolist()
    assert sampler.plan.offsets.tolist() == expected.offsets.tolist()


def test_resumes_mid_epoch_at_another_world_size() -> None:
    everything = list(MultipackSampler(UP_TO_99, 256, 1))
    before = samplers(2)
    for sampler in before:
        batches = iter(sampler)
        for _ in range(5):
            next(batches)
    state = before[0].state_dict()
    assert state == before[1].state_dict() == {"epoch": 0, "packs": 20, "seed": 0}
    after = MultipackSampler(UP_TO_99, 256, 1)
    after.load_state_dict(state)
    after.set_epoch(0)  # trainers say so again after loading
    assert len(after) == len(everything) - 20
    assert list(after) == everything[20:]
    assert list(after) == everything  # the next time round starts at the beginning


def test_wrong_arguments_epochs_and_states_are_refused() -> None:
    usual: dict[str, Any] = {"lengths": [1], "max_length": 8}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rank": 2, "world_size": 2}, "rank is 2, expected 0 to 1, world_size - 1"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
        ({"group_size": 0}, "group_size is 0, expected at least 1"),
        ({"balance_ranks": 0}, "balance_ranks is 0 but must be a whole number"),
        ({"lengths": [9]}, r"lengths\[0\] is 9 and a pack holds 1 to 8"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigError, match=words):
            len(MultipackSampler(**usual | options))
    sampler = MultipackSampler([1], 8)
    with pytest.raises(ConfigError, match="epoch is -1, expected at least 0"):
        sampler.set_epoch(-1)
    with pytest.raises(ConfigError, match="saved with seed 1 but this sampler has seed 0"):
        sampler.load_state_dict({"epoch": 0, "packs": 0, "seed": 1})
