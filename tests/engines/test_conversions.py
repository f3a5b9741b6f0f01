import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import packprep
from packprep.engines import conversions
from packprep.engines.backends import load_engine
from packprep.engines.compare import Library, first_difference
from packprep.engines.conversions import TOKENIZER_FORMATS
from packprep.engines.sweep import byte_names
from packprep.engines.tokenizer import Special, load_tokenizer
from packprep.inspect.verify import verify
from packprep.schemas import read_manifest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import build_options, texts, tiny_tokenizer
from tests.helpers.errors import refused

PATTERN = r"'s| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPECIALS = ["<s>", "</s>"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _tokens() -> list[bytes]:
    """Tokens of the tiny tokenizer, those of one byte first."""
    byte = {name: number for number, name in enumerate(byte_names())}
    vocabulary = sorted(tiny_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    tokens = [bytes(byte[c] for c in text) for text, _ in vocabulary if text not in SPECIALS]
    return [*(bytes([number]) for number in range(256)), *(t for t in tokens if len(t) > 1)]


def _tiktoken(folder: Path, *, specials: bool = True) -> Path:
    pytest.importorskip("tiktoken")
    lines = [f"{base64.b64encode(t).decode()} {rank}" for rank, t in enumerate(_tokens())]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    size = len(lines)
    added = {size: {"content": "<s>"}, size + 2: "</s>"}  # the one between is reserved
    config = {"pat_str": PATTERN, "added_tokens_decoder": added, **ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(config if specials else {}))
    return folder


def _tekken(folder: Path) -> Path:
    pytest.importorskip("mistral_common")
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(_tokens())
    ]
    size = len(vocabulary)
    sizes = {"default_vocab_size": size + 20, "default_num_special_tokens": 20}
    config = {"pattern": PATTERN, "num_vocab_tokens": size, **sizes, "version": "v3"}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocabulary}))
    return folder


def _sentencepiece(folder: Path, **options: Any) -> Path:
    library = pytest.importorskip("sentencepiece")
    settings: dict[str, Any] = {"model_type": "bpe", "normalization_rule_name": "identity"}
    settings |= {"byte_fallback": True, "remove_extra_whitespaces": False}
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(texts(60)),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=360,
        minloglevel=2,
        hard_vocab_limit=False,
        **settings | options,
    )
    return folder


@pytest.mark.parametrize("make", [_tiktoken, _tekken, _sentencepiece])
def test_a_tokenizer_of_another_format_has_the_ids_of_its_own_library_and_is_converted_once(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(
        row for row in TOKENIZER_FORMATS if row.convert is getattr(conversions, make.__name__)
    )
    converted = load_tokenizer(make(tmp_path))
    [path] = [tmp_path / name for name in row.files if (tmp_path / name).exists()]
    assert converted.bos is not None
    assert (converted.bos.text, converted.eos and converted.eos.text) == ("<s>", "</s>")
    assert f"converted from {row.name} with transformers" in converted.notes[-1]
    config = tmp_path / "tokenizer_config.json"
    original = row.convert(
        path, path.read_bytes(), json.loads(config.read_text()) if config.exists() else {}
    )
    hostile = ["", " ", "a</s>b<s>", "\n\t x", "<unk><0x0A>▁ é\0", "<s>" * 3]
    for ids, parses in ((original.encode, False), (original.parse, True)):
        if ids is not None:
            engine = load_engine("hf", converted.json, parse_special_tokens=parses)
            library = Library(row.library, "", ids)
            assert first_difference(engine, library, texts(40) + hostile) is None

    def refuse(*_: object) -> None:
        raise AssertionError("it was converted before")

    monkeypatch.setattr(conversions, "_converted", refuse)
    assert load_tokenizer(path) == dataclasses.replace(
        converted, notes=(converted.notes[-1].replace(str(tmp_path), str(path)),)
    )


def test_special_tokens_of_a_tiktoken_file_have_the_ids_of_its_config(tmp_path: Path) -> None:
    found = load_tokenizer(_tiktoken(tmp_path))
    size = len(_tokens())
    assert (found.bos, found.eos) == (Special("<s>", size), Special("</s>", size + 2))
    assert found.vocab_size == size + 3
    build = build_options(tmp_path, {"a.jsonl": texts(9)}, tokenizer=str(tmp_path))
    packprep.build(packprep.BuildConfig(**build))
    output = Path(build["output"])
    assert (output / "tokenizer.json").read_bytes() == found.json
    assert verify(output).sound
    assert read_manifest(output).data["inputs"]["tokenizer"]["sha256"] == found.sha256
    with refused(InputError, "tiktoken.model", "pat_str"):
        load_tokenizer(_tiktoken(tmp_path, specials=False))


@pytest.mark.parametrize(
    ("content", "words"),
    [("YQ== 0\nYg==\n", ["line", 2]), ("YQ== 7\n", ["0 to 0"]), ("YQ== 0\n?? 1\n", ["line", 2])],
)
def test_a_damaged_tiktoken_file_is_named(tmp_path: Path, content: str, words: list[Any]) -> None:
    (_tiktoken(tmp_path) / "tiktoken.model").write_text(content)
    with refused(InputError, "tiktoken.model", *words):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "unigram"}, "is not a BPE"),
        ({"user_defined_symbols": ["<tool>"]}, "'<tool>'"),
        ({"treat_whitespace_as_suffix": True}, "ends of words"),
        ({"normalization_rule_name": "nfkc"}, "gives other ids than sentencepiece"),
    ],
)
def test_a_model_of_sentencepiece_that_no_tokenizer_json_equals_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with refused(InputError, "tokenizer.model", words):
        load_tokenizer(_sentencepiece(tmp_path, **options))


def test_symbols_of_the_user_and_spaces_are_those_of_sentencepiece(tmp_path: Path) -> None:
    symbols = ["<tool>", "▁▁", "\n\n"]
    load_tokenizer(_sentencepiece(tmp_path, user_defined_symbols=symbols, add_dummy_prefix=False))
    load_tokenizer(_sentencepiece(tmp_path, remove_extra_whitespaces=True, byte_fallback=False))


def test_a_conversion_with_other_ids_is_refused_with_the_first_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tiktoken(tmp_path)
    row = next(row for row in TOKENIZER_FORMATS if row.name == "tiktoken")

    def planted(*arguments: Any) -> conversions.Conversion:
        found = row.convert(*arguments)
        model = json.loads(found.tokenizer.to_str())
        model["model"]["merges"].reverse()
        model["model"]["ignore_merges"] = False
        other = type(found.tokenizer).from_str(json.dumps(model))
        return dataclasses.replace(found, tokenizer=other)

    monkeypatch.setattr(
        conversions, "TOKENIZER_FORMATS", (dataclasses.replace(row, convert=planted),)
    )
    with refused(InputError, "gives other ids than tiktoken", "on the text"):
        load_tokenizer(tmp_path)


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiktoken.model").write_text("YQ== 0\n")
    missing = tuple(dataclasses.replace(row, library="none-such") for row in TOKENIZER_FORMATS)
    monkeypatch.setattr(conversions, "TOKENIZER_FORMATS", missing)
    with refused(ConfigError, "none-such", "packprep[tiktoken]"):
        load_tokenizer(tmp_path)
