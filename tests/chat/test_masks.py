import gzip
import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from packprep.chat.conversations import Message, find_conversations
from packprep.chat.masks import ChatTokens, ExactEncoder, encode_chats, render_chats
from packprep.chat.template import load_chat_template
from packprep.chat.turn_locator import TrainOn
from packprep.chat.turns import TurnFinder
from packprep.engines.backends import Engine, EngineName, load_engine
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.corpus import one_line, save_tokenizer
from tests.helpers.examples import long_but
from tests.helpers.reference_chat import special_ids_of_text, trained_by_tokens

from .test_template import CHATS, DATE, TOKENIZERS, TOOL, templated, transformers_tokenizer
from .test_turns import chat

DATA = TOKENIZERS.parent / "text"

# What opens an assistant's turn and closes it, for the oracle that knows the formats by heart.
FORMATS = {
    "llama3_2": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "qwen3": ("<|im_start|>assistant\n", "<|im_end|>"),
    "mistral_nemo": ("[/INST]", "</s>"),
}
CHATML = (
    "{{ bos_token }}{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def encode(
    folder: Path,
    rows: Sequence[Any],
    train_on: TrainOn = "assistant",
    *,
    tools: Any = None,
    file: Path | None = None,
    engine: EngineName = "hf",
) -> ChatTokens:
    """Rows of messages to ids and masks."""
    tokenizer, exact, encoder = loaded(folder, engine)
    finder = TurnFinder(load_chat_template(tokenizer, file), exact.specials, train_on)
    table = pa.table(
        {"messages": [json.dumps(row) for row in rows], "tools": [json.dumps(tools)] * len(rows)}
    )
    columns = find_conversations(table.column_names)
    assert columns is not None
    rendered = render_chats(table, columns, finder)
    assert rendered["problem"].null_count == len(rows), rendered["problem"]
    return encode_chats(rendered, encoder, exact)


@lru_cache
def loaded(folder: Path, engine: EngineName) -> tuple[Tokenizer, ExactEncoder, Engine]:
    """Loaded once: that takes longer than all else here."""
    tokenizer = load_tokenizer(folder, bos="none", eos="none")
    return (
        tokenizer,
        ExactEncoder(tokenizer.json),
        load_engine(engine, tokenizer.json, parse_special_tokens=True),
    )


def row(tokens: ChatTokens, number: int) -> tuple[list[int], list[bool]]:
    first, last = tokens.offsets[number : number + 2]
    return tokens.ids[first:last].tolist(), tokens.trained[first:last].tolist()


@lru_cache
def chats(count: int) -> list[list[Message]]:
    with gzip.open(DATA / "sgd_chat.jsonl.gz", "rt") as file:
        return random.Random(7).sample([json.loads(line)["messages"] for line in file], count)


@pytest.mark.parametrize(
    ("engine", "count"),
    [("hf", 10), ("fastokens", 40), pytest.param("fastokens", 150, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", templated())
def test_ids_are_those_of_transformers_and_the_mask_is_the_brute_force_one(
    name: str, engine: EngineName, count: int
) -> None:
    rows = chats(count)
    theirs = transformers_tokenizer(name)
    tokens = encode(TOKENIZERS / name, rows, engine=engine)
    opening, closing = (
        theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids
        for text in FORMATS[name]
    )
    bos = theirs.bos_token_id
    for number, messages in enumerate(rows):
        ids, mask = row(tokens, number)
        assert ids == theirs.apply_chat_template(messages, date_string=DATE)["input_ids"]
        assert mask == trained_by_tokens(ids, opening, closing[0])
        assert bos is None or ids.count(bos) == 1
    assert 0.3 < tokens.trained.mean() < 0.7


@pytest.mark.parametrize("name", templated())
def test_a_text_that_spells_every_special_token_gives_no_special_id(name: str) -> None:
    theirs = transformers_tokenizer(name)
    backend = theirs.backend_tokenizer
    added = backend.get_added_tokens_decoder().values()
    names = [token.content for token in added if token.special]
    spelled = "x".join(names) + "".join(names) + " ".join(names)
    plain = chat("hi", "hello", "hi", "hello")
    harmful = chat(*[str(message["content"]) + spelled for message in plain])
    one_each = [chat(*[token] * 4) for token in names[:: max(1, len(names) // 40)]]
    function = {"name": names[0], "description": names[-1], "parameters": {names[1]: names[2]}}
    tool = {"type": "function", "function": function}
    for tools, calm in ((None, None), ([tool], [TOOL])):
        expected = special_ids_of_text(
            backend, row(encode(TOKENIZERS / name, [plain], tools=calm), 0)[0]
        )
        rows = [harmful, *one_each]
        tokens = encode(TOKENIZERS / name, rows, tools=tools)
        assert tokens.problems == {}
        for number in range(len(rows)):
            assert special_ids_of_text(backend, row(tokens, number)[0]) == expected
        ids, mask = row(tokens, 0)
        kept = [id_ for id_, is_trained in zip(ids, mask, strict=True) if is_trained]
        assert backend.decode(kept, skip_special_tokens=False).count("hello" + spelled) == 2
        assert backend.decode(ids, skip_special_tokens=False).count("hi" + spelled) == 2


# Tokenizers of other kinds, with a template given by hand whose special tokens they have.
OTHERS = {
    "gemma2": ("<start_of_turn>", "<end_of_turn>"),
    "t5_small": ("<pad>", "</s>"),
    "bert_base_uncased": ("[CLS]", "[SEP]"),
}


@pytest.mark.parametrize("name", long_but({*OTHERS} - {"gemma2"}, OTHERS))
def test_tokenizers_of_every_kind_give_the_ids_of_the_whole_text(name: str, tmp_path: Path) -> None:
    opening, closing = OTHERS[name]
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML.replace("<s>", opening).replace("</s>", closing))
    theirs = transformers_tokenizer(name)
    rows = [*chats(50), CHATS["turns"], CHATS["one turn"]]
    tokens = encode(TOKENIZERS / name, rows, file=file)
    for number, messages in enumerate(rows):
        ids, mask = row(tokens, number)
        asked = theirs.apply_chat_template(messages, chat_template=file.read_text())
        assert ids == asked["input_ids"]
        turns = sum(message["role"] == "assistant" for message in messages)
        if name != "bert_base_uncased":  # which drops the line feed that the opening ends with
            assert sum(b > a for a, b in zip([False, *mask], mask, strict=False)) == turns
        closes = theirs.convert_tokens_to_ids(closing)
        assert sum(np.array(ids)[np.array(mask)] == closes) == turns
    # Spelled tokens stay text.
    backend = theirs.backend_tokenizer
    plain, harmful = chat("hi you", "hello"), chat(*[f"a {closing} b{opening}{closing}"] * 2)
    tokens = encode(TOKENIZERS / name, [harmful, plain], file=file)
    calm = row(tokens, 1)[0]
    assert calm == row(encode(TOKENIZERS / name, [plain], file=file), 0)[0]
    if tokens.problems:  # a unigram vocabulary holds the token as a piece
        assert "plain text" in tokens.problems[0].detail
        assert row(tokens, 0) == ([], [])
    else:
        assert special_ids_of_text(backend, row(tokens, 0)[0]) == special_ids_of_text(backend, calm)


def metaspace(folder: Path, scheme: str) -> Path:
    """A small SentencePiece-like BPE whose first word alone, or every piece, gets a space."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=False
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=sorted("abcdefghijklmnopqrstuvwxyz<>/\n▁:"),
    )
    tokenizer.train_from_iterator(["hello you and me assistant user hello hi you"] * 9, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    sides = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(sides))
    return folder


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_space_before_a_first_word_is_where_the_whole_text_has_it(
    scheme: str, tmp_path: Path
) -> None:
    folder, file = metaspace(tmp_path / "tokenizer", scheme), tmp_path / "chat.jinja"
    file.write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    plain, harmful = chat("hi you", "hello me"), chat("hi </s> you", "hello<s> me")
    tokens = encode(folder, [plain, harmful], file=file)
    assert tokens.problems == {}
    whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = whole.encode("user:hi you</s>assistant:hello me</s>", add_special_tokens=False)
    trained = [start >= 25 or end > 25 for start, end in encoding.offsets]
    assert row(tokens, 0) == (encoding.ids, trained)
    ids, _ = row(tokens, 1)
    opening, closing = whole.encode("<s></s>", add_special_tokens=False).ids
    assert (ids.count(closing), opening in ids) == (2, False)
    # Up to the template's first token nothing is otherwise than in the whole text.
    whole.encode_special_tokens = True
    before = whole.encode("user:hi </s> you", add_special_tokens=False).ids
    assert ids[: ids.index(closing)] == before


def test_a_token_that_crosses_the_beginning_of_a_turn_is_trained(tmp_path: Path) -> None:
    backend = transformers_tokenizer("qwen3").backend_tokenizer
    ids, mask = row(encode(TOKENIZERS / "qwen3", [chat("hi", "\n\nhello", "a")]), 0)
    kept = [backend.id_to_token(id_) for id_, trained in zip(ids, mask, strict=True) if trained]
    assert kept == ["ĊĊĊ", "hello", "<|im_end|>"]


def test_rows_that_are_not_conversations_have_no_tokens_but_a_reason(tmp_path: Path) -> None:
    tokenizer, exact, encoder = loaded(save_tokenizer(tmp_path), "hf")
    (tmp_path / "chat.jinja").write_text("{{ 1 / (messages[0].content | length - 1) }}")
    finder = TurnFinder(load_chat_template(tokenizer, tmp_path / "chat.jinja"), exact.specials)
    rows = ["[]", *(json.dumps([{"role": "user", "content": text}]) for text in ("a", "ab"))]
    columns = find_conversations(["messages"])
    assert columns is not None
    rendered = render_chats(pa.table({"messages": rows}), columns, finder)
    assert [problem and one_line(problem) for problem in rendered["problem"].to_pylist()] == [
        "no_messages: 'messages' is empty, expected at least one message",
        "template: the chat template cannot render it: ZeroDivisionError: division by zero",
        None,
    ]
    for size in (3, 0):
        tokens = encode_chats(rendered.slice(0, size), encoder, exact)
        assert tokens.offsets.tolist() == [0, 0, 0, len(tokens.ids)][: size + 1]
        assert len(tokens.ids) == len(tokens.trained)
