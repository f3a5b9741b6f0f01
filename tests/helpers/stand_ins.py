"""Text and tokenizers like those of `../shared/data`, made of what every Python has.

The tokenizers have the pre-tokenizer, normalizer, post-processor and special tokens of well-known
ones, and a few thousand tokens that are trained here. The text is the standard library, its
documentation, and the same in made-up words of other scripts. All of it is made once, into
`build/`, for every later run of the tests.
"""

import gzip
import hashlib
import json
import re
import shutil
import sys
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from packprep.cli import sample_data

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(__file__).with_name("templates")
VOCABULARY = 4096

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PLAIN = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{{0}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As in its tokenizer.json, with line ends as such: engines know a pattern by its text.
_DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+"
    "|\\s+(?!\\S)|\\s+"
)


@cache
def data() -> Path:
    """The folder, with `text` and `tokenizers`; made if this Python has none yet."""
    parts = [Path(__file__), *sorted(TEMPLATES.iterdir()), Path(sample_data.__file__)]
    digest = hashlib.sha256(f"{sys.version} {version('tokenizers')}".encode())
    for part in parts:
        digest.update(part.read_bytes())
    folder = ROOT / "build" / f"stand-ins-{digest.hexdigest()[:16]}"
    if not folder.exists():
        from filelock import FileLock

        folder.parent.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                _make(folder)
    return folder


def _make(folder: Path) -> None:
    """Write everything under another name first, so that a folder is complete."""
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix="stand-ins-"))
    try:
        corpora = _corpora()
        (work / "text").mkdir()
        for name, rows in corpora.items():
            with gzip.open(work / "text" / f"{name}.jsonl.gz", "wt", compresslevel=1) as file:
                for number, row in enumerate(rows):
                    fields = {"text": row} if isinstance(row, str) else {"messages": row}
                    file.write(json.dumps({"id": number} | fields) + "\n")
        for name, make in TOKENIZERS.items():
            save(make(_training(corpora)), name, work / "tokenizers" / name)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _corpora() -> dict[str, list[Any]]:
    """Documents and conversations by the names that the tests use."""
    code = list(sample_data._sources().values())
    topics = [text for _, text in sample_data._topics()]
    functions = list(sample_data._functions(sample_data._sources()))
    blocks = [block for text in code for block in text.split("\n\n\n") if len(block) < 2000]
    accents = str.maketrans("aeiocu", "àéîôçù")
    return {
        "books": ["\n\n".join(topics), *("\n".join(code[at :: len(code) // 8]) for at in range(3))],
        "eips": topics,
        "gsm8k": _up_to(5_000_000, blocks),
        "peps": _up_to(8_000_000, code),
        "pydocs_fr": _up_to(2_000_000, (text.translate(accents) for text in [*topics, *code])),
        "pydocs_zh": _up_to(700_000, (_in_script(text, _CHINESE) for text in [*topics, *code])),
        "sgd_chat": [
            [{"role": turn["role"], "content": turn["content"][:400]} for turn in chat]
            for chat in (
                [turn for turn in chat if turn["role"] != "system"]
                for chat in sample_data._chats(sample_data._spread(functions, 2500))
            )
        ],
        "tldr": [
            f"# {each.name}\n\n> {each.summary}\n\n`{each.signature}`\n" for each in functions
        ],
        "udhr": [
            _in_script(topics[number % len(topics)][:4000], script)
            for number, script in enumerate(_scripts())
        ],
    }


def _up_to(size: int, texts: Iterable[str]) -> list[str]:
    """The first texts, of this many characters together."""
    kept: list[str] = []
    for text in texts:
        if size <= 0:
            break
        size -= len(text)
        kept.append(text)
    return kept


_CHINESE = [chr(0x4E00 + number) for number in range(3000)]


def _scripts() -> Iterator[list[str]]:
    """Letters, marks and digits of each script that Unicode has names for, by its first word."""
    scripts: dict[str, list[str]] = {}
    for number in range(0x80, 0x20000):
        character = chr(number)
        if unicodedata.category(character)[0] in "LMN":
            scripts.setdefault(unicodedata.name(character, "?").split()[0], []).append(character)
    return (letters for name, letters in sorted(scripts.items()) if len(letters) >= 20)


def _in_script(text: str, letters: Sequence[str]) -> str:
    """The text in letters of another script; the same word gives the same letters."""

    def word(latin: str) -> str:
        if not latin.isalpha():
            return latin
        seed = zlib.crc32(latin.lower().encode())
        return "".join(
            letters[(seed >> 3 * at) % len(letters)] for at in range(1 + len(latin) // 2)
        )

    return "\n".join(" ".join(map(word, line.split(" "))) for line in text.split("\n"))


def _training(corpora: dict[str, list[Any]]) -> list[str]:
    """Text of each corpus, and the words of the tests' own conversations."""
    texts = [
        text[:3000]
        for name, rows in corpora.items()
        if name != "sgd_chat"
        for text in islice(rows, 0, None, max(1, len(rows) // 60))
    ]
    return [*texts, *["hello\n\n\nhello you, hi there\n\n\nassistant\nuser\nsystem\n"] * 50]


def _byte_level(
    texts: list[str], pattern: Any, special: Sequence[str], added: Sequence[str] = ()
) -> Tokenizer:
    """Byte-level BPE. pattern: of one or more splits, one after the other."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=bool(pattern)))
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in pattern]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level]) if splits else level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    _train(
        tokenizer,
        trainers.BpeTrainer,
        texts,
        special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer


def _train(
    tokenizer: Tokenizer, trainer: Any, texts: list[str], special: Sequence[str], **options: Any
) -> None:
    tokens = [AddedToken(token, special=True, normalized=False) for token in special]
    settings = {"vocab_size": VOCABULARY, "show_progress": False, "special_tokens": tokens}
    tokenizer.train_from_iterator(texts, trainer(**settings | options))


def _adds(tokenizer: Tokenizer, single: str) -> Tokenizer:
    """With a post-processor that adds the special tokens of a template such as "<s> $A"."""
    names = [name for name in single.split() if name != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} {single.replace('$A', '$B')}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )
    return tokenizer


def _gpt2(texts: list[str]) -> Tokenizer:
    return _byte_level(texts, (), ["<|endoftext|>"])


def _llama3_2(texts: list[str]) -> Tokenizer:
    names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
    tokenizer = _byte_level(
        texts, [_PLAIN.replace("{0}", r"\p{N}{1,3}")], [f"<|{name}|>" for name in names]
    )
    return _adds(tokenizer, "<|begin_of_text|> $A")


def _qwen3(texts: list[str]) -> Tokenizer:
    added = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokenizer = _byte_level(
        texts,
        [_PLAIN.replace("{0}", r"\p{N}")],
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        added,
    )
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _mistral_nemo(texts: list[str]) -> Tokenizer:
    names = ["INST", "AVAILABLE_TOOLS", "TOOL_RESULTS"]
    special = ["<unk>", "<s>", "</s>", "[TOOL_CALLS]"]
    special += [f"[{slash}{name}]" for name in names for slash in ("", "/")]
    pattern = "|".join([_WORDS.replace("{0}", ""), r"\p{N}", _REST])
    return _adds(_byte_level(texts, [pattern], special), "<s> $A")


def _o200k(texts: list[str]) -> Tokenizer:
    pattern = "|".join([_WORDS.replace("{0}", f"{_CONTRACTIONS}?"), r"\p{N}{1,3}", _REST])
    return _byte_level(texts, [pattern], ["<|startoftext|>", "<|endoftext|>", "<|return|>"])


def _deepseek(texts: list[str]) -> Tokenizer:
    pattern = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK]
    return _byte_level(texts, pattern, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])


def _gemma2(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    # Trained on words and runs of line feeds: no token of Gemma's reaches over the end of a line.
    words = [word for text in texts for word in re.findall(r"\n+| ?[^ \n]+| +", text)]
    _train(tokenizer, trainers.BpeTrainer, words, special, limit_alphabet=1500)
    fields = json.loads(tokenizer.to_str())
    vocabulary = fields["model"]["vocab"]
    for token in (f"<0x{byte:02X}>" for byte in range(256)):
        vocabulary.setdefault(token, len(vocabulary))
    return _adds(Tokenizer.from_str(json.dumps(fields)), "<bos> $A")


def _t5_small(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    plain = [text for text in texts if text.isascii()]  # it has to hold every letter of these
    _train(tokenizer, trainers.UnigramTrainer, plain, ["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    return _adds(tokenizer, "$A </s>")


def _bert(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _train(tokenizer, trainers.WordPieceTrainer, texts, special, limit_alphabet=1500)
    return _adds(tokenizer, "[CLS] $A [SEP]")


TOKENIZERS: dict[str, Callable[[list[str]], Tokenizer]] = {
    "bert_base_uncased": _bert,
    "deepseek": _deepseek,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "llama3_2": _llama3_2,
    "mistral_nemo": _mistral_nemo,
    "o200k": _o200k,
    "qwen3": _qwen3,
    "t5_small": _t5_small,
}
ENDS: dict[str, tuple[str | None, str | None]] = {
    "bert_base_uncased": ("[CLS]", "[SEP]"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma2": ("<bos>", "<eos>"),
    "gpt2": ("<|endoftext|>", "<|endoftext|>"),
    "llama3_2": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral_nemo": ("<s>", "</s>"),
    "o200k": ("<|startoftext|>", "<|endoftext|>"),
    "qwen3": (None, "<|im_end|>"),
    "t5_small": (None, "</s>"),
}
"""BOS and EOS of each; BERT's are those that its post-processor adds, and no file names them."""


def save(tokenizer: Tokenizer, name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    bos, eos = ENDS[name]
    config: dict[str, Any] = {
        "bos_token": bos,
        "eos_token": eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    if name == "bert_base_uncased":
        config = {"do_lower_case": True}
    template = TEMPLATES / f"{name}.jinja"
    if template.exists():
        config["chat_template"] = template.read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
