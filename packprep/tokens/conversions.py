"""Tokenizers in other formats, converted to a tokenizer.json by transformers.

The result is compared with the library that the format comes from, on the probes and on the
vocabulary, and refused with the first difference. It is kept in the user's cache folder.
"""

import base64
import binascii
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..support.errors import ConfigError, InputError
from ..support.limits import cache_folder, keep
from .engine import Reference
from .probes import probes
from .tokenizer_files import SIDE_FILES, TokenizerFiles

_EXTRA = ("extra_special_tokens", "additional_special_tokens")


class _Conversion(NamedTuple):
    """A `tokenizers.Tokenizer`, ids of texts by the original library, and its named tokens."""

    tokenizer: Any
    encode: Callable[[list[str]], list[list[int]]]
    vocabulary: list[str]
    named: dict[str, str]


def converted(files: TokenizerFiles, path: Path) -> TokenizerFiles:
    """The same tokenizer as a tokenizer.json. Raises InputError if ids differ from the original."""
    config = files.sides.get(SIDE_FILES[0], {})
    if path.name == "tekken.json":
        format_, library, convert = "tekken", "mistral_common", _tekken
    elif path.suffix == ".tiktoken" or _is_ranks(files.raw):
        format_, library, convert = "tiktoken", "tiktoken", _tiktoken
    else:
        format_, library, convert = "SentencePiece", "sentencepiece", _sentencepiece
    decided_by = json.dumps([format_, _versions(library), config], sort_keys=True, default=str)
    digest = hashlib.sha256(decided_by.encode() + files.raw + Path(__file__).read_bytes())
    cached = cache_folder("tokenizers") / f"{digest.hexdigest()}.json"
    try:
        stored = json.loads(cached.read_bytes())
        raw, named = stored["tokenizer"].encode(), stored["named"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raw, named = _compared(convert, path, files.raw, config, format_, library)
        keep(cached, json.dumps({"tokenizer": raw.decode(), "named": named}).encode())
    sides = {**files.sides, SIDE_FILES[0]: {**named, **config}}
    note = f"{files.name}: converted from {format_}; ids equal those of {library}"
    return files._replace(raw=raw, sides=sides, notes=(note,))


def _versions(library: str) -> list[str]:
    try:
        return [importlib.metadata.version(name) for name in ("transformers", library)]
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"this tokenizer is converted with transformers and compared with {library}, and "
            f"{error.name} is not installed; pip install transformers {library}"
        ) from None


def _compared(
    convert: Callable[..., _Conversion],
    path: Path,
    raw: bytes,
    config: Mapping[str, Any],
    format_: str,
    library: str,
) -> tuple[bytes, dict[str, str]]:
    try:
        made = convert(path, raw, config)
    except (InputError, ConfigError):
        raise
    except Exception as error:  # of any library
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as {format_}: {reason}") from error
    made.tokenizer.post_processor = None
    content = made.tokenizer.to_str().encode()
    texts = [*probes(), *made.vocabulary]
    ids, offsets = Reference(content).encode(pa.array(texts, pa.large_string()))
    for text, wanted, first, last in zip(
        texts, made.encode(texts), offsets[:-1], offsets[1:], strict=True
    ):
        if ids[first:last].tolist() != list(wanted):
            raise InputError(
                f"{path}: as a tokenizer.json it gives other ids than {library} on the text "
                f"{ascii(text)[:80]}; use a tokenizer.json that its authors made"
            )
    return content, made.named


def _tekken(path: Path, raw: bytes, config: Mapping[str, Any]) -> _Conversion:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from transformers.integrations.mistral.tokenizer import MistralConverter

    original = Tekkenizer.from_file(str(path))
    made = MistralConverter(str(path)).converted()
    named = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    return _Conversion(
        made,
        lambda texts: [original.encode(text, bos=False, eos=False) for text in texts],
        _texts(base64.b64decode(entry["token_bytes"]) for entry in json.loads(raw)["vocab"]),
        {f"{end}_token": text for end, text in named.items() if made.token_to_id(text)},
    )


def _is_ranks(raw: bytes) -> bool:
    """True for lines of a token in base64 and its rank."""
    first = raw.split(b"\n", 1)[0].split()
    return len(first) == 2 and first[1].isdigit()


def _tiktoken(path: Path, raw: bytes, config: Mapping[str, Any]) -> _Conversion:
    import tiktoken
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = config.get("pat_str")
    if not isinstance(pattern, str):
        raise InputError(
            f"{path} is a tiktoken file, which has no pattern of words, and no pat_str is in "
            f"{path.with_name(SIDE_FILES[0])}; add it there, as the code of the model has it"
        )
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise InputError(
                f"{path} line {number} is {line[:40]!r}; expected a token in base64 and its rank"
            ) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise InputError(f"the ranks of {path} are not 0 to {len(ranks) - 1:,}, each once")
    specials = _special_ids(config, len(ranks))
    converter: Any = TikTokenConverter(
        vocab_file=str(path), pattern=pattern, extra_special_tokens=list(specials)
    )
    converter.load_tiktoken_bpe = lambda _: ranks  # its own keeps a copy of each path for ever
    original = tiktoken.Encoding(
        path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return _Conversion(converter.converted(), original.encode_ordinary_batch, _texts(ranks), {})


def _special_ids(config: Mapping[str, Any], first: int) -> dict[str, int]:
    """Special tokens of a tiktoken file and their ids, from `first` on.

    Those of `added_tokens_decoder` have ids; places between them are reserved, as transformers does
    it. Others follow.
    """
    added = config.get("added_tokens_decoder") or {}
    decoder = {int(place): _content(token) for place, token in added.items()}
    listed: Any = next((config[key] for key in _EXTRA if config.get(key)), [])
    listed = list(listed.values()) if isinstance(listed, dict) else listed
    others = [_content(each) for each in listed]
    ids = range(first, max(decoder, default=0) + 1)
    texts = [decoder.get(place, f"<|reserved_token_{place}|>") for place in ids]
    return {text: first + n for n, text in enumerate(dict.fromkeys([*texts, *others]))}


def _content(token: Any) -> str:
    """Text of a special token, which is text, or an object with `content`."""
    return str(token["content"] if isinstance(token, dict) else token)


def _sentencepiece(path: Path, raw: bytes, config: Mapping[str, Any]) -> _Conversion:
    from sentencepiece import SentencePieceProcessor
    from transformers import AutoTokenizer

    original: Any = SentencePieceProcessor(model_proto=raw)
    loaded: Any = AutoTokenizer.from_pretrained(str(path.parent), use_fast=True)
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    named = {name: str(text) for name in names if (text := getattr(loaded, name, None))}
    pieces = [original.id_to_piece(n) for n in range(original.get_piece_size())]
    return _Conversion(
        loaded.backend_tokenizer,
        lambda texts: [original.encode(text) for text in texts],
        [piece.replace("\u2581", " ") for piece in pieces if not piece.startswith("<")],
        named,
    )


def _texts(tokens: Any) -> list[str]:
    """Those tokens that are text."""
    texts = [token.decode(errors="replace") for token in tokens]
    return [text for text in texts if "\ufffd" not in text]
