from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from packprep.config.build_config import BuildConfig
from packprep.preview import sweep as module
from packprep.preview.stored_lengths import Lengths
from packprep.preview.sweep import Row, best, combinations, sweep, ties
from packprep.preview.window_plan import WindowDocuments, of_lengths
from packprep.support.errors import ConfigError
from tests.helpers import documents

ENDS = documents.tokenizer(bos=False, eos=False)


def window(*lengths: int) -> WindowDocuments:
    return of_lengths("train", 0, np.array(lengths, np.int32))


def swept(
    windows: list[WindowDocuments], configs: list[BuildConfig], *report: Any, **sample: Any
) -> list[Row]:
    lengths = Lengths(origin="", windows=windows, tokenizer=ENDS, **sample)
    return sweep(lengths, [each.pack_rules() for each in configs], configs[0].writing, *report)


def random_lengths(count: int, seed: int = 0) -> WindowDocuments:
    lengths = np.random.default_rng(seed).lognormal(4, 1, count).astype(np.int32) + 1
    return of_lengths("train", 0, lengths)


def test_what_cannot_be_planned_is_a_row_that_says_so() -> None:
    [row] = swept([window(12)], [BuildConfig(max_length=8, overflow="error")])
    problem = "a document has 12 tokens"
    assert row == Row(max_length=8, strategy="best_fit", overflow="error", problem=problem)
    windows = [window(5), replace(window(3), number=1)]
    [row] = swept(windows, [BuildConfig(strategy="balanced")])
    assert row.problem == "balanced packs one window and the input makes 2"


def test_rows_come_in_the_order_of_the_configs_whatever_is_shared() -> None:
    configs, _ = combinations({}, [64, 32], ["wrapped", "best_fit", "greedy"], ["drop", "split"])
    told: list[tuple[int, int]] = []
    rows = swept([random_lengths(200)], configs, lambda *done: told.append(done))
    assert told == [(done, 12) for done in range(1, 13)]
    for name in ("max_length", "strategy", "overflow"):
        assert [getattr(each, name) for each in rows] == [getattr(each, name) for each in configs]
    alone = [swept([random_lengths(200)], [config])[0] for config in configs]
    # Sharing segments changes no figure.
    timeless = [[replace(row, seconds=0).as_dict() for row in each] for each in (rows, alone)]
    assert timeless[0] == timeless[1]


def test_combinations_that_contradict_each_other_are_left_out_and_named() -> None:
    configs, refused = combinations({"stride": 4}, [16, 32], ["best_fit", "wrapped"], ["split"])
    planned = [(config.max_length, config.strategy) for config in configs]
    assert planned == [(16, "best_fit"), (32, "best_fit")]
    assert "16 wrapped split: --strategy wrapped cannot be used with --stride" in refused[0]
    with pytest.raises(ConfigError, match="strategy wrapped cannot be used with stride"):
        combinations({"stride": 4}, [16], ["wrapped"], ["split"])


def test_a_sample_is_scaled_to_the_whole_and_repeated_up_to_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = random_lengths(4000)
    configs = [BuildConfig(max_length=256)]
    [exact] = swept([whole], configs)
    part = whole.take(np.arange(4000) % 10 == 0)
    [guess] = swept([part], configs, share=0.1, scale=whole.tokens / part.tokens)
    assert guess.tokens_in == exact.tokens_in
    assert guess.figures["packs"] == pytest.approx(exact.figures["packs"], rel=0.01)
    assert guess.figures["utilization"] > 0.995, "400 documents alone would pack worse than 4,000"
    monkeypatch.setattr(module, "TILED", 1000)  # a large sample is not repeated
    part = random_lengths(600)
    [guess] = swept([part], configs, share=0.1, scale=10)
    [alone] = swept([part], configs)
    assert guess.figures["packs"] == 10 * alone.figures["packs"]
    for name in ("utilization", "bias", "padding_of_batch"):
        assert guess.figures[name] == alone.figures[name]


@pytest.mark.parametrize(
    "options", [{"strategy": "greedy"}, {"strategy": "best_fit", "overflow": "truncate"}]
)
def test_the_interval_of_a_sample_holds_the_whole_in_most_samples(options: dict[str, Any]) -> None:
    whole = random_lengths(20_000)
    config = BuildConfig(max_length=256, **options)
    [exact] = swept([whole], [config])
    hits = []
    for seed in range(20):
        part = whole.take(np.random.default_rng(seed).random(20_000) < 0.05)
        scale = whole.tokens / part.tokens
        [guess] = swept([part], [config], share=0.05, scale=scale)
        assert 0 < max(guess.utilization_error, guess.loss_error) < 0.1
        field = "utilization" if config.strategy == "greedy" else "tokens_lost_share"
        error = guess.utilization_error if config.strategy == "greedy" else guess.loss_error
        hits.append(abs(guess.figures[field] - exact.figures[field]) <= error)
    assert sum(hits) >= 16, "95 % intervals hold 19 of 20; fewer than 16 happens once in 3,000 runs"


# Goals.


def row(cut: int = 0, bytes: int = 0, **figures: Any) -> Row:  # noqa: A002
    row = Row(max_length=8, strategy="", overflow="", tokens_in=1000, cut=cut, bytes=bytes)
    return replace(row, figures={**row.figures, **figures})


BETTER = row(utilization=0.9, cut=5, bias=-0.1, straggler=1.5, bytes=10)
LOSSY = row(utilization=1.0, tokens_lost=500, tokens_lost_share=0.5)


def test_the_best_row_for_each_goal_and_goals_for_which_several_are_exactly_equal() -> None:
    few = {"tokens_lost": 1, "tokens_lost_share": 0.001}
    rows = [
        *(BETTER, row(utilization=1.0, cut=9, bias=0.4, straggler=1.1, bytes=12)),
        row(utilization=0.8, bias=0.9, straggler=2.0, bytes=11, cut=0, **few),
    ]
    assert best(rows) == {"padding": 1, "loss": 1, "cuts": 2, "bias": 0, "straggler": 1, "bytes": 0}
    other = row(utilization=0.9, cut=4, bias=0.1, straggler=1.5, bytes=9)
    assert ties([BETTER, other, LOSSY]) == ["padding", "loss", "bias", "straggler"]
    assert ties([BETTER]) == ties([]) == []


def test_a_row_without_a_plan_or_that_throws_much_away_is_best_for_nothing_unless_all_do() -> None:
    assert set(best([LOSSY, row(utilization=0.5, cut=3, straggler=9.0)]).values()) == {1}
    assert set(best([LOSSY]).values()) == {0}
    none = Row(max_length=8, strategy="", overflow="", problem="no")
    assert {*best([none, row()]).values()} == {1}
    assert best([]) == {}
