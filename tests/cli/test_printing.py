"""Tables at a terminal's width, and in a pipe, which has none."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.cli import printing
from packprep.cli.main import cli
from packprep.cli.printing import print_grid, print_table
from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.tiny_shards import GOLDEN

EXAMPLE, RICH = (GOLDEN / name for name in ("v1-example", "v1-rich"))


class Terminal(StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 40 columns, to be used as standard output."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


HEADS = ("strategy", "utilization", "tokens lost", "packs", "best for")
ROWS = [
    ("best_fit", "99.923%", "0.000%", "1,718", ""),
    ("greedy", "87.052%", "0.000%", "1,972", "bias"),
]


def test_a_pipe_gets_every_row_whole_and_plain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "20", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    print_grid("[plan]", HEADS, ROWS, left=(0, 4), colours=["green", None])
    print_table(":one:", [("sha256", "a1" * 32), ("documents per pack", "p50 1")])
    assert capsys.readouterr().out.splitlines() == [
        "[plan]",
        "strategy  utilization  tokens lost  packs  best for",
        "best_fit      99.923%       0.000%  1,718",
        "greedy        87.052%       0.000%  1,972  bias",
        ":one:",
        f"sha256              {'a1' * 32}",
        "documents per pack  p50 1",
    ]


@pytest.mark.parametrize(
    ("title", "rows", "lines"),
    [
        (
            "plan",
            ROWS,
            [
                "plan",
                "strategy  utilization  tokens lost",
                "best_fit      99.923%       0.000%",
                "greedy        87.052%       0.000%",
                "",
                "strategy  packs  best for",
                "best_fit  1,718",
                "greedy    1,972  bias",
            ],
        ),
        (
            "",
            [("/data/2026/web/part-00000.jsonl", *ROWS[0][1:])],
            [
                "/data/2026/web/part-00000.jsonl",
                "  utilization  99.923%",
                "  tokens lost  0.000%",
                "  packs        1,718",
            ],
        ),
    ],
    ids=["a second table with the names of the rows", "blocks in place of many tables"],
)
def test_columns_that_do_not_fit_go_below(
    terminal: Terminal, title: str, rows: list[tuple[str, ...]], lines: list[str]
) -> None:
    with redirect_stdout(terminal):
        print_grid(title, HEADS, rows, left=(0, 4), colours=["green", None][: len(rows)])
    assert plain(terminal.getvalue()) == lines
    assert "\x1b[32mbest_fit" in terminal.getvalue() or not title


CHAT = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("", "<s> (id 0), </s> (id 1)"),
        ("--bos none", "none, </s> (id 1)"),
        ("--bos none --eos none", "none"),
        ("--input-ids-column ids", "none"),
        ("--input-ids-column ids --eos </s>", "none, </s> (id 1)"),
        (
            "--messages-column messages",
            "<s> (id 0), </s> (id 1), where the chat template writes them",
        ),
        (
            "--messages-column messages --renderer renderer.py:render",
            "<s> (id 0), </s> (id 1), where the renderer writes them",
        ),
    ],
)
def test_a_build_shows_bos_and_eos_by_text_and_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT}
    save_tokenizer(tmp_path / "tok", config=side)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    write_jsonl(tmp_path / "a.jsonl", [{"text": "a b", "ids": [5, 6], "messages": turns}])
    (tmp_path / "renderer.py").write_text(
        "def render(messages, tools):\n    return [{'text': 'a</s>', 'train': True}]\n"
    )
    common = ["build", "a.jsonl", "-o", "out", "--tokenizer", "tok", "--max-length", "64"]
    rows = dict(re.split("  +", line, maxsplit=1) for line in printed(common + options.split()))
    assert rows["BOS, EOS"] == shown


def printed(arguments: list[str]) -> list[str]:
    """Rows of the table that a build prints, without its title."""
    return done(*arguments).out.splitlines()[1:]


WIDTHS = st.lists(st.integers(1, 30), min_size=2, max_size=12)


@given(WIDTHS, st.integers(1, 3), st.integers(20, 120))
def test_no_table_is_wider_than_the_terminal_and_every_column_is_in_one(
    widths: list[int], keys: int, width: int
) -> None:
    keys = min(keys, len(widths) - 1)
    parts = printing._parts(widths, keys, width)
    first = list(range(keys))
    assert all(part[:keys] == first for part in parts)
    assert [place for part in parts for place in part[keys:]] == list(range(keys, len(widths)))
    for part in parts:
        assert len(part) == keys + 1 or sum(widths[place] + 2 for place in part) - 2 <= width


@pytest.mark.parametrize(
    "line",
    [
        "plan lengths.npy --strategy all --max-length 1024,2048 --overflow all",
        "plan lengths.npy --strategy all --sample 0.5 --global-batch-size 8",
        f"show {RICH} --rows",
        f"stats {EXAMPLE} {RICH}",
        f"stats {RICH}",
        f"verify {EXAMPLE}",
        "build a.jsonl -o packed --tokenizer tok --max-length 64 --engine hf",
        f"check {RICH} --min-utilization 0",
        "env",
    ],
)
def test_no_row_of_any_command_is_wider_than_80_columns(
    tmp_path: Path, terminal: Terminal, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 4000, 3000))
    with redirect_stdout(terminal):
        cli.main(line.split(), standalone_mode=False)
    lines = plain(terminal.getvalue())
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80
    assert not any(each.endswith(" ") for each in lines)
