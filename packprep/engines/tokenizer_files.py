"""Files of a tokenizer: from a path, from the hub, or from an object that is loaded already."""

import json
from pathlib import Path
from typing import Any

from packprep.support.errors import ConfigError, InputError
from packprep.support.hub import asking, explained
from packprep.support.json_words import json_fault, json_kind

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")

TEMPLATE_FILE = "chat_template.jinja"

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_tokenizer_files(
    source: Any, revision: str | None
) -> tuple[str, bytes, dict[str, dict[str, Any]]]:
    """Name for messages, bytes of tokenizer.json, and the parsed files next to it."""
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
            for name in SIDE_FILES
            if (path.parent / name).exists()
        }
        sides[TEMPLATE_FILE] = _template_files(path.parent)
        return str(source), _read_file(path), sides
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _read_file(path: Path) -> bytes:
    if not path.is_file():  # a pipe would block
        raise InputError(
            f"{path} is not a regular file; expected one saved by tokenizers or transformers"
        )
    return path.read_bytes()


def _template_files(folder: Path) -> dict[str, Any]:
    """Chat templates in files: chat_template.jinja, and those in additional_chat_templates."""
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / TEMPLATE_FILE).exists():
        files["default"] = folder / TEMPLATE_FILE
    try:
        return {name: _read_file(path).decode() for name, path in files.items()}
    except UnicodeDecodeError:
        raise InputError(
            f"a chat template in {folder} is not UTF-8; expected Jinja templates"
        ) from None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(_read_file(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {json_fault(error)}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds {json_kind(loaded)}, expected a JSON object")
    return loaded


def _read_object(source: Any) -> tuple[str, bytes, dict[str, dict[str, Any]]]:
    """Name, tokenizer.json and side files of an object; transformers is never imported."""
    name = type(source).__name__
    sides: dict[str, dict[str, Any]] = {}
    if hasattr(source, "backend_tokenizer"):
        ends = {key: getattr(source, key, None) for key in ("bos_token", "eos_token", "pad_token")}
        sides[SIDE_FILES[0]] = {
            key: None if text is None else str(text) for key, text in ends.items()
        }
        named = getattr(source, "special_tokens_map", {})
        sides[SIDE_FILES[0]] |= {key: str(named[key]) for key in NAMED_TOKENS if key in named}
        template = getattr(source, "chat_template", None)
        sides[TEMPLATE_FILE] = (
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
            for side in (*SIDE_FILES, TEMPLATE_FILE):
                try:
                    hf_hub_download(name, side, revision=revision)
                except LocalEntryNotFoundError:
                    # The hub did not answer: the file may exist, unless the cache has recorded that
                    # it does not.
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
