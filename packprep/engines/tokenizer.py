"""The tokenizer file, and which token begins and ends a document.

Files decide *which* token is BOS or EOS, never *whether* a document gets one: `add_bos_token`-like
flags and the post-processor's own insertion are ignored, so one BOS and one EOS stand around each
document, never two. Asked in this order: tokenizer_config.json, special_tokens_map.json, the
post-processor of tokenizer.json. An explicit null, or a post-processor that adds nothing at that
end, means none. Silence everywhere is an error.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packprep.schemas.manifest import Manifest
from packprep.support.errors import ConfigError, InputError, PackprepError, nearest
from packprep.support.hub import asking, explained

_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE_FILE = "chat_template.jinja"
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer.json with truncation and padding switched off, and the policy for BOS and EOS."""

    json: bytes = field(repr=False)
    sha256: str  # of the tokenizer.json as found
    vocab_size: int  # one more than the largest id, added tokens included
    bos: "Special | None"
    eos: "Special | None"
    pad_id: int
    notes: tuple[str, ...] = ()
    named_tokens: Mapping[str, str] = field(
        default_factory=dict
    )  # bos_token, eos_token, ...: what templates see
    chat_templates: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # name to Jinja source

    def as_dict(self) -> dict[str, Any]:
        """Facts that enter the identity of a build."""
        ends = {
            end: token and {"token": token.text, "id": token.id}
            for end, token in self.ends().items()
        }
        return {"sha256": self.sha256, "vocab_size": self.vocab_size, "pad_id": self.pad_id, **ends}

    def ends(self) -> dict[str, "Special | None"]:
        return {"bos": self.bos, "eos": self.eos}

    @property
    def id_type(self) -> np.dtype[Any]:
        """Type of the ids in token files: half the bytes where the vocabulary allows it."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.int32)


@dataclass(frozen=True)
class Special:
    """A token added around documents."""

    text: str
    id: int


def load_tokenizer(
    source: Any, *, revision: str | None = None, bos: str = "auto", eos: str = "auto"
) -> Tokenizer:
    """Load the tokenizer at `source`.

    A tokenizer.json, a directory with one, a hub name, a `tokenizers.Tokenizer` or a transformers
    fast tokenizer. `bos`, `eos`: "auto", "none" or the token's text.

    Raises InputError where `source` is no tokenizer, ConfigError where BOS or EOS cannot be told.
    """
    name, raw, sides = _read(source, revision)
    try:
        parsed = json.loads(raw)
        if not isinstance(parsed, dict) or "model" not in parsed:
            raise ValueError("it has no model")
        notes = [
            f"{name}: stored {key} is switched off"
            for key in ("truncation", "padding")
            if parsed.get(key)
        ]
        cleaned = (
            raw
            if not notes
            else json.dumps({**parsed, "truncation": None, "padding": None}).encode()
        )
        vocab = _vocabulary(parsed)
        asked = {
            end: _choose(end, how, parsed, sides, name) for end, how in (("bos", bos), ("eos", eos))
        }
    except PackprepError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
    ) as error:  # anyone's JSON
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)[:200]
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
    pad = _content(sides.get(_SIDE_FILES[0], {}).get("pad_token"), "pad_token")
    pad_ids = (
        [vocab[pad]]
        if pad in vocab
        else [token.id for token in (chosen["eos"], chosen["bos"]) if token]
    )
    return Tokenizer(
        json=cleaned,
        sha256=hashlib.sha256(raw).hexdigest(),
        vocab_size=max(vocab.values()) + 1,
        bos=chosen["bos"],
        eos=chosen["eos"],
        pad_id=(pad_ids or [0])[0],
        notes=tuple(notes),
        named_tokens=_named_tokens(sides),
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
    """The tokenizer an output was built with, from where it was or from where it has `moved`.

    root: where a relative path starts. Raises ConfigError where it cannot be found or is another
    one.
    """
    given = manifest.run.get("given", {})
    source, revision = (
        moved or given.get("tokenizer_name"),
        None if moved else given.get("tokenizer_revision"),
    )
    if source is None and "tokenizer_path" in given:
        source = str(Path(root or "", given["tokenizer_path"]))
        if not Path(source).exists():
            raise ConfigError(
                f"the tokenizer {source} does not exist; say with --tokenizer where it is now"
            )
    if source is None:
        raise ConfigError(
            "the manifest does not say where the tokenizer is; give it with --tokenizer"
        )
    found = load_tokenizer(source, revision=revision, bos=bos, eos=eos)
    if found.sha256 != (said := manifest.data["inputs"]["tokenizer"].get("sha256")):
        raise ConfigError(
            f"{source} is not the tokenizer of this output: it has sha256 {found.sha256}, expected "
            f"{said}"
        )
    return found


def _named_tokens(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Text of each token that has a name in the side files.

    The first file that has the name decides.
    """
    named = {}
    for key in _NAMED:
        file = next((file for file in _SIDE_FILES if key in sides.get(file, {})), None)
        if file is not None and (text := _content(sides[file][key], f"{file} says {key}")):
            named[key] = text
    return named


def _chat_templates(sides: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, str]:
    """The chat templates by name.

    Files of their own before the key of tokenizer_config.json, which has one or many.
    """
    found = sides.get(_TEMPLATE_FILE) or sides.get(_SIDE_FILES[0], {}).get("chat_template")
    if isinstance(found, list):
        found = {
            entry["name"]: entry["template"]
            for entry in found
            if {"name", "template"} <= set(entry)
        }
    templates = {"default": found} if isinstance(found, str) else dict(found or {})
    if not all(isinstance(source, str) for source in templates.values()):
        raise InputError(f"the chat_template of {name} is no text; expected a Jinja template")
    return templates


def _vocabulary(parsed: Mapping[str, Any]) -> dict[str, int]:
    """Id of every token, read from the file.

    Loading the tokenizer itself would take up to a second.
    """
    tokens = parsed["model"]["vocab"]
    vocab = (
        dict(tokens)
        if isinstance(tokens, dict)
        else {token: id_ for id_, (token, _) in enumerate(tokens)}
    )
    vocab.update((token["content"], token["id"]) for token in parsed.get("added_tokens", []))
    if not vocab or set(map(type, vocab.values())) != {int}:
        raise ValueError("its vocabulary is empty or gives a token no number")
    if min(vocab.values()) < 0 or max(vocab.values()) >= 2**31 - 1:
        raise ValueError(
            f"its ids go from {min(vocab.values())} to {max(vocab.values())}, beyond 0 to 2^31 - 2"
        )
    return vocab


def _read(source: Any, revision: str | None) -> tuple[str, bytes, dict[str, dict[str, Any]]]:
    """Name for messages, bytes of tokenizer.json, and the parsed files beside it."""
    if source is None or source == "":
        raise ConfigError(
            "no tokenizer is given; add --tokenizer with a tokenizer.json, a directory or a hub "
            "name"
        )
    if not isinstance(source, (str, Path)):
        return _read_object(source)
    path = Path(source)
    try:
        if path.is_dir():
            path = path / "tokenizer.json"
            if not path.exists():
                raise InputError(
                    f"{source} holds no tokenizer.json; expected a directory saved by tokenizers "
                    "or transformers"
                )
        elif not path.exists():
            if path.suffix == ".json" or str(source).startswith((".", "/", "~")):
                raise InputError(
                    f"no tokenizer file {source}; check the path given with --tokenizer"
                )
            path = _download(str(source), revision)
        sides = {
            name: _json_object(path.parent / name)
            for name in _SIDE_FILES
            if (path.parent / name).exists()
        }
        sides[_TEMPLATE_FILE] = _template_files(path.parent)
        return str(source), _content_of(path), sides
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _content_of(path: Path) -> bytes:
    if not path.is_file():  # a pipe would be waited for
        raise InputError(
            f"{path} is not a regular file; expected one saved by tokenizers or transformers"
        )
    return path.read_bytes()


def _template_files(folder: Path) -> dict[str, Any]:
    """Chat templates that are files of their own.

    chat_template.jinja, and others under additional_chat_templates.
    """
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / _TEMPLATE_FILE).exists():
        files["default"] = folder / _TEMPLATE_FILE
    try:
        return {name: _content_of(path).decode() for name, path in files.items()}
    except UnicodeDecodeError:
        raise InputError(
            f"a chat template in {folder} is not UTF-8; expected Jinja templates"
        ) from None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(_content_of(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds a {type(loaded).__name__}, expected a JSON object")
    return loaded


def _read_object(source: Any) -> tuple[str, bytes, dict[str, dict[str, Any]]]:
    """transformers is recognised by its attributes and never imported."""
    name = type(source).__name__
    sides: dict[str, dict[str, Any]] = {}
    if hasattr(source, "backend_tokenizer"):
        ends = {key: getattr(source, key, None) for key in ("bos_token", "eos_token", "pad_token")}
        sides[_SIDE_FILES[0]] = {
            key: None if text is None else str(text) for key, text in ends.items()
        }
        named = getattr(source, "special_tokens_map", {})
        sides[_SIDE_FILES[0]] |= {key: str(named[key]) for key in _NAMED if key in named}
        template = getattr(source, "chat_template", None)
        sides[_TEMPLATE_FILE] = (
            {"default": template} if isinstance(template, str) else dict(template or {})
        )
        source = source.backend_tokenizer
    if not hasattr(source, "to_str"):
        raise InputError(
            f"{name} is not a tokenizer; expected a path, a tokenizers.Tokenizer or a fast "
            "tokenizer"
        )
    return name, source.to_str().encode(), sides


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    unreachable = ""
    try:
        with asking(name, "tokenizer.json", revision=revision) as unreachable:
            path = Path(hf_hub_download(name, "tokenizer.json", revision=revision))
            for side in (*_SIDE_FILES, _TEMPLATE_FILE):
                try:
                    hf_hub_download(name, side, revision=revision)
                except LocalEntryNotFoundError:
                    # The hub did not answer: the file may be there, unless it is on record here
                    # that it is not.
                    if try_to_load_from_cache(name, side, revision=revision) is None:
                        raise
                except EntryNotFoundError:
                    continue
    except Exception as error:  # the hub client has a dozen kinds
        reason = unreachable or explained(error)
        raise InputError(
            f"{name} is no local file and no tokenizer came from the hub: {reason}"
        ) from None
    return path


def _choose(
    end: str,
    asked: str,
    parsed: Mapping[str, Any],
    sides: Mapping[str, Mapping[str, Any]],
    name: str,
) -> tuple[str | None, str | None]:
    """Text of the token at that end or None, and a line to say about it."""
    if asked == "none":
        return None, None
    if asked != "auto":
        return asked, None
    key = f"{end}_token"
    for file in _SIDE_FILES:
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
        f"no file beside {name} says what {end.upper()} is; choose --{end} TOKEN or --{end} "
        f"none{some}"
    )


def _content(token: Any, what: str) -> str | None:
    """Text of a token in a side file, where it is text, an object with `content`, or null.

    what: names it in errors.
    """
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise InputError(f"{what} is {str(token)[:60]}; expected the text of a token, or null")
    return text or None


def _from_processor(end: str, processor: Mapping[str, Any]) -> str | None:
    """The special token this post-processor puts next to a single sequence at that end."""
    kind = processor.get("type")
    if kind == "Sequence":
        found = [_from_processor(end, part) for part in processor.get("processors", [])]
        return next((text for text in found if text), None)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return str(processor["cls" if end == "bos" else "sep"][0])
    if kind == "TemplateProcessing":
        items = [item.get("SpecialToken", {}).get("id") for item in processor["single"]]
        if None in items:
            middle = items.index(None)
            before, after = items[:middle], items[middle + 1 :]
            text: str | None = (before or [None])[-1] if end == "bos" else (after or [None])[0]
            return text
    return None


def _similar(text: str, vocab: Mapping[str, int]) -> str:
    near = nearest(text, [token for token in vocab if token.startswith(("<", "[", "▁<"))])
    return near if near.startswith(";") else "; choose a token it has"
