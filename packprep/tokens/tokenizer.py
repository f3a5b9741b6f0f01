"""The tokenizer of a build, with the tokens that begin and end a document.

Files decide *which* token is BOS or EOS, never *whether* a document gets one: flags such as
`add_bos_token` and tokens that the post-processor inserts are ignored, so that each document has
one BOS and one EOS. They are looked up in this order: tokenizer_config.json,
special_tokens_map.json, the post-processor of tokenizer.json. An explicit null, or a post-processor
that adds nothing at that end, means none. It is an error if no file decides.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..schemas.columns import UINT16_LIMIT
from ..support.errors import ConfigError, InputError, nearest
from .tokenizer_files import SIDE_FILES, TEMPLATE_FILE, read_tokenizer, templates_in

_FACTS = ("sha256", "vocab_size", "pad_id")


class Special(NamedTuple):
    """A token that is added around documents."""

    text: str
    id: int


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer.json, and its BOS and EOS. Engines switch off truncation and padding.

    json: None for a vocabulary of ids alone. sha256: of the tokenizer.json as it was read.
    vocab_size: one more than the largest id. sides: see `TokenizerFiles`.
    """

    json: bytes | None = field(default=None, repr=False)
    sha256: str = ""
    vocab_size: int
    bos: Special | None = None
    eos: Special | None = None
    pad_id: int = 0
    notes: tuple[str, ...] = ()
    sides: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def token_sizes(self) -> Any:
        """Bytes of each token, see `encode.token_sizes`."""
        from .encode import token_sizes

        return token_sizes(json.loads(self.json or b"{}"))

    @cached_property
    def named_tokens(self) -> dict[str, str]:
        """bos_token, image_token, ... as chat templates see them; the first file decides."""
        named: dict[str, str] = {}
        for keys in (self.sides.get(file, {}) for file in SIDE_FILES):
            extra = keys.get("extra_special_tokens")
            own = {key: value for key, value in keys.items() if key.endswith("_token")}
            for key, token in {**own, **(extra if isinstance(extra, dict) else {})}.items():
                text = token.get("content") if isinstance(token, dict) else token
                if isinstance(text, str):
                    named.setdefault(key, text)
        return named

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Jinja source by name: of template files, else of tokenizer_config.json (one or many)."""
        config = self.sides.get(SIDE_FILES[0], {})
        stored = self.sides.get(TEMPLATE_FILE)
        stored = templates_in(stored) if isinstance(stored, Path) else stored
        entry: Any = stored or config.get("chat_template")
        if isinstance(entry, list):
            entry = {item["name"]: item["template"] for item in entry}
        templates = {"default": entry} if isinstance(entry, str) else dict(entry or {})
        if not all(isinstance(source, str) for source in templates.values()):
            raise InputError("the chat_template of the tokenizer is not text; expected Jinja")
        return templates

    @property
    def id_type(self) -> np.dtype[Any]:
        """Type of ids in token files."""
        return np.dtype(np.uint16 if self.vocab_size <= UINT16_LIMIT else np.int32)

    @property
    def end_ids(self) -> tuple[int, int]:
        """Ids of BOS and EOS, -1 for none."""
        return (self.bos.id if self.bos else -1), (self.eos.id if self.eos else -1)

    def facts(self) -> dict[str, Any]:
        """All that decides ids and padding, as JSON."""
        ends = {"bos": self.bos and [*self.bos], "eos": self.eos and [*self.eos]}
        return {name: getattr(self, name) for name in _FACTS} | ends

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer as a store knows it: no text can be encoded."""
        bos, eos = (Special(*facts[end]) if facts[end] else None for end in ("bos", "eos"))
        same = {name: facts[name] for name in _FACTS}
        return Tokenizer(**same, bos=bos, eos=eos)


def load_tokenizer(source: Any, bos: str = "auto", eos: str = "auto") -> Tokenizer:
    """Load the tokenizer at `source`.

    source: a tokenizer.json or a file of another format, a folder with one, a hub name or
    NAME@REVISION, a `tokenizers.Tokenizer`, a transformers fast tokenizer, or the size of a
    vocabulary, for ids. bos, eos: auto, none or the text of a token. Raises InputError if `source`
    is no tokenizer, ConfigError if BOS or EOS is not known.
    """
    if isinstance(source, int) or (isinstance(source, str) and source.isdecimal()):
        return _vocabulary_alone(int(source), bos, eos)
    files = read_tokenizer(source)
    try:
        parsed = json.loads(files.raw)
        vocab = _vocabulary(parsed)
        chosen, notes = dict[str, Special | None](), list(files.notes)
        for end, asked in (("bos", bos), ("eos", eos)):
            text, note = _end(end, asked, parsed, files.sides, files.name)
            notes += [note] if note else []
            if text is not None and text not in vocab:
                near = nearest(text, [token for token in vocab if token.startswith(("<", "["))])
                near = near if near.startswith(";") else "; choose a token it has"
                raise ConfigError(
                    f"--{end} {text!r} is not in the vocabulary of {files.name}{near}"
                )
            chosen[end] = None if text is None else Special(text, vocab[text])
        stored = [key for key in ("truncation", "padding") if parsed.get(key)]
        notes += [f"{files.name}: stored {key} is switched off" for key in stored]
        pad = _text_of(files.sides.get(SIDE_FILES[0], {}).get("pad_token"), "pad_token")
        pads = [token.id for token in (chosen["eos"], chosen["bos"]) if token]
        return Tokenizer(
            json=files.raw,
            sha256=hashlib.sha256(files.raw).hexdigest(),
            vocab_size=max(vocab.values()) + 1,
            bos=chosen["bos"],
            eos=chosen["eos"],
            pad_id=vocab[pad] if pad in vocab else (pads or [0])[0],
            notes=tuple(notes),
            sides=files.sides,
        )
    except (ConfigError, InputError):
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{files.name} is not a tokenizer.json: {error or type(error).__name__}; expected a "
            "file saved by tokenizers"
        ) from None


def split_token(source: Any, text: str) -> tuple[str, int]:
    """Kind and id of `eos`, `bos` or `eos:ID`, at which rows are split; the tokenizer's own."""
    kind, _, number = text.partition(":")
    if number:
        return kind, int(number)
    token = getattr(load_tokenizer(source, **{"bos": "none", "eos": "none"} | {kind: "auto"}), kind)
    if token is None:
        raise ConfigError(
            f"split_at is {text}, and the tokenizer's {kind.upper()} is not known; name it: "
            f"{kind}:ID"
        )
    return kind, token.id


def _vocabulary_alone(size: int, bos: str, eos: str) -> Tokenizer:
    if not 1 <= size < 2**31:
        raise ConfigError(f"--tokenizer is {size:,}, expected a vocabulary of 1 to 2^31 - 1 ids")
    ends: dict[str, Special | None] = {}
    for end, asked in (("bos", bos), ("eos", eos)):
        if asked not in ("auto", "none") and not (asked.isdecimal() and int(asked) < size):
            raise ConfigError(
                f"--{end} is {asked!r}; with a number as --tokenizer, expected an id below {size:,}"
            )
        ends[end] = Special(asked, int(asked)) if asked.isdecimal() else None
    return Tokenizer(vocab_size=size, bos=ends["bos"], eos=ends["eos"])


def _vocabulary(parsed: Any) -> dict[str, int]:
    """Id of every token, read from the file: to load the tokenizer would take up to a second."""
    if not isinstance(parsed, dict) or "model" not in parsed:
        raise ValueError("it has no model")
    tokens = parsed["model"]["vocab"]
    if not isinstance(tokens, dict):
        tokens = {token: id_ for id_, (token, _) in enumerate(tokens)}
    added = {token["content"]: token["id"] for token in parsed.get("added_tokens", [])}
    vocab = {**tokens, **added}
    if not vocab or {*map(type, vocab.values())} != {int}:
        raise ValueError("its vocabulary is empty or has a token without a number")
    if min(vocab.values()) < 0 or max(vocab.values()) >= 2**31 - 1:
        raise ValueError("its ids are not all in 0 to 2^31 - 2")
    return vocab


def _end(
    end: str, asked: str, parsed: Any, sides: Mapping[str, Any], name: str
) -> tuple[str | None, str | None]:
    """Text of the token at that end or None, and a note about it or None."""
    if asked == "none":
        return None, None
    if asked != "auto":
        return asked, None
    for file in SIDE_FILES:
        if f"{end}_token" in sides.get(file, {}):
            text = _text_of(sides[file][f"{end}_token"], f"{file} says {end}_token")
            return text, None if text else f"no {end.upper()}: {file} says {end}_token is null"
    if (processor := parsed.get("post_processor")) is not None:
        text = _of_processor(end, processor)
        return text, None if text else f"no {end.upper()}: the post-processor of {name} adds none"
    specials = [each["content"] for each in parsed.get("added_tokens", []) if each.get("special")]
    some = f" (special tokens: {', '.join(specials[:8])})" if specials else ""
    raise ConfigError(
        f"no file next to {name} names the {end.upper()} token; choose --{end} TOKEN or --{end} "
        f"none{some}"
    )


def _of_processor(end: str, processor: Any) -> str | None:
    """The special token that a post-processor puts at that end of a single sequence."""
    match processor.get("type"):
        case "Sequence":
            texts = [_of_processor(end, part) for part in processor.get("processors", [])]
            return next((text for text in texts if text), None)
        case "BertProcessing" | "RobertaProcessing":
            return str((processor["cls"] if end == "bos" else processor["sep"])[0])
        case "TemplateProcessing":
            items = [item.get("SpecialToken", {}).get("id") for item in processor["single"]]
            middle = items.index(None) if None in items else len(items)
            before, after = items[:middle], items[middle + 1 :]
            text = (before or [None])[-1] if end == "bos" else (after or [None])[0]
            return None if text is None else str(text)
    return None


def _text_of(token: Any, label: str) -> str | None:
    """Text of a token in a side file, which is text, an object with `content`, or null."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise InputError(f"{label} is {str(token)[:60]}; expected the text of a token, or null")
    return text or None
