"""Tokenizers in other formats, converted to a tokenizer.json once, before any engine loads.

tiktoken and tekken files are converted by transformers. SentencePiece models are put together here
from the merges that transformers computes and the rules in the file: its own converters are one for
each class of model, and leave out rules of the file. The result is compared with the library that
the format comes from, on `packprep.engines.probes` and on each entry of the vocabulary, and refused
with the first difference. Nothing else knows the format: the bytes of the tokenizer.json are
the tokenizer of the build, and part of its identity.

A conversion takes up to ten seconds. It is cached in the user's cache folder, by the digest of all
that decides it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from packprep.engines.backends import HfEngine, added_tokens
from packprep.engines.compare import Library, first_difference
from packprep.engines.config_keys import EXTRA_TOKENS, token_texts
from packprep.engines.probes import probes
from packprep.engines.tokenizer_files import SIDE_FILES, TokenizerFiles
from packprep.support.errors import ConfigError, InputError, PackprepError
from packprep.support.user_cache import cache_folder, keep

Encode = Callable[[list[str]], list[list[int]]]

# Keys of tokenizer_config.json that decide a conversion.
PATTERN = "pat_str"
_ENDS = ("bos", "eos", "unk", "pad")
_DECIDING = (PATTERN, "added_tokens_decoder", *EXTRA_TOKENS)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A converted tokenizer, and the same one as its own library reads it.

    tokenizer: of `tokenizers`. encode: ids of texts by the library, special tokens kept as text;
    parse: the same with special tokens parsed, None if the library has no such call. vocabulary:
    texts of the entries. named: bos_token, eos_token, ... as far as the file names them.
    """

    tokenizer: Any
    encode: Encode
    parse: Encode | None = None
    vocabulary: Sequence[str] = ()
    named: Mapping[str, str] = field(default_factory=dict)


class Compared(TypedDict):
    """Facts about a tokenizer.json that was compared with its original.

    sha256: its digest. texts: number of texts compared. named: bos_token, eos_token, ... as far as
    the file names them.
    """

    sha256: str
    texts: int
    named: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TokenizerFormat:
    """A format of tokenizers.

    files: its names in a folder and on the hub. begins: pattern of its bytes. library: the package
    of the original. convert: path, bytes and tokenizer_config.json to a Conversion; it imports what
    it needs.
    """

    name: str
    files: tuple[str, ...]
    begins: re.Pattern[bytes]
    library: str
    convert: Callable[[Path, bytes, Mapping[str, object]], Conversion]


def _tekken(path: Path, raw: bytes, config: Mapping[str, object]) -> Conversion:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from transformers.integrations.mistral.tokenizer import MistralConverter

    original = Tekkenizer.from_file(str(path))
    converted = MistralConverter(str(path)).converted()
    named = ("unk", "<unk>"), ("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>")
    return Conversion(
        tokenizer=converted,
        encode=lambda texts: [original.encode(text, bos=False, eos=False) for text in texts],
        vocabulary=_texts(base64.b64decode(e["token_bytes"]) for e in json.loads(raw)["vocab"]),
        named={f"{name}_token": text for name, text in named if converted.token_to_id(text)},
    )


def _tiktoken(path: Path, raw: bytes, config: Mapping[str, object]) -> Conversion:
    import tiktoken
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = config.get(PATTERN)
    if not isinstance(pattern, str):
        raise InputError(
            f"{path} is a tiktoken file, which has no pattern of words, and no {PATTERN} is in "
            f'{path.with_name(SIDE_FILES[0])}; add it there, such as {{"{PATTERN}": "..."}}, as '
            "the code of the model has it"
        )
    ranks = _ranks(path, raw)
    specials = _special_ids(config, len(ranks))
    converter = TikTokenConverter(
        vocab_file=str(path), pattern=pattern, extra_special_tokens=list(specials)
    )
    # Its own function keeps a copy of each path in a temporary folder, and reads that forever.
    converter.load_tiktoken_bpe = lambda _: ranks
    converted = converter.converted()
    original = tiktoken.Encoding(
        path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return Conversion(
        tokenizer=converted,
        encode=original.encode_ordinary_batch,
        parse=partial(original.encode_batch, allowed_special="all"),
        vocabulary=_texts(ranks),
    )


def _ranks(path: Path, raw: bytes) -> dict[bytes, int]:
    """Rank of each token of a tiktoken file. Raises InputError for a line of another form."""
    ranks = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise InputError(
                f"{path} line {number} is {line[:40]!r}; expected a token in base64 and its rank"
            ) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise InputError(
            f"the ranks of {path} are not 0 to {len(ranks) - 1:,}, each once; a tokenizer.json of "
            "it would have other ids"
        )
    return ranks


def _special_ids(config: Mapping[str, object], first: int) -> dict[str, int]:
    """Special tokens of a tiktoken file and their ids, in this order from `first` on.

    Those of `added_tokens_decoder` have ids, and places between them are reserved, as transformers
    and the code of such models do it. Others follow.
    """
    added = config.get("added_tokens_decoder") or {}
    try:
        texts = token_texts(added)
        places = map(int, added) if isinstance(added, dict) else ()
        decoder = dict(zip(places, texts, strict=True))
        others = next((token_texts(config[key]) for key in EXTRA_TOKENS if config.get(key)), [])
    except (ValueError, KeyError):
        raise InputError(
            f"the added tokens of {SIDE_FILES[0]} have another form than transformers writes"
        ) from None
    ids = range(first, max(decoder, default=0) + 1)
    texts = [decoder.get(id_, f"<|reserved_token_{id_}|>") for id_ in ids]
    return {text: first + place for place, text in enumerate(dict.fromkeys([*texts, *others]))}


def _sentencepiece(path: Path, raw: bytes, config: Mapping[str, object]) -> Conversion:
    from sentencepiece import SentencePieceProcessor
    from sentencepiece import sentencepiece_model_pb2 as schema

    model = schema.ModelProto()
    model.ParseFromString(raw)
    original = SentencePieceProcessor(model_proto=raw)
    kinds = schema.ModelProto.SentencePiece
    of_kind: dict[int, list[str]] = {}
    for piece in model.pieces:
        of_kind.setdefault(piece.type, []).append(piece.piece)
    defined = of_kind.get(kinds.USER_DEFINED, [])
    specials = [*of_kind.get(kinds.UNKNOWN, []), *of_kind.get(kinds.CONTROL, [])]
    reason = None
    if model.trainer_spec.model_type != schema.TrainerSpec.BPE:
        reason = "is not a BPE, and tokenizers takes text such as <s> for the token of that name"
    elif kinds.UNUSED in of_kind:
        reason = "has unused pieces, which tokenizers does not know"
    elif defined and model.normalizer_spec.add_dummy_prefix:
        reason = f"begins texts with a space and has symbols of the user, such as {defined[0]!r}"
    elif model.trainer_spec.treat_whitespace_as_suffix:
        reason = "has spaces at the ends of words, which tokenizers does not know"
    if reason is not None:
        raise InputError(
            f"the SentencePiece model {path} {reason}: no tokenizer.json gives the same ids; use "
            "the one that its authors made"
        )
    pieces = [piece.piece for piece in model.pieces]
    ends = {f"{end}_token": getattr(model.trainer_spec, f"{end}_id") for end in _ENDS}
    return Conversion(
        tokenizer=_assembled(model, pieces, set(of_kind.get(kinds.NORMAL, [])), specials, defined),
        encode=original.encode,
        vocabulary=[piece.replace("▁", " ") for piece in pieces],
        named={name: pieces[id_] for name, id_ in ends.items() if 0 <= id_ < len(pieces)},
    )


def _assembled(
    model: Any, pieces: Sequence[str], normal: set[str], specials: Sequence[str], defined: list[str]
) -> Any:
    """The `tokenizers.Tokenizer` of a SentencePiece BPE. model: the parsed file."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers
    from transformers.convert_slow_tokenizer import generate_merges

    scores = [(piece.piece, piece.score) for piece in model.pieces if piece.piece in normal]
    # Only pieces of the text are merged: text that spells <s> or <0x0A> stays text.
    merges = generate_merges(
        {text: id_ for id_, text in enumerate(pieces) if text in normal}, scores
    )
    tokenizer = Tokenizer(
        models.BPE(
            {text: id_ for id_, text in enumerate(pieces)},
            merges,
            unk_token=pieces[model.trainer_spec.unk_id],
            fuse_unk=True,
            byte_fallback=model.trainer_spec.byte_fallback,
        )
    )
    rules = model.normalizer_spec
    space = "▁" if rules.escape_whitespaces else " "
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {space}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend(space))
    if rules.escape_whitespaces:
        steps.append(normalizers.Replace(" ", "▁"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in specials]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=True) for text in defined])
    return tokenizer


TOKENIZER_FORMATS = (
    TokenizerFormat(
        name="tekken",
        files=("tekken.json",),
        begins=re.compile(rb'\s*\{.{0,65536}?"token_bytes"\s*:\s*"', re.DOTALL),
        library="mistral-common",
        convert=_tekken,
    ),
    TokenizerFormat(
        name="tiktoken",
        files=("tiktoken.model", "qwen.tiktoken", "tokenizer.model"),
        begins=re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n"),
        library="tiktoken",
        convert=_tiktoken,
    ),
    TokenizerFormat(
        name="SentencePiece",
        files=("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
        begins=re.compile(rb"\n[^\n{].?\n", re.DOTALL),  # a piece, and its text
        library="sentencepiece",
        convert=_sentencepiece,
    ),
)
FILE_NAMES = tuple(dict.fromkeys(name for row in TOKENIZER_FORMATS for name in row.files))


def as_tokenizer_json(files: TokenizerFiles) -> tuple[TokenizerFiles, str | None]:
    """The files with a tokenizer.json, and a note about its conversion, None if it was one before.

    Raises ConfigError if a library is not installed, InputError if the tokenizer.json gives other
    ids than the library of the format.
    """
    path = files.path
    row = next((row for row in TOKENIZER_FORMATS if row.begins.match(files.raw)), None)
    if path is None or row is None:
        return files, None
    config = files.sides.get(SIDE_FILES[0], {})
    deciding = {key: config[key] for key in _DECIDING if key in config}
    versions = {name: _version(name, row) for name in ("transformers", "tokenizers", row.library)}
    cache = _cache_file(files.raw, [row.name, deciding, versions])
    if (cached := _cached(cache)) is None:
        cached = _converted(row, path, files.raw, config, versions)
        keep(cache, json.dumps(cached[0]).encode() + b"\n" + cached[1])
    facts, raw = cached
    note = (
        f"{files.name}: converted from {row.name} with transformers {versions['transformers']}; "
        f"the ids of {facts['texts']:,} texts equal those of {row.library} "
        f"{versions[row.library]}"
    )
    sides = files.sides | {SIDE_FILES[0]: facts["named"] | config}
    return files._replace(raw=raw, sides=sides), note


def _converted(
    row: TokenizerFormat,
    path: Path,
    raw: bytes,
    config: Mapping[str, object],
    versions: Mapping[str, str],
) -> tuple[Compared, bytes]:
    """The tokenizer.json that was compared, and facts about it."""
    try:
        conversion = row.convert(path, raw, config)
    except PackprepError:
        raise
    except ImportError as error:
        raise _missing(row, str(error)) from None
    except Exception as error:  # of any library
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as {row.name}: {reason}") from error
    conversion.tokenizer.post_processor = None
    converted = conversion.tokenizer.to_str().encode()
    texts = [*probes(added_tokens(converted)), *conversion.vocabulary]
    for encode, parses in ((conversion.encode, False), (conversion.parse, True)):
        if encode is None:
            continue
        original = Library(row.library, versions[row.library], encode)
        engine = HfEngine(converted, parse_special_tokens=parses)
        if (difference := first_difference(engine, original, texts)) is not None:
            raise InputError(
                f"{path}: as a tokenizer.json it gives other ids than {row.library} "
                f"{original.version}: {difference}; use a tokenizer.json that its authors made"
            )
    digest = hashlib.sha256(converted).hexdigest()
    return Compared(sha256=digest, texts=len(texts), named=dict(conversion.named)), converted


def _texts(tokens: Iterator[bytes] | Mapping[bytes, int]) -> list[str]:
    """Those tokens that are text."""
    texts = [token.decode(errors="replace") for token in tokens]
    return [text for text in texts if "\ufffd" not in text]


def _version(name: str, row: TokenizerFormat) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise _missing(row, f"{name} is not installed") from None


def _missing(row: TokenizerFormat, what: str) -> ConfigError:
    return ConfigError(
        f"a {row.name} tokenizer is converted with transformers and compared with {row.library}, "
        f"and {what}; pip install 'packprep[{row.name.lower()}]'"
    )


def _cache_file(raw: bytes, decided_by: object) -> Path:
    """The name depends on this code too: another version may convert in another way."""
    digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode())
    digest.update(hashlib.sha256(Path(__file__).read_bytes()).digest() + raw)
    return cache_folder("tokenizers") / f"{digest.hexdigest()}.json"


def _cached(path: Path) -> tuple[Compared, bytes] | None:
    """A conversion in the cache; None if it is not there, or damaged."""
    try:
        head, _, converted = path.read_bytes().partition(b"\n")
        facts: Compared = json.loads(head)
        digest = facts["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (facts, converted) if digest == hashlib.sha256(converted).hexdigest() else None
