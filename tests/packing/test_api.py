"""Plans of pack_lengths.

Every strategy against its reference, every constraint, every order, every wrong argument.
"""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing import strategies
from packprep.packing.api import STRATEGIES, pack_lengths
from packprep.packing.kernels.balanced import longest_first
from packprep.packing.order import ORDERS
from packprep.packing.plan import PackPlan
from packprep.support.errors import ConfigError
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
    "best_fit": "20d47605",
    "first_fit": "ab8fd635",
    "knapsack": "ab8fd635",
    "optimal": "20d47605",
    "stream": "cc0874dd",
    "greedy": "d7771d32",
    "first_fit_input": "be6d1150",
    "balanced": "ada91431",
}


@every_strategy
def test_plans_are_the_same_on_every_machine_and_in_any_thread(strategy: str) -> None:
    """Pinned: another digest means other bytes for every dataset built with these settings."""
    lengths = (np.arange(1000) * 7919 % 241 + 1).astype(np.int32)
    with ThreadPoolExecutor(4) as threads:
        plans = [*threads.map(lambda _: pack_lengths(lengths, 512, strategy, 3), range(4))]
    orders = (plan.order.astype("<i8").tobytes() for plan in plans)
    assert {hashlib.sha256(order).hexdigest()[:8] for order in orders} == {DIGESTS[strategy]}


def test_shuffling_of_documents_and_of_packs_is_fair() -> None:
    """Of 3,000 shuffles, each of three pairings of four documents, each of six packs first."""
    pairs = [packs_of(pack_lengths([4] * 4, 8, seed=seed)) for seed in range(3000)]
    partners = [next(pack for pack in packs if 0 in pack)[1] for packs in pairs]
    assert all(900 < partners.count(other) < 1100 for other in (1, 2, 3))
    firsts = [pack_lengths([8] * 6, 8, seed=seed).order[0] for seed in range(3000)]
    assert all(400 < firsts.count(document) < 600 for document in range(6))


def test_stream_takes_documents_in_seeded_random_order_when_asked() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 2000)
    near = pack_lengths(lengths, 1000, "stream", order="input")
    far = pack_lengths(lengths, 1000, "stream", order="input", shuffle_documents=True)
    spread = [np.mean([np.ptp(pack) for pack in packs_of(plan)]) for plan in (near, far)]
    assert spread[0] < 200 < 1000 < spread[1]


def instruction_lengths(count: int) -> Any:
    """Distribution a: instruction data, mean 247 tokens, packs of 2,048."""
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(np.log(250) - 0.405, 0.9, count), 1, 2048).astype(np.int32)


@pytest.mark.parametrize(("slots", "share"), [(8, 0.05), (16, 0.01), (32, 0.01)])
@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "optimal"])
def test_limited_segments_cost_few_packs_where_plain_best_fit_wastes_many(
    strategy: str, slots: int, share: float
) -> None:
    plan = pack_lengths(instruction_lengths(50_000), 2048, strategy, max_segments_per_pack=slots)
    assert np.diff(plan.offsets).max() <= slots
    assert plan.gap_share <= share


def test_stream_is_full_and_fair_and_optimal_reaches_the_bound_where_best_fit_does_not() -> None:
    lengths = instruction_lengths(100_000)
    stream, best, optimal = (
        pack_lengths(lengths, 2048, strategy) for strategy in ("stream", "best_fit", "optimal")
    )
    assert stream.utilization >= 0.999
    assert abs(stream.bias) <= 0.15
    assert best.bias > 0.7
    assert best.gap > optimal.gap == 0


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


def test_balanced_is_even_to_a_token() -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        lengths = np.minimum(1024, random.permutation(instruction_lengths(100_000))[:1024])
        plan = pack_lengths(lengths, 2048, "balanced")
        assert plan.gap == 0
        assert np.ptp(plan.fills) <= 2


def test_on_counts_packs_are_as_full_as_one_by_one() -> None:
    lengths = np.minimum(1024, instruction_lengths(2000))
    with mock.patch.object(strategies, "_EVENED", 0):
        counted = pack_lengths(lengths, 2048, "balanced", num_packs=400)
    longest = np.argsort(-lengths, kind="stable")
    pack_of = longest_first(lengths, np.zeros(0, np.int32), longest, 400, strategies.NO_LIMIT)
    one_by_one = np.bincount(pack_of, lengths).astype(int).tolist()
    assert sorted(counted.fills.tolist()) == sorted(one_by_one)


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([3, 0], {}, r"lengths\[1\] is 0 but every document needs at least 1"),
        ([3, 1, 1, 1, 1, 9], {}, r"lengths\[5\] is 9 but a pack holds 8; split, truncate or"),
        (np.array([1, 2**32 + 1]), {}, r"lengths\[1\] is 4,294,967,297 but a pack holds 8"),
        ([1.5], {}, r"a 1-D array of integers; got float64 of shape \(1,\)"),
        ([1], {"max_length": 0}, "max_length is 0 but must be a whole number from 1 to"),
        ([1], {"max_length": 2**24 + 1}, "16777217 but .* from 1 to 16,777,216"),
        ([1], {"max_segments_per_pack": 0}, "max_segments_per_pack is 0 but"),
        ([1], {"strategy": "bestfit"}, "unknown strategy 'bestfit'; did you mean best_fit?"),
        ([1], {"strategy": "wrapped"}, "strategy wrapped cuts documents where packs end"),
        ([1], {"order": "shufle"}, "unknown order 'shufle'; did you mean shuffle?"),
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
            "num_packs cannot be used with groups",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    lengths: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        pack_lengths(**{"lengths": lengths, "max_length": 8, **options})
    assert "\n" not in str(error.value)


PEAK = """
import sys
import numpy as np
from packprep.support.memory import peak
from packprep.packing.api import pack_lengths
lengths = np.random.default_rng(0).integers(1, 512, 4_000_000, np.int32)
pack_lengths(lengths[:100_000], 2048, sys.argv[1])
before = peak()
plan = pack_lengths(lengths, 2048, sys.argv[1])
print((peak() - before) / lengths.size)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "optimal", "stream", "greedy"])
def test_packing_takes_at_most_forty_bytes_per_document(strategy: str) -> None:
    command = [sys.executable, "-c", PEAK, strategy]  # a process has a peak of its own
    assert 8 < float(subprocess.check_output(command, text=True)) <= 40
