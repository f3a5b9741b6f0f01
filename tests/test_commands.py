"""What a user sees: help, closing table, dry runs, refusals, Ctrl-C."""

import contextlib
import datetime
import errno
import gzip
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

import packprep
from packprep import BuildConfig
from packprep.cli.main import COMMANDS
from packprep.config.yaml_file import from_yaml
from packprep.packing.plan import PackPlan
from packprep.support.errors import ConfigError
from packprep.support.limits import locked
from packprep.support.progress import Console

from .conftest import Command

HEADINGS = (
    *("Every build", "Text", "Chats", "Pairs, ids, pieces", "Packs", "Mixes and amounts"),
    *("For a trainer", "First tries", "Running"),
)
BUILD = ("build", "in/a.jsonl", "--tokenizer", "in/tiny", "--max-length", "64", "--num-proc", "1")


@pytest.fixture(autouse=True)
def here(record_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the inputs `in`."""
    (tmp_path / "in").symlink_to(record_inputs)
    monkeypatch.chdir(tmp_path)


def test_progress_says_the_rate_and_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0, 100, 120, 125])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    console = Console()
    for done in (5, 10, 20):  # the third is too early for another line
        console.advance("tokenize", done, 4000, "MB")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "tokenize: 5 of 4,000 MB"
    assert second == "tokenize: 10 of 4,000 MB, 0.5 MB/s, 2:13:00 left"


def test_the_help_of_build_has_headings_and_fits_a_terminal() -> None:
    command = [sys.executable, "-m", "packprep", "build", "-h"]
    environment = {**os.environ, "COLUMNS": "80"}
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = said.stdout.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":") and line[0] != " "] == [*HEADINGS]
    assert len(lines) <= 65
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("rows", "option"),
    [
        (["--messages", "m", "--chat-template", "in/chat.jinja"], ["--bos", "<s>"]),
        (["--messages", "m", "--chat-template", "in/chat.jinja"], ["--eos", "none"]),
        (["--pairs", "p,a,b", "--chat-template", "in/chat.jinja"], ["--eos", "none"]),
        (["--messages", "m", "--chat-template", "in/f.py:f"], ["--train-on", "last-turn"]),
        (["--pieces", "p"], ["--train-on", "last-turn"]),
        (["--messages", "m", "--chat-template", "in/f.py:f"], ["--turns", "each"]),
        (["--messages", "m", "--turns", "auto"], ["--train-on", "last-turn"]),
        (["--pairs", "a,b"], ["--train-on", "all"]),
        (["--pairs", "a,b", "--ids", "auto"], ["--train-on", "all"]),
        (["--ids", "ids"], ["-c", "in/continued.yaml"]),
        (["--bos", "none"], ["-c", "in/continued.yaml"]),
    ],
    ids=lambda each: " ".join(each),
)
def test_an_option_that_can_do_nothing_is_refused(
    run: Command, rows: list[str], option: list[str]
) -> None:
    Path("in/chat.jinja").write_text("{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    Path("in/f.py").write_text("def f(messages, tools, **variables):\n    return []\n")
    Path("in/continued.yaml").write_text("continuation_bos: true\n")
    said = run(*BUILD, "-o", "out", *rows, *option)
    assert (said.code, "leave out" in said.err or "leave it out" in said.err) == (2, True)


def test_an_option_is_given_once(run: Command) -> None:
    said = run(*BUILD, "-o", "out", "--seed", "1", "--seed", "2")
    assert (said.code, said.err) == (2, "error: --seed is given twice; give it once\n")


def test_options_on_the_command_line_win_over_those_of_a_file(run: Command) -> None:
    options = {"sources": ["in/a.jsonl"], "tokenizer": "in/tiny", "max-length": "1Ki", "seed": 3}
    Path("some.yaml").write_text(yaml.safe_dump(options))
    assert run("build", "-c", "some.yaml", "-o", "out", "--max-length", "64", "-q").code == 0
    written = from_yaml(Path("out/build.yaml"))
    assert (written["max_length"], written["seed"]) == (64, 3)


def test_a_finished_output_is_left_alone_and_another_is_refused(run: Command) -> None:
    assert run(*BUILD, "-o", "out", "-q").code == 0
    before = Path("out/manifest.json").read_bytes()
    said = run(*BUILD, "-o", "out")
    assert said.code == 0
    assert "nothing to do" in said.err
    said = run(*BUILD, "-o", "out", "--seed", "1")
    assert said.code == 2
    assert "seed was default, now 1" in said.err
    assert Path("out/manifest.json").read_bytes() == before
    assert run(*BUILD, "-o", "out", "--seed", "1", "--overwrite", "-q").code == 0
    assert Path("out/manifest.json").read_bytes() != before


@pytest.mark.parametrize("name", ["", ".", "/", "..", "in/..", "x" * 250])
def test_an_output_that_can_be_no_new_folder_is_refused(run: Command, name: str) -> None:
    for command in (BUILD, ("pack", "store")):
        said = run(*command, "-o", name)
        assert said.code == 2
        assert said.err.startswith(f"error: -o is {name!r}, expected")


@pytest.mark.parametrize("changed", ["rows", "options"])
def test_a_build_that_finished_nothing_is_begun_again(run: Command, changed: str) -> None:
    rows = Path("rows.jsonl")
    rows.write_text('{"text": "a"}\n{"text": 3}\n')
    command = ("build", "rows.jsonl", *BUILD[2:], "-o", "out", "-q")
    assert run(*command).code == 2
    assert Path("out.incomplete/job.json").exists()
    if changed == "rows":
        rows.write_text('{"text": "a"}\n{"text": "b"}\n')
    more = [] if changed == "rows" else ["--on-error", "skip", "--seed", "1"]
    assert run(*command, *more) == (0, "", "")


def test_finished_work_of_another_build_is_kept(run: Command) -> None:
    command = ("build", "in/long.jsonl", *BUILD[2:], "-o", "out", "-q")
    assert "choose truncate or drop" in run(*command, "--overflow", "error").err
    said = run(*command)
    assert (said.code, said.out) == (2, "")
    assert "repeat its command, or add --overwrite (overflow was error, now default)" in said.err
    assert run(*command, "--overwrite").code == 0
    Path("out").rename("out.incomplete")  # as a kill just before this rename leaves it
    assert "repeat its command, or add --overwrite" in run(*command, "--seed", "1").err


def test_nothing_is_made_in_an_output(run: Command) -> None:
    assert run(*BUILD, "-o", "out", "-q").code == 0
    makes = (BUILD, ("tokenize", *BUILD[1:4]), ("export", "out", "--to", "hf"))
    for make in makes:
        said = run(*make, "-o", "out/sub")
        assert (said.code, "is in the finished output" in said.err) == (2, True)
    assert run("verify", "out").out == "out: sound\n"
    said = run("export", "out", "--to", "hf", "-o", "in/a.jsonl/x")
    assert "in/a.jsonl: File exists; choose a place" in said.err
    for name in ("README.md", "more.txt"):  # repositories of the hub have the first
        Path("out", name).touch()
    assert run("verify", "out").out.startswith(
        "surplus file: out/more.txt is not in the manifest\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_no_types_of_the_library(name: str) -> None:
    command: Any = importlib.import_module(f"packprep.cli.{name}").command
    text = command.get_help(click.Context(command, info_name=name, terminal_width=80))
    assert "RANGE" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("tokenize", "in/a.jsonl", "--tokenizer", "in/tiny"), "-o"),
        (("build", "in/a.jsonl", "--tokenizer", "in/tiny"), "-o"),
        (("build", "in/a.jsonl", "-o", "out"), "--tokenizer"),
        ((*BUILD, "-o", "out", "--columns", "plan"), "--store"),
        (("verify", "out", "--sample", "0"), "--sample"),
        (("export", "out", "-o", "x", "--to", "y"), "--to"),
        (("plan", "in/a.jsonl", "--tokenizer", "in/tiny", "--sample", "0"), "--sample"),
    ],
)
def test_an_error_names_options_that_the_command_has(
    run: Command, command: tuple[str, ...], named: str
) -> None:
    if command[0] in ("verify", "export"):
        assert run(*BUILD, "-o", "out", "-q").code == 0
    said = run(*command)
    options: Any = importlib.import_module(f"packprep.cli.{command[0]}").command.params
    known = {flag for option in options for flag in option.opts}
    found = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said.err)}
    assert (said.code, named in found, found - known) == (2, True, set())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--overflow", "drop"], "leave out overflow"),
        (["--overflow", "truncate"], "raise --max-length"),
        (["--overflow", "error"], "choose truncate or drop"),
    ],
)
def test_nothing_advises_to_split_pairs(run: Command, options: list[str], cause: str) -> None:
    pairs = ("in/pairs.jsonl", "--tokenizer", "in/tiny", "--pairs", "chosen,rejected")
    assert run("tokenize", *pairs, "-o", "st", "-q").code == 0
    assert "--bos can do nothing here" in run("pack", "st", "-o", "out", "--bos", "none").err
    for command in (("build", *pairs), ("pack", "st")):
        said = run(*command, "-o", command[0], "--max-length", "24", *options)
        assert cause in " ".join(said.err.split())
        assert "split" not in said.err


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (["--multiple", "64:fill"], "packs are filler of --multiple"),
        (["--max-tokens", "10B"], "of 10,000,000,000 of --max-tokens; the sources have no more"),
    ],
)
def test_what_an_amount_leads_to_is_said(run: Command, options: list[str], note: str) -> None:
    assert note in " ".join(run(*BUILD, "-o", "out", *options).err.split())
    said = run(*BUILD, "-o", "few", "--max-tokens", "500", "--multiple", "1:fill").err
    assert "--max-tokens" not in said
    assert "filler" not in said


def test_a_dry_run_says_what_the_build_makes_and_leaves_nothing(run: Command) -> None:
    dry = run(*BUILD, "-o", "out", "--holdout", "50%", "--multiple", "4000", "--dry-run")
    assert dry.code == 0
    assert not Path("out").exists()
    assert not Path("out.incomplete").exists()
    assert "the first 16 MB of each source, 100.0% of the text" in dry.out
    Path("after.yaml").write_text("after: out\n")
    assert run(*BUILD, "-o", "out").code == 0
    report = json.loads(Path("out/report.json").read_bytes())
    whole = f"about {report['tokens']['tokens_packed']:,} tokens in {report['packs']:,} packs"
    assert whole in dry.out
    for options in (["-o", "out", "--dry-run"], []):
        name = "plan" if not options else "build"
        after = run(name, *BUILD[1:], *options, "-c", "after.yaml")
        assert (after.code, f"{report['packs']:,}" in after.out) == (0, True), after.err


def test_a_full_disk_is_predicted_before_the_text_is_read(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")._replace(free=100)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: usage)
        said = run(*BUILD, "-o", "out")
    assert said.code == 3
    assert "out.incomplete" in said.err
    assert "has 0.0 MB free; free some" in said.err
    assert not [*Path("out.incomplete").rglob("*.arrow")]
    assert run(*BUILD, "-o", "out", "-q").code == 0


def test_a_disk_that_fills_up_is_named(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        said = run(*BUILD, "-o", "out")
    assert said.code == 3
    assert "out.incomplete" in said.err
    assert "No space left on device; finished work is kept: make room" in said.err
    assert not [*Path("out.incomplete").rglob("*.tmp")]
    assert run(*BUILD, "-o", "out", "-q").code == 0


def test_one_process_at_a_time_holds_the_lock_of_a_folder(tmp_path: Path) -> None:
    """Its file is removed by each owner, often just when others have opened it."""
    inside, most = list[int](), list[int]()

    def work(number: int) -> None:
        for _ in range(100):
            with contextlib.suppress(ConfigError), locked(tmp_path / "out", "out is being built"):
                inside.append(number)
                time.sleep(0.0001)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max(most) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_ctrl_c_says_how_to_resume(run: Command) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}; from packprep.cli.main import main; main()"  # else & ignores it
    command = [sys.executable, "-c", program, "build", "-", *BUILD[2:], "-o", "out"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not [*Path("out.incomplete").rglob("stdin.jsonl")]:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said.strip() == "stopped; run the same command again to resume"


@pytest.mark.long
def test_a_damaged_token_file_amid_a_streamed_source_is_made_again(run: Command) -> None:
    line = json.dumps({"text": "a rose is a rose " * 600}) + "\n"
    Path("big.jsonl.gz").write_bytes(gzip.compress(line.encode() * 3600, 1))  # 36 MB of text
    named = ("tokenize", "big.jsonl.gz", "-o", "store", "--tokenizer", "in/tiny", "-q")
    assert run(*named).code == 0
    files = sorted(Path("store").rglob("*.arrow"))
    before = [file.read_bytes() for file in files]
    assert len(before) == 3
    files[1].write_bytes(before[1][:-1] + b"x")
    assert run(*named).code == 0
    assert [file.read_bytes() for file in files] == before


def by_pairs(lengths: Any, max_length: int) -> PackPlan:
    """A planner of one's own: two neighbours a pack where they fit, in input order."""
    offsets = [0]
    while (at := offsets[-1]) < len(lengths):
        offsets.append(at + 2 if lengths[at : at + 2].sum() <= max_length else at + 1)
        offsets[-1] = min(offsets[-1], len(lengths))
    return PackPlan(lengths, max_length, np.arange(len(lengths)), np.array(offsets))


def test_a_planner_of_ones_own_makes_the_packs_and_is_in_the_identity(run: Command) -> None:
    same: dict[str, Any] = {"sources": ["in/a.jsonl"], "tokenizer": "in/tiny", "max_length": 64}
    own = packprep.build(BuildConfig(**same, output="own", order="input"), planner=by_pairs)
    inputs_of = own.manifest.data["inputs"]
    assert inputs_of["planner"] == f"{__name__}.by_pairs"
    plain = packprep.build(BuildConfig(**same, output="plain", order="input"))
    assert plain.manifest.identity != own.manifest.identity
    report = json.loads(Path("own/report.json").read_bytes())
    assert report["documents_per_pack"]["max"] == 2
    assert run("verify", "own").code == 0
    for epoch in (0, 1):
        options: dict[str, Any] = {"pairs": "prompt,chosen,rejected", "epoch": epoch}
        config = BuildConfig(**same | {"sources": ["in/pairs.jsonl"]}, **options, output=f"{epoch}")
        packprep.build(config, planner=by_pairs)
        assert run("verify", f"{epoch}").code == 0


def test_a_config_is_read_back_from_its_yaml(tmp_path: Path) -> None:
    config = BuildConfig(
        sources=["a b,c.jsonl", {"path": "${b}.jsonl", "limit": 3}],
        output=tmp_path / "out",  # type: ignore[arg-type]
        tokenizer="in/tiny",
        eos=2,  # type: ignore[arg-type]
        weights=[5e-05, 1],
        max_length="8Ki",
        carry=["stars:int32"],
        columns="document_ids",
        holdout="1%:7",
        truncate_at="\\$",
        window="2GB",
    )
    path = tmp_path / "build.yaml"
    path.write_text(config.to_yaml())
    assert BuildConfig(**from_yaml(path)) == config
    assert (config.max_length, config.window, config.eos) == (8192, 2_000_000_000, "2")


WEIRD: tuple[Any, ...] = (
    *(None, True, 0, -1, 3.5, math.nan, 10**30, "", "-", "1", "a:b:c", "::", ",", "\0", "x" * 300),
    *("${x}", [], [1], [[1]], [None], {}, {"a": 1}, {1: 2}, b"x", object(), (), ("hf",)),
    {"d": datetime.date(2026, 1, 1)},
)
"""Values that YAML or Python may give to any option."""


@pytest.mark.parametrize("name", [spec.name for spec in fields(BuildConfig)])
@pytest.mark.parametrize("rows", [{}, {"ids": "i"}, {"messages": "m"}, {"sources": ["a.npy"]}])
def test_any_value_is_refused_or_kept_in_yaml(
    name: str, rows: dict[str, Any], tmp_path: Path
) -> None:
    once = ("max_memory", "num_proc", "overwrite", "tokenizer")
    for value in WEIRD:
        options = {"sources": ["a"], "output": "o", "tokenizer": "t", **rows, name: value}
        try:
            config = BuildConfig(**options)
        except ConfigError:
            continue
        path = tmp_path / "build.yaml"
        path.write_text(config.to_yaml())
        again = BuildConfig(**from_yaml(path))
        changed = [n for n in vars(config) if getattr(again, n) != getattr(config, n)]
        assert {*changed} <= {*once}


@pytest.mark.long
def test_a_sample_is_written_once_and_nothing_of_the_user_is_replaced(run: Command) -> None:
    from packprep.cli.sample_data import sample_files

    said = run("sample", "data")
    assert (said.code, said.out.count("\n")) == (0, 6)
    assert {
        path.relative_to("data").as_posix(): path.read_bytes()
        for path in Path("data").rglob("*.json*")
    } == sample_files()
    assert run("sample", "data").code == 0
    Path("data/prose.jsonl").write_text("mine")
    said = run("sample", "data")
    assert (said.code, Path("data/prose.jsonl").read_text()) == (2, "mine")
    assert "data/prose.jsonl is there and differs" in said.err
