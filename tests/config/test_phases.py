from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from packprep.config.phases import phase_tables
from packprep.config.yaml_file import from_yaml, to_yaml
from packprep.support.errors import ConfigError
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
    assert [phase.max_length for phase in settings.phase_list()] == [64, 128, 512]
    assert [phase.min_document_tokens for phase in settings.phase_list()] == [3, 3, 3]
    assert settings.max_length == 512
    assert [settings.in_phase(phase).max_length for phase in settings.phase_list()] == [
        64,
        128,
        512,
    ]


def test_shares_are_exact_and_of_max_tokens() -> None:
    assert [phase.share for phase in phased(THREE).phase_list()] == [
        Fraction(4, 5),
        Fraction(3, 20),
        Fraction(1, 20),
    ]
    assert [phase.tokens for phase in phased(THREE).phase_list()] == [None] * 3
    limited = phased(THREE, max_tokens=1000).phase_list()
    assert [phase.tokens for phase in limited] == [800, 150, 50]
    assert [phase.shares for phase in limited] == [
        (Fraction(7, 10), Fraction(3, 10)),
        (Fraction(1, 2), Fraction(1, 2)),
        (Fraction(1, 10), Fraction(9, 10)),
    ]


def test_weights_of_the_sources_are_those_of_a_phase_without_weights() -> None:
    settings = phased([{"tokens": 10}, {"tokens": 10, "weights": [1, 1]}], weights="3,1")
    assert [phase.shares for phase in settings.phase_list()] == [
        (Fraction(3, 4), Fraction(1, 4)),
        (Fraction(1, 2), Fraction(1, 2)),
    ]
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
    ("phases", "more", "sentence"),
    [
        (
            [{"tokens": "80%"}, {"tokens": "30%"}],
            {},
            "the tokens of the phases add up to 110%, expected 100%",
        ),
        (
            [{"tokens": "50%"}, {"tokens": 100}],
            {},
            "phases has shares and numbers of tokens; give tokens as percent in every phase, or as "
            "a number in every phase",
        ),
        (
            [{"tokens": 100}],
            {"max_tokens": 5},
            "max_tokens is for phases with shares, and these have numbers of tokens; leave it out",
        ),
        (
            [{"tokens": 0.5}],
            {},
            "phase 1 has tokens 0.5, expected a share such as 80% or a whole number above 0",
        ),
        (
            [{"tokens": 5, "wieghts": []}],
            {},
            "phase 1 has an unknown key 'wieghts'; did you mean 'weights'?",
        ),
        (
            [{"tokens": 5, "weights": [1]}],
            {},
            "phase 1 has weights [1], expected a number for each of 2 sources",
        ),
        (
            [{"tokens": 5, "weights": {"a": 1}}],
            {},
            "phase 1 has no weight for b; give one for each source, 0 for none of it",
        ),
        (
            [{"tokens": 5, "weights": [0, 0]}],
            {},
            "phase 1 has only weights of 0; give one source a larger weight",
        ),
        (
            [{"tokens": 5, "weights": [1, "x"]}],
            {},
            "phase 1 has weight 'x' for b, expected a number of at least 0",
        ),
        (
            [{"tokens": 5, "weights": [1, 1]}, {"tokens": 5}],
            {},
            "phase 2 has no weights and another has; give weights in every phase, or to the "
            "sources",
        ),
        (
            [{"tokens": 5, "max_length": "long"}],
            {},
            "phase 1 has max_length 'long', expected a whole number",
        ),
        (
            [{"tokens": 5}, {"tokens": 5, "max_length": 1}],
            {},
            "phase 2: max_length is 1, expected at least 2",
        ),
        (
            [{"tokens": 5}],
            {"strategy": "balanced"},
            "strategy balanced packs one window, and each phase has windows of its own; choose "
            "another strategy",
        ),
        (
            [{"tokens": 5}],
            {"append": True},
            "append cannot add to phases, which are drawn from all sources together; build again "
            "with --overwrite and a token store (--keep-tokens)",
        ),
        (
            [{"tokens": 5}],
            {"sources": [{"path": "a", "epochs": 2}, "b"]},
            "source a has epochs, and phases say how much to take; leave it out",
        ),
        (
            {"by_length": [20, 10]},
            {},
            "phases has by_length [20, 10], expected rising numbers of tokens such as [512, 2048]",
        ),
        (
            {"by_length": [20], "mixed": "100%"},
            {},
            "phases has mixed '100%', expected more than 0% and less than 100%",
        ),
        (
            7,
            {},
            "phases is 7, expected a list of tables such as {tokens: 80%, weights: [70, 30], "
            "max_length: 4096}",
        ),
    ],
)
def test_wrong_phases_are_refused_in_a_sentence(
    phases: Any, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        phased(phases, **more)
    assert str(error.value) == sentence
