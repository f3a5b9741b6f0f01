"""Conversations, and prompts with responses, through a whole build: ids, labels, accounts."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from packprep import BuildConfig, build, pack_dataset
from packprep.chat.conversations import Conversation
from packprep.chat.prompt_response import PlainFinder, encode_prompted
from packprep.chat.template import RenderError
from packprep.engines.backends import load_engine
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused

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
CHAT_ROWS = [{"messages": chat} for chat in CHATS]
MESSAGES: dict[str, Any] = {"messages_column": "messages", "max_length": 256, "order": "input"}
PROMPTED = MESSAGES | {"messages_column": None, "prompt_column": "q", "response_column": "a"}
PROMPT_ROWS = [
    {"q": "The cat sat on ", "a": "the mat"},
    {"q": "The c", "a": "at"},  # joined, "cat" is one token
    {"q": "so <s>", "a": "no </s> more"},
    {"q": "", "a": "all"},
    {"q": "nothing", "a": ""},
    {"q": "", "a": ""},
]
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    side = ENDS | {"chat_template": TEMPLATE}
    return str(save_tokenizer(tmp_path / "tokenizer", config=side))


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A tokenizer without a template."""
    return str(save_tokenizer(tmp_path / "bare", config=ENDS))


def options(
    tmp_path: Path, tokenizer: str, rows: Any, name: str = "out", **more: Any
) -> dict[str, Any]:
    source = write_jsonl(tmp_path / f"{name}.jsonl", rows)
    inputs = {"sources": (str(source),), "output": str(tmp_path / name), "tokenizer": tokenizer}
    return inputs | MESSAGES | more


def built(tmp_path: Path, tokenizer: str, rows: Any, name: str = "out", **more: Any) -> Path:
    build(BuildConfig(**options(tmp_path, tokenizer, rows, name, **more)))
    return tmp_path / name


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((path / "report.json").read_bytes())
    return report


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


def text_ids(text: str) -> list[int]:
    """Ids of a text in which no special token is one."""
    plain = tiny_tokenizer()
    plain.encode_special_tokens = True
    ids: list[int] = plain.encode(text, add_special_tokens=False).ids
    plain.encode_special_tokens = False
    return ids


def by_hand(
    messages: list[dict[str, str]], train_on: str = "assistant"
) -> tuple[list[int], list[int]]:
    """Ids piece by piece, `<s>` and `</s>` being the template's alone.

    Labels where a turn is trained.
    """
    ids, trained = [], []
    for number, message in enumerate(messages):
        answers = message["role"] == "assistant" and (
            train_on == "assistant" or number == len(messages) - 1
        )
        head, content = text_ids(message["role"] + "\n"), text_ids(message["content"])
        whole = text_ids(message["role"] + "\n" + message["content"])
        assert head + content == whole, "so that the pieces are the ids"
        ids += [0, *whole, 1]
        trained += [False] * (1 + len(head)) + [answers] * (len(content) + 1)
    return ids, [token if keep else -100 for token, keep in zip(ids, trained, strict=True)]


@pytest.mark.parametrize("train_on", ["assistant", "last-turn", "all"])
def test_the_assistants_turns_are_trained_and_a_conversation_without_one_is_dropped(
    tmp_path: Path, tokenizer: str, train_on: str
) -> None:
    out = built(tmp_path, tokenizer, CHAT_ROWS, train_on=train_on)
    assert verify(out, level="full").sound
    if train_on == "all":
        everything = {row: (by_hand(chat)[0], None) for row, chat in enumerate(CHATS)}
        assert conversations(out) == everything
        return
    expected = {row: by_hand(CHATS[row], train_on) for row in (0, 1)}
    assert conversations(out) == expected
    report = report_of(out)
    assert report["documents"]["dropped"] == {"few_loss_tokens": 1}
    assert report["loss_tokens"] == sum(
        label != -100 for _, labels in expected.values() for label in labels
    )


@pytest.mark.parametrize("ends", [{}, {"bos": "none"}, {"bos": "</s>", "eos": "none"}])
def test_prompt_and_response_follow_each_other_and_the_response_is_trained(
    tmp_path: Path, bare: str, ends: dict[str, str]
) -> None:
    special = {"<s>": [0], "</s>": [1], "none": []}
    bos, eos = special[ends.get("bos", "<s>")], special[ends.get("eos", "</s>")]
    expected = {}
    for number, row in enumerate(PROMPT_ROWS):
        prompt, response = text_ids(row["q"]), text_ids(row["a"])
        if prompt or response:
            ids = [*bos, *prompt, *response, *eos]
            labels = [-100] * len(bos + prompt) + response + eos
            expected[number] = ids, [-100, *labels[1:]]
    if not eos:
        del expected[4]  # nothing of it is trained
    out = built(tmp_path, bare, PROMPT_ROWS, **PROMPTED, **ends)
    assert conversations(out) == expected
    assert verify(out, level="full").sound


def test_bad_conversations_are_named_and_may_be_skipped(tmp_path: Path, tokenizer: str) -> None:
    bad = [[{"content": "a"}], None, "plain", [{"role": "user", "content": "\ud800"}]]
    rows = [CHAT_ROWS[0], *({"messages": messages} for messages in bad), CHAT_ROWS[1]]
    with refused(InputError, "out.jsonl row 1 (line 2): message 0 has no role; it has 'content'"):
        built(tmp_path, tokenizer, rows)
    assert not (tmp_path / "out").exists()
    out = built(tmp_path, tokenizer, rows, on_error="skip")
    assert sorted(conversations(out)) == [0, 5]
    skipped = {"no_role": 1, "null": 1, "bad_json": 1, "bad_utf8": 1}
    assert report_of(out)["documents"]["skipped"] == skipped


def thoughtful(rows: int, *, inline: bool = False, thinks: bool = True) -> list[dict[str, Any]]:
    """Rows of three turns, each with a thought of its own."""
    made = []
    for row in range(rows):
        messages = []
        for turn in range(3):
            thought, answer = f"thought {row} {turn} of it", f"answer {turn}"
            reply = {"role": "assistant", "content": answer}
            if inline and thinks:
                reply["content"] = f"<think>{thought}</think>{answer}"
            elif thinks:
                reply["reasoning_content"] = thought
            messages += [{"role": "user", "content": f"question {row}"}, reply]
        made.append({"messages": messages})
    return made


def test_text_that_the_template_leaves_out_is_counted_by_source_and_named(
    tmp_path: Path, tokenizer: str
) -> None:
    """TEMPLATE knows no reasoning. Only the first of two files has some."""
    rows = thoughtful(20)
    thoughts = [each["reasoning_content"] for row in rows for each in row["messages"][1::2]]
    first = write_jsonl(tmp_path / "a.jsonl", [CHAT_ROWS[0], *rows])
    second = write_jsonl(tmp_path / "b.jsonl", CHAT_ROWS[:1])
    more = ["--tokenizer", tokenizer, "--messages-column", "messages", "--max-length", "64"]
    result = run("build", first, second, "-o", tmp_path / "out", *more)
    characters = sum(map(len, thoughts))
    tokens = sum(len(tiny_tokenizer().encode(thought).ids) for thought in thoughts)
    assert f"left out            {characters:,} characters ({tokens:,} tokens) by the" in result.out
    assert (
        f"the chat template or renderer leaves out {characters:,} characters of reasoning in 20 "
        f"documents, first at {first} row 1 message 1 (reasoning): a model is not trained on it"
    ) in result.err
    report = report_of(tmp_path / "out")
    sizes = {"characters": characters, "tokens": tokens}
    total = {"documents": 20, **sizes, "fields": {"reasoning": sizes}}
    assert report["left_out"] == report["sources"][0]["left_out"] == total
    nothing = {"documents": 0, "characters": 0, "tokens": 0, "fields": {}}
    assert report["sources"][1]["left_out"] == nothing
    assert run("report", tmp_path / "out", "-o", tmp_path / "page.html").code == 0
    assert "The chat template or renderer leaves out" in (tmp_path / "page.html").read_text()


def test_tokens_are_reused_with_the_same_template_only(tmp_path: Path, tokenizer: str) -> None:
    rows, store, file = thoughtful(3), tmp_path / "store", tmp_path / "same.jinja"
    one = built(tmp_path, tokenizer, rows, "same", keep_tokens=str(store))
    for text, folders in ((TEMPLATE, 1), ("{# another #}" + TEMPLATE, 2)):
        file.write_text(text)
        again = options(tmp_path, tokenizer, rows, "same", keep_tokens=str(store))
        again |= {"output": str(tmp_path / f"again {folders}"), "chat_template": str(file)}
        build(BuildConfig(**again))
        assert conversations(Path(again["output"])) == conversations(one)
        assert report_of(Path(again["output"]))["left_out"] == report_of(one)["left_out"]
        assert sum(path.is_dir() for path in store.iterdir()) == folders


@pytest.mark.parametrize("own", [True, False])
def test_verify_renders_the_conversations_again(tmp_path: Path, tokenizer: str, own: bool) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    out = built(tmp_path, tokenizer, CHAT_ROWS, **{"chat_template": str(file)} if own else {})
    verdict = verify(out, level="full")
    assert ([*verdict.findings], verdict.sampled) == ([], 3)
    if own:
        file.write_text(TEMPLATE + " ")
    else:
        other = json.dumps(ENDS | {"chat_template": "other"})
        (Path(tokenizer) / "tokenizer_config.json").write_text(other)
    [finding] = verify(out, level="full").findings
    assert "is not the chat template of this output" in finding.what


@pytest.mark.parametrize("kind", ["chats", "turns", "prompts"])
def test_pack_dataset_gives_what_build_writes(
    tmp_path: Path, tokenizer: str, bare: str, kind: str
) -> None:
    rows: list[Any] = [row | {"weight": number / 2} for number, row in enumerate(CHAT_ROWS)]
    more: dict[str, Any] = MESSAGES | {"carry": ("weight",)}
    if kind == "turns":
        more = MESSAGES | {"turns": "each"}
    elif kind == "prompts":
        tokenizer, rows, more = bare, PROMPT_ROWS, PROMPTED
    out = built(tmp_path, tokenizer, rows, **more)
    packed = pack_dataset(datasets.Dataset.from_list(rows), tokenizer, **more)
    assert packed.to_list() == datasets.load_from_disk(str(out)).to_list()
    assert kind != "chats" or packed[0]["weight"] == [0.0, 0.5]


PAIR: dict[str, Any] = {"pair_columns": ("a", "b"), "overflow": "drop"}
PAIR |= {"messages_column": "auto"}


def test_sides_of_pairs_are_trained_as_conversations_or_as_responses_to_a_prompt(
    tmp_path: Path, tokenizer: str, bare: str
) -> None:
    other = [CHATS[0][0], {"role": "assistant", "content": "no"}]
    rows: list[Any] = [{"a": CHATS[0], "b": other}, {"a": CHATS[0], "b": CHATS[2]}]
    out = built(tmp_path, tokenizer, rows, **PAIR)
    assert report_of(out)["documents"]["dropped"] == {"few_loss_tokens": 1}  # without an answer
    prompt, good, bad = map(text_ids, ("The cat ", "sat", "<s>"))
    rows = [{"q": "The cat ", "a": "sat", "b": "<s>"}]
    prompted = {"response_column": None, "messages_column": None}
    whole = built(tmp_path, bare, rows, "prompted", **PROMPTED | PAIR | prompted)
    untrained = [-100] * (1 + len(prompt))
    answers = (([0, *prompt, *each, 1], [*untrained, *each, 1]) for each in (good, bad))
    for path, sides in ((out, [by_hand(CHATS[0]), by_hand(other)]), (whole, [*answers])):
        [pack] = PackedShards(path, verify=True)
        assert pack.labels is not None
        for side, (first, last) in zip(sides, pairwise(pack.cu_seqlens.tolist()), strict=True):
            assert (pack.tokens[first:last].tolist(), pack.labels[first:last].tolist()) == side


NO_TEMPLATE = "no chat template; give one with chat_template FILE"
TWO_ASKED = [{"q": [{"role": "user", "content": text} for text in "ab"], "a": "c"}]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"template_variables": "[1]"}, "template_variables is '[1]', expected JSON"),
        ({"messages_column": "chat"}, "there is no column 'chat'; there are messages"),
        ({"bare": PROMPT_ROWS, "turns": "each"} | PROMPTED, "turns each needs a chat template"),
        ({"bare": CHAT_ROWS, "messages_column": "auto"}, NO_TEMPLATE),
        ({"bare": PROMPT_ROWS, "template_variables": "{}"} | PROMPTED, NO_TEMPLATE),
        ({"bare": TWO_ASKED} | PROMPTED, "row 0 (line 1): without a chat template a row must"),
        (
            {"bare": PROMPT_ROWS, "train_fields": ("reasoning",)} | PROMPTED,
            "without a chat template a response is one text",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, tokenizer: str, bare: str, more: dict[str, Any], words: str
) -> None:
    """bare: rows for a tokenizer without a template."""
    rows, used = more.get("bare", CHAT_ROWS[:1]), bare if "bare" in more else tokenizer
    with pytest.raises((ConfigError, InputError)) as caught:
        built(tmp_path, used, rows, **{name: more[name] for name in more if name != "bare"})
    assert_says(str(caught.value), words)


def spaced(kind: str) -> Tokenizer:
    """A tokenizer of single characters that puts a space before a text, as SentencePiece does."""
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", *"▁Ġabc"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<s>"])
    spaces = [decoders.Replace("▁", " "), decoders.Replace("Ġ", " ")]
    tokenizer.decoder = decoders.Sequence([*spaces, decoders.Fuse()])
    if kind == "Prepend":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    elif kind == "ByteLevel":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.ByteLevel(add_prefix_space=True)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
    return tokenizer


@pytest.mark.parametrize("kind", ["always", "first", "Prepend", "ByteLevel"])
def test_no_space_is_put_between_prompt_and_response(kind: str) -> None:
    tokenizer = spaced(kind)
    raw = tokenizer.to_str().encode()
    pairs = [("ab", "ca"), ("ab ", "c"), ("ab", " c"), ("", "abc"), ("abc", "")]
    rendered = [PlainFinder(["<s>"]).render(asked(*pair)) for pair in pairs]
    spans = [[place for span in one.trained or [] for place in span] for one in rendered]
    specials = pa.array([one.specials for one in rendered], pa.list_(pa.int32()))
    texts = [one.text for one in rendered]
    table = pa.table({"text": texts, "trained": spans, "specials": specials})
    made = encode_prompted(table, load_engine("hf", raw, parse_special_tokens=True), raw).tokens
    for row, (prompt, response) in enumerate(pairs):
        ids = made.ids[made.offsets[row] : made.offsets[row + 1]]
        trained = made.trained[made.offsets[row] : made.offsets[row + 1]]
        assert tokenizer.decode(ids.tolist()) == " " + prompt + response
        assert tokenizer.decode(ids[trained].tolist()) == (response if prompt else " " + response)
        assert np.flatnonzero(trained).tolist() == list(range(len(ids) - trained.sum(), len(ids)))


def asked(prompt: Any, response: Any, **more: Any) -> Conversation:
    return Conversation(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}], **more
    )


@pytest.mark.parametrize(
    "row",
    [
        Conversation([*asked("a", "b").messages, {"role": "user", "content": "c"}]),
        asked([{"type": "text", "text": "a"}], "b"),
        asked("a", "b", tools=[{"name": "f"}]),
        asked("a", "b", variables={"x": 1}),
    ],
)
def test_a_row_of_more_than_two_texts_needs_a_template(row: Conversation) -> None:
    with refused(RenderError, "a row must be two texts, prompt and response"):
        PlainFinder([]).render(row)
