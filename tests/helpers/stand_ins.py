"""Tokenizers with the parts of well-known ones, and tokens that are trained on a few texts.

Their pre-tokenizers, normalizers, post-processors and special tokens are those of the well-known
ones; so are the chat templates of some.
"""

import json
import re
from collections.abc import Callable, Sequence
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
