"""Phases: documents of each, their account and shares, for token files made here."""

import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.config.grammar.phases import Phase
from packprep.schemas import check_ledger
from packprep.support.errors import InputError
from packprep.windows.mix_draw import hashes
from packprep.windows.phase_sizes import largest_total
from tests.helpers.errors import refused
from tests.helpers.examples import share_of_examples
from tests.helpers.files import config
from tests.windows.test_mix import mix_of, played

Units = list[list[tuple[int, int]]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[BuildConfig, Units]:
    """A config of two sources and two or three phases, and units of documents."""
    rows = [
        (source, draw(st.sampled_from([0, *range(3, 30)])))
        for source in range(2)
        for _ in range(draw(st.integers(1, 25)))
    ]
    size = draw(st.integers(1, 12))
    units = [rows[first : first + size] for first in range(0, len(rows), size)]
    count = draw(st.integers(2, 3))
    counts = draw(st.booleans())
    shares = ["50%", "50%"] if count == 2 else ["20%", "50%", "30%"]
    weighted = draw(st.booleans())
    phases: list[dict[str, Any]] = []
    for number in range(count):
        phase: dict[str, Any] = {
            "tokens": draw(st.integers(20, 150)) if counts else shares[number],
            "max_length": draw(st.sampled_from([8, 16, 64])),
        }
        if weighted:
            phase["weights"] = draw(st.sampled_from([[1, 1], [3, 1], [1, 9], [0, 1]]))
        phase |= draw(
            st.sampled_from([{}, {}, {"max_document_tokens": 12}, {"min_document_tokens": 10}])
        )
        phases.append(phase)
    return (
        config(
            sources=["0", "1"],
            phases=phases,
            max_epochs=draw(st.sampled_from([1, 1.5, 3])),
            holdout=draw(st.sampled_from([0.0, 0.0, 0.3])),
            window=draw(st.sampled_from([150, 10**9])),
            overflow=draw(st.sampled_from(["split", "truncate", "drop"])),
            seed=draw(st.integers(0, 3)),
        ),
        units,
    )


@settings(max_examples=share_of_examples(2))
@given(cases())
def test_no_document_is_used_more_often_than_max_epochs_and_the_account_closes(
    case: tuple[BuildConfig, Units],
) -> None:
    options, units = case
    lengths = [length for rows in units for _, length in rows]
    with tempfile.TemporaryDirectory() as folder:
        try:
            mix = mix_of(Path(folder), units, options)
        except InputError as error:
            assert "phase" in str(error)
            return
        totals, copies, of_windows = played(mix, options)
    packed = np.zeros((len(options.mix_rules().packs), 2), np.int64)
    np.add.at(packed, [window.run for window in mix.windows], of_windows)
    most = max(1, -int(-options.max_epochs // 1))
    drawn = sum((each for phases in copies.values() for each in phases), Counter[int]())
    assert max(drawn.values(), default=0) <= most
    assert max(sum(copies.get("validation", []), Counter[int]()).values(), default=1) == 1
    for total in totals:
        check_ledger(total.ledger)
    repeated = sum(total.repeated_documents for total in totals)
    assert repeated == sum(times - 1 for times in drawn.values())
    wanted = np.array([each[:2] for each in mix.cells.wanted])
    assert (packed <= wanted).all()
    for each_asked, of_phase in zip(options.phase_list(), packed.sum(axis=1).tolist(), strict=True):
        assert each_asked.tokens is None or of_phase <= each_asked.tokens
    assert (wanted - packed < max(lengths) + 3).all(), "short by less than a document"
    for asked, each in zip(options.phase_list(), copies["train"], strict=True):
        for document in each:
            tokens = lengths[document]
            in_class = (
                asked.min_document_tokens <= tokens - 2 <= (asked.max_document_tokens or tokens)
            )
            assert in_class or not mix_has_tokens(options, tokens), "of the class of its phase"


def mix_has_tokens(options: BuildConfig, tokens: int) -> bool:
    """True if some phase has tokens of a document; others are counted in the first one."""
    return any(
        tokens
        and phase.min_document_tokens <= tokens - 2 <= (phase.max_document_tokens or tokens)
        and (options.overflow != "drop" or tokens <= phase.max_length)
        for phase in options.phase_list()
    )


def reference(sizes: list[int], wanted: list[int], seed: int) -> list[list[int]]:
    """Phase after phase: the fewest copies first, then by hash, each if it still fits."""
    order = np.argsort(hashes(seed, np.arange(len(sizes)))).tolist()
    copies, phases = [0] * len(sizes), []
    for amount in wanted:
        taken = [0] * len(sizes)
        while True:
            level = min(copies)
            pool = [document for document in order if copies[document] == level]
            if sum(sizes[document] for document in pool) > amount:
                break
            for document in pool:
                copies[document] += 1
                taken[document] += 1
                amount -= sizes[document]
        for document in pool:
            if sizes[document] <= amount:
                copies[document] += 1
                taken[document] += 1
                amount -= sizes[document]
        phases.append(taken)
    return phases


@settings(max_examples=share_of_examples(2))
@given(
    st.lists(st.integers(3, 20), min_size=2, max_size=30),
    st.lists(st.integers(1, 120), min_size=1, max_size=3),
    st.integers(0, 3),
)
def test_phases_of_one_source_draw_what_the_reference_draws(
    sizes: list[int], wanted: list[int], seed: int
) -> None:
    options = config(
        sources=["0"],
        phases=[{"tokens": tokens} for tokens in wanted],
        max_epochs=1000,
        max_length=64,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        mix = mix_of(Path(folder), [[(0, size) for size in sizes]], options)
        drawn = played(mix, options)[1]["train"]
    expected = reference(sizes, wanted, seed)
    assert [[each[document] for document in range(len(sizes))] for each in drawn] == expected


def phase(share: str, shares: list[str] | None, **lengths: Any) -> Phase:
    return Phase(
        tokens=None,
        share=Fraction(share),
        shares=None if shares is None else tuple(map(Fraction, shares)),
        **({"max_length": 8, "min_document_tokens": 1, "max_document_tokens": None} | lengths),
    )


def test_the_largest_total_uses_up_the_scarcest_source_and_keeps_what_one_phase_needs() -> None:
    phases = [phase("4/5", ["7/10", "3/10"]), phase("1/5", ["0", "1"])]
    tokens = {(0, 3): [900, 900], (1, 3): [440, 440]}
    assert largest_total(phases, [Fraction(1), Fraction(1)], tokens) == (1000, (1, 1))
    assert largest_total(phases, [Fraction(1), Fraction(2)], tokens)[0] == 1607  # 900 / 0.56
    natural = [phase("1/2", None), phase("1/2", None)]
    assert largest_total(natural, [Fraction(1), Fraction(1)], tokens)[0] == 1340
    # 300 short tokens only for phase 1, 100 long ones only for phase 2.
    phases = [phase("1/2", None, max_document_tokens=5), phase("1/2", None, min_document_tokens=6)]
    tokens = {(0, 1): [300, 0], (0, 2): [0, 100]}
    assert largest_total(phases, [Fraction(1)], tokens) == (200, (1, 0))


@pytest.mark.parametrize(
    ("phases", "sentence"),
    [
        (
            [{"tokens": 30, "weights": [1, 0]}, {"tokens": 90, "weights": [2, 1]}],
            "phase 2 asks for 60 tokens of 0, and 30 are left for it",
        ),
        ([{"tokens": 40}, {"tokens": 81}], "phase 2 asks for 81 tokens, and 80 are left for it"),
        (
            [{"tokens": "50%"}, {"tokens": "50%", "weights": [1, 1], "min_document_tokens": 40}],
            "the source 0 has no tokens for phase 2",
        ),
    ],
)
def test_a_phase_that_asks_for_too_much_is_refused(
    tmp_path: Path, phases: list[dict[str, Any]], sentence: str
) -> None:
    if "weights" in phases[1]:
        phases[0].setdefault("weights", [1, 1])
    options = config(sources=["0", "1"], phases=phases, max_length=64)
    with refused(InputError, sentence):
        mix_of(tmp_path, [[(0, 10)] * 6 + [(1, 10)] * 6], options)
