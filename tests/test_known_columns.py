"""What rows have beside their text: read, refused or named in one line, and never passed over.

The table of the code says what a build does with each column and key; each is tried here. Through
the command line, as users meet it.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from packprep import pack_dataset
from packprep.config.grammar.known_columns import KNOWN_COLUMNS, SWITCHES, not_read
from packprep.loaders import PackedShards
from tests.helpers.command import Result, done, run
from tests.helpers.corpus import save_tokenizer, write_jsonl

TEMPLATE = (
    "{% if tools %}{{ '<s>tools' + tools | tojson + '</s>' }}{% endif %}{{ mood or '' }}"
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + (m.content or '') + (m.name or '') }}"
    "{{ m.reasoning_content or '' }}{{ m.tool_calls | tojson if m.tool_calls else '' }}"
    "{{ m.tool_call_id or '' }}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
ASKED: dict[str, Any] = {"role": "user", "content": "Is it <image> odd?"}
SAID: dict[str, Any] = {"role": "assistant", "content": "yes"}
VALUES: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "VALUE"}}],
    "chat_template_kwargs": {"mood": "VALUE"},
    "history": [["VALUE", "earlier"]],
    "loss_mask": [0, 1],
    "label": False,
    "kto_tag": False,
    "tool_calls": [{"function": {"name": "VALUE", "arguments": {}}}],
}
IDS = {name: [1, 1, 1, 0] for name in ("attention_mask", "completion_mask", "assistant_masks")}
IDS |= {"labels": [-100, -100, 12, 13], "loss_mask": [0, 0, 1, 1]}
EMPTY: tuple[Any, ...] = ("", [], {})


class Document(NamedTuple):
    text: str
    trained: str


class Trial(NamedTuple):
    """A folder with a tokenizer and its template."""

    folder: Path

    def build(self, rows: Any, *options: object, name: str = "rows.jsonl") -> Result:
        path = write_jsonl(self.folder / name, rows) if isinstance(rows, list) else rows
        tokenizer = ("--tokenizer", self.folder / "tokenizer", "--engine", "hf", "--overwrite")
        return run("build", path, "-o", self.folder / "out", *tokenizer, *options)

    def documents(self) -> list[Document]:
        decode = Tokenizer.from_file(str(self.folder / "tokenizer" / "tokenizer.json")).decode
        found = {}
        for pack in PackedShards(self.folder / "out"):
            for number, (document, _, tokens) in enumerate(pack.segments()):
                place = slice(int(pack.cu_seqlens[number]), int(pack.cu_seqlens[number + 1]))
                labels = tokens if pack.labels is None else pack.labels[place]
                kept = tokens[labels != -100].tolist()
                found[document] = Document(
                    decode(tokens.tolist(), skip_special_tokens=False),
                    decode(kept, skip_special_tokens=False),
                )
        return [found[document] for document in sorted(found, key=str)]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / "out" / "report.json").read_bytes())
        return report


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    save_tokenizer(tmp_path / "tokenizer", config=ENDS | {"chat_template": TEMPLATE})
    return Trial(tmp_path)


def note(result: Result) -> str:
    """The line about what is not read; empty without one."""
    return next((line for line in result.err.splitlines() if line.startswith("not read: ")), "")


def row_of(where: str, name: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """A row with this column, or a message with this key, and the options that read it."""
    auto = ["--messages-column", "auto"]
    if where == "ids":
        ids = [10, 11, 12, 13]
        return {"input_ids": ids, name: value}, ["--input-ids-column", "input_ids"]
    if where == "instruction":
        return {"instruction": "Add", "output": "yes", name: value}, auto
    if where == "completion":
        return {"prompt": "Is it odd?", "completion": "yes", name: value}, auto
    if where == "messages":
        message = {"role": "assistant", "content": "yes"} | {name: value}
        return {"messages": [ASKED, message, ASKED, SAID | {"content": "last"}]}, auto
    return {"messages": [ASKED, SAID], name: value}, auto


CASES = [(row.where, name, row.treatment) for row in KNOWN_COLUMNS for name in row.names]


@pytest.mark.parametrize(("where", "name", "treatment"), CASES)
def test_a_build_does_with_each_column_and_key_what_the_table_says(
    trial: Trial, where: str, name: str, treatment: str
) -> None:
    value = IDS.get(name) if where == "ids" else VALUES.get(name, "VALUE")
    if where == "messages":
        value = {"role": "assistant", "tools": ["VALUE"]}.get(name, VALUES.get(name, "VALUE"))
        value = 0 if name in SWITCHES else value
    row, options = row_of(where, name, value)
    result = trial.build([row, row], *options)
    if treatment == "refused":
        assert result.code == 2
        assert "rows.jsonl row 0" in result.err
        assert repr(name) in result.err
        return
    assert result.code == 0, result.err
    assert (name in note(result)) == (treatment == "named")
    document = trial.documents()[0]
    if where == "ids":
        assert trial.report()["tokens"]["tokens_in"] == 6
    elif where == "messages" and name in SWITCHES:
        assert "yes" in document.text
        assert document.trained == "last</s>"
    elif treatment == "read" and name != "role":
        assert "VALUE" in document.text
    again = trial.build([row, row], *options, "--dry-run")
    assert note(again) == note(result)


@pytest.mark.parametrize(
    ("where", "names"),
    {
        row.where: [
            name
            for each in KNOWN_COLUMNS
            for name in each.names
            if each.where == row.where and name not in ("role", "content")
        ]
        for row in KNOWN_COLUMNS
    }.items(),
)
def test_empty_values_need_no_word(trial: Trial, where: str, names: list[str]) -> None:
    kinds: dict[str, tuple[Any, ...]] = {
        "tools": ([],),
        "tool_calls": ([],),
        "chat_template_kwargs": ({},),
    }
    rows = [
        row_of(where, name, value)
        for name in names
        for value in (None, *kinds.get(name, ([],) if where == "ids" else EMPTY))
        if value is None or where != "messages" or name not in SWITCHES
    ]
    result = trial.build([row for row, _ in rows], *rows[0][1])
    assert result.code == 0, result.err
    assert note(result) == ""


CHAT = [ASKED | {"id": 7}, SAID | {"thought": "hm", "meta": {"a": 1}}]
PLAIN = ("--messages-column", "messages")


def test_other_columns_and_keys_are_named_whatever_they_are_called(trial: Trial) -> None:
    rows = [{"messages": CHAT, "source": "web", "n": 3}] * 4 + [{"messages": [ASKED, SAID]}]
    expected = "not read: columns n, source; keys id of 4 messages, meta of 4 messages"
    assert note(trial.build(rows, *PLAIN)) == f"{expected}, thought of 4 messages"
    assert trial.report()["not_read"] == {
        "columns": {"n": 1, "source": 1},
        "keys": {"id": 4, "meta": 4, "thought": 4},
    }
    table = trial.folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    assert note(trial.build(table, *PLAIN)) == f"{expected}, thought of 4 messages"
    assert note(trial.build([{"text": "a", "url": "u"}])) == "not read: column url"
    assert note(trial.build([{"input_ids": [10], "pos": [0]}], "--input-ids-column", "input_ids"))
    assert "not read" not in trial.build(rows, *PLAIN, "--quiet").err
    used = ("--carry", "n", "--group-column", "source")
    assert note(trial.build(rows[:4], *PLAIN, *used)).startswith("not read: keys id of")


@pytest.mark.parametrize("key", ["thought", "meta", "id"])
def test_a_key_that_a_template_reads_is_not_named(trial: Trial, key: str) -> None:
    for body in (f"m.{key}", f"m['{key}']", f"m.get('{key}')", "(m | tojson)"):
        path = trial.folder / "own.jinja"
        path.write_text(
            "{% for m in messages %}{{ '<s>' + m.role + '\\n' + m.content }}"
            "{% if m.role == 'user' %}{{ " + body + " }}{% endif %}{{ '</s>' }}{% endfor %}"
        )
        row = {"messages": [ASKED | {key: "VALUE"}, SAID]}
        result = trial.build([row], *PLAIN, "--chat-template", path, "--train-on", "all")
        assert result.code == 0, result.err
        assert "VALUE" in trial.documents()[0].text
        assert note(result) == ""


def test_a_prompt_of_pairs_is_counted_once(trial: Trial) -> None:
    row = {
        "prompt": [ASKED | {"id": 1}],
        "chosen": [SAID | {"model": "a"}],
        "rejected": [SAID | {"model": "b"}],
        "system": "VALUE",
        "context": "text",
    }
    pair = ("--prompt-column", "prompt", "--pair-columns", "chosen,rejected")
    result = trial.build([row] * 3, *pair)
    said = "not read: column context; keys id of 3 messages, model of 6 messages"
    assert note(result) == said
    assert all("VALUE" in document.text for document in trial.documents())


def test_a_long_line_is_cut() -> None:
    line = not_read([f"c{number}" for number in range(40)], [("k", 1)])
    assert line.endswith("c11 and 28 more; key k of 1 message")
    assert not_read([], []) == ""


def test_the_account_is_the_same_whoever_reads_the_rows(trial: Trial) -> None:
    rows = [{"messages": CHAT, "context": "x" * (at % 3), "id": at} for at in range(400)]
    small = (*PLAIN, "--unit-size", "4KB", "--max-length", "256", "--order", "input")
    assert trial.build(rows, *small).code == 0
    expected = trial.report()["not_read"]
    assert expected == {
        "columns": {"context": 1, "id": 1},
        "keys": {"id": 400, "meta": 400, "thought": 400},
    }
    assert done("verify", trial.folder / "out", "--level", "full").code == 0
    for options in (
        ("--num-proc", "2"),
        ("--keep-tokens", trial.folder / "store"),
        ("--keep-tokens", trial.folder / "store"),
    ):
        assert trial.build(rows, *small, *options).code == 0
        assert trial.report()["not_read"] == expected
    for part in ("0/2", "1/2", "merge"):
        target = ("-o", trial.folder / "parts", "--part", part)
        source = (trial.folder / "rows.jsonl", "--tokenizer", trial.folder / "tokenizer")
        done("build", *source, *target, *small, "--engine", "hf")
    parts = json.loads((trial.folder / "parts" / "report.json").read_bytes())
    assert parts["not_read"] == expected


def padded(random_: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A padded row of ids, and the same row without padding."""
    left, right = random_.choice([(0, 0), (0, 3), (4, 0), (2, 5)])
    size = random_.randrange(0 if left + right else 1, 9)
    ids = [random_.randrange(10, 90) for _ in range(size)]
    labels = [each if random_.random() < 0.7 else -100 for each in ids]
    loss = [random_.random() for _ in ids]
    values: dict[str, Any] = {
        "input_ids": (ids, 1),
        "labels": (labels, -100),
        "weight": (loss, 0.0),
    }
    longer: dict[str, Any] = {
        key: [pad] * left + each + [pad] * right for key, (each, pad) in values.items()
    }
    mask = [0] * left + [1] * size + [0] * right
    return longer | {"attention_mask": mask}, {key: each for key, (each, _) in values.items()}


@pytest.mark.parametrize("seed", range(3))
def test_padded_rows_are_packed_as_if_they_had_never_been_padded(trial: Trial, seed: int) -> None:
    pairs = [padded(random.Random(100 * seed + at)) for at in range(40)]
    options = ("--input-ids-column", "input_ids", "--labels-column", "labels", "--carry", "weight")
    written = []
    for rows in zip(*pairs, strict=True):
        assert trial.build([*rows], *options, "--max-length", "32", "--order", "input").code == 0
        data = [path.read_bytes() for path in sorted((trial.folder / "out").glob("*.arrow"))]
        account = trial.report()
        written.append((data, account["tokens"], account["documents"]))
    assert written[0] == written[1]
    table = trial.folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row for row, _ in pairs]), table)
    assert trial.build(table, *options, "--max-length", "32", "--order", "input").code == 0
    assert trial.report()["tokens"] == written[0][1]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([1, 0, 1, 1], "'attention_mask' has 0 at 1, between ones"),
        ([0, 1, 0, 1], "'attention_mask' has 0 at 2, between ones"),
        ([1, 1, 2, 0], "'attention_mask' has 2 at 2, expected 0 or 1"),
        ([1, 1, 1], "'attention_mask' has 3 values and 'input_ids' 4"),
        ("1111", "'attention_mask' is "),
    ],
)
def test_a_mask_that_is_no_padding_is_refused_with_row_and_place(
    trial: Trial, mask: Any, said: str
) -> None:
    rows = [{"input_ids": [10, 11, 12, 13], "attention_mask": each} for each in ([1] * 4, mask)]
    result = trial.build(rows, "--input-ids-column", "input_ids")
    assert result.code == 2
    assert "rows.jsonl row 1 (line 2)" in result.err
    assert said in result.err


@pytest.mark.parametrize("beside", [{}, {"attention_mask": [0, 1, 1]}])
@pytest.mark.parametrize("option", ["--labels-column other:labels", "--carry other"])
@pytest.mark.parametrize("values", [[], [10], [10, 11, 12, 13]])
def test_values_of_another_length_are_refused_with_and_without_padding(
    trial: Trial, beside: dict[str, Any], option: str, values: list[int]
) -> None:
    rows = [{"ids": [10, 11, 12], "other": [10, 11, 12]} | beside for _ in range(3)]
    rows[1]["other"] = values
    result = trial.build(rows, "--input-ids-column", "ids", *option.split())
    assert result.code == 2
    assert "row 1 (line 2)" in result.err
    assert f"'other' has {len(values)} values and 'ids' 3" in result.err


def test_where_one_column_says_what_is_trained_others_are_named(trial: Trial) -> None:
    row = {"input_ids": [10, 11], "mask": [0, 1], "labels": [10, 11], "loss_mask": [1, 1]}
    options = ("--input-ids-column", "input_ids", "--labels-column")
    assert note(trial.build([row], *options, "mask")) == "not read: columns labels, loss_mask"
    assert note(trial.build([row], *options, "labels:labels+loss_mask:mask")) == (
        "not read: column mask"
    )


def test_sides_of_pairs_have_masks_of_their_own(trial: Trial) -> None:
    row: dict[str, Any] = {
        "prompt_input_ids": [1, 10, 11],
        "prompt_attention_mask": [0, 1, 1],
        "chosen_input_ids": [12, 13, 1],
        "chosen_attention_mask": [1, 1, 0],
        "rejected_input_ids": [14, 15, 16],
        "rejected_attention_mask": [1, 1, 1],
    }
    options = [
        *("--prompt-column", "prompt_input_ids", "--input-ids-column", "auto"),
        *("--pair-columns", "chosen_input_ids,rejected_input_ids"),
    ]
    result = trial.build([row], *options)
    assert result.code == 0, result.err
    assert trial.report()["tokens"]["tokens_in"] == 4 + 5
    named = trial.build([row | {"chosen_labels": [12, 13, -100]}], *options)
    assert named.code == 2
    assert "'chosen_labels'" in named.err


@pytest.mark.parametrize("text", ["<|image_pad|>", "<start_of_image>", "[IMG]", "<VIDEO>"])
def test_a_place_of_a_picture_is_refused_only_beside_pictures(trial: Trial, text: str) -> None:
    row: dict[str, Any] = {"messages": [{"role": "user", "content": f"{text} what?"}, SAID]}
    assert trial.build([row | {"images": []}], *PLAIN).code == 0
    refused = trial.build([row | {"images": ["a.png"]}], *PLAIN)
    assert refused.code == 2
    assert repr(text) in refused.err
    assert "'images'" in refused.err
    table = trial.folder / "rows.parquet"
    rows = [{"messages": [ASKED | {"content": "hi"}, SAID], "images": [b"png"]}]
    pq.write_table(pa.Table.from_pylist(rows), table)
    assert note(trial.build(table, *PLAIN)) == "not read: column images"


def test_a_function_inside_map_reads_and_refuses_the_same(trial: Trial) -> None:
    import datasets

    tokenizer = str(trial.folder / "tokenizer")
    rows = datasets.Dataset.from_list([{"messages": [ASKED, SAID], "system": "VALUE", "id": 1}])
    packed = pack_dataset(rows, tokenizer, messages_column="messages", max_length=64)
    assert len(packed[0]["tokens"]) > len("VALUE")
    ids = datasets.Dataset.from_list([{"ids": [10, 11, 12], "attention_mask": [1, 1, 0]}])
    assert pack_dataset(ids, tokenizer, input_ids_column="ids")[0]["tokens"] == [10, 11]
    with pytest.raises(ValueError, match="row 0: the row has 'labels', which no option names"):
        pack_dataset(ids.add_column("labels", [[1, 1, 1]]), tokenizer, input_ids_column="ids")


def turns(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


PROMPTED = ("--prompt-column", "prompt", "--pair-columns", "chosen,rejected")
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]
LABELLED = {"prompt": "hi", "completion": "yes"}


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        (
            {"instruction": "Add", "input": "1 and 1", "output": "2", "text": "Below is ..."},
            "--messages-column auto",
            "not read: column text",
        ),
        (
            {"instruction": "Add", "input": "1", "output": "2", "system": "s", "history": []},
            "--messages-column auto",
            "",
        ),
        (
            {"id": "a_0", "system": "s", "tools": "[]", "conversations": SHAREGPT},
            "--messages-column auto",
            "not read: column id",
        ),
        ({"messages": turns("hi", "yes")}, "--messages-column auto", ""),
        (
            {"messages": [turns("hi")[0], turns("", "yes")[1] | {"weight": 0}, *turns("a", "b")]},
            "--messages-column messages",
            "",
        ),
        (
            {"prompt": "hi", "prompt_id": "f0", "messages": turns("hi", "yes")},
            "--messages-column auto",
            "not read: columns prompt, prompt_id",
        ),
        (
            {"chosen": "Human: a Assistant: b", "rejected": "Human: a Assistant: c"},
            "--pair-columns chosen,rejected",
            "",
        ),
        (LABELLED | {"label": True}, "--messages-column auto", ""),
        (LABELLED | {"label": False}, "--messages-column auto", "refused: 'label' is False"),
        (LABELLED | {"label": False}, "--messages-column auto --carry label", ""),
        (
            {"prompt": "hi", "chosen": "yes", "rejected": "no", "score_chosen": 0.5},
            " ".join(PROMPTED),
            "not read: column score_chosen",
        ),
        (
            {"prompt": turns("hi"), "chosen": turns("", "a")[1:], "rejected": turns("", "b")[1:]},
            " ".join(PROMPTED),
            "",
        ),
        (
            {"prompt": "hi", "chosen": turns("hi", "a"), "rejected": turns("hi", "b")},
            "--messages-column auto --pair-columns chosen,rejected",
            "not read: column prompt",
        ),
        (
            {"prompt": "hi", "chosen": turns("hi", "a"), "rejected": turns("hi", "b")},
            "--messages-column auto",
            "refused: --pair-columns",
        ),
    ],
)
def test_public_forms_build_or_are_refused_with_what_to_do(
    trial: Trial, row: dict[str, Any], options: str, said: str
) -> None:
    result = trial.build([row] * 2, *options.split())
    if said.startswith("refused: "):
        assert result.code == 2
        assert said.removeprefix("refused: ") in result.err
        return
    assert result.code == 0, result.err
    assert note(result) == said


@pytest.mark.parametrize("key", SWITCHES)
def test_a_flag_of_one_message_takes_only_that_one_out(trial: Trial, key: str) -> None:
    for off in (False, 0):
        chat = [*turns("a", "first"), *turns("b", "last")]
        chat[1] |= {key: off}  # type: ignore[dict-item]
        assert trial.build([{"messages": chat}], *PLAIN).code == 0
        assert trial.documents()[0].trained == "last</s>"
    chat[1] |= {key: 0.3}  # type: ignore[dict-item]
    refused = trial.build([{"messages": chat}], *PLAIN)
    assert refused.code == 2
    assert f"message 1 has 0.3 as {key}" in refused.err
