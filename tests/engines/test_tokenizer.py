import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from packprep.engines.tokenizer import Special, Tokenizer, load_tokenizer
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import SHARED, save_tokenizer, tiny_tokenizer

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


def test_a_file_and_its_directory_are_the_same_tokenizer(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    whole = load_tokenizer(str(folder))
    assert load_tokenizer(folder / "tokenizer.json") == whole
    assert ends(whole) == (BOS, EOS)
    assert whole.json == (folder / "tokenizer.json").read_bytes()
    assert whole.vocab_size == tiny_tokenizer().get_vocab_size()
    assert whole.notes == ()


@pytest.mark.parametrize("add", [True, False, None])
def test_add_bos_token_flags_are_ignored(tmp_path: Path, add: bool | None) -> None:
    flags = {} if add is None else {"add_bos_token": add, "add_eos_token": add}
    side = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", **flags}
    assert ends(load_tokenizer(save_tokenizer(tmp_path / "t", config=side))) == (BOS, EOS)


def test_tokenizer_config_is_asked_before_special_tokens_map_and_that_before_the_post_processor(
    tmp_path: Path,
) -> None:
    folder = with_processor(tmp_path / "t", "</s> $A </s>")
    assert ends(load_tokenizer(folder)) == (EOS, EOS)
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "<s>"}')
    assert ends(load_tokenizer(folder)) == (BOS, BOS)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert ends(load_tokenizer(folder)) == (BOS, EOS)


def test_an_explicit_null_means_none_and_is_said(tmp_path: Path) -> None:
    found = load_tokenizer(
        save_tokenizer(tmp_path / "t", config={"bos_token": None, "eos_token": "</s>"})
    )
    assert ends(found) == (None, EOS)
    assert found.notes == ("no BOS: tokenizer_config.json says bos_token is null",)


def test_a_post_processor_that_adds_nothing_at_an_end_means_none_there_and_is_said(
    tmp_path: Path,
) -> None:
    folder = with_processor(tmp_path / "t", "<s> $A")
    found = load_tokenizer(folder)
    assert ends(found) == (BOS, None)
    assert found.notes == (f"no EOS: the post-processor of {folder} adds none",)


def test_the_token_next_to_the_text_is_the_one_that_counts(tmp_path: Path) -> None:
    assert ends(load_tokenizer(with_processor(tmp_path / "t", "</s> <s> $A </s> <s>"))) == (
        BOS,
        EOS,
    )


def test_when_no_file_says_anything_the_error_names_candidates(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t", config={})
    with pytest.raises(ConfigError) as raised:
        load_tokenizer(folder)
    assert str(raised.value) == (
        f"no file next to {folder} names the BOS token; choose --bos TOKEN or --bos none (special "
        "tokens: <s>, </s>)"
    )
    assert ends(load_tokenizer(folder, bos="none", eos="</s>")) == (None, EOS)


def test_bos_and_eos_may_be_the_same_token(tmp_path: Path) -> None:
    assert ends(load_tokenizer(save_tokenizer(tmp_path / "t"), bos="</s>", eos="</s>")) == (
        EOS,
        EOS,
    )


def test_a_token_that_is_not_in_the_vocabulary_suggests_the_nearest(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    with pytest.raises(
        ConfigError, match=r"eos '</S>' is not in the vocabulary of .*; did you mean '</s>'\?"
    ):
        load_tokenizer(folder, eos="</S>")
    with pytest.raises(
        ConfigError, match=r"eos 'qqqqqq' is not in the vocabulary of .*; choose a token it has"
    ):
        load_tokenizer(folder, eos="qqqqqq")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"tokenizer_file": None}, True),
        ({"tokenizer_file": "/elsewhere/a.json"}, False),
        ({}, False),
    ],
)
def test_a_config_that_names_no_tokenizer_file_says_which_file_was_read(
    tmp_path: Path, config: dict[str, Any], said: bool
) -> None:
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save_tokenizer(tmp_path / "t", config=config | ends)
    assert load_tokenizer(folder).notes == (
        (
            f"{folder}: tokenizer.json was read; tokenizer_config.json says tokenizer_file is "
            "null, for which some versions of transformers read the other vocabulary files",
        )
        if said
        else ()
    )


def test_stored_truncation_and_padding_are_switched_off_and_that_is_said(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    stored = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.enable_padding(length=16)
    stored.save(str(folder / "tokenizer.json"))
    found = load_tokenizer(folder)
    assert found.notes == (
        f"{folder}: stored truncation is switched off",
        f"{folder}: stored padding is switched off",
    )
    text = "The cat sat on the mat, and the dog sat on the log."
    assert (
        FastTokenizer.from_str(found.json.decode()).encode(text).ids
        == tiny_tokenizer().encode(text).ids
    )


def test_padding_takes_the_pad_token_or_else_eos_or_bos_or_0(tmp_path: Path) -> None:
    def pad_of(**side: str | None) -> int:
        return load_tokenizer(
            save_tokenizer(tmp_path / "t", config={"bos_token": None, "eos_token": None} | side)
        ).pad_id

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
    with pytest.raises(
        InputError, match=r"dict is not a tokenizer; expected a path, a tokenizers\.Tokenizer"
    ):
        load_tokenizer({"model": {}})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "it has no model"),
        ("[]", "it has no model"),
        ("not json", "Expecting value"),
        ('{"model": {}}', "it has no 'vocab'"),
        ('{"model": {"vocab": {}}}', "its vocabulary is empty"),
        ('{"model": {"vocab": {"a": "x"}}}', "has a token without a number"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"{path} is not a tokenizer\.json: .*{sentence}"):
        load_tokenizer(path)


def test_a_path_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match=r"no tokenizer file .*gone\.json; check the path"):
        load_tokenizer(tmp_path / "gone.json")
    with pytest.raises(ConfigError, match="no tokenizer is given; add --tokenizer"):
        load_tokenizer("")


def test_a_side_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    (folder / "special_tokens_map.json").write_text("{")
    with pytest.raises(InputError, match=r"special_tokens_map\.json is not JSON"):
        load_tokenizer(folder)


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
    folder = save_tokenizer(tmp_path / "cache")
    asked = hub(
        monkeypatch,
        {path.name: path for path in folder.iterdir()},
        EntryNotFoundError("no such file"),
    )
    assert ends(load_tokenizer("user/name", revision="v1")) == (BOS, EOS)
    assert asked == [
        ("user/name", file, "v1")
        for file in (
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "chat_template.jinja",
        )
    ]


def test_a_hub_that_does_not_answer_is_an_error_and_no_file_is_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tokenizer(tmp_path / "cache")
    hub(
        monkeypatch,
        {"tokenizer.json": folder / "tokenizer.json"},
        LocalEntryNotFoundError("no connection"),
    )
    with pytest.raises(
        InputError,
        match="user/name is no local file and no tokenizer came from the hub: no connection",
    ):
        load_tokenizer("user/name")
    # Unless an earlier answer said that there is no such file.
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: object())
    assert ends(load_tokenizer("user/name")) == (BOS, EOS)


@pytest.mark.parametrize(
    ("name", "bos", "eos"),
    [
        ("gpt2", "<|endoftext|>", "<|endoftext|>"),
        ("llama3_2", "<|begin_of_text|>", "<|eot_id|>"),
        ("qwen3", None, "<|im_end|>"),
        ("mistral_nemo", "<s>", "</s>"),
        ("gemma2", "<bos>", "<eos>"),
        ("t5_small", None, "</s>"),
        ("bert_base_uncased", "[CLS]", "[SEP]"),
    ],
)
def test_every_kind_of_tokenizer_needs_no_more_than_its_files(
    name: str, bos: str | None, eos: str | None
) -> None:
    folder = SHARED / "tokenizers" / name
    found = load_tokenizer(folder)
    reference = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    for token, text in ((found.bos, bos), (found.eos, eos)):
        assert token == (None if text is None else Special(text, reference.get_vocab()[text]))
    assert found.vocab_size == 1 + max(reference.get_vocab(with_added_tokens=True).values())
    assert len(found.notes) == [bos, eos].count(None)


def test_facts_are_json_and_change_with_the_policy(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "t")
    facts = load_tokenizer(folder).as_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["bos"] == {"token": "<s>", "id": 0}
    assert load_tokenizer(folder, bos="none").as_dict() == {**facts, "bos": None}
