"""Options of a build, their checks and their YAML file, all through BuildConfig."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.settings import StrategySetting
from packprep.config.grammar.source_names import IDS_COLUMN, TOKEN_ENDINGS, names_token_files
from packprep.config.stages import STAGES, Command, Running, options_in
from packprep.config.yaml_file import from_yaml, load_yaml, to_yaml
from packprep.packing.strategies import STRATEGIES
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused
from tests.helpers.examples import share_of_examples
from tests.helpers.files import config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 1}, "max_length is 1, expected at least 2"),
        ({"max_length": 2**31}, "max_length is 2,147,483,648, expected less than 2^31"),
        ({"max_length": "8x"}, "max_length is '8x'"),
        ({"holdout": "1x"}, "holdout is '1x', expected a share such as 0.01 or 1%"),
        ({"max_length": True}, "max_length is True, expected a whole number"),
        ({"limit": 0}, "limit is 0, expected at least 1"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"overwrite": "yes"}, "overwrite is 'yes', expected true or false"),
        ({"text_column": None}, "text_column is None, expected text"),
        ({"strategy": "bestfit"}, "strategy is 'bestfit'; did you mean 'best_fit'?"),
        ({"overflow": "cut"}, "overflow is 'cut', expected one of split, truncate, drop, error"),
        ({"sources": 5}, "sources is 5"),
        ({"order": "length:8:nan,1"}, "order is 'length:8:nan,1'"),
    ],
)
def test_a_wrong_option_is_refused_at_construction(options: dict[str, Any], words: str) -> None:
    with refused(ConfigError, words):
        config(**options)


def test_lists_may_be_texts_and_texts_paths() -> None:
    assert config(stride=7, max_length=8).stride == 7  # with 8 it is refused
    assert config(sources="a b.jsonl").sources == ("a b.jsonl",)
    assert config(sources=[Path("a b.jsonl")]).sources == ("a b.jsonl",)
    assert config(output=Path("out")).output == "out"
    columns = ("position_ids", "document_starts")
    assert config(columns="document_starts, position_ids").columns == columns
    assert config(columns=["document_starts", "position_ids", "tokens"]).columns == columns
    assert config(columns="").columns == ()


def test_equal_options_in_different_spellings_have_the_same_identity() -> None:
    columns = ["position_ids", "document_ids"]
    one = config(
        holdout=0, window="4GB", columns="document_ids,position_ids", num_proc=1, output="a"
    )
    other = config(holdout=0.0, window=4_000_000_000, columns=columns, num_proc=9)
    assert repr(one.identity()) == repr(other.identity())
    assert "num_proc" not in one.identity()
    assert one.identity() != config(seed=1).identity()


def test_a_yaml_file_that_is_not_a_table_of_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    with refused(ConfigError, "no configuration file", "build.yaml"):
        from_yaml(path)
    for content, words in [
        ("max_lenght: 128\n", "'max_lenght'; did you mean 'max_length'"),
        ("- a\n- b\n", "has a list, expected lines such as max_length: 4096"),
        ("!!python/object/apply:os.system [id]\n", "is not readable as YAML"),
    ]:
        path.write_text(content)
        with refused(ConfigError, "build.yaml", words):
            from_yaml(path)


def test_the_listed_strategies_are_those_that_exist() -> None:
    assert set(StrategySetting.words()) == {*STRATEGIES, "wrapped"}


NAMES = st.text(min_size=1).filter(lambda name: not names_token_files([name]))  # rows of text


@settings(max_examples=share_of_examples(2))
@example([], "${", 0.0, 0)  # not a variable of the environment
@given(st.lists(NAMES), st.text(), st.floats(0, 1), st.integers(0, 2**63 - 1))
def test_options_written_as_yaml_are_read_back_as_they_were(
    sources: list[str], column: str, share: float, seed: int
) -> None:
    options = config(
        sources=sources, text_column=column, verify_engine=share, seed=seed, truncate_at="\\n+: #"
    )
    assert BuildConfig(**load_yaml(to_yaml(options), variables_of="build.yaml")) == options


def test_a_file_name_that_is_not_unicode_survives_yaml(tmp_path: Path) -> None:
    name = b"caf\xe9.jsonl".decode(errors="surrogateescape")
    (tmp_path / "build.yaml").write_bytes(to_yaml(BuildConfig(sources=(name,))).encode())
    assert from_yaml(tmp_path / "build.yaml")["sources"] == [name]


def test_yaml_omits_what_is_unset_an_object_or_of_one_command() -> None:
    once = {"output": "s3://bucket/out", "work_dir": "scratch", "executor": "ray"}
    for options in ({"tokenizer": object(), "overwrite": True, "limit": 3}, once):
        keys = yaml.safe_load(to_yaml(config(**options))).keys()
        assert ("limit" in keys) == ("limit" in options)
        assert not ({"max_tokens", "tokenizer", "overwrite"} | options_in(Command)) & keys


def test_every_option_has_one_stage_and_only_run_and_once_are_never_part_of_the_identity() -> None:
    staged = [name for stage in STAGES for name in options_in(stage)]
    assert sorted(staged) == sorted(spec.name for spec in fields(BuildConfig))
    assert not options_in(Running, Command) & BuildConfig().identity().keys()


def test_pairs_are_truncated_unless_another_overflow_is_given(tmp_path: Path) -> None:
    pairs: dict[str, Any] = {"pair_columns": ["chosen", "rejected"]}
    assert config(**pairs).identity() == config(**pairs, overflow="truncate").identity()
    assert config(**pairs, overflow="drop").overflow == "drop"
    assert config(pair_columns=()).overflow == config().overflow == "split"
    for text in ("pair_columns: chosen,rejected\n", to_yaml(config(**pairs))):
        (tmp_path / "build.yaml").write_text(text)
        assert BuildConfig(**from_yaml(tmp_path / "build.yaml")) == config(**pairs)


@pytest.mark.parametrize("ending", TOKEN_ENDINGS)
def test_files_of_token_ids_are_known_by_their_ending_and_not_by_their_name(ending: str) -> None:
    assert BuildConfig(sources=[f"x.{ending}"]).input_ids_column == IDS_COLUMN
    assert BuildConfig(sources=[ending, f"a.b/{ending}"]).input_ids_column is None
