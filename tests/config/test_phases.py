from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from packprep.config.phases import phase_tables
from packprep.config.yaml_file import from_yaml, to_yaml
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused
from tests.helpers.files import config

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


@pytest.mark.parametrize(
    ("phases", "more", "words"),
    [
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
        ([{"tokens": 5}], {"strategy": "balanced"}, "strategy balanced packs one window, and"),
        ([{"tokens": 5}], {"append": True}, "append cannot add to phases, which are drawn from"),
        ([{"tokens": 5}], {"sources": [{"path": "a", "epochs": 2}, "b"]}, "source a has epochs"),
        ({"by_length": [20, 10]}, {}, "phases has by_length [20, 10]"),
        ({"by_length": [20], "mixed": "100%"}, {}, "phases has mixed '100%'"),
        (7, {}, "phases is 7, expected a list of tables such as {tokens: 80%, weights: [70, 30]"),
    ],
)
def test_wrong_phases_are_refused(phases: Any, more: dict[str, Any], words: str) -> None:
    with refused(ConfigError, words):
        phased(phases, **more)
