"""The tokenizer of a build, with the tokens that begin and end a document.

Files decide *which* token is BOS or EOS, never *whether* a document gets one: flags such as
`add_bos_token` and tokens inserted by the post-processor are ignored, so that each document has one
BOS and one EOS, never two. They are looked up in this order: tokenizer_config.json,
special_tokens_map.json, the post-processor of tokenizer.json. An explicit null, or a post-processor
that adds nothing at that end, means none. It is an error if no file decides.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from packprep.config.grammar.source_names import at_revision
from packprep.engines.config_keys import named_by_model, read_keys
from packprep.engines.conversions import FILE_NAMES, as_tokenizer_json
from packprep.engines.tokenizer_files import (
    NAMED_TOKENS,
    SIDE_FILES,
    TEMPLATE_FILE,
    PostProcessor,
    SideFiles,
    TokenizerJson,
    read_tokenizer_files,
)
from packprep.schemas.columns import UINT16_LIMIT, TokenType
from packprep.schemas.manifest import Manifest
from packprep.support.errors import ConfigError, InputError, PackprepError, nearest
from packprep.support.json_words import json_fault


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer.json with truncation and padding switched off, and the policy for BOS and EOS."""

    json: bytes = field(repr=False)
    sha256: str  # of the tokenizer.json, unchanged
    vocab_size: int  # one more than the largest id, added tokens included
    bos: "Special | None"
    eos: "Special | None"
    pad_id: int
    boundary: tuple[str, int] | None = None  # eos or bos, and its id, where rows are split
    notes: tuple[str, ...] = ()
    is_converted: bool = False  # from another format, so its bytes go into the output
    splits_special_tokens: bool = False  # transformers keeps special tokens in a text as text
    named_tokens: Mapping[str, str] = field(
        default_factory=dict
    )  # bos_token, eos_token, ...: what templates see
    named_ids: Mapping[str, int] = field(default_factory=dict)  # of named_tokens, as far as known
    chat_templates: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # name to Jinja source

    def as_dict(self) -> dict[str, object]:
        """Facts that are part of the identity of a build."""
        facts: dict[str, object] = {
            name: getattr(self, name) for name in ("sha256", "vocab_size", "pad_id")
        }
        for end, token in self.ends().items():
            facts[end] = token and {"token": token.text, "id": token.id}
        return facts if self.boundary is None else facts | {"boundary": self.boundary[1]}

    def ends(self) -> dict[str, "Special | None"]:
        return {"bos": self.bos, "eos": self.eos}

    @property
    def id_type(self) -> np.dtype[Any]:
        """Type of ids in token files: uint16 where the vocabulary allows it, else int32."""
        return np.dtype(np.uint16 if self.vocab_size <= UINT16_LIMIT else np.int32)

    def shard_type(self, token_type: Literal["auto", "int32", "uint16"]) -> TokenType:
        """Type of ids in shards.

        Raises ConfigError if token_type is uint16 and the vocabulary has more ids than it holds.
        """
        fits = self.vocab_size <= UINT16_LIMIT
        if token_type == "uint16" and not fits:
            raise ConfigError(
                f"the vocabulary has {self.vocab_size:,} ids, and --token-type uint16 holds "
                f"{UINT16_LIMIT:,}; choose auto or int32"
            )
        return "uint16" if token_type != "int32" and fits else "int32"


@dataclass(frozen=True)
class Special:
    """A token added around documents."""

    text: str
    id: int


def load_tokenizer(source: Any, *, bos: str = "auto", eos: str = "auto") -> Tokenizer:
    """Load the tokenizer at `source`.

    A tokenizer.json or a file that `packprep.engines.conversions` makes one of, a directory with
    one, a hub name or NAME@REVISION, a `tokenizers.Tokenizer` or a transformers fast tokenizer.
    `bos`, `eos`: "auto", "none" or the token's text.

    Raises InputError if `source` is not a tokenizer, ConfigError if BOS or EOS is not known.
    """
    files = read_tokenizer_files(source, ("tokenizer.json", *FILE_NAMES))
    (name, raw, sides, _), converted = as_tokenizer_json(files)
    ends = (("bos", bos), ("eos", eos))
    try:
        parsed = _parsed(raw)
        switched_off = [key for key in ("truncation", "padding") if parsed.get(key)]
        notes = [f"{name}: stored {key} is switched off" for key in switched_off]
        notes += [converted] if converted else []
        off = {"truncation": None, "padding": None}
        cleaned = json.dumps({**parsed, **off}).encode() if switched_off else raw
        vocab = _vocabulary(parsed)
        config = sides.get(SIDE_FILES[0], {})
        notes += read_keys(name, config, parsed, vocab)
        named = _named_tokens(sides)
        asked = {end: _choose(end, how, parsed, sides, name) for end, how in ends}
    except PackprepError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:  # anyone's JSON
        reason = "a part of it has another form than tokenizers writes"
        if isinstance(error, KeyError):
            reason = f"a part of it has no {error}"
        elif isinstance(error, _UnfitError):
            reason = str(error)
        raise InputError(
            f"{name} is not a tokenizer.json: {reason}; expected a file saved by tokenizers"
        ) from None
    chosen = {}
    for end, (text, note) in asked.items():
        if text is not None and text not in vocab:
            raise ConfigError(
                f"{end} {text!r} is not in the vocabulary of {name}{_similar(text, vocab)}"
            )
        chosen[end] = None if text is None else Special(text, vocab[text])
        notes += [note] if note else []
    pad = _content(config.get("pad_token"), "pad_token")
    pad_ids = [token.id for token in (chosen["eos"], chosen["bos"]) if token]
    return Tokenizer(
        json=cleaned,
        sha256=hashlib.sha256(raw).hexdigest(),
        vocab_size=max(vocab.values()) + 1,
        bos=chosen["bos"],
        eos=chosen["eos"],
        pad_id=vocab[pad] if pad in vocab else (pad_ids or [0])[0],
        notes=tuple(notes),
        is_converted=converted is not None,
        splits_special_tokens=config.get("split_special_tokens") is True,
        named_tokens=named,
        named_ids={key: vocab[text] for key, text in named.items() if text in vocab},
        chat_templates=_chat_templates(sides, name),
    )


def recorded_tokenizer(
    manifest: Manifest,
    moved: str | None = None,
    *,
    root: str | Path | None = None,
    bos: str = "auto",
    eos: str = "auto",
) -> Tokenizer:
    """The tokenizer an output was built with, from its recorded path or from `moved`.

    root: folder of a relative path. Raises ConfigError if it is missing or a different one.
    """
    source = recorded_place(manifest, moved, root)
    tokenizer = load_tokenizer(source, bos=bos, eos=eos)
    if tokenizer.sha256 != (expected := manifest.data["inputs"]["tokenizer"].get("sha256")):
        raise ConfigError(
            f"{source} is not the tokenizer of this output: it has sha256 {tokenizer.sha256}, "
            f"expected {expected}"
        )
    return tokenizer


def recorded_place(manifest: Manifest, moved: str | None, root: str | Path | None) -> str:
    """Path or name of the tokenizer of an output; see `recorded_tokenizer`."""
    recorded = manifest.run.get("given", {})
    source = moved or at_revision(
        recorded.get("tokenizer_name"), recorded.get("tokenizer_revision")
    )
    if source is None and "tokenizer_path" in recorded:
        source = str(Path(root or "", recorded["tokenizer_path"]))
        if not Path(source).exists():
            raise ConfigError(
                f"the tokenizer {source} does not exist; give its new path with --tokenizer"
            )
    if source is None:
        raise ConfigError(
            "the manifest does not name the tokenizer's path; give it with --tokenizer"
        )
    return str(source)


def _named_tokens(sides: SideFiles) -> dict[str, str]:
    """Text of each named token of the side files; the first file with the name decides."""
    named = {}
    for key in NAMED_TOKENS:
        file = next((file for file in SIDE_FILES if key in sides.get(file, {})), None)
        if file is not None and (text := _content(sides[file][key], f"{file} says {key}")):
            named[key] = text
    config, legacy = (sides.get(file, {}) for file in SIDE_FILES)
    legacy = {} if "added_tokens_decoder" in config else legacy
    return named | named_by_model(legacy, is_legacy=True) | named_by_model(config)


def _chat_templates(sides: SideFiles, name: str) -> dict[str, str]:
    """Chat templates by name: of template files, else of tokenizer_config.json (one or many)."""
    entry: Any = sides.get(TEMPLATE_FILE) or sides.get(SIDE_FILES[0], {}).get("chat_template")
    if isinstance(entry, list):
        entry = {
            item["name"]: item["template"] for item in entry if {"name", "template"} <= set(item)
        }
    templates = {"default": entry} if isinstance(entry, str) else dict(entry or {})
    if not all(isinstance(source, str) for source in templates.values()):
        raise InputError(f"the chat_template of {name} is not text; expected a Jinja template")
    return templates


class _UnfitError(ValueError):
    """A reason why a file is not a tokenizer.json."""


def _parsed(raw: bytes) -> TokenizerJson:
    try:
        parsed: TokenizerJson = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _UnfitError(json_fault(error)) from None
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise _UnfitError("it has no model")
    return parsed


def _vocabulary(parsed: TokenizerJson) -> dict[str, int]:
    """Id of every token, read from the file: loading the tokenizer would take up to a second."""
    tokens = parsed["model"]["vocab"]
    if not isinstance(tokens, dict):
        tokens = {token: id_ for id_, (token, _) in enumerate(tokens)}
    vocab = dict(tokens)
    vocab.update((token["content"], token["id"]) for token in parsed.get("added_tokens", []))
    if not vocab or set(map(type, vocab.values())) != {int}:
        raise _UnfitError("its vocabulary is empty or has a token without a number")
    if min(vocab.values()) < 0 or max(vocab.values()) >= 2**31 - 1:
        raise _UnfitError(
            f"its ids go from {min(vocab.values())} to {max(vocab.values())}, beyond 0 to 2^31 - 2"
        )
    return vocab


def _choose(
    end: str, asked: str, parsed: TokenizerJson, sides: SideFiles, name: str
) -> tuple[str | None, str | None]:
    """Text of the token at that end or None, and a note about it or None."""
    if asked == "none":
        return None, None
    if asked != "auto":
        return asked, None
    key = f"{end}_token"
    for file in SIDE_FILES:
        if key in sides.get(file, {}):
            text = _content(sides[file][key], f"{file} says {key}")
            return text, None if text else f"no {end.upper()}: {file} says {key} is null"
    processor = parsed.get("post_processor")
    if processor is not None:
        text = _from_processor(end, processor)
        return text, None if text else f"no {end.upper()}: the post-processor of {name} adds none"
    candidates = [
        token["content"] for token in parsed.get("added_tokens", []) if token.get("special")
    ]
    some = f" (special tokens: {', '.join(candidates[:8])})" if candidates else ""
    raise ConfigError(
        f"no file next to {name} names the {end.upper()} token; choose --{end} TOKEN or --{end} "
        f"none{some}"
    )


def _content(token: Any, label: str) -> str | None:
    """Text of a token in a side file, which is text, an object with `content`, or null.

    label: its name in errors.
    """
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise InputError(f"{label} is {str(token)[:60]}; expected the text of a token, or null")
    return text or None


def _from_processor(end: str, processor: PostProcessor) -> str | None:
    """The special token this post-processor puts next to a single sequence at that end."""
    kind = processor.get("type")
    if kind == "Sequence":
        texts = [_from_processor(end, part) for part in processor.get("processors", [])]
        return next((text for text in texts if text), None)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return str((processor["cls"] if end == "bos" else processor["sep"])[0])
    if kind == "TemplateProcessing":
        items = [item.get("SpecialToken", {}).get("id") for item in processor["single"]]
        if None in items:
            middle = items.index(None)
            before, after = items[:middle], items[middle + 1 :]
            return (before or [None])[-1] if end == "bos" else (after or [None])[0]
    return None


def _similar(text: str, vocab: Mapping[str, int]) -> str:
    near = nearest(text, [token for token in vocab if token.startswith(("<", "[", "▁<"))])
    return near if near.startswith(";") else "; choose a token it has"
