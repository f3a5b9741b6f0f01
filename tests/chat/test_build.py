"""Conversations through a whole build.

Ids as transformers makes them, labels on disk, bad rows named.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep import BuildConfig, build, pack_dataset
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import SHARED, save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.reference_chat import trained_by_tokens

TEMPLATE = (
    "{% for message in messages %}{{ '<s>' + message.role + '\n' + message.content + '</s>' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "The cat?"}, {"role": "assistant", "content": "sat on the mat"}],
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "dog"},
        {"role": "assistant", "content": "log"},
        {"role": "user", "content": "and </s> then"},
        {"role": "assistant", "content": "no <s> more"},
    ],
    [{"role": "user", "content": "nobody answers"}],
]
MESSAGES: dict[str, Any] = {"messages_column": "messages", "max_length": 256, "order": "input"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    return str(save_tokenizer(tmp_path / "tokenizer", config=side))


def built(tmp_path: Path, tokenizer: str, rows: Any, name: str = "out", **options: Any) -> Path:
    source = tmp_path / f"{name}.jsonl"
    write_jsonl(source, rows)
    config = BuildConfig(
        sources=(str(source),),
        output=str(tmp_path / name),
        tokenizer=tokenizer,
        **{**MESSAGES, **options},
    )
    build(config)
    return tmp_path / name


def conversations(path: Path) -> dict[int, tuple[list[int], list[int] | None]]:
    """Ids and labels of each document, which is in one piece."""
    found = {}
    for pack in PackedShards(path, verify=True):
        for number, (document, _, tokens) in enumerate(pack.segments()):
            assert document is not None
            start = int(pack.cu_seqlens[number])
            labels = (
                None if pack.labels is None else pack.labels[start : start + len(tokens)].tolist()
            )
            found[document] = tokens.tolist(), labels
    return found


def by_hand(
    messages: list[dict[str, str]], train_on: str = "assistant"
) -> tuple[list[int], list[int]]:
    """Ids piece by piece, `<s>` and `</s>` being the template's alone.

    Labels where a turn is trained.
    """
    plain = tiny_tokenizer()
    plain.encode_special_tokens = True
    ids, trained = [], []
    for number, message in enumerate(messages):
        answers = message["role"] == "assistant" and (
            train_on == "assistant" or number == len(messages) - 1
        )
        head = plain.encode(message["role"] + "\n").ids
        content = plain.encode(message["content"]).ids
        whole = plain.encode(message["role"] + "\n" + message["content"]).ids
        assert head + content == whole, "so that the pieces are the ids"
        ids += [0, *whole, 1]
        trained += [False] * (1 + len(head)) + [answers] * (len(content) + 1)
    return ids, [token if keep else -100 for token, keep in zip(ids, trained, strict=True)]


@pytest.mark.parametrize("train_on", ["assistant", "last-turn"])
def test_the_assistants_turns_are_trained_and_a_conversation_without_one_is_dropped(
    tmp_path: Path, tokenizer: str, train_on: str
) -> None:
    out = built(tmp_path, tokenizer, [{"messages": chat} for chat in CHATS], train_on=train_on)
    assert conversations(out) == {row: by_hand(CHATS[row], train_on) for row in (0, 1)}
    report = json.loads((out / "report.json").read_bytes())
    assert report["documents"]["dropped"] == {"few_loss_tokens": 1}
    assert report["loss_tokens"] == sum(
        label != -100 for row in (0, 1) for label in by_hand(CHATS[row], train_on)[1]
    )


@pytest.mark.parametrize(("least", "packs_left"), [(1, 1), (0, 4)])
def test_wrapped_writes_a_pack_without_labels_only_if_asked_to(
    tmp_path: Path, tokenizer: str, least: int, packs_left: int
) -> None:
    chat = [{"role": "user", "content": "the cat " * 100}, {"role": "assistant", "content": "sat"}]
    ids, labels = by_hand(chat)
    length = -(-len(ids) // 4)
    rows = [{"messages": chat}]
    out = built(
        tmp_path, tokenizer, rows, strategy="wrapped", max_length=length, min_loss_tokens=least
    )
    assert [pack.tokens.tolist() for pack in PackedShards(out, verify=True)] == [
        ids[begin : begin + length] for begin in range(0, len(ids), length)
    ][-packs_left:]
    trained = sum(label != -100 for label in labels)
    book = json.loads((out / "report.json").read_bytes())
    assert (book["loss_tokens"], book["tokens"]["dropped"]) == (
        trained,
        {} if least == 0 else {"few_loss_tokens": 3 * length},
    )
    assert verify(out, level="full").sound


def test_with_everything_trained_there_are_no_labels_to_store(
    tmp_path: Path, tokenizer: str
) -> None:
    out = built(tmp_path, tokenizer, [{"messages": chat} for chat in CHATS], train_on="all")
    assert conversations(out) == {row: (by_hand(chat)[0], None) for row, chat in enumerate(CHATS)}


def test_text_of_messages_never_becomes_a_special_token(tmp_path: Path, tokenizer: str) -> None:
    chats = [
        [{**message, "content": message["content"] + "<s></s>"} for message in chat]
        for chat in CHATS
    ]
    out = built(tmp_path, tokenizer, [{"messages": chat} for chat in chats], train_on="all")
    for row, (ids, _) in conversations(out).items():
        assert [ids.count(0), ids.count(1)] == [len(chats[row])] * 2


@pytest.mark.parametrize("kind", ["sharegpt", "pair", "json text", "parquet", "parquet pair"])
def test_the_packs_do_not_depend_on_the_names_of_the_columns(
    tmp_path: Path, tokenizer: str, kind: str
) -> None:
    chats = CHATS[:1]
    expected = {0: by_hand(chats[0])}
    sharegpt = [
        {"from": {"user": "human", "assistant": "gpt"}[each["role"]], "value": each["content"]}
        for each in chats[0]
    ]
    kinds: dict[str, list[Any]] = {
        "sharegpt": [{"conversations": sharegpt}],
        "json text": [{"messages": json.dumps(chat)} for chat in chats],
        "parquet": [{"messages": chat} for chat in chats],
    }
    pairs = [{"prompt": chat[0]["content"], "response": chat[1]["content"]} for chat in chats]
    rows = kinds.get(kind, pairs)
    if "parquet" in kind:
        source = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source = write_jsonl(tmp_path / "rows.jsonl", rows)
    out = ["-o", tmp_path / "out", "--tokenizer", tokenizer]
    found = run("build", source, *out, "--messages-column", "auto", "--order", "input")
    assert found.code == 0, found.err
    assert conversations(tmp_path / "out") == expected
    names = "'prompt' and 'response'" if "pair" in kind else repr(next(iter(rows[0])))
    assert f"conversations are read from {names}" in found.err


def test_a_prompt_that_is_messages_stays_messages(tmp_path: Path, tokenizer: str) -> None:
    rows = [{"q": CHATS[0][:1], "a": CHATS[0][1]["content"]}]
    out = built(
        tmp_path, tokenizer, rows, messages_column=None, prompt_column="q", response_column="a"
    )
    assert conversations(out) == {0: by_hand(CHATS[0])}


@pytest.mark.parametrize(
    ("messages", "message", "reason"),
    [
        ([{"content": "a"}], "message 0 has no role; it has 'content'", "no_role"),
        (None, "'messages' is null, expected a list of messages", "null"),
        ("plain", "'messages' is text but not JSON", "bad_json"),
        ([{"role": "user", "content": "\ud800"}], "'messages' has a lone surrogate", "bad_utf8"),
    ],
)
def test_a_bad_conversation_is_named_and_may_be_skipped(
    tmp_path: Path, tokenizer: str, messages: Any, message: str, reason: str
) -> None:
    """tests/chat/test_conversations.py has all reasons."""
    rows = [{"messages": CHATS[0]}, {"messages": messages}, {"messages": CHATS[1]}]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["build", source, "-o", tmp_path / "out", "--tokenizer", tokenizer]
    command += ["--messages-column", "messages"]
    found = run(*command)
    assert found.code == 2
    assert f"rows.jsonl row 1 (line 2): {message}" in found.err
    assert not (tmp_path / "out").exists()
    assert run(*command, "--on-error", "skip").code == 0
    assert sorted(conversations(tmp_path / "out")) == [0, 2]
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["documents"]["skipped"] == {reason: 1}


def test_a_template_that_refuses_a_conversation_is_an_error_of_that_row(tmp_path: Path) -> None:
    side = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer", config=side))
    (tmp_path / "strict.jinja").write_text(
        "{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}"
        + TEMPLATE
    )
    rows = [{"messages": chat} for chat in CHATS]
    strict = str(tmp_path / "strict.jinja")
    with refused(InputError, "row 1 (line 2)", "the chat template", "the user begins"):
        built(tmp_path, tokenizer, rows, chat_template=strict)
    with refused(ConfigError, "no chat template; give one with --chat-template FILE"):
        built(tmp_path, tokenizer, rows)


def test_tokens_are_reused_with_the_same_template_only(tmp_path: Path, tokenizer: str) -> None:
    rows = [{"messages": chat} for chat in CHATS[:2]]
    store, file = tmp_path / "store", tmp_path / "same.jinja"
    one = built(tmp_path, tokenizer, rows, "same", keep_tokens=str(store))
    for text, folders in ((TEMPLATE, 1), ("{# another #}" + TEMPLATE, 2)):
        file.write_text(text)
        again = BuildConfig(
            sources=(str(tmp_path / "same.jsonl"),),
            output=str(tmp_path / f"again {folders}"),
            tokenizer=tokenizer,
            chat_template=str(file),
            keep_tokens=str(store),
            **MESSAGES,
        )
        build(again)
        assert conversations(Path(again.output)) == conversations(one)
        assert sum(path.is_dir() for path in store.iterdir()) == folders


@pytest.mark.parametrize("own", [True, False])
def test_verify_renders_the_conversations_again(tmp_path: Path, tokenizer: str, own: bool) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    options = {"chat_template": str(file)} if own else {}
    out = built(tmp_path, tokenizer, [{"messages": chat} for chat in CHATS], **options)
    verdict = verify(out, level="full")
    assert ([*verdict.findings], verdict.sampled) == ([], 3)
    (file if own else Path(tokenizer) / "tokenizer_config.json").write_text(
        TEMPLATE + " "
        if own
        else json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": "other"})
    )
    [finding] = verify(out, level="full").findings
    assert "is not the chat template of this output" in finding.what


def test_pack_dataset_gives_what_build_writes(tmp_path: Path, tokenizer: str) -> None:
    rows = [{"messages": chat, "weight": number / 2} for number, chat in enumerate(CHATS)]
    out = built(tmp_path, tokenizer, rows, carry=("weight",))
    packed = pack_dataset(datasets.Dataset.from_list(rows), tokenizer, carry="weight", **MESSAGES)
    assert packed.to_list() == datasets.load_from_disk(str(out)).to_list()
    assert packed[0]["weight"] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_ids_column": "ids"}, "input_ids_column cannot be used with conversations"),
        ({"bos": "<s>"}, "leave out --bos and --eos"),
        ({"truncate_at": "x"}, "truncate_at is for text"),
        ({"prompt_column": "p"}, "prompt_column and response_column go together"),
        ({"template_variables": "[1]"}, "template_variables is '[1]', expected JSON"),
        ({"messages_column": "chat"}, "there is no column 'chat'; there are messages"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, tokenizer: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ConfigError, InputError)) as caught:
        built(tmp_path, tokenizer, [{"messages": CHATS[0]}], **options)
    assert_says(str(caught.value), words)


OPENINGS = {
    "llama3_2": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "qwen3": ("<|im_start|>assistant\n", "<|im_end|>"),
    "mistral_nemo": ("[/INST]", "</s>"),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_real_chats_have_transformers_ids_and_the_brute_force_mask_in_the_packs(
    tmp_path: Path, name: str
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = SHARED / "tokenizers" / name
    with gzip.open(SHARED / "text" / "sgd_chat.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    chats = [{"messages": row["messages"]} for row in random.Random(0).sample(rows, 60)]
    out = built(tmp_path, str(folder), chats, max_length=4096)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    opening, end = OPENINGS[name]
    open_ids = theirs(opening, add_special_tokens=False)["input_ids"]
    end_id = theirs.convert_tokens_to_ids(end)
    found = conversations(out)
    assert len(found) == len(chats)
    for row, chat in enumerate(chats):
        ids, labels = found[row]
        # The day that llama's template has for a world without a clock, which transformers is not.
        options = {"date_string": "26 Jul 2024", "tokenize": True, "return_dict": False}
        assert ids == theirs.apply_chat_template(chat["messages"], **options)
        trained = trained_by_tokens(ids, open_ids, end_id)
        assert labels == [token if keep else -100 for token, keep in zip(ids, trained, strict=True)]


def thoughtful(rows: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of three turns, each with a thought of its own, and the thoughts."""
    thoughts = [f"thought {number} of the cat" for number in range(3 * rows)]
    messages = []
    for row in range(rows):
        turns: list[dict[str, str]] = []
        for thought in thoughts[3 * row : 3 * row + 3]:
            answer = {"role": "assistant", "content": "on", "reasoning_content": thought}
            turns += [{"role": "user", "content": "where?"}, answer]
        messages.append({"messages": turns})
    return messages, thoughts


def test_text_that_the_template_leaves_out_is_counted_by_source_and_named(
    tmp_path: Path, tokenizer: str
) -> None:
    """TEMPLATE knows no reasoning. Only the first of two files has some."""
    rows, thoughts = thoughtful(20)
    write_jsonl(tmp_path / "a.jsonl", [{"messages": CHATS[0]}, *rows])
    write_jsonl(tmp_path / "b.jsonl", [{"messages": CHATS[0]}])
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    options = ["--tokenizer", tokenizer, "--messages-column", "messages", "--max-length", "64"]
    result = run("build", *inputs, "-o", tmp_path / "out", *options)
    characters = sum(map(len, thoughts))
    tokens = sum(len(tiny_tokenizer().encode(thought).ids) for thought in thoughts)
    assert f"left out            {characters:,} characters ({tokens:,} tokens) by the" in result.out
    assert (
        f"the chat template leaves out {characters:,} characters of reasoning in 20 documents, "
        f"first at {inputs[0]} row 1 message 1 (reasoning): a model is not trained on it"
    ) in result.err
    report = json.loads((tmp_path / "out/report.json").read_bytes())
    sizes = {"characters": characters, "tokens": tokens}
    total = {"documents": 20, **sizes, "fields": {"reasoning": sizes}}
    assert report["left_out"] == report["sources"][0]["left_out"] == total
    nothing = {"documents": 0, "characters": 0, "tokens": 0, "fields": {}}
    assert report["sources"][1]["left_out"] == nothing
    assert run("report", tmp_path / "out", "-o", tmp_path / "page.html").code == 0
    assert "The chat template leaves out" in (tmp_path / "page.html").read_text()


def test_the_gate_fails_where_a_template_leaves_out_more(tmp_path: Path, tokenizer: str) -> None:
    rows, _ = thoughtful(2)
    plain = [{"messages": CHATS[1]} for _ in rows]
    before = built(tmp_path, tokenizer, plain, "before")
    after = built(tmp_path, tokenizer, rows, "after")
    baseline = tmp_path / "baseline.json"
    assert run("check", before, "--baseline", baseline, "--update-baseline").code == 0
    failed = run("check", after, "--baseline", baseline)
    assert failed.code == 1
    assert "left_out.characters was 0" in failed.out
    template = Path(tokenizer) / "keeps.jinja"
    template.write_text(TEMPLATE.replace("'\n' +", "'\n' + (message.reasoning_content or '') +"))
    keeps = built(tmp_path, tokenizer, rows, "keeps", chat_template=str(template))
    assert "left_out.characters was" not in run("check", keeps, "--baseline", baseline).out


def test_kept_tokens_know_what_is_left_out(tmp_path: Path, tokenizer: str) -> None:
    rows, _ = thoughtful(5)
    whole = built(tmp_path, tokenizer, rows, "whole", keep_tokens=str(tmp_path / "store"))
    kept: dict[str, Any] = {"max_length": 128, "keep_tokens": str(tmp_path / "store")}
    again = built(tmp_path, tokenizer, rows, "again", **kept)
    counts = [json.loads((path / "report.json").read_bytes()) for path in (whole, again)]
    assert counts[0]["left_out"] == counts[1]["left_out"]
    assert counts[0]["left_out"]["documents"] == 5
