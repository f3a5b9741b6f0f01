"""Tokens that the files of a tokenizer name are known to templates, as transformers knows them."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from tokenizers import Tokenizer

from packprep import pack_dataset
from packprep.loaders import PackedShards
from tests.helpers.command import done, run
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import assert_says

transformers = pytest.importorskip("transformers")

IMAGE, BEGIN = "<|image|>", "<|boi|>"
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ boi_token }}{{ image_token }}{{ image }}"
    "{% if image_token is defined %}!{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"


def token(content: str, **more: Any) -> dict[str, Any]:
    """A token as tokenizers saves it."""
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": content, **flags, **more}


OBJECT = token(IMAGE, __type="AddedToken", special=True)
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "a dict": {CONFIG: {"extra_special_tokens": {"image_token": IMAGE}}},
    "a dict with any name": {CONFIG: {"extra_special_tokens": {"image": IMAGE}}},
    "a dict of objects": {CONFIG: {"extra_special_tokens": {"image_token": OBJECT}}},
    "a list": {CONFIG: {"extra_special_tokens": [IMAGE, BEGIN]}},
    "a list of objects": {CONFIG: {"extra_special_tokens": [OBJECT]}},
    "an empty dict": {CONFIG: {"extra_special_tokens": {}}},
    "the earlier key, a list": {CONFIG: {"additional_special_tokens": [IMAGE]}},
    "the earlier key, a dict": {CONFIG: {"additional_special_tokens": {"image_token": IMAGE}}},
    "a key": {CONFIG: {"image_token": IMAGE, "boi_token": BEGIN}},
    "a key with an object": {CONFIG: {"image_token": OBJECT}},
    "a key with an object of no type": {CONFIG: {"image_token": token(IMAGE)}},
    "a key and a dict": {
        CONFIG: {"image_token": BEGIN, "extra_special_tokens": {"image_token": IMAGE}}
    },
    "the key of transformers": {CONFIG: {"model_specific_special_tokens": {"image_token": IMAGE}}},
    "that key and another": {
        CONFIG: {"model_specific_special_tokens": {"image_token": IMAGE}, "boi_token": BEGIN}
    },
    "null": {CONFIG: {"image_token": None}},
    "empty text": {CONFIG: {"image_token": ""}},
    "a dict with the name of EOS": {CONFIG: {"extra_special_tokens": {"eos_token": IMAGE}}},
    "a map": {MAP: {"image_token": IMAGE}},
    "a map with an object": {MAP: {"image_token": token(IMAGE)}},
    "a map with a dict": {MAP: {"extra_special_tokens": {"image_token": IMAGE}}},
    "a map with a list": {MAP: {"additional_special_tokens": [IMAGE]}},
    "a map and a key": {MAP: {"image_token": IMAGE}, CONFIG: {"image_token": BEGIN}},
    "a map next to added tokens": {
        MAP: {"image_token": IMAGE}, CONFIG: {"added_tokens_decoder": {}}},
}  # fmt: skip


def saved(folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    """The tiny tokenizer with two more special tokens, and these keys in the files next to it."""
    made = Tokenizer.from_str(tiny_tokenizer().to_str())
    made.add_special_tokens([IMAGE, BEGIN])
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"} | files.get(CONFIG, {})
    save_tokenizer(folder, config=config)
    made.save(str(folder / "tokenizer.json"))
    if MAP in files:
        (folder / MAP).write_text(json.dumps(files[MAP]))
    return folder


def text_of(tokenizer: Path, ids: Any) -> str:
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return str(whole.decode([*map(int, ids)], skip_special_tokens=False))


def theirs(tokenizer: Path) -> tuple[Any, str]:
    """The tokenizer of transformers, and what it renders."""
    loaded = transformers.AutoTokenizer.from_pretrained(str(tokenizer))
    return loaded, loaded.apply_chat_template(CHAT, tokenize=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_build_writes_named_tokens_as_transformers_does(tmp_path: Path, form: str) -> None:
    tokenizer = saved(tmp_path / "tokenizer", FORMS[form])
    loaded, expected = theirs(tokenizer)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": CHAT}])
    line = ["--tokenizer", tokenizer, "--messages-column", "messages", "--max-length", "64"]
    done("build", rows, "-o", tmp_path / "out", *line, "--engine", "hf")
    ids = next(iter(PackedShards(tmp_path / "out"))).tokens
    assert text_of(tokenizer, ids) == expected
    assert [*ids] == loaded(expected, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("form", ["a dict", "a dict with any name", "a key", "a list"])
def test_a_loaded_tokenizer_has_the_same_names(tmp_path: Path, form: str) -> None:
    tokenizer = saved(tmp_path / "tokenizer", FORMS[form])
    loaded, expected = theirs(tokenizer)
    rows = datasets.Dataset.from_list([{"messages": CHAT}])
    packed = pack_dataset(rows, tokenizer=loaded, max_length=64, messages_column="messages")
    assert text_of(tokenizer, packed[0]["tokens"]) == expected


def test_a_named_token_that_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    """Transformers gives it a new id, after those of the model."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": CHAT}])
    line = ["--messages-column", "messages", "--max-length", "64"]
    for number, value in enumerate(("<|new|>", token("<|new|>", __type="AddedToken"))):
        tokenizer = saved(tmp_path / f"{number}", {CONFIG: {"image_token": value}})
        assert len(theirs(tokenizer)[0]) == tiny_tokenizer().get_vocab_size() + 3
        result = run("build", rows, "-o", tmp_path / "out", "--tokenizer", tokenizer, *line)
        assert result.code == 2
        assert_says(result.err, "image_token", "<|new|>", "is not in tokenizer.json")
