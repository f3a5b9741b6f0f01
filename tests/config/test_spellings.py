import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from packprep import BuildConfig, TokenizeAndPack, build
from packprep.cli.commands.build import command as build_command
from packprep.cli.commands.build import resolve_options
from packprep.config.aliases import ALIASES
from packprep.config.grammar.source_names import HubPart
from packprep.config.grammar.spellings import GONE, SPELLINGS
from packprep.config.yaml_file import from_output, from_yaml, to_yaml
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.errors import refused

OPTIONS = {field.name for field in fields(BuildConfig)}


def test_every_spelling_leads_to_an_option_and_is_none_itself() -> None:
    assert set(SPELLINGS.values()) <= OPTIONS
    assert not SPELLINGS.keys() & OPTIONS
    of_options = [name for name in ALIASES if name not in HubPart._fields]
    assert re.findall(r"^.*?; (\w+):", EARLIER, re.MULTILINE) == of_options


def test_a_name_of_another_tool_is_answered_in_yaml_and_python(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("seq-len: 128\n")
    with refused(ConfigError, "build.yaml: seq_len is called max_length here"):
        from_yaml(path)
    with refused(ConfigError, "TokenizeAndPack: packing_strategy is called strategy"):
        TokenizeAndPack(None, packing_strategy="bfd")
    with refused(ConfigError, "source b: text_field is called text_column here"):
        BuildConfig(sources=({"path": "b", "text_field": "body"},))


@pytest.mark.parametrize("option", GONE)
def test_an_option_that_is_gone_is_answered_with_what_serves_instead(
    tmp_path: Path, option: str
) -> None:
    assert option not in OPTIONS
    flag, path = "--" + option.replace("_", "-"), tmp_path / "build.yaml"
    path.write_text(f"{option}: 2\nseed: 3\n")
    for command in ("build", "plan"):
        result = run(command, flag)
        assert result.code == 2
        assert result.err.startswith(f"packprep: {flag} is gone: {GONE[option]}; see")
    wrong: dict[str, Any] = {option: 2}
    with pytest.raises(ConfigError, match=f"^{option} is gone: "):
        BuildConfig(**wrong)
    with pytest.raises(ConfigError, match=f"build.yaml: {option} is gone: "):
        from_yaml(path)
    assert from_output(path) == {"seed": 3}  # an output of before can still be read


@pytest.mark.parametrize("name", ["nonsense", "max_lenght", "max_length"])
def test_an_unknown_keyword_names_build_config_and_a_near_option(name: str) -> None:
    wrong: dict[str, Any] = {name: 1}
    near, shown = ("", "...") if name == "nonsense" else ("'max_length'?", "max_length=...")
    if name not in OPTIONS:
        with refused(TypeError, f"BuildConfig has no option {name!r}", near):
            BuildConfig(**wrong)
    with refused(TypeError, f"build has no argument {name!r}", f"BuildConfig({shown})"):
        build(BuildConfig(), **wrong)


EARLIER = """
; min_len: 7; min_document_tokens: 7; min_len: 9
; max_len: 7; max_document_tokens: 7; max_len: 9
; shuffle: false; order: input; shuffle: true
messages_column: m, turns: auto; max_turns: 3; turns: auto:3; max_turns: 2
strategy: balanced; num_packs: 8; strategy: balanced:8; num_packs: 9
overflow: truncate; truncation_side: left; overflow: truncate:left; truncation_side: right
; balance_ranks: 4; order: shuffle:4; balance_ranks: 8
order: balanced; attention_cost: '1,2'; order: 'balanced:8:1,2'; attention_cost: '1,3'
packs_multiple_of: 4; remainder: fill; packs_multiple_of: 4:fill; remainder: drop
executor: ray; ray_address: a:1; executor: ray:a:1; ray_address: auto
executor: array; task_index: 3; part: 3; task_index: merge
executor: array; num_tasks: 8; part: auto/8; num_tasks: 9
epochs: 3; repack: true; epochs: 3; repack: false, epochs: 3
; isolate: true; executor: isolated; isolate: false
tokenizer: gpt2; tokenizer_revision: v1; tokenizer: gpt2@v1; tokenizer_revision: v2
input_ids_column: ids; loss_mask_column: m; labels_column: 'm:mask'; loss_mask_column: n
share_prefixes: true; min_shared: 3; share_prefixes: 3; min_shared: 4
"""
# On each line: options beside an earlier one, an example of it, the same now, and what disagrees.


@pytest.mark.parametrize("line", EARLIER.splitlines()[1:])
def test_an_earlier_option_means_what_it_did_and_is_a_line_with_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    beside, old, new, other = (yaml.safe_load(f"{{{text}}}") for text in line.split(";"))
    [earlier] = old
    expected = BuildConfig(sources=("a",), **{**beside, **new})

    def said(options: BuildConfig, lines: int = 1) -> str:
        assert (options, options.identity()) == (expected, expected.identity())
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", lines)
        return err

    def in_file(options: dict[str, Any]) -> Path:
        (tmp_path / "build.yaml").write_text(json.dumps({"sources": "a", **beside, **options}))
        return tmp_path / "build.yaml"

    recorded = {name: value for name, value in old.items() if name in expected.identity()}
    assert recorded.items() <= expected.identity().items()  # manifests keep it
    line = said(BuildConfig(sources=("a",), **{**beside, **old}))
    assert re.match(f"packprep: {earlier} is .*{ALIASES[earlier].option}", line)
    path = in_file({key.replace("_", "-"): value for key, value in old.items()})
    assert said(resolve_options((), path, {})[0]) == line
    said(resolve_options((), path, {"quiet": True})[0], 0)
    said(BuildConfig(**from_output(path)), 0)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**beside, **old}.items()]
    words = [re.sub("--(.*)=False", r"--no-\1", word.removesuffix("=True")) for word in words]
    for quiet in (0, 1):
        with build_command.make_context("build", ["a", *words, *["-q"] * quiet]) as context:
            params = {key: value for key, value in context.params.items() if key != "config"}
            line = said(resolve_options(params.pop("sources"), None, params)[0], 1 - quiet)
        assert line.startswith(f"packprep: --{earlier.replace('_', '-')} is "[: 99 * (1 - quiet)])
    with pytest.raises(ConfigError, match=f"^{earlier} .* disagree; leave out {earlier}$"):
        BuildConfig(**{**beside, **new, **other})
    if earlier != "repack":  # the command line wins
        said(resolve_options((), in_file(other), new)[0], 0)


@pytest.mark.parametrize(("earlier", "end"), [("split", "#"), ("name", ":"), ("revision", "@")])
def test_an_earlier_part_of_all_datasets_is_beside_the_options_of_each_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], earlier: str, end: str
) -> None:
    options: dict[str, Any] = {"sources": ("a", {"path": "b", earlier: "y"}), earlier: "x"}
    config = BuildConfig(**options)
    line = f"packprep: {earlier} is part of the source now: hub:ORG/SET{end}{earlier.upper()}"
    assert capsys.readouterr().err.startswith(line)
    (tmp_path / "build.yaml").write_text(to_yaml(config))
    assert BuildConfig(**from_output(tmp_path / "build.yaml")) == config
    assert capsys.readouterr().err == ""
    assert [entry.label for entry in config.entries()] == ["a", "b"]
    assert [entry.reading for entry in config.entries()] == [{}, {earlier: "y"}]
    assert {entry.given for entry in config.entries()} == {HubPart(**{earlier: "x"})}
