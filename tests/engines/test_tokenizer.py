from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from packprep import TokenizeAndPack
from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.config.stages import Parsing, Tokenizing
from packprep.engines.tokenizer import Special, Tokenizer, load_tokenizer
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import REAL_TOKENIZERS, SHARED, save_tokenizer, tiny_tokenizer
from tests.helpers.errors import refused
from tests.helpers.examples import long_but

BOS, EOS = Special("<s>", 0), Special("</s>", 1)


def ends(tokenizer: Tokenizer) -> tuple[Special | None, Special | None]:
    return tokenizer.bos, tokenizer.eos


def with_processor(folder: Path, single: str) -> Path:
    """A tokenizer.json alone whose post-processor puts these around a sequence."""
    folder.mkdir()
    tokenizer = FastTokenizer.from_str(tiny_tokenizer().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=None, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_tokenizer_config_is_asked_before_special_tokens_map_and_that_before_the_post_processor(
    tmp_path: Path,
) -> None:
    folder = with_processor(tmp_path / "t", "</s> $A </s>")
    assert ends(load_tokenizer(folder)) == (EOS, EOS)
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "<s>"}')
    assert ends(load_tokenizer(folder)) == (BOS, BOS)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert ends(load_tokenizer(folder)) == (BOS, EOS)
    side = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    for flag in (True, False):  # is ignored
        config = side | {"add_bos_token": flag}
        assert ends(load_tokenizer(save_tokenizer(tmp_path / "u", config=config))) == (BOS, EOS)


def test_a_null_or_a_post_processor_that_adds_nothing_means_none_and_is_said(
    tmp_path: Path,
) -> None:
    side = {"bos_token": None, "eos_token": "</s>"}
    found = load_tokenizer(save_tokenizer(tmp_path / "t", config=side))
    assert ends(found) == (None, EOS)
    assert found.notes == ("no BOS: tokenizer_config.json says bos_token is null",)
    found = load_tokenizer(folder := with_processor(tmp_path / "u", "<s> $A"))
    assert ends(found) == (BOS, None)
    assert found.notes == (f"no EOS: the post-processor of {folder} adds none",)
    # The token next to the text is the one that counts.
    nested = load_tokenizer(with_processor(tmp_path / "v", "</s> <s> $A </s> <s>"))
    assert ends(nested) == (BOS, EOS)


def test_when_no_file_says_anything_the_error_names_candidates(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t", config={})
    with pytest.raises(ConfigError, match=r"names the BOS token; .*special tokens: <s>, </s>"):
        load_tokenizer(folder)
    assert ends(load_tokenizer(folder, bos="none", eos="</s>")) == (None, EOS)
    assert ends(load_tokenizer(folder, bos="</s>", eos="</s>")) == (EOS, EOS)


@pytest.mark.parametrize(
    ("eos", "words"), [("</S>", r"did you mean '</s>'\?"), ("qqqqqq", "choose a token it has")]
)
def test_a_token_that_is_not_in_the_vocabulary_suggests_the_nearest(
    tmp_path: Path, eos: str, words: str
) -> None:
    folder = save_tokenizer(tmp_path / "t")
    with pytest.raises(ConfigError, match=rf"eos '{eos}' is not in the vocabulary of .*; {words}"):
        load_tokenizer(folder, eos=eos)


GPT2 = {"tokenizer_class": "GPT2Tokenizer"}


@pytest.mark.parametrize(
    ("config", "notes", "error"),
    [
        ({}, 0, ""),
        ({"tokenizer_file": None}, 1, ""),
        ({"tokenizer_file": "/elsewhere/a.json"}, 0, ""),
        ({"add_prefix_space": True}, 0, ""),  # this class does not read it
        ({"add_prefix_space": True} | GPT2, 0, "add_prefix_space is True"),
        ({"add_prefix_space": False, "legacy": True} | GPT2, 0, ""),
        ({"extra_special_tokens": ["<s>", "<tool>"]}, 0, "'<tool>' is not in tokenizer.json"),
        ({"extra_special_tokens": {"tool_token": "<tool>"}}, 0, "'<tool>'"),
        ({"additional_special_tokens": [{"content": "<s>"}]}, 0, ""),
    ],
)
def test_keys_of_the_config_agree_with_the_tokenizer_json_or_are_refused(
    tmp_path: Path, config: dict[str, Any], notes: int, error: str
) -> None:
    side = config | {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save_tokenizer(tmp_path / "t", config=side)
    if error:
        with refused(InputError, error, str(folder)):
            load_tokenizer(folder)
    else:
        assert len(load_tokenizer(folder).notes) == notes


@pytest.mark.parametrize(
    ("scheme", "legacy", "outcome"),
    [("first", False, 0), ("first", True, None), ("always", True, 0), (None, False, 1)],
)
def test_legacy_says_where_a_llama_tokenizer_adds_spaces(
    tmp_path: Path, scheme: str | None, legacy: bool, outcome: int | None
) -> None:
    side = {"bos_token": "<s>", "eos_token": "</s>", "legacy": legacy}
    folder = save_tokenizer(tmp_path / "t", config=side | {"tokenizer_class": "LlamaTokenizer"})
    tokenizer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    if scheme is None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.save(str(folder / "tokenizer.json"))
    if outcome is None:
        with refused(InputError, "legacy is True", "by the rule first"):
            load_tokenizer(folder)
    else:
        assert len(load_tokenizer(folder).notes) == outcome


def test_split_special_tokens_is_refused_where_special_tokens_are_parsed(tmp_path: Path) -> None:
    side = {"bos_token": "<s>", "eos_token": "</s>", "split_special_tokens": True}
    tokenizing = Tokenizing(tokenizer=save_tokenizer(tmp_path / "t", config=side))
    load_build_tokenizer(tokenizing, Parsing(), "auto")
    with refused(ConfigError, "split_special_tokens"):
        load_build_tokenizer(tokenizing, Parsing(parse_special_tokens=True), "auto")


def test_stored_truncation_and_padding_are_switched_off_and_that_is_said(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    stored = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=16)
    stored.save(str(folder / "tokenizer.json"))
    found = load_tokenizer(folder)
    names = ("truncation", "padding")
    assert found.notes == tuple(f"{folder}: stored {name} is switched off" for name in names)
    text = "The cat sat on the mat, and the dog sat on the log."
    ids = FastTokenizer.from_str(found.json.decode()).encode(text).ids
    assert ids == tiny_tokenizer().encode(text).ids


def test_padding_takes_the_pad_token_or_else_eos_or_bos_or_0(tmp_path: Path) -> None:
    def pad_of(**side: str | None) -> int:
        config = {"bos_token": None, "eos_token": None} | side
        return load_tokenizer(save_tokenizer(tmp_path / "t", config=config)).pad_id

    assert pad_of(pad_token="a") == tiny_tokenizer().token_to_id("a")
    assert pad_of(pad_token="not there", eos_token="</s>", bos_token="<s>") == EOS.id
    assert pad_of(bos_token="<s>") == BOS.id
    assert pad_of() == 0


def test_tokenizer_objects_are_taken_as_they_are(tmp_path: Path) -> None:
    path = save_tokenizer(tmp_path / "t") / "tokenizer.json"
    plain = load_tokenizer(tiny_tokenizer(), bos="<s>", eos="none")
    assert (plain.bos, plain.eos, plain.vocab_size) == (BOS, None, load_tokenizer(path).vocab_size)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<s>", eos_token="</s>")
    assert ends(load_tokenizer(fast)) == (BOS, EOS)
    with pytest.raises(InputError, match=r"dict is not a tokenizer; expected a path, a tokenizers"):
        load_tokenizer({"model": {}})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *(("tokenizer.json", text, "it has no model") for text in ("{}", "[]")),
        ("tokenizer.json", "not json", "Expecting value"),
        ("tokenizer.json", '{"model": {}}', "it has no 'vocab'"),
        ("tokenizer.json", '{"model": {"vocab": {}}}', "its vocabulary is empty"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "x"}}}', "has a token without a number"),
        ("special_tokens_map.json", "{", "is not JSON"),
        ("tokenizer.json", None, r"holds no tokenizer\.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_or_is_missing_is_named(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    folder = save_tokenizer(tmp_path / "t")
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=rf"{folder}.* {words}"):
        load_tokenizer(folder)


def test_no_tokenizer_and_one_that_is_gone_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer file .*gone\.json; check the path"):
        load_tokenizer(tmp_path / "gone.json")
    with pytest.raises(ConfigError, match="no tokenizer is given; add tokenizer"):
        load_tokenizer("")


def hub(monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], missing: Exception) -> list[Any]:
    """A hub with one tokenizer; what is asked of it."""
    asked: list[Any] = []

    def download(name: str, file: str, *, revision: str | None) -> str:
        asked.append((name, file, revision))
        if file not in files:
            raise missing
        return str(files[file])

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr("packprep.support.hub._unreachable", lambda *_: "")
    return asked


def test_any_other_name_is_asked_of_the_hub_with_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tokenizer(tmp_path / "cache@v2")  # the name of a local path is never split
    files = {path.name: path for path in folder.iterdir()}
    asked = hub(monkeypatch, files, EntryNotFoundError("no such file"))
    assert ends(load_tokenizer("user/name@v1")) == ends(load_tokenizer(folder)) == (BOS, EOS)
    TokenizeAndPack("user/name", tokenizer_revision="v1")
    names = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja"
    assert asked == [("user/name", name, "v1") for name in names.split()] * 2


def test_a_hub_that_does_not_answer_is_an_error_and_no_file_is_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tokenizer(tmp_path / "cache")
    files = {"tokenizer.json": folder / "tokenizer.json"}
    hub(monkeypatch, files, LocalEntryNotFoundError("no connection"))
    with pytest.raises(InputError, match="no tokenizer came from the hub: no connection"):
        load_tokenizer("user/name")
    # Unless an earlier answer said that there is no such file.
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: object())
    assert ends(load_tokenizer("user/name")) == (BOS, EOS)


@pytest.mark.parametrize("name", long_but(["gpt2", "t5_small"], REAL_TOKENIZERS))
def test_every_kind_of_tokenizer_needs_no_more_than_its_files(name: str) -> None:
    bos, eos = REAL_TOKENIZERS[name]
    folder = SHARED / "tokenizers" / name
    found = load_tokenizer(folder)
    reference = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    for token, text in ((found.bos, bos), (found.eos, eos)):
        assert token == (None if text is None else Special(text, reference.get_vocab()[text]))
    assert found.vocab_size == 1 + max(reference.get_vocab(with_added_tokens=True).values())
    assert len(found.notes) == [bos, eos].count(None)
