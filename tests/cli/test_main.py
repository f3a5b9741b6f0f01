import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest

from packprep import BuildConfig
from packprep.cli.commands.build import command as build_command
from packprep.cli.commands.build import resolve_options
from packprep.cli.main import COMMANDS, GONE_COMMANDS, module_of
from packprep.config.options import options_in
from packprep.config.yaml_file import to_yaml
from packprep.engines.third_party import is_fast
from packprep.schemas import read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a.jsonl of 60 documents and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    return tmp_path


def options_of(output: str = "out") -> dict[str, Any]:
    inputs: dict[str, Any] = read_manifest(Path(output)).data["inputs"]["options"]
    return inputs


def error_of(*arguments: object) -> str:
    """The sentence of a wrong usage."""
    result = run("build", *arguments)
    assert (result.code, result.out) == (2, ""), result
    assert result.err.startswith("packprep: "), result.err
    assert result.err.count("\n") == 1, result.err
    return result.err.removeprefix("packprep: ").rstrip("\n")


def test_the_command_line_has_every_option_of_a_build_and_five_of_its_own() -> None:
    names = {parameter.name for parameter in build_command.params}
    assert {field.name for field in fields(BuildConfig)} <= names
    assert names - {field.name for field in fields(BuildConfig)} == {
        "config",
        "dry_run",
        "json",
        "quiet",
        "shuffle",
    }


def test_the_help_page_names_every_option_once_under_a_heading() -> None:
    page = run("build", "--help").out
    for name in (field.name for field in fields(BuildConfig) if field.name != "sources"):
        assert (
            sum(
                line.lstrip().startswith(
                    (f"--{name.replace('_', '-')} ", f"--[no-]{name.replace('_', '-')} ")
                )
                or line.lstrip().startswith(f"-o, --{name}")
                for line in page.splitlines()
            )
            == 1
        ), name
    headings = [
        line.rstrip(":")
        for line in page.splitlines()
        if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings == ["Sources", "Tokenizer", "Packing", "Order", "Output", "Machines", "Run"]
    words = " ".join(page.split())
    assert "best_fit, first_fit, knapsack" in words
    assert "[default: 0]" in words
    assert "[default: 4096]" in words
    assert "[default: all that this process may use]" in words


def test_packprep_alone_prints_its_help() -> None:
    result = run()
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.out == run("--help").out
    assert result.out.startswith("Usage: packprep ")
    assert [line.split()[0] for line in result.out.split("Commands:\n")[1].splitlines()] == list(
        COMMANDS
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["biuld", "a.jsonl"],
            "no such command 'biuld'; did you mean 'build'? see packprep --help",
        ),
        (
            ["pack", "a.jsonl"],
            "no such command 'pack'; did you mean 'build'? see packprep --help",
        ),
        (
            ["inspect", "packed"],
            "no such command 'inspect'; did you mean 'show'? see packprep --help",
        ),
        (["--versin"], "no such option '--versin'; did you mean '--version'? see packprep --help"),
        (
            ["build", "--max-lenght", "4"],
            "no such option '--max-lenght'; did you mean '--max-length'? see packprep build --help",
        ),
        (["build", "--qqqqq"], "no such option '--qqqqq'; see packprep build --help"),
        (
            ["build", "a.jsonl", "--seq-len", "4096"],
            "--seq-len is called --max-length here; see packprep build --help",
        ),
        (
            ["build", "--cutoff_len=4096"],
            "--cutoff_len is called --max-length here; see packprep build --help",
        ),
        (
            ["plan", "--workers", "4"],
            "--workers is called --num-proc here; see packprep plan --help",
        ),
        (
            ["build", "--dataset", "a.jsonl"],
            "--dataset is called SOURCE here; see packprep build --help",
        ),
        (
            ["show", "packed", "--tokenizer-name", "gpt2"],
            "--tokenizer-name is called --tokenizer here; see packprep show --help",
        ),
        (
            ["env", "--seq-len", "4096"],
            "no such option '--seq-len'; see packprep env --help",
        ),
        (
            ["env", "--bundle", "issue.zip", "packed"],
            "--bundle is no option any more: add env --json, and report.json and build.yaml of the "
            "output, to the issue; see packprep env --help",
        ),
        *(
            ([name, "packed"], f"{name} is no command any more: {now}; see packprep --help")
            for name, now in GONE_COMMANDS.items()
        ),
        (
            ["qqqqq"],
            f"no such command 'qqqqq', expected one of {', '.join(COMMANDS)}; see packprep --help",
        ),
    ],
)
def test_a_mistyped_or_foreign_option_is_answered_with_the_one_to_use(
    arguments: list[str], sentence: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err) == (2, "", f"packprep: {sentence}\n")


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc"
)
@pytest.mark.parametrize(
    ("variable", "engine", "arenas"),
    [({}, "fastokens", 2), ({}, "hf", 12), ({"MALLOC_ARENA_MAX": "4"}, "fastokens", 4)],
)
def test_threads_of_a_build_share_arenas_unless_the_environment_sets_their_number(
    here: Path, variable: dict[str, str], engine: str, arenas: int
) -> None:
    code = """if True:
        import ctypes, sys, threading
        from packprep.cli.main import cli
        cli.main(sys.argv[1:], standalone_mode=False)
        together = threading.Barrier(20)
        def keep(): together.wait(); bytes(5000); together.wait()
        threads = [threading.Thread(target=keep) for _ in range(20)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.malloc_info(0, libc.fdopen(1, b"w"))
        libc.fflush(None)
    """
    command = (
        f"build a.jsonl -o out --tokenizer tok --num-proc 2 --engine {engine} --dry-run -q --json"
    ).split()
    environment = {
        name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"
    } | variable
    out = subprocess.run(
        [sys.executable, "-c", code, *command], env=environment, capture_output=True, check=True
    ).stdout
    assert out.count(b"<heap nr=") == arenas


@pytest.mark.parametrize(
    ("engine", "model", "fast"),
    [
        ("fastokens", "WordPiece", True),
        ("hf", "BPE", False),
        ("auto", "BPE", True),
        ("auto", "WordPiece", False),
        ("auto", None, True),
    ],
)
def test_the_engine_is_predicted_from_the_kind_of_the_tokenizer(
    engine: Any, model: str | None, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.engines.third_party.find_spec", lambda name: name)
    if model is not None:
        (tmp_path / "tokenizer.json").write_text(
            json.dumps({"added_tokens": [], "model": {"type": model}}, indent=2)
        )
    assert (
        is_fast(BuildConfig(sources=("a",), output="b", tokenizer=str(tmp_path), engine=engine))
        is fast
    )


@pytest.mark.parametrize(
    ("variable", "pool"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")]
)
def test_arrow_uses_the_system_allocator_unless_the_environment_names_another(
    here: Path, variable: dict[str, str], pool: str
) -> None:
    code = """if True:
        import sys
        import pyarrow as pa
        from packprep.cli.main import cli
        cli.main(sys.argv[1:], standalone_mode=False)
        print(pa.default_memory_pool().backend_name)
    """
    command = ["build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--dry-run", "-q", "--json"]
    environment = {
        name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"
    } | variable
    out = subprocess.run(
        [sys.executable, "-c", code, *command], env=environment, capture_output=True, check=True
    )
    assert out.stdout.decode().split()[-1] == pool


def test_version_and_the_list_of_commands() -> None:
    assert run("--version").out.startswith("packprep ")
    assert [
        line.split(maxsplit=1) for line in run("--help").out.split("Commands:\n")[1].splitlines()
    ] == [[name, line] for name, line in COMMANDS.items()]
    assert next(iter(COMMANDS)) == "build"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_its_line_of_the_list_and_an_example_in_80_columns(name: str) -> None:
    command = importlib.import_module(module_of(name)).command
    assert (command.name, command.get_short_help_str(200)) == (name, COMMANDS[name])
    page = run(name, "--help").out
    assert f"packprep {name} " in page.split("Example")[1]
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_on_its_help_page_with_a_sentence(name: str) -> None:
    command = importlib.import_module(module_of(name)).command
    page = run(name, "--help").out
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert options
    for option in options:
        assert not option.hidden
        assert option.help, option.name
        assert option.help.strip().split("  [")[0].endswith("."), option.name
        spelled = [*option.opts, f"--[no-]{option.opts[-1].removeprefix('--')}"]
        assert any(f" {spelling}" in page for spelling in spelled), option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_nothing_that_takes_time(name: str) -> None:
    code = (
        "import sys; from packprep.cli.main import cli; cli(sys.argv[1:], "
        "standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name, "--help"], capture_output=True, text=True, check=True
    )
    loaded = {module.split(".")[0] for module in done.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"numpy", "pyarrow", "datasets", "numba", "tokenizers", "rich"})


def test_build_prints_a_table_and_nothing_else_on_standard_output(here: Path) -> None:
    result = run("build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--max-length", 64)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "out"
    assert [line.split("  ")[0] for line in lines[1:3]] == ["documents", "tokens in"]
    assert lines[-1].startswith("sha256")
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in result.out


def test_json_prints_the_report_and_quiet_prints_nothing(here: Path) -> None:
    arguments = ("build", "a.jsonl", "-o", "out", "--tokenizer", "tok")
    quiet = run(*arguments, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert json.loads(run(*arguments, "--json").out) == json.loads(
        (here / "out" / "report.json").read_text()
    )


def test_a_note_about_the_tokenizer_goes_to_standard_error(here: Path) -> None:
    save_tokenizer(here / "tok", config={"bos_token": None, "eos_token": "</s>"})
    result = run("build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--json")
    assert "no BOS: tokenizer_config.json says bos_token is null\n" in result.err
    json.loads(result.out)


def test_the_yaml_file_in_the_working_folder_is_a_build_of_its_own(here: Path) -> None:
    (here / "packprep.yaml").write_text(
        "sources: [a.jsonl]\noutput: out\ntokenizer: tok\nmax-length: 64\nstrategy: greedy\n"
    )
    assert run("build").code == 0
    assert options_of()["strategy"] == "greedy"
    assert run("build", "--strategy", "best_fit", "-o", "other").code == 0
    assert (options_of("other")["strategy"], options_of("other")["max_length"]) == ("best_fit", 64)


def test_the_yaml_file_in_the_working_folder_is_not_read_when_sources_are_given(here: Path) -> None:
    (here / "packprep.yaml").write_text("nonsense: 1\n")
    assert run("build", "a.jsonl", "-o", "out", "--tokenizer", "tok").code == 0
    assert "packprep.yaml has an unknown option 'nonsense'" in error_of()


def test_sources_on_the_command_line_win_over_those_of_the_file(here: Path) -> None:
    write_jsonl(here / "b.jsonl", ["one"])
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "build.yaml").write_text(
        "sources: a.jsonl\noutput: out\ntokenizer: tok\nlimit: 3\n"
    )
    config, _ = resolve_options((), Path("elsewhere/build.yaml"), {})
    assert config.sources == ("a.jsonl",)
    assert run("build", "-c", "elsewhere/build.yaml", "-q").code == 0, (
        "paths are those of the working folder"
    )
    config, _ = resolve_options(("b.jsonl",), Path("elsewhere/build.yaml"), {})
    assert (config.sources, config.limit) == (("b.jsonl",), 3)


@pytest.mark.parametrize(
    "field",
    [field for field in fields(BuildConfig) if field.name != "sources"],
    ids=lambda f: f.name,
)
def test_every_option_is_also_a_key_of_the_file_with_the_same_meaning(
    here: Path, field: Any
) -> None:
    examples: dict[str, Any] = {
        "tokenizer": "t",
        "strategy": "wrapped",
        "overflow": "drop",
        "order": "input",
        "materialize": "index",
        "stride": 5,
        "engine": "hf",
        "sample_by": "line",
        "on_error": "skip",
        "remainder": "fill",
        "attention_cost": "1,2",
        "truncate_at": "END",
        "columns": "position_ids",
        "names": "hf",
        "token_type": "auto",
        "text_template": "{a}",
        "boundaries": "eos",
        "unit_size": "1MB",
        "window": "2MB",
        "shard_size": "3MB",
        "holdout": 0.5,
        "verify_engine": 0.5,
        "min_document_tokens": 2,
        "pad_segment_to_multiple": 8,
        "weights": "50",
        "phases": '[{"tokens": 50, "max_length": 32}]',
        "max_epochs": 2.5,
        "train_on": "all",
        "train_fields": "content",
        "turns": "each",
        "pair_columns": "a,b",
        "template_variables": '{"a": 1}',
        "executor": "ray",
        "task_index": "3",
    }
    ids, chat = {"input_ids_column": "ids"}, {"messages_column": "auto"}
    all_needs: dict[str, dict[str, Any]] = {
        "min_shared": {"share_prefixes": True},
        "group_prefix": {"share_prefixes": True},
        "num_packs": {"strategy": "balanced"},
        "epochs": {"repack": True},
        "repack": {"epochs": 4},
        "truncation_side": {"overflow": "truncate"},
        "train_overlap": {"stride": 5},
        "labels_column": ids,
        "loss_mask_column": ids,
        "vocab_size": ids,
        "boundaries": ids,
        "max_epochs": {"weights": "1"},
        "prompt_column": {"response_column": "r"},
        "train_on": chat,
        "train_fields": chat,
        "turns": chat,
        "max_turns": chat | {"turns": "each"},
        "response_column": {"prompt_column": "p"},
        "chat_template": chat,
        "template_date": chat,
        "template_variables": chat,
        "pair_columns": {"overflow": "drop"},
        "task_index": {"executor": "array"},
        "num_tasks": {"executor": "array"},
        "ray_address": {"executor": "ray"},
        "work_dir": {"output": "s3://bucket/packed"},
    }
    needs = all_needs.get(field.name, {})
    kind = str(field.type)
    example = examples.get(
        field.name, "left" if field.name == "truncation_side" else 7 if "int" in kind else "word"
    )
    typed = True if field.type is bool else example
    (here / "build.yaml").write_text(json.dumps({"sources": "a", field.name: typed, **needs}))
    from_file, _ = resolve_options((), Path("build.yaml"), {})
    with build_command.make_context("build", _arguments(field, example, needs)) as context:
        parameters = {
            key: value for key, value in context.params.items() if key not in ("sources", "config")
        }
    assert resolve_options(("a",), None, parameters)[0] == from_file
    assert getattr(from_file, field.name) != field.default
    (here / "resolved.yaml").write_text(to_yaml(from_file))
    once = {key: getattr(from_file, key) for key in options_in("once")}
    assert replace(resolve_options((), Path("resolved.yaml"), {})[0], **once) == from_file


def _arguments(field: Any, example: Any, needs: dict[str, Any]) -> list[str]:
    flag = "--" + field.name.replace("_", "-")
    arguments = [flag] if field.type is bool else [flag, str(example)]
    return [
        "a",
        *arguments,
        *(
            word
            for key, value in needs.items()
            for word in (f"--{key.replace('_', '-')}", str(value))
        ),
    ]


def test_dry_run_json_and_quiet_are_keys_of_the_file_too(here: Path) -> None:
    (here / "packprep.yaml").write_text(
        "sources: a.jsonl\noutput: out\ntokenizer: tok\ndry-run: true\njson: true\n"
    )
    assert "prediction" in json.loads(run("build").out)
    assert not (here / "out").exists()
    (here / "packprep.yaml").write_text("sources: a.jsonl\noutput: out\ntokenizer: tok\nquiet: 1\n")
    assert error_of() == "quiet is 1, expected true or false"


def test_shuffle_and_no_shuffle_are_short_for_order(here: Path) -> None:
    assert resolve_options(("a",), None, {"shuffle": False})[0].order == "input"
    assert resolve_options(("a",), None, {"shuffle": True})[0].order == "shuffle"
    (here / "build.yaml").write_text("order: length\n")
    assert resolve_options((), Path("build.yaml"), {"shuffle": True})[0].order == "shuffle"
    (here / "build.yaml").write_text("shuffle: false\n")
    assert resolve_options((), Path("build.yaml"), {})[0].order == "input"
    with pytest.raises(
        ConfigError, match="order and shuffle set the same option; give only one of them"
    ):
        resolve_options(("a",), None, {"shuffle": True, "order": "length"})


def test_a_flag_of_the_file_can_be_switched_off(here: Path) -> None:
    (here / "build.yaml").write_text("overwrite: true\n")
    assert resolve_options((), Path("build.yaml"), {"overwrite": False})[0].overwrite is False
    with build_command.make_context("build", ["--no-overwrite"]) as context:
        assert context.params["overwrite"] is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no source is given and there is no packprep.yaml here; see packprep build --help"),
        (
            ["a.jsonl", "--tokenizer", "tok"],
            "no output is given; add -o with the directory to write to",
        ),
        (
            ["a.jsonl", "-o", "out"],
            "no tokenizer is given; add --tokenizer with a tokenizer.json, a directory or a hub "
            "name",
        ),
        (
            ["a.jsonl", "-o", "a.jsonl", "--tokenizer", "tok"],
            "a.jsonl is not a directory; choose another -o",
        ),
        (
            ["a.jsonl", "--limit", "many"],
            "limit is 'many', expected a whole number such as 2000, 2k or 2Ki",
        ),
        (["a.jsonl", "--strategy", "bestfit"], "strategy is 'bestfit'; did you mean 'best_fit'?"),
        (["a.jsonl", "--max-length", "1"], "max_length is 1, expected at least 2"),
        (
            ["a.jsonl", "--unit-size", "big"],
            "unit_size is 'big', expected a size such as 500MB or 64MiB",
        ),
        (["-c", "gone.yaml"], "no configuration file gone.yaml; check the path given with -c"),
        (
            ["a.jsonl", "--stride"],
            "option '--stride' requires an argument; see packprep build --help",
        ),
        (
            ["a.jsonl", "-o", "out", "--tokenizer", "tok", "--bos", "none", "--continuation-bos"],
            "continuation_bos needs a BOS, and this tokenizer has none; choose one with --bos "
            "TOKEN",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(here: Path, arguments: list[str], sentence: str) -> None:
    assert error_of(*arguments) == sentence
    assert sorted(path.name for path in here.iterdir()) == ["a.jsonl", "tok"]


def test_an_unknown_option_suggests_the_nearest(here: Path) -> None:
    assert "no such option '--max-lenght'" in error_of("a.jsonl", "--max-lenght", 8)
    assert "--max-length" in error_of("a.jsonl", "--max-lenght", 8)


def test_standard_input_is_a_source(here: Path) -> None:
    arguments = ("-o", "out", "--tokenizer", "tok", "--max-length", 64, "--json")
    piped = run("build", "-", *arguments, stdin=(here / "a.jsonl").read_bytes())
    assert piped.code == 0
    plain = run("build", "a.jsonl", *arguments[:1], "plain", *arguments[2:])
    assert json.loads(piped.out)["tokens"] == json.loads(plain.out)["tokens"]
    assert (
        error_of("-", *arguments[:1], "other", *arguments[2:])
        == "standard input is empty; expected JSON lines"
    )


def test_dry_run_shows_options_and_prediction_and_writes_nothing(here: Path) -> None:
    before = sorted(here.rglob("*"))
    result = run(
        "build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--max-length", 64, "--dry-run"
    )
    assert result.code == 0
    assert sorted(here.rglob("*")) == before
    assert "the whole input" in result.out
    assert "max_length" in result.out
    assert result.err == ""


def test_limit_and_max_tokens_reach_the_build(here: Path) -> None:
    report = json.loads(
        run("build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--limit", 7, "--json").out
    )
    assert report["documents"]["in"] == 7


def command(*arguments: object, **settings: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "packprep", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def test_the_program_exits_0_when_done_and_2_on_bad_input(here: Path) -> None:
    done = command("build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--json")
    out, _ = done.communicate()
    assert done.returncode == 0
    assert json.loads(out)["documents"]["in"] == 60
    (here / "bad.csv").write_text('text\n"open')
    refused = command("build", "bad.csv", "-o", "other", "--tokenizer", "tok")
    out, err = refused.communicate()
    assert (refused.returncode, out) == (2, "")
    assert (
        err
        == "packprep: bad.csv line 2: a quote in this row is never closed; quote it as CSV does\n"
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['packprep', 'build', '--help']\n"
        "from packprep.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "loaded = {'numpy', 'pyarrow', 'numba', 'datasets', 'tokenizers', 'rich', 'yaml'} & "
        "set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: packprep build" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 3)])
def test_a_stopped_build_ends_with_one_line_and_no_output(
    here: Path, number: int, code: int
) -> None:
    write_jsonl(here / "big.jsonl", texts(200) * 3000)
    running = command(
        "build", "big.jsonl", "-o", "out", "--tokenizer", "tok", "--engine", "hf", "--num-proc", 1
    )
    deadline = time.monotonic() + 60
    while not (here / "out.incomplete" / "tokens").exists():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)  # now a thread works on a unit
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == code
    assert err.splitlines()[-1] == (
        "packprep: stopped; to resume: packprep build big.jsonl -o out --tokenizer tok --engine hf "
        "--num-proc 1"
    )
    assert not (here / "out").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 3)])
def test_a_build_may_be_stopped_while_it_is_still_loading(
    here: Path, number: int, code: int
) -> None:
    wait = "import time; print('loading', flush=True); time.sleep(60)"
    (here / "sitecustomize.py").write_text(
        "import importlib.abc, sys\n"
        "class Slow(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'packprep.execute.pipeline': exec({wait!r})\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    path = os.pathsep.join([str(here), *sys.path])
    running = command(
        "build", "a.jsonl", "-o", "out", "--tokenizer", "tok", env=os.environ | {"PYTHONPATH": path}
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "loading\n"
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == code
    assert err.startswith("packprep: stopped; to resume: packprep build a.jsonl -o out")


def test_the_cursor_of_a_terminal_is_restored(here: Path) -> None:
    import pty

    main, child = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "packprep", "build", "a.jsonl", "-o", "out", "--tokenizer", "tok"],
        stdout=subprocess.PIPE,
        stderr=child,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(child)
    shown = b""
    while True:
        try:
            block = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        shown += block
    os.close(main)
    out, _ = running.communicate()
    assert running.returncode == 0
    assert b"tokenize" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert b"utilization" in out
    assert b"\x1b" not in out


@pytest.mark.parametrize("flag", ["--max-len", "--min-len"])
def test_an_output_of_an_earlier_flag_is_done_already_with_the_new_one(
    here: Path, flag: str
) -> None:
    """The identity of an output does not change with the names of its options."""
    name = flag.replace("-len", "-document-tokens")
    arguments = ["build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--max-length", "64"]
    first = run(*arguments, f"{flag}=20", "-q")
    assert (first.code, first.err) == (0, f"packprep: {flag} is called {name} now\n")
    recorded = options_of()
    assert recorded[flag[2:].replace("-", "_")] == 20
    made = (here / "out" / "manifest.json").read_bytes()
    assert run(*arguments, name, 20, "-q").code == 0
    written = (here / "out" / "build.yaml").read_text()
    assert name[2:].replace("-", "_") + ": 20\n" in written
    (here / "earlier.yaml").write_text(written.replace("_document_tokens", "_len"))
    assert run("build", "-c", "earlier.yaml", "-q").code == 0
    assert (here / "out" / "manifest.json").read_bytes() == made, "nothing was built again"
    other = run(*arguments, name, 21, "-q")
    assert other.code == 2
    assert f"{name[2:].replace('-', '_')} was 20, now 21" in other.err
    assert run("verify", "out", "--level", "full").code == 0
    assert run("plan", "a.jsonl", "--tokenizer", "tok", flag, 20).err.endswith(
        f"packprep: {flag} is called {name} now\n"
    )
