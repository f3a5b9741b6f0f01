"""Each rule of the options refuses a build, in words for the place where options are typed."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from packprep import BuildConfig
from packprep.cli.commands.build import choices_of
from packprep.config import checks
from packprep.config.grammar import mix, phases
from packprep.config.grammar.rules import Rule
from packprep.support.errors import ConfigError
from tests.config.test_mix import WRONG_PHASES, WRONG_SOURCES, phased
from tests.helpers.command import run
from tests.helpers.files import config

OPTIONS = {spec.name: spec for spec in fields(BuildConfig)}
CHAT = {"messages_column": "m"}
PAIR = {"pair_columns": "a,b"}
SAMPLES: dict[str, Any] = PAIR | {"train_fields": "content", "phases": [{"tokens": 5}]}
SAMPLES |= {"turns": "each", "part": "0/2", "sample_by": "line", "strategy": "stream"}
CASES: tuple[dict[str, Any], ...] = (
    {"verify_engine": 2},
    {"holdout": 1},
    {"columns": "labels"},
    {"train_fields": "x"},
    {"truncate_at": "("},
    {"prompt_column": "p"},
    {"prompt_column": "p", "response_column": "r", "input_ids_column": "i"},
    {"chat_template": "t"},
    {"renderer": "r.py:f"},
    {"join_pieces": True},
    {"template_date": "2026-01-31"},
    {"template_variables": "{}"},
    {"train_fields": "content"},
    {"turns": "each"},
    CHAT | {"text_template": "t"},
    CHAT | {"truncate_at": "t"},
    CHAT | {"text_column": "t"},
    CHAT | {"sample_by": "line"},
    CHAT | {"continuation_bos": True},
    {"train_on": "all"},
    {"input_ids_column": "i", "check_against": "transformers"},
    {"input_ids_column": "i", "parse_special_tokens": True},
    {"overflow": "truncate:balanced"},
    CHAT | {"bos": "none"},
    {"pair_columns": "a"},
    PAIR | CHAT,
    PAIR | {"input_ids_column": "auto", "loss_mask_column": "a"},
    {"carry": "a:x"},
    {"carry": "a b"},
    {"carry": "input_ids", "names": "hf"},
    {"carry": "labels"},
    {"carry": "tokens"},
    {"carry": ["a", "a"]},
    {"sources": "-", "executor": "array"},
    {"work_dir": "w"},
    {"output": "s3://b/o", "append": True},
    {"sources": {"path": "a", "weight": 1}, "append": True},
    {"stride": 8, "max_length": 8},
    {"max_document_tokens": 0},
    {"pad_segment_to_multiple": 2, "max_length": 9},
    PAIR | {"pad_segment_to_multiple": 8, "max_length": 8},
    {"min_pack_tokens": 9, "max_length": 8},
)


def with_setting(setting: str) -> dict[str, Any]:
    """Options that have a setting such as `--stride` or `--turns each or auto`."""
    name, _, values = setting[2:].partition(" ")
    option = name.replace("-", "_")
    sample = True if OPTIONS[option].default is False else SAMPLES.get(option, "2")
    return {option: values.split(" or ")[0] or sample}


def without_setting(setting: str) -> dict[str, Any]:
    """Options that have another value than that of a setting."""
    name, _, values = setting[2:].partition(" ")
    option = name.replace("-", "_")
    if not values or OPTIONS[option].default not in values.split(" or "):
        return {}
    return {option: next(each for each in choices_of(OPTIONS[option]) if each not in values)}


def refusals() -> Iterator[ConfigError]:
    tables = [
        *CASES,
        *(
            with_setting(one) | with_setting(other)
            for one, others in checks.EXCLUDED.items()
            for other in others
        ),
        *(
            (CHAT if "train-on" in needed else {}) | with_setting(each) | without_setting(needed)
            for needed, options in checks.NEEDED.items()
            for each in options
        ),
        *(options for options, _ in WRONG_SOURCES),
    ]
    for options in tables:
        with pytest.raises(ConfigError) as caught:
            config(**options)
        yield caught.value
    for value, options, _ in WRONG_PHASES:
        with pytest.raises(ConfigError) as caught:
            phased(value, **options)
        yield caught.value


def test_each_rule_refuses_a_build_and_names_options_as_python_and_the_command_line_do() -> None:
    said = list(refusals())
    rules: list[Rule[Any]] = [*checks.RULES, *mix.SOURCE_RULES, *mix.MIX_RULES, *phases.LIST_RULES]
    rules += [*phases.PRESET_RULES, *phases.PHASE_RULES, *phases.PHASES_RULES]
    for rule in rules:
        flags = re.findall(r"--([a-z-]+)", rule.sentence)
        assert {flag.replace("-", "_") for flag in flags} <= OPTIONS.keys()
        parts = re.split(r"\{\{|\}\}|\{[^{}]*\}", rule.sentence)
        pattern = re.compile(".*".join(map(re.escape, parts)))
        errors = [error for error in said if pattern.search(error.args[0])]
        assert errors, rule.sentence
        assert errors[0].as_typed(lambda _: False) == errors[0].args[0]
        assert "--" not in str(errors[0])


def test_options_of_a_file_are_named_as_keys_and_those_typed_as_flags(tmp_path: Any) -> None:
    (tmp_path / "b.yaml").write_text("sources: a.jsonl\noutput: out\noverflow: drop\nstride: 8\n")
    file = ("build", "-c", tmp_path / "b.yaml")
    for command, option, other in [
        (file, "stride", "overflow"),
        ((*file, "--stride", "9"), "--stride", "overflow"),
        ((*file, "--stride", "9", "--overflow", "drop"), "--stride", "--overflow"),
    ]:
        assert (
            f"packprep: {option} is for {other} split, not drop; give {other}" in run(*command).err
        )
