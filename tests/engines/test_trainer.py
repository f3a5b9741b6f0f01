import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep.engines.tokenizer import load_tokenizer
from packprep.engines.trainer import compare_with_trainer
from packprep.support.errors import ConfigError, InputError
from tests.helpers import command
from tests.helpers.corpus import REAL_TOKENIZERS, SHARED, save_tokenizer, texts, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.examples import long_but

pytest.importorskip("transformers")


def _merge(file: dict[str, Any]) -> None:
    del file["model"]["merges"][0]


def _pre_tokenizer(file: dict[str, Any]) -> None:
    file["pre_tokenizer"]["add_prefix_space"] = True


def _added_token(file: dict[str, Any]) -> None:
    file["added_tokens"].pop()


def planted(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """A folder with a tokenizer.json that has one more token, changed."""
    path = save_tokenizer(folder) / "tokenizer.json"
    file = json.loads(path.read_bytes())
    file["added_tokens"].append(file["added_tokens"][0] | {"id": 320, "content": "<tool>"})
    if change is not None:
        change(file)
    path.write_text(json.dumps(file))
    return folder


def test_a_trainer_whose_tokenizer_differs_is_named_with_text_ids_and_versions(
    tmp_path: Path,
) -> None:
    ours = planted(tmp_path / "a")
    write_jsonl(tmp_path / "rows.jsonl", texts(30))
    build = (
        *("build", tmp_path / "rows.jsonl", "-o", tmp_path / "out", "--tokenizer", ours),
        *("--parse-special-tokens", "-q", "--max-length", 64, "--check-against"),
    )
    theirs = planted(tmp_path / "c", _added_token)
    refusal = command.run(*build, f"transformers:{theirs}")
    assert refusal.code == 2
    assert_says(refusal.err, "of transformers 5.", "with tokenizers 0.", "on the text", "it gives")
    assert not (tmp_path / "out").exists()
    assert command.run(*build, "transformers").code == 0
    verify = ("verify", tmp_path / "out", "--sample", 20, "--against")
    sound = command.run(*verify, "transformers")
    assert sound.code == 0, sound.err
    assert_says(sound.out, "ids compared with", "of transformers 5.")
    for change in (_merge, _pre_tokenizer, _added_token):
        differs = command.run(*verify, f"transformers:{planted(tmp_path / 'b', change)}")
        assert differs.code == 1, change
        assert_says(differs.out, "other ids", "of transformers 5.", "on the text")


def test_a_class_that_ignores_the_pre_tokenizer_of_the_file_gives_other_ids(
    tmp_path: Path,
) -> None:
    folder = planted(tmp_path / "t", _pre_tokenizer)
    side = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "GPT2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(side))
    raw = load_tokenizer(folder).json
    for source in (folder, folder / "tokenizer.json"):
        _, difference = compare_with_trainer(
            "transformers", source, raw, texts(9), parse_special_tokens=False
        )
        assert_says(str(difference), "GPT2Tokenizer of transformers 5.")


@pytest.mark.parametrize("name", long_but(["gpt2"], REAL_TOKENIZERS))
@pytest.mark.parametrize("parses", [False, True])
def test_tokenizers_of_models_are_those_of_transformers_or_their_page_says_so(
    name: str, parses: bool
) -> None:
    folder = SHARED / "tokenizers" / name
    raw = load_tokenizer(folder, bos="none", eos="none").json
    _, difference = compare_with_trainer(
        "transformers", folder, raw, texts(20), parse_special_tokens=parses
    )
    if name == "gemma2" and not parses and "shared" in str(SHARED):
        assert_says(str(difference), "GemmaTokenizer", "'<mask>'")
    else:
        assert difference is None


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path) -> None:
    with refused(ConfigError, "transformers:NAME", "vllm"):
        compare_with_trainer("vllm", tmp_path, b"{}", [], parse_special_tokens=False)
    with refused(ConfigError, "object"):
        compare_with_trainer("transformers", object(), b"{}", [], parse_special_tokens=False)
    with refused(InputError, str(tmp_path), "cannot load"):
        compare_with_trainer("transformers", tmp_path, b"{}", [], parse_special_tokens=False)
