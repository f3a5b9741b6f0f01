"""The account: an unknown reason fails, and a figure is the same in every report."""

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.output.report import Account
from packprep.packing.account import Dropped, Sums
from packprep.packing.figures import figures_of
from packprep.preview.window_plan import window_sums
from packprep.reports.facts import lost
from packprep.schemas import check_ledger
from packprep.schemas.canonical import canonical_json, parse_json
from packprep.support.from_json import from_json
from packprep.windows.planner import account_by_source, plan_window, resized
from packprep.windows.specs import window_seed
from tests.helpers import documents
from tests.test_laws import configs

LISTS = ("dropped", "dropped_documents", "measured")
COUNTS = [each.name for each in fields(Sums) if each.name not in LISTS]


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    reasons = st.dictionaries(st.sampled_from(list(Dropped)), st.integers(1, 99), max_size=3)
    counts = {name: draw(st.integers(0, 99)) for name in COUNTS} | {"max_length": 64}
    return Sums(
        **counts,
        dropped=Counter[str](draw(reasons)),
        dropped_documents=Counter[str](draw(reasons)),
        measured=draw(
            st.dictionaries(
                st.sampled_from(["bias", "straggler"]),
                st.lists(st.sampled_from([0.5, 0.25, 3.0]), min_size=1, max_size=3),
            )
        ),
    )


def test_a_reason_that_is_not_in_the_enum_fails_at_once() -> None:
    policy = documents.tokenizer()
    tokenized = documents.make_documents([3, 9, 30], policy)
    rules = BuildConfig(max_length=8, overflow="drop").pack_rules()
    plan = plan_window(tokenized, policy, rules, seed=0)
    lost = dict(plan.account.dropped)
    assert list(lost) == [Dropped.OVERFLOW]
    wrong: Any = {"over_flow": lost[Dropped.OVERFLOW]}
    misspelt = replace(plan, account=replace(plan.account, dropped=wrong))
    with pytest.raises(ValueError, match="'over_flow' is not a valid Dropped"):
        account_by_source(misspelt, policy, 1, plan.packs)


def test_a_reason_of_a_later_version_is_shown_and_added_as_it_is() -> None:
    ledger = Sums(tokens_in=5, dropped=Counter({"too_odd": 5})).ledger
    check_ledger(ledger)
    both = Sums.of_ledger(ledger) + Sums.of_ledger(ledger)
    assert (both.tokens_lost, both.ledger["dropped"]) == (10, {"too_odd": 10})
    assert lost(both.ledger) == {"dropped: too odd": 10}


@given(sums(), sums(), sums())
def test_sums_add_up_in_any_grouping_and_empty_sums_change_nothing(
    a: Sums, b: Sums, c: Sums
) -> None:
    assert a + Sums() == Sums() + a == a
    assert (a + b) + c == a + (b + c)
    assert from_json(Sums, parse_json(canonical_json(vars(a)))) == a


def test_sums_of_packs_of_different_lengths_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="packs of 8 tokens and packs of 16"):
        Sums(max_length=8) + Sums(max_length=16)


@given(configs(), st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(-3, 3))
def test_a_plan_predicts_every_sum_of_the_build(
    config: BuildConfig, texts: list[int], change: int
) -> None:
    policy = documents.tokenizer()
    tokenized = documents.make_documents(texts, policy)
    plan = plan_window(
        tokenized, policy, config.pack_rules(), seed=window_seed(config.seed, 0, "train")
    )
    change = max(change, -len(plan.packs)) if len(plan.packs) else 0
    written = resized(plan.packs, change, config.pack_order.name)
    account = Account.empty(1)
    account.add(0, "train", plan, written, account_by_source(plan, policy, 1, written))
    built = account.total(config.max_length)
    check_ledger(built.ledger)

    predicted = window_sums(plan, written, config.max_length)
    assert predicted.ledger == built.ledger
    built_figures = figures_of(built)
    for name, value in figures_of(predicted).items():
        if name not in ("tokens", "bos_rate", "eos_rate"):  # a plan reads no token
            assert built_figures[name] == value, name  # type: ignore[literal-required]
