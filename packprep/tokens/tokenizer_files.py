"""Files of a tokenizer: from a path, from the hub, or from an object that is loaded already."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..support.errors import ConfigError, InputError

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
TEMPLATE_FILE = "chat_template.jinja"
OTHER_FORMATS = ("tekken.json", "tokenizer.model", "tiktoken.model", "qwen.tiktoken")
_NAMES = ("tokenizer.json", *OTHER_FORMATS)


class TokenizerFiles(NamedTuple):
    """A tokenizer before it is parsed.

    name: in messages. raw: bytes of the tokenizer.json. sides: keys of the files beside it, by
    their names; of TEMPLATE_FILE, Jinja templates by name, or their folder. notes: sentences for
    the user.
    """

    name: str
    raw: bytes
    sides: dict[str, Any]
    notes: tuple[str, ...] = ()


def read_tokenizer(source: Any) -> TokenizerFiles:
    """Read a tokenizer; a file in another format is converted to a tokenizer.json.

    Raises ConfigError if none is named, InputError if it cannot be read.
    """
    if source is None or source == "":
        raise ConfigError(
            "no tokenizer is given; add --tokenizer with a tokenizer.json, a folder or a hub name"
        )
    if not isinstance(source, (str, Path)):
        return _of_object(source)
    try:
        path = _found(Path(source))
        if not path.exists():
            if _is_path(str(source)):
                raise InputError(f"there is no tokenizer {source}; check the path")
            path = _downloaded(str(source))
        sides: dict[str, Any] = {
            file: _json_object(path.with_name(file))
            for file in SIDE_FILES
            if path.with_name(file).exists()
        }
        sides[TEMPLATE_FILE] = path.parent
        if not path.is_file():  # a pipe would block
            raise InputError(f"{path} is not a regular file; expected a tokenizer")
        raw, name = path.read_bytes(), str(source)
    except OSError as error:
        raise InputError(f"{error.filename or source} cannot be read: {error.strerror}") from None
    named = path.suffix == ".json" and path.name != "tekken.json"
    if named or (raw.lstrip()[:1] == b"{" and path.suffix != ".json"):
        return TokenizerFiles(name, raw, sides)
    from .conversions import converted

    return converted(TokenizerFiles(name, raw, sides), path)


def _found(path: Path) -> Path:
    """The tokenizer file of a folder; another path unchanged."""
    if not path.is_dir():
        return path
    for name in _NAMES:
        if (path / name).exists():
            return path / name
    others = sorted([*path.glob("*.tiktoken"), *path.glob("*.model")])
    if not others:
        raise InputError(
            f"{path} holds no tokenizer.json; expected a folder saved by tokenizers or "
            f"transformers, or one with {', '.join(OTHER_FORMATS)}"
        )
    return others[0]


def _is_path(name: str) -> bool:
    """True for a name that cannot be one of the hub."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".json")


def _json_object(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds no JSON object; expected what transformers saves")
    return loaded


def templates_in(folder: Path) -> dict[str, str]:
    """Chat templates in files: chat_template.jinja, and those in additional_chat_templates."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / TEMPLATE_FILE).exists():
        files["default"] = folder / TEMPLATE_FILE
    try:
        return {name: path.read_text("utf-8") for name, path in sorted(files.items())}
    except UnicodeDecodeError:
        raise InputError(
            f"a chat template in {folder} is not UTF-8; expected Jinja templates"
        ) from None


def _of_object(source: Any) -> TokenizerFiles:
    """The files of a loaded tokenizer; transformers is never imported."""
    name, sides = type(source).__name__, dict[str, Any]()
    if hasattr(source, "backend_tokenizer"):
        named = {key: getattr(source, key, None) for key in ("bos_token", "eos_token", "pad_token")}
        named |= getattr(source, "special_tokens_map", {})
        sides[SIDE_FILES[0]] = {key: text and str(text) for key, text in named.items()}
        template = getattr(source, "chat_template", None) or {}
        is_one = isinstance(template, str)
        sides[TEMPLATE_FILE] = {"default": template} if is_one else dict(template)
        source = source.backend_tokenizer
    if not hasattr(source, "to_str"):
        raise InputError(
            f"{name} is not a tokenizer; expected a path, a tokenizers.Tokenizer or a fast "
            "tokenizer of transformers"
        )
    # Its last call decides these, and no engine uses them.
    state = {**json.loads(source.to_str()), "truncation": None, "padding": None}
    return TokenizerFiles(name, json.dumps(state, ensure_ascii=False).encode(), sides)


def _downloaded(name: str) -> Path:
    """The tokenizer of a repository NAME@REVISION of the hub, in the local cache."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    wanted = [*_NAMES, "*.tiktoken", *SIDE_FILES, TEMPLATE_FILE, "additional_chat_templates/*"]
    try:
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=wanted)
        return _found(Path(folder))
    except InputError:
        raise InputError(f"the hub's {name} has no tokenizer.json; choose another") from None
    except Exception as error:  # the hub's client has a dozen kinds
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name} is no local file, and no tokenizer came from the hub: {reason}; check the name"
        ) from None
