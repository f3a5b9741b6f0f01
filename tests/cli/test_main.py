"""The command line: help, wrong usage, files of options, exit codes and signals."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig
from packprep.cli.commands.build import command as build_command
from packprep.cli.commands.build import resolve_options
from packprep.cli.main import COMMANDS, GONE_COMMANDS
from packprep.config.stages import Command, options_in
from packprep.config.yaml_file import to_yaml
from packprep.engines.third_party import is_fast
from packprep.schemas import read_manifest
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

BUILD = "build a.jsonl -o out --tokenizer tok"
OPTIONS = [field for field in fields(BuildConfig) if field.name != "sources"]
SIGNALS = [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 3, marks=pytest.mark.long)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a.jsonl of 60 documents and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    return tmp_path


def packprep(line: str) -> Result:
    return run(*line.split())


def options_of(output: str = "out") -> dict[str, Any]:
    inputs: dict[str, Any] = read_manifest(Path(output)).data["inputs"]["options"]
    return inputs


def error_of(line: str) -> str:
    """The sentence of a wrong usage."""
    result = packprep(line)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("packprep: "), result.err
    return result.err.removeprefix("packprep: ").rstrip("\n")


def interpreter(code: str, *arguments: str, **variables: str) -> str:
    """Standard output of this code in a new interpreter that has these variables."""
    unset = ("MALLOC_ARENA_MAX", "ARROW_DEFAULT_MEMORY_POOL")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment | variables,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode(errors="replace")


def started(line: str, **settings: Any) -> "subprocess.Popen[str]":
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "packprep", *line.split()]
    return subprocess.Popen(command, text=True, **pipes | settings)


# Help


def test_packprep_alone_prints_its_help_with_the_list_of_commands() -> None:
    result = run()
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.out == packprep("--help").out
    listed = result.out.split("Commands:\n")[1].splitlines()
    assert [line.split(maxsplit=1) for line in listed] == [list(row) for row in COMMANDS.items()]
    assert packprep("--version").out.startswith("packprep ")


def test_help_of_no_command_imports_what_takes_time() -> None:
    code = (
        "import sys; from packprep.cli.main import cli, COMMANDS\n"
        "for name in COMMANDS: cli([name, '--help'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    loaded = {module.split(".")[0] for module in interpreter(code).splitlines()[-1].split()}
    heavy = {"numpy", "pyarrow", "datasets", "numba", "tokenizers", "rich", "yaml"}
    assert loaded.isdisjoint(heavy)


# Wrong usage


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("biuld a.jsonl", "no such command 'biuld'; did you mean 'build'?"),
        ("prepare a.jsonl", "no such command 'prepare'; did you mean 'build'?"),
        ("tokenize --max-length 4", "--max-length is an option of packprep pack;"),
        ("pack --text-column a", "--text-column is an option of packprep tokenize;"),
        ("inspect packed", "no such command 'inspect'; did you mean 'show'?"),
        ("--versin", "no such option '--versin'; did you mean '--version'?"),
        ("build --max-lenght 4", "no such option '--max-lenght'; did you mean '--max-length'?"),
        ("build --qqqqq", "no such option '--qqqqq';"),
        ("build a.jsonl --seq-len 4096", "--seq-len is called --max-length here;"),
        ("build --cutoff_len=4096", "--cutoff_len is called --max-length here;"),
        ("plan --workers 4", "--workers is called --num-proc here;"),
        ("build --dataset a.jsonl", "--dataset is called SOURCE here;"),
        ("show packed --tokenizer-name gpt2", "--tokenizer-name is called --tokenizer here;"),
        ("env --seq-len 4096", "no such option '--seq-len';"),
        (
            "env --bundle issue.zip packed",
            "--bundle is gone: add packprep env --json, and report.json and build.yaml of the "
            "output, to the issue;",
        ),
        *((f"{name} packed", f"{name} is gone: {now};") for name, now in GONE_COMMANDS.items()),
        ("qqqqq", f"no such command 'qqqqq', expected one of {', '.join(COMMANDS)};"),
    ],
)
def test_a_mistyped_foreign_or_earlier_word_is_answered_with_the_one_to_use(
    line: str, sentence: str
) -> None:
    command = "packprep" + (f" {line.split()[0]}" if line.split()[0] in COMMANDS else "")
    assert error_of(line) == f"{sentence} see {command} --help"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("build", "no source is given and there is no packprep.yaml here; see packprep build"),
        ("build a.jsonl --tokenizer tok", "no output is given; add -o with the directory"),
        ("build a.jsonl -o out", "no tokenizer is given; add --tokenizer with a tokenizer.json,"),
        ("build a.jsonl -o a.jsonl --tokenizer tok", "a.jsonl is not a directory"),
        ("build a.jsonl --limit many", "--limit is 'many', expected a whole number such as 2000"),
        ("build a.jsonl --strategy bestfit", "--strategy is 'bestfit'; did you mean 'best_fit'?"),
        ("build -c gone.yaml", "no configuration file gone.yaml; check the path given with -c"),
        ("build a.jsonl --stride", "option '--stride' requires an argument; see packprep build"),
        (f"{BUILD} --bos none --continuation-bos", "--continuation-bos needs a BOS, and none"),
        ("build - -o out --tokenizer tok", "standard input is empty; expected JSON lines"),
    ],
)
def test_wrong_usage_is_one_sentence_and_writes_nothing(here: Path, line: str, words: str) -> None:
    assert error_of(line).startswith(words)
    assert sorted(path.name for path in here.iterdir()) == ["a.jsonl", "tok"]


# What a build prints


def test_json_prints_the_report_and_quiet_prints_nothing_and_notes_go_to_standard_error(
    here: Path,
) -> None:
    quiet = packprep(f"{BUILD} --limit 7 --quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    table = packprep(f"{BUILD} --limit 7 --overwrite").out.splitlines()
    assert (table[0], table[-1].split()[0]) == ("out", "sha256")
    save_tokenizer(here / "tok", config={"bos_token": None, "eos_token": "</s>"})
    noted = packprep(f"{BUILD} --limit 7 --json --overwrite")
    assert "no BOS: tokenizer_config.json says bos_token is null\n" in noted.err
    report = json.loads(noted.out)
    assert report == json.loads((here / "out" / "report.json").read_text())
    assert report["documents"]["in"] == 7


def test_an_output_of_earlier_flags_is_done_already_with_the_new_ones(here: Path) -> None:
    """The identity of an output does not change with the names of its options."""
    build = f"{BUILD} --max-length 64 -q"
    first = packprep(f"{build} --min-len 20 --overflow truncate --truncation-side left")
    assert (first.code, first.err, options_of()["truncation_side"]) == (0, "", "left")
    made = (here / "out" / "manifest.json").read_bytes()
    new = f"{build} --min-document-tokens 20 --overflow truncate"
    assert packprep(f"{new}:left").code == packprep("build -c out/build.yaml -q").code == 0
    assert (here / "out" / "manifest.json").read_bytes() == made, "nothing was built again"
    assert "overflow was 'truncate:left', now 'truncate'" in packprep(new).err


# Files of options


def test_the_yaml_file_in_the_working_folder_is_a_build_of_its_own(here: Path) -> None:
    keys = "sources: [a.jsonl]\noutput: out\ntokenizer: tok\n"
    (here / "packprep.yaml").write_text(f"{keys}max-length: 64\nstrategy: greedy\n")
    assert packprep("build").code == 0
    assert options_of()["strategy"] == "greedy"
    assert packprep("build --strategy best_fit -o other").code == 0
    assert (options_of("other")["strategy"], options_of("other")["max_length"]) == ("best_fit", 64)
    (here / "packprep.yaml").write_text(f"{keys}dry-run: true\njson: true\noverwrite: true\n")
    assert "prediction" in json.loads(packprep("build").out)
    for wrong, sentence in (
        ("quiet: 1", "quiet is 1, expected true or false"),
        ("nonsense: 1", "packprep.yaml has an unknown option 'nonsense'"),
    ):
        (here / "packprep.yaml").write_text(f"{keys}{wrong}\n")
        assert sentence in error_of("build")
    assert packprep("build a.jsonl -o third --tokenizer tok").code == 0, "not read with sources"
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "b.yaml").write_text(keys)
    assert packprep("build -c elsewhere/b.yaml -o fourth -q").code == 0, "paths start here"


EXAMPLES: dict[str, Any] = (
    {"tokenizer": "t", "strategy": "wrapped", "overflow": "drop", "order": "input:4:1,2"}
    | {"materialize": "index", "stride": 5, "engine": "hf", "sample_by": "line"}
    | {"on_error": "skip", "truncate_at": "END"}
    | {"columns": "position_ids", "names": "hf", "token_type": "auto", "text_template": "{a}"}
    | {"boundaries": "eos", "unit_size": "1MB", "window": "2MB", "shard_size": "3MB"}
    | {"holdout": 0.5, "verify_engine": 0.5, "min_document_tokens": 2, "weights": "50"}
    | {"pad_segment_to_multiple": 8, "max_epochs": 2.5, "train_on": "all", "turns": "each"}
    | {"train_fields": "content", "pair_columns": "a,b", "template_variables": '{"a": 1}'}
    | {"executor": "ray:auto", "part": "3/8", "packs_multiple_of": "7:fill"}
    | {"phases": '[{"tokens": 50, "max_length": 32}]', "cost_of": "config.json"}
)
"""A value of each option that is neither its default, nor a word, nor the number 7."""
_IDS, _CHAT = {"input_ids_column": "ids"}, {"messages_column": "auto"}
NEEDS: dict[str, dict[str, Any]] = {
    "join_pieces": {"segments_column": "pieces"},
    **dict.fromkeys(("labels_column", "vocab_size", "boundaries"), _IDS),
    **dict.fromkeys(("train_on", "train_fields", "turns", "chat_template"), _CHAT),
    **dict.fromkeys(("template_date", "template_variables", "renderer"), _CHAT),
    "train_overlap": {"stride": 5},
    "shuffle_documents": {"strategy": "stream"},
    "max_epochs": {"weights": "1"},
    "prompt_column": {"response_column": "r"},
    "response_column": {"prompt_column": "p"},
    "pair_columns": {"overflow": "drop"},
    "work_dir": {"output": "s3://bucket/packed"},
}
"""Other options that an option needs."""


@pytest.mark.parametrize("field", OPTIONS, ids=lambda field: field.name)
def test_every_option_is_also_a_key_of_the_file_with_the_same_meaning(
    here: Path, field: Any
) -> None:
    model = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9}
    (here / "config.json").write_text(json.dumps(model))
    is_flag, needs = field.type is bool, NEEDS.get(field.name, {})
    example = is_flag or EXAMPLES.get(field.name, 7 if "int" in str(field.type) else "word")
    (here / "build.yaml").write_text(json.dumps({"sources": "a", field.name: example, **needs}))
    from_file, _ = resolve_options((), Path("build.yaml"), {})
    given = {field.name: example} | needs
    flags = {name: "--" + name.replace("_", "-") for name in given}
    arguments = [
        word
        for name, value in given.items()
        for word in ([flags[name]] if name == field.name and is_flag else [flags[name], str(value)])
    ]
    with build_command.make_context("build", ["a", *arguments]) as context:
        unnamed = ("sources", "config")
        parameters = {key: value for key, value in context.params.items() if key not in unnamed}
    assert resolve_options(("a",), None, parameters)[0] == from_file
    kept = {"cost_of": "order"}.get(field.name, field.name)  # which has its numbers
    assert getattr(from_file, kept) != getattr(BuildConfig(), kept)
    (here / "resolved.yaml").write_text(to_yaml(from_file))
    once = {key: getattr(from_file, key) for key in options_in(Command)}
    assert replace(resolve_options((), Path("resolved.yaml"), {})[0], **once) == from_file


@pytest.mark.parametrize(
    ("keys", "parameters", "option", "value"),
    [
        ("order: length\n", {"shuffle": True}, "order", "shuffle"),
        ("balance_ranks: 4\n", {"shuffle": False}, "order", "input:4"),
        ("strategy: balanced:8\n", {"num_packs": "9"}, "strategy", "balanced:9"),
        ("overwrite: true\n", {"overwrite": False}, "overwrite", False),
    ],
)
def test_the_command_line_wins_over_the_file(
    here: Path, keys: str, parameters: dict[str, Any], option: str, value: object
) -> None:
    (here / "build.yaml").write_text(f"sources: a\n{keys}")
    assert resolve_options(("b",), Path("build.yaml"), {})[0].sources == ("b",)
    assert getattr(resolve_options((), Path("build.yaml"), parameters)[0], option) == value
    with build_command.make_context("build", ["--no-overwrite"]) as context:
        assert context.params["overwrite"] is False


# Processes


OTHERS = {"MALLOC_ARENA_MAX": "4", "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc"
)
@pytest.mark.parametrize(
    ("variables", "engine", "arenas", "pool"),
    [
        ({}, "fastokens", 2, "system"),
        pytest.param({}, "hf", 12, "system", marks=pytest.mark.long),
        pytest.param(OTHERS, "fastokens", 4, "mimalloc", marks=pytest.mark.long),
    ],
)
def test_threads_share_arenas_and_arrow_takes_the_system_allocator_unless_the_environment_differs(
    here: Path, variables: dict[str, str], engine: str, arenas: int, pool: str
) -> None:
    code = """if True:
        import ctypes, sys, threading
        import pyarrow as pa
        from packprep.cli.main import cli
        cli.main(sys.argv[1:], standalone_mode=False)
        print("pool", pa.default_memory_pool().backend_name, flush=True)
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
    line = f"{BUILD} --num-proc 2 --engine {engine} --dry-run -q --json"
    out = interpreter(code, *line.split(), **variables)
    assert (out.count("<heap nr="), f"pool {pool}\n" in out) == (arenas, True)


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
        file = {"added_tokens": [], "model": {"type": model}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(file, indent=2))
    config = BuildConfig(sources=("a",), output="b", tokenizer=str(tmp_path), engine=engine)
    assert is_fast(config.tokenizing) is fast


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_stopped_build_ends_with_one_line_and_no_output(
    here: Path, number: int, code: int
) -> None:
    write_jsonl(here / "big.jsonl", texts(200) * 3000)
    line = "build big.jsonl -o out --tokenizer tok --engine hf --num-proc 1"
    running = started(line)
    deadline = time.monotonic() + 60
    while not (here / "out.incomplete" / "tokens").exists():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)  # now a thread works on a unit
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == code
    assert err.splitlines()[-1] == f"packprep: stopped; to resume: packprep {line}"
    assert not (here / "out").exists()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
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
    running = started(BUILD, env=os.environ | {"PYTHONPATH": path})
    assert running.stdout is not None
    assert running.stdout.readline() == "loading\n"
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == code
    assert err.startswith("packprep: stopped; to resume: packprep build a.jsonl -o out")


def test_the_cursor_of_a_terminal_is_restored(here: Path) -> None:
    import pty

    main, child = pty.openpty()
    running = started(BUILD, stderr=child, env=os.environ | {"TERM": "xterm"})
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
    assert (running.returncode, b"tokenize" in shown) == (0, True)
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert ("utilization" in out, "\x1b" in out) == (True, False)
