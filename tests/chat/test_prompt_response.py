from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from packprep import BuildConfig, build, pack_dataset
from packprep.chat.conversations import Conversation
from packprep.chat.prompt_response import PlainFinder, encode_prompted
from packprep.chat.template import RenderError
from packprep.engines.backends import load_engine
from packprep.loaders import PackedShards
from packprep.support.errors import ConfigError, InputError
from tests.helpers import command
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused

PROMPTED: dict[str, Any] = {
    "prompt_column": "q",
    "response_column": "a",
    "max_length": 64,
    "order": "input",
}
ROWS = [
    {"q": "The cat sat on ", "a": "the mat"},
    {"q": "The c", "a": "at"},  # joined, "cat" is one token
    {"q": "so <s>", "a": "no </s> more"},
    {"q": "", "a": "all"},
    {"q": "nothing", "a": ""},
    {"q": "", "a": ""},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(
        save_tokenizer(tmp_path / "tokenizer", config={"bos_token": "<s>", "eos_token": "</s>"})
    )


def built(tmp_path: Path, tokenizer: str, rows: Any = ROWS, **options: Any) -> Path:
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = {
        "sources": (str(source),),
        "output": str(tmp_path / "out"),
        "tokenizer": tokenizer,
    } | PROMPTED
    build(BuildConfig(**config | options))
    return tmp_path / "out"


def documents(path: Path) -> dict[int, tuple[list[int], list[int] | None]]:
    """Ids and labels of each document."""
    found = {}
    for pack in PackedShards(path, verify=True):
        cu = pack.cu_seqlens.tolist()
        for number, (document, _, tokens) in enumerate(pack.segments()):
            assert document is not None
            labels = (
                None if pack.labels is None else pack.labels[cu[number] : cu[number + 1]].tolist()
            )
            found[document] = tokens.tolist(), labels
    return found


def text_ids(text: str) -> list[int]:
    tokenizer = tiny_tokenizer()
    tokenizer.encode_special_tokens = True
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    return ids


@pytest.mark.parametrize("ends", [{}, {"bos": "none"}, {"bos": "</s>", "eos": "none"}])
def test_prompt_and_response_follow_each_other_and_the_response_is_trained(
    tmp_path: Path, tokenizer: str, ends: dict[str, str]
) -> None:
    special = {name: [tiny_tokenizer().token_to_id(name)] for name in ("<s>", "</s>")}
    special["none"] = []
    bos, eos = special[ends.get("bos", "<s>")], special[ends.get("eos", "</s>")]
    expected = {}
    for number, row in enumerate(ROWS):
        prompt, response = text_ids(row["q"]), text_ids(row["a"])
        if prompt or response:
            ids = [*bos, *prompt, *response, *eos]
            labels = [-100] * len(bos + prompt) + response + eos
            expected[number] = ids, [-100, *labels[1:]]
    if not eos:
        del expected[4]  # nothing of it is trained
    assert documents(built(tmp_path, tokenizer, **ends)) == expected


def test_everything_is_trained_where_asked_for(tmp_path: Path, tokenizer: str) -> None:
    found = documents(built(tmp_path, tokenizer, train_on="all"))
    bos, eos = (tiny_tokenizer().token_to_id(name) for name in ("<s>", "</s>"))
    assert found[1] == ([bos, *text_ids("The c"), *text_ids("at"), eos], None)


def test_verify_tokenizes_them_again_and_the_build_prints_a_note(
    tmp_path: Path, tokenizer: str
) -> None:
    source, out = write_jsonl(tmp_path / "rows.jsonl", ROWS), str(tmp_path / "out")
    options = ["--tokenizer", tokenizer, "--prompt-column", "q", "--response-column", "a"]
    done = command.run("build", str(source), "-o", out, "--max-length", "64", *options)
    assert done.code == 0
    assert "no chat template: prompt and response are joined as they are" in done.err
    assert command.run("verify", out, "--level", "full").code == 0


def test_pack_dataset_gives_what_build_writes(tmp_path: Path, tokenizer: str) -> None:
    packed = pack_dataset(datasets.Dataset.from_list(ROWS), tokenizer, **PROMPTED)
    assert packed.to_list() == datasets.load_from_disk(str(built(tmp_path, tokenizer))).to_list()


def test_sides_of_a_preference_pair_are_responses_to_the_prompt(
    tmp_path: Path, tokenizer: str
) -> None:
    rows = [{"q": "The cat ", "good": "sat", "bad": "<s>"}]
    options = {"response_column": None, "pair_columns": ("good", "bad"), "overflow": "truncate"}
    (pack,) = PackedShards(built(tmp_path, tokenizer, rows, **options))
    bos, eos = (tiny_tokenizer().token_to_id(name) for name in ("<s>", "</s>"))
    prompt, good, bad = map(text_ids, ("The cat ", "sat", "<s>"))
    assert pack.tokens.tolist() == [bos, *prompt, *good, eos, bos, *prompt, *bad, eos]
    nothing = [-100] * len([bos, *prompt])
    assert pack.labels is not None
    assert pack.labels.tolist() == [*nothing, *good, eos, *nothing, *bad, eos]


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
    finder = PlainFinder(["<s>"])
    pairs = [("ab", "ca"), ("ab ", "c"), ("ab", " c"), ("", "abc"), ("abc", "")]
    rendered = [finder.render(conversation(*pair)) for pair in pairs]
    table = pa.table(
        {
            "text": [one.text for one in rendered],
            "trained": [
                [place for span in one.trained or [] for place in span] for one in rendered
            ],
            "specials": pa.array([one.specials for one in rendered], pa.list_(pa.int32())),
        }
    )
    made = encode_prompted(table, load_engine("hf", raw, parse_special_tokens=True), raw).tokens
    for row, (prompt, response) in enumerate(pairs):
        ids = made.ids[made.offsets[row] : made.offsets[row + 1]]
        trained = made.trained[made.offsets[row] : made.offsets[row + 1]]
        assert tokenizer.decode(ids.tolist()) == " " + prompt + response
        assert tokenizer.decode(ids[trained].tolist()) == (response if prompt else " " + response)
        assert np.flatnonzero(trained).tolist() == list(range(len(ids) - trained.sum(), len(ids)))


def conversation(prompt: Any, response: Any) -> Conversation:
    return Conversation(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    )


@given(st.text(max_size=9), st.text(max_size=9))
def test_the_rendering_is_the_two_texts_joined(prompt: str, response: str) -> None:
    rendered = PlainFinder(["<s>"]).render(conversation(prompt, response))
    assert rendered.text == prompt + response
    assert rendered.trained == [(len(prompt), len(prompt + response))]


@pytest.mark.parametrize(
    "row",
    [
        Conversation([{"role": "user", "content": "a"}] * 2),
        Conversation([*conversation("a", "b").messages, {"role": "user", "content": "c"}]),
        conversation([{"type": "text", "text": "a"}], "b"),
        Conversation(conversation("a", "b").messages, tools=[{"name": "f"}]),
        Conversation(conversation("a", "b").messages, variables={"x": 1}),
    ],
)
def test_a_row_of_more_than_two_texts_needs_a_template(row: Conversation) -> None:
    with refused(RenderError, "a row must be two texts, prompt and response"):
        PlainFinder([]).render(row)


def test_without_a_template_conversations_and_its_options_are_refused(
    tmp_path: Path, tokenizer: str
) -> None:
    rows = [{"messages": conversation("a", "b").messages}]
    whole = {"prompt_column": None, "response_column": None, "messages_column": "auto"}
    for options in (whole, {"template_variables": "{}"}):
        with refused(ConfigError, "no chat template; give one with --chat-template FILE"):
            built(tmp_path, tokenizer, rows if options is whole else ROWS, **options)
    listed = [{"q": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "a": "c"}]
    with refused(InputError, "row 0", "without a chat template a row must be two texts"):
        built(tmp_path, tokenizer, listed)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    with refused(ConfigError, "the chat template writes BOS and EOS"):
        built(tmp_path, tokenizer, bos="<s>", chat_template=str(template))
