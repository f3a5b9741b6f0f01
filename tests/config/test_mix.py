from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.config.grammar.mix import Entry, entries, is_mix, targets
from packprep.config.grammar.phases import phase_tables
from packprep.config.yaml_file import from_yaml, to_yaml
from packprep.support.errors import ConfigError, InputError
from tests.helpers.errors import refused
from tests.helpers.files import config


def test_a_table_has_the_path_the_amount_and_the_options_of_a_source() -> None:
    code = {"path": [Path("a.parquet"), "b.parquet"], "label": "code", "text-column": "content"}
    tables = [{"path": "web/*.jsonl", "epochs": 1.5}, code | {"max_tokens": 1000}, "c.jsonl"]
    sources = config(sources=tables).entries()
    assert [(each.label, each.paths, each.asked, each.reading) for each in sources] == [
        ("web/*.jsonl", ("web/*.jsonl",), {"epochs": 1.5}, {}),
        ("code", ("a.parquet", "b.parquet"), {"max_tokens": 1000}, {"text_column": "content"}),
        ("c.jsonl", ("c.jsonl",), {}, {}),
    ]
    assert is_mix(sources)


def test_the_column_of_a_source_replaces_a_template_and_the_reverse() -> None:
    sources = [{"path": "a", "text_column": "x"}, {"path": "b"}]
    settings = config(sources=sources, text_template="{q} {a}")
    first, second = (settings.of_source(entry.reading) for entry in settings.entries())
    assert (first.text_column, first.text_template) == ("x", None)
    assert (second.text_column, second.text_template) == ("text", "{q} {a}")
    [entry] = config(sources={"path": "a", "text_template": "{q}"}, text_column="x").entries()
    assert config(text_column="x").of_source(entry.reading).text_column == "text"


ABOVE_0 = "expected a number above 0"
B = {"path": "b.jsonl", "weight": 1}


def one(**amounts: Any) -> dict[str, Any]:
    return {"sources": {"path": "a.jsonl"} | amounts}


WRONG_SOURCES: list[tuple[dict[str, Any], str]] = [
    (one(weight=0), f"source a.jsonl has weight 0, {ABOVE_0}; to use nothing of"),
    (one(weight=float("nan")), f"source a.jsonl has weight nan, {ABOVE_0}"),
    (one(max_tokens=0.5), "source a.jsonl has max_tokens 0.5, expected a whole number"),
    ({"sources": ["a.jsonl", B]}, "source a.jsonl has no weight and b.jsonl has one"),
    (one(weight=1, epochs=2), "source a.jsonl has weight and epochs, which both set how much"),
    (one(epochs=1, max_epochs=2), "source a.jsonl has max_epochs without a weight"),
    (one(wieght=1), "source a.jsonl has an unknown key 'wieght'; did you mean 'weight'?"),
    ({"sources": {"weight": 1}}, "a source is {'weight': 1}"),
    (one(label=5), "source a.jsonl has label 5, expected text"),
    ({"sources": [B, B]}, "two sources of the mix have the label b.jsonl"),
    ({"sources": ["hub:a/b#"]}, "source 'hub:a/b#' is no dataset on the hub, expected hub:ORG"),
    (one(path="hub:a/b#x", split="y"), "source hub:a/b#x has its split in its name and as a key"),
    (one(split=5), "source a.jsonl: split is 5, expected text"),
    (one(given={"spilt": "x"}), "source a.jsonl has an unknown key 'spilt' in given; did you mean"),
    (one(text_column=5), "source a.jsonl: text_column is 5, expected text"),
    (one(limit=0), "source a.jsonl: limit is 0, expected at least 1"),
    (one(text_template=None), "source a.jsonl has text_template null; leave it out"),
    (one(input_ids_column="ids"), "source a.jsonl and the build differ in input_ids_column"),
    (one(text_template="{a}", text_column="b"), "source a.jsonl: text_template"),
    ({"sources": ["a", "b"], "weights": "1"}, "weights has 1 numbers for 2 sources"),
    ({"sources": ["a", "b"], "weights": "1,x"}, f"source b has weight 'x', {ABOVE_0}"),
    ({"sources": ["a", B], "weights": "1,2"}, "source b.jsonl has an amount in addition to"),
    (one(text_field="b"), "source a.jsonl: text_field is called text_column here"),
    ({"sources": "a", "max_epochs": 2}, "max_epochs is for sources with a weight, and no"),
]


@pytest.mark.parametrize(("options", "words"), WRONG_SOURCES)
def test_a_wrong_amount_is_refused_naming_the_source(options: dict[str, Any], words: str) -> None:
    with refused(ConfigError, words):
        config(**options)


def tables(*sources: dict[str, Any] | str) -> tuple[Entry, ...]:
    return entries(list(sources), (), 1.0)


AMOUNTS = tables({"path": "a", "epochs": 2}, {"path": "b", "max_tokens": 50}, "c")
ONE_REPEATED = tables({"path": "a", "weight": 1, "max_epochs": 9}, {"path": "b", "weight": 1})


@pytest.mark.parametrize(
    ("sources", "available", "limit", "wanted", "scarce"),
    [
        (ONE_REPEATED, [100, 500], None, [500, 500], "b"),
        (AMOUNTS, [100, 100, 150], None, [200, 50, 150], None),
        (AMOUNTS, [100, 100, 150], 40, [20, 5, 15], None),
        (tables({"path": "a", "max_tokens": 1000}), [100], None, [100], None),
    ],
)
def test_the_scarcest_source_is_used_completely_and_limits_the_mix(
    sources: Any, available: list[int], limit: int | None, wanted: list[int], scarce: str | None
) -> None:
    taken, limiting = targets(sources, available, limit)
    assert (taken, limiting and limiting.label) == (wanted, scarce)


def test_a_source_is_not_repeated_more_than_100_000_times() -> None:
    sources = tables({"path": "a.jsonl", "epochs": 100_001})
    with refused(InputError, "a.jsonl", 100_000):
        targets(sources, [10])
    assert targets(sources, [10], 1_000_000)[0] == [1_000_000]


@given(
    st.lists(
        st.tuples(st.integers(1, 1000), st.integers(1, 10**12), st.integers(1, 50)),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.integers(1, 10**12),
)
def test_a_mix_is_the_largest_with_its_shares_and_exceeds_no_max_epochs(
    sources: list[tuple[int, int, int]], limit: int | None
) -> None:
    tables = [
        {"path": str(number), "weight": weight / 10, "max_epochs": epochs / 10}
        for number, (weight, _, epochs) in enumerate(sources)
    ]
    available = [size for _, size, _ in sources]
    wanted, scarce = targets(entries(tables, (), 1.0), available, limit)
    mixed = sum(wanted)
    most = [size * Fraction(epochs, 10) for _, size, epochs in sources]
    total = sum(weight for weight, _, _ in sources)
    for (weight, _, _), tokens, room in zip(sources, wanted, most, strict=True):
        assert tokens <= room
        assert abs(tokens - Fraction(weight, total) * mixed) <= len(sources)
    if scarce is None:
        assert limit is not None
        assert limit - len(sources) < mixed <= limit
    else:
        number = int(scarce.label)
        assert wanted[number] == int(most[number])


THREE = [
    {"tokens": "80%", "weights": [70, 30], "max_length": 64},
    {"tokens": "15%", "weights": {"a": 1, "b": 1}},
    {"tokens": "5%", "weights": "10, 90", "max_length": 512},
]


def phased(phases: Any, **options: Any) -> Any:
    return config(**({"sources": ["a", "b"], "phases": phases, "max_length": 128} | options))


def test_a_phase_has_the_lengths_of_the_build_unless_it_has_its_own() -> None:
    settings = phased(THREE, min_document_tokens=3)
    phases = settings.phase_list()
    assert [each.min_document_tokens for each in phases] == [3, 3, 3]
    assert [settings.in_phase(phase).max_length for phase in phases] == [64, 128, 512]
    assert settings.max_length == 512


def test_shares_are_exact_and_of_max_tokens() -> None:
    shares = [(phase.share, phase.tokens) for phase in phased(THREE).phase_list()]
    assert shares == [(Fraction(4, 5), None), (Fraction(3, 20), None), (Fraction(1, 20), None)]
    limited = phased(THREE, max_tokens=1000).phase_list()
    assert [(phase.tokens, phase.shares) for phase in limited] == [
        (800, (Fraction(7, 10), Fraction(3, 10))),
        (150, (Fraction(1, 2), Fraction(1, 2))),
        (50, (Fraction(1, 10), Fraction(9, 10))),
    ]


def test_weights_of_the_sources_are_those_of_a_phase_without_weights() -> None:
    first, second = phased(
        [{"tokens": 10}, {"tokens": 10, "weights": [1, 1]}], weights="3,1"
    ).phase_list()
    assert first.shares == (Fraction(3, 4), Fraction(1, 4))
    assert second.shares == (Fraction(1, 2), Fraction(1, 2))
    assert phased([{"tokens": 10}]).phase_list()[0].shares is None


def test_the_command_line_and_a_yaml_file_give_the_same_phases(tmp_path: Path) -> None:
    settings = phased('[{"tokens": "80%"}, {"tokens": "20%", "max-length": 9}]')
    assert settings.phases == (
        {"tokens": "80%", "max_length": 128},
        {"tokens": "20%", "max_length": 9},
    )
    (tmp_path / "build.yaml").write_text(to_yaml(settings))
    assert config(**from_yaml(tmp_path / "build.yaml")) == settings


def test_classes_of_lengths_come_first_and_all_lengths_last() -> None:
    assert phase_tables({"by_length": [512, 2048], "mixed": "40%"}) == (
        {"tokens": "20%", "max_document_tokens": 512},
        {"tokens": "20%", "min_document_tokens": 513, "max_document_tokens": 2048},
        {"tokens": "20%", "min_document_tokens": 2049},
        {"tokens": "40%"},
    )
    thirds = phased({"by_length": [10, 20]}).phase_list()
    assert sum(phase.share for phase in thirds) == 1


WRONG_PHASES: list[tuple[Any, dict[str, Any], str]] = [
    ([{"tokens": "80%"}, {"tokens": "30%"}], {}, "the tokens of the phases add up to 110%"),
    ([{"tokens": "50%"}, {"tokens": 100}], {}, "phases has shares and numbers of tokens"),
    ([{"tokens": 100}], {"max_tokens": 5}, "max_tokens is for phases with shares, and these"),
    ([{"tokens": 0.5}], {}, "phase 1 has tokens 0.5"),
    ([{"tokens": 5, "wieghts": []}], {}, "phase 1 has an unknown key 'wieghts'"),
    ([{"tokens": 5, "weights": [1]}], {}, "phase 1 has weights [1]"),
    ([{"tokens": 5, "weights": [0, 0]}], {}, "phase 1 has only weights of 0"),
    ([{"tokens": 5, "weights": [1, "x"]}], {}, "phase 1 has weight 'x' for b"),
    ([{"tokens": 5, "weights": [1, 1]}, {"tokens": 5}], {}, "phase 2 has no weights and"),
    ([{"tokens": 5}, {"tokens": 5, "max_length": 1}], {}, "phase 2: max_length is 1"),
    ([{"tokens": 5}] * 33, {}, "phases has 33 entries"),
    ([{"tokens": 5, "max_length": "x"}], {}, "phase 1 has max_length 'x'"),
    ([{"tokens": 5, "weights": {"x": 1}}], {}, "phase 1 has a weight for 'x'"),
    ([{"tokens": 5, "weights": {"a": 1}}], {}, "phase 1 has no weight for b"),
    ({"by_lenght": [20]}, {}, "phases has an unknown key 'by_lenght'; did you mean"),
    ([{"tokens": 5}], {"sources": [{"path": "a", "epochs": 2}, "b"]}, "source a has epochs"),
    ({"by_length": [20, 10]}, {}, "phases has by_length [20, 10]"),
    ({"by_length": [20], "mixed": "100%"}, {}, "phases has mixed '100%'"),
    (7, {}, "phases is 7, expected a list of tables such as {tokens: 80%, weights: [70, 30]"),
]


@pytest.mark.parametrize(("phases", "more", "words"), WRONG_PHASES)
def test_wrong_phases_are_refused(phases: Any, more: dict[str, Any], words: str) -> None:
    with refused(ConfigError, words):
        phased(phases, **more)
