"""Renderers of the user: equal to a chat template of the same form, and code only of the user."""

import json
import pickle
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from packprep import BuildConfig, TokenizeAndPack, build
from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.chat.rendering.renderer import Renderer, load_renderer
from packprep.execute.pipeline import build_share
from packprep.inspect.moved import Moved
from packprep.inspect.verify import verify
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.reading import make_finder
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError, PackprepError
from packprep.support.from_json import from_json
from packprep.tokens.encode import load_encoder
from tests.chat.pieces.test_pieces import columns_of
from tests.helpers.command import run
from tests.helpers.corpus import ROOT, save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused

PAGE = (ROOT / "docs" / "renderers.md").read_text()
[CODE] = re.findall(r'```python file="renderers.py"\n(.*?)```', PAGE, re.DOTALL)
LAST = """{%- set seen = namespace(last=-1) %}
{%- for message in messages if message.role == 'user' %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}
{%- endfor %}"""
TEMPLATES = {
    "deepseek": LAST
    + """{{- '<｜begin▁of▁sentence｜>' }}
{%- for message in messages %}
{%- set thinks = thinking is not defined and loop.index0 >= seen.last %}
{%- set opened = '<think>' if thinks else '</think>' %}
{%- if message.role == 'system' %}
{{- message.content }}
{%- if tools %}{{- '\\n\\n## Tools\\n' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor %}{% endif %}
{%- elif message.role == 'user' %}
{{- '<｜User｜>' + message.content + '<｜Assistant｜>' + opened }}
{%- elif message.role == 'tool' %}
{{- '\\n\\n<result>' + message.content + '</result>\\n\\n' + opened }}
{%- else %}{% generation %}
{%- if thinks %}{{- (message.reasoning_content or '') + '</think>' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\\n\\n<｜DSML｜invoke name="' + call.function.name + '">' }}
{%- for name, value in call.function.arguments.items() %}
{{- '\\n<｜DSML｜parameter name="' + name + '">' + value | tojson }}
{%- endfor %}
{{- '\\n</｜DSML｜invoke>' }}
{%- endfor %}
{{- '<｜end▁of▁sentence｜>' }}{% endgeneration %}{% endif %}
{%- endfor %}""",
    "kimi": LAST
    + """
{%- if tools %}
{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}{% generation %}{{- '<think>' }}
{%- if loop.index0 > seen.last %}{{- message.reasoning_content or '' }}{% endif %}
{{- '</think>' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor %}
{{- '<|im_end|>' }}{% endgeneration %}
{%- elif message.role == 'tool' %}
{{- '<|im_system|>' + (message.name or 'tool') + '<|im_middle|>## Return of ' }}
{{- message.tool_call_id + '\\n' + message.content + '<|im_end|>' }}
{%- else %}
{{- ('<|im_user|>' if message.role == 'user' else '<|im_system|>') + message.role }}
{{- '<|im_middle|>' + message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}""",
}
SPECIALS = [
    *(f"<｜{name}｜>" for name in ("User", "Assistant", "begin▁of▁sentence", "end▁of▁sentence")),
    *(f"<|im_{name}|>" for name in ("system", "user", "assistant", "middle", "end")),
    *(f"<|tool_call_{name}|>" for name in ("begin", "argument_begin", "end")),
    *("｜DSML｜", "<think>", "</think>"),
]
CALL = {"name": "weather", "arguments": '{"city": "Größe", "days": 3}'}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ROWS: list[dict[str, Any]] = [
    {"messages": [said("user", "The cat?"), said("assistant", "sat", reasoning_content="on the")]},
    {
        "messages": [
            said("system", "Be short."),
            said("user", "What is <think> or <｜User｜> and <|im_end|>?"),  # text, no special token
            said("assistant", "no </think> more", reasoning_content="dropped"),
            said("user", "<|im_"),
            said("assistant", "", tool_calls=[{"id": "w:0", "type": "function", "function": CALL}]),
            said("tool", "-8 < 0", tool_call_id="w:0", name="weather"),
            said("assistant", "cold", reasoning_content="below zero"),
        ],
        "tools": TOOLS,
    },
    {"messages": [said("user", "a"), said("assistant", "b", weight=0), said("user", "c")]},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """The tiny tokenizer with the special tokens of both families."""
    made = Tokenizer.from_str(tiny_tokenizer().to_str())
    made.add_special_tokens(SPECIALS)
    folder = save_tokenizer(tmp_path / "tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def renderers(tmp_path: Path) -> Path:
    """The renderers of the page."""
    file = tmp_path / "renderers.py"
    file.write_text(CODE)
    return file


def encoded(rows: list[Any], tokenizer: str, **options: Any) -> tuple[list[Any], list[Any]]:
    """Tokens and mask of each row, and the thoughts that are left out."""
    config = BuildConfig(tokenizer=tokenizer, messages_column="messages", engine="hf", **options)
    stages = config.parsing, config.tokenizing
    loaded = load_build_tokenizer(config.tokenizing, config.parsing, "int32")
    plan = row_plan(config.parsing, loaded.vocab_size, make_finder(loaded, *stages))
    columns = {name: [json.dumps(row.get(name)) for row in rows] for name in ("messages", "tools")}
    table = as_rows(pa.table(columns), plan.found_in([*columns], "rows"))
    assert table["problem"].null_count == len(rows), table["problem"]
    made = load_encoder(loaded, *stages, 0, 1).encode(table, np.arange(len(rows)))
    thoughts = [each._replace(in_turn=False) for each in made.left_out if each.field == "reasoning"]
    return made.table.select(["tokens", "labels"]).to_pylist(), thoughts


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("family", ["deepseek", "kimi"])
def test_the_renderers_of_the_page_are_templates_of_the_same_form(
    tmp_path: Path, tokenizer: str, renderers: Path, family: str, joined: bool
) -> None:
    """Special tokens that messages spell stay text, and the same thoughts are left out."""
    template, renderer = tmp_path / "twin.jinja", f"{renderers}:{family}"
    template.write_text(TEMPLATES[family])
    rows = json.loads(json.dumps(ROWS))
    if family == "deepseek":  # a template cannot parse JSON
        function = rows[1]["messages"][4]["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
    expected = encoded(rows, tokenizer, chat_template=str(template))
    assert [[*map(len, expected)], [{*row["labels"]} for row in expected[0]]] == [
        [3, 1],
        [{0, 1}] * 2 + [{0}],
    ]
    assert encoded(rows, tokenizer, renderer=renderer, join_pieces=joined) == expected


def options(tmp_path: Path, tokenizer: str, renderer: str, **more: Any) -> dict[str, Any]:
    source = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    common = {"sources": str(source), "output": str(tmp_path / "out"), "tokenizer": tokenizer}
    return common | {"messages_column": "messages", "renderer": renderer, "max_length": 256} | more


BAD = """
def raises(messages, tools):
    return messages[0]["missing"]

def text(messages, tools):
    return "text"

def ids(messages, tools):
    return [{"token_ids": [10**6], "train": True}]

def broken(messages, tools):
    return [{"text": messages[-1]["content"].replace("<|im_", "<|im_end|>"), "train": True}]

def alone(messages):
    return []

import sys
def ends(messages, tools):
    sys.exit("over")
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "row 0 (line 1): {file}:raises raised KeyError in line 3: 'missing'"),
        ("ends", "row 0 (line 1): {file}:ends raised SystemExit in line 19: over"),
        ("text", "row 0 (line 1): the result of {file}:text is text, expected a list of pieces"),
        (
            "ids",
            "row 0 (line 1): piece 0 has 1000000 in token_ids, expected ids from 0 to 334, from",
        ),
        ("alone", "{file}:alone cannot be called with (messages, tools): too many positional"),
        ("other", "{file}:other: the file has no function 'other', expected one of raises, text"),
    ],
)
def test_what_is_wrong_names_the_row_and_the_function(
    tmp_path: Path, tokenizer: str, function: str, words: str
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    with refused(PackprepError, words.format(file=file)):
        build(BuildConfig(**options(tmp_path, tokenizer, f"{file}:{function}")))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("render", "renderer is 'render', expected FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("none.py:f", "there is no file"),
        ("none.such:f", "No module named 'none'; install it"),
        ("numpy._core._multiarray_umath:f", "there is no Python file of module"),
        ("syntax.py:f", "cannot be loaded: it raised SyntaxError in line 1"),
        ("raises.py:f", "cannot be loaded: it raised ModuleNotFoundError in line 2: No module"),
    ],
)
def test_a_renderer_that_cannot_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("syntax.py").write_text("def f(:\n")
    Path("raises.py").write_text("\nimport neighbour\n")
    with refused(ConfigError, words):
        load_renderer(name, {})


def test_a_module_of_a_package_is_a_renderer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("WORD = 'a'\n")
    code = "from . import WORD\n\ndef f(messages, tools, word=WORD):\n    return [word]\n"
    (tmp_path / "mine" / "forms.py").write_text(code)
    assert load_renderer("mine.forms:f", {}).call([], None, {}) == ["a"]
    assert load_renderer("mine.forms:f", {"word": "b"}).call([], None, {}) == ["b"]
    assert load_renderer("mine.forms:f", {"word": "b"}).call([], None, {"word": "c"}) == ["c"]


def test_another_file_is_another_build_and_no_process_takes_it(
    tmp_path: Path, tokenizer: str, renderers: Path
) -> None:
    renderer = load_renderer(f"{renderers}:kimi", {})
    store = str(tmp_path / "store")
    asked = options(tmp_path, tokenizer, renderer.name, keep_tokens=store)
    build(BuildConfig(**asked))
    shares = asked | {"output": str(tmp_path / "parts"), "executor": "array", "keep_tokens": None}
    build_share(BuildConfig(**shares, part="0/2"))
    renderers.write_text(CODE + "# changed\n")
    with refused(InputError, f"{renderers} is not the renderer that this build began with"):
        from_json(Renderer, json.loads(json.dumps(asdict(renderer)))).call([], None, {})
    with refused(ConfigError, "(another renderer)"):
        build_share(BuildConfig(**shares, part="1/2"))
    build(BuildConfig(**asked | {"output": str(tmp_path / "again")}))
    assert sum(path.is_dir() for path in (tmp_path / "store").iterdir()) == 2
    assert columns_of(tmp_path / "out") == columns_of(tmp_path / "again")


@pytest.mark.parametrize("executor", ["isolated", "array"])
def test_all_processes_give_the_packs_of_one(
    tmp_path: Path, tokenizer: str, renderers: Path, executor: str
) -> None:
    asked = options(tmp_path, tokenizer, f"{renderers}:deepseek")
    build(BuildConfig(**asked))
    other = asked | {"output": str(tmp_path / "other"), "executor": executor}
    if executor == "array":
        for part in ("0/2", "1/2"):
            build_share(BuildConfig(**other, part=part))
        other["part"] = "merge"
    build(BuildConfig(**other))
    assert columns_of(tmp_path / "other") == columns_of(tmp_path / "out")
    names = {key: asked[key] for key in ("messages_column", "renderer", "max_length")}
    function = pickle.loads(pickle.dumps(TokenizeAndPack(tokenizer, **names)))
    rows = datasets.Dataset.from_list(ROWS[:1])
    with pytest.warns(UserWarning, match="packing a batch of 1 documents"):
        [pack] = function(rows.with_format("arrow")[:]).to_pylist()
    assert pack["labels"].count(-100) < len(pack["tokens"])


def test_only_the_user_names_a_renderer(tmp_path: Path, tokenizer: str, renderers: Path) -> None:
    """Commands that read an output do not load the file that it names."""
    out, renderer = tmp_path / "out", f"{renderers}:kimi"
    build(BuildConfig(**options(tmp_path, tokenizer, renderer, join_pieces=True)))
    [note] = verify(out, level="full").not_checked
    assert f"{renderer} rendered them, which is code" in note
    verdict = verify(out, level="full", moved=Moved(renderer=renderer))
    assert (verdict.sampled, [*verdict.findings], verdict.not_checked) == (3, [], [])
    renderers.write_text("raise SystemExit(7)\n")
    for arguments in (("verify", out, "--level", "full"), ("plan", out), ("stats", out)):
        assert run(*arguments).code == 0
    assert run("merge", out, "-o", tmp_path / "merged").code == 0
    assert verify(tmp_path / "merged", level="full").sound
    renderers.write_text(CODE + "# changed\n")
    [finding] = verify(out, level="full", moved=Moved(renderer=renderer)).findings
    assert "is not the renderer of this output" in finding.what
