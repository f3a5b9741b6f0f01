"""Files of a tokenizer: from a path, from the hub, or from an object that is loaded already."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Required, TypedDict

from packprep.config.grammar.source_names import hub_tokenizer, is_local_tokenizer
from packprep.support.errors import ConfigError, InputError
from packprep.support.hub import asking, explained
from packprep.support.json_words import json_fault, json_kind

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")

TEMPLATE_FILE = "chat_template.jinja"

NAMED_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


class AddedToken(TypedDict):
    """One of the `added_tokens` of a tokenizer.json."""

    id: int
    content: str
    special: NotRequired[bool]
    lstrip: NotRequired[bool]
    rstrip: NotRequired[bool]


class Model(TypedDict):
    """The model of a tokenizer.json; a list has each token with its score."""

    vocab: dict[str, int] | list[tuple[str, float]]


class PostProcessor(TypedDict, total=False):
    """The post-processor of a tokenizer.json: keys of several types."""

    type: Required[str]
    processors: list["PostProcessor"]
    cls: tuple[str, int]
    sep: tuple[str, int]
    single: list[dict[str, dict[str, str]]]


class Step(TypedDict, total=False):
    """A normalizer or pre-tokenizer of a tokenizer.json, or a sequence of them."""

    type: Required[str]
    add_prefix_space: bool
    prepend_scheme: str
    normalizers: list["Step"]
    pretokenizers: list["Step"]


class TokenizerJson(TypedDict, total=False):
    """Parts of a tokenizer.json that decide about tokens."""

    model: Required[Model]
    added_tokens: list[AddedToken]
    post_processor: PostProcessor | None
    normalizer: Step | None
    pre_tokenizer: Step | None
    truncation: object
    padding: object


SideFiles = dict[str, dict[str, object]]
"""Files next to a tokenizer.json: by name, the keys of one; of TEMPLATE_FILE, templates by name."""


class TokenizerFiles(NamedTuple):
    """Name for messages, bytes of the tokenizer, the parsed files next to it, and its path."""

    name: str
    raw: bytes
    sides: SideFiles
    path: Path | None


def read_tokenizer_files(source: Any, names: Sequence[str]) -> TokenizerFiles:
    """Read a tokenizer.

    names: of its file in a folder and on the hub, the first one first.
    """
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
            file = next((path / name for name in names if (path / name).exists()), None)
            if file is None:
                raise InputError(
                    f"{source} holds no tokenizer.json; expected a directory saved by tokenizers "
                    f"or transformers, or one with {', '.join(names[1:])}"
                )
            path = file
        elif not path.exists():
            if is_local_tokenizer(str(source)):
                raise InputError(
                    f"no tokenizer file {source}; check the path given with --tokenizer"
                )
            path = _download(*hub_tokenizer(str(source)), names)
        files = [path.with_name(name) for name in SIDE_FILES]
        sides = {file.name: _json_object(file) for file in files if file.exists()}
        sides[TEMPLATE_FILE] = _template_files(path.parent)
        return TokenizerFiles(str(source), _read_file(path), sides, path)
    except OSError as error:
        raise InputError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _read_file(path: Path) -> bytes:
    if not path.is_file():  # a pipe would block
        raise InputError(
            f"{path} is not a regular file; expected one saved by tokenizers or transformers"
        )
    return path.read_bytes()


def _template_files(folder: Path) -> dict[str, object]:
    """Chat templates in files: chat_template.jinja, and those in additional_chat_templates."""
    others = (folder / "additional_chat_templates").glob("*.jinja")
    files = {path.stem: path for path in sorted(others)}
    if (folder / TEMPLATE_FILE).exists():
        files["default"] = folder / TEMPLATE_FILE
    try:
        return {name: _read_file(path).decode() for name, path in files.items()}
    except UnicodeDecodeError:
        raise InputError(
            f"a chat template in {folder} is not UTF-8; expected Jinja templates"
        ) from None


def _json_object(path: Path) -> dict[str, object]:
    try:
        loaded = json.loads(_read_file(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {json_fault(error)}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds {json_kind(loaded)}, expected a JSON object")
    return loaded


def _read_object(source: Any) -> TokenizerFiles:
    """Name, tokenizer.json and side files of an object; transformers is never imported."""
    name, sides = type(source).__name__, SideFiles()
    if hasattr(source, "backend_tokenizer"):
        named = {key: getattr(source, key, None) for key in ("bos_token", "eos_token", "pad_token")}
        tokens = getattr(source, "special_tokens_map", {})
        named |= {key: tokens[key] for key in NAMED_TOKENS if key in tokens}
        sides[SIDE_FILES[0]] = {
            **{key: text and str(text) for key, text in named.items()},
            "extra_special_tokens": {
                key: text
                for key, text in tokens.items()
                if key not in NAMED_TOKENS and isinstance(text, str)
            },
        }
        template = getattr(source, "chat_template", None) or {}
        whole = {"default": template} if isinstance(template, str) else template
        sides[TEMPLATE_FILE] = dict(whole)
        source = source.backend_tokenizer
    if not hasattr(source, "to_str"):
        raise InputError(
            f"{name} is not a tokenizer; expected a path, a tokenizers.Tokenizer or a fast "
            "tokenizer"
        )
    return TokenizerFiles(name, source.to_str().encode(), sides, None)


def _download(name: str, revision: str | None, names: Sequence[str]) -> Path:
    unreachable = ""
    try:
        with asking(name, names[0], revision=revision) as unreachable:
            for file in names:
                if (path := _fetched(name, file, revision)) is not None:
                    break
            else:
                raise FileNotFoundError(f"it has no {' or '.join(names)}")
            for side in (*SIDE_FILES, TEMPLATE_FILE):
                _fetched(name, side, revision)
    except Exception as error:  # the hub client has a dozen kinds
        reason = unreachable or explained(error)
        raise InputError(
            f"{name} is no local file and no tokenizer came from the hub: {reason}"
        ) from None
    return path


def _fetched(name: str, file: str, revision: str | None) -> Path | None:
    """The file of a repository in the local cache; None if the repository has no such file."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except LocalEntryNotFoundError:
        # The hub did not answer: the file may exist, unless the cache has recorded that it does
        # not.
        if try_to_load_from_cache(name, file, revision=revision) is None:
            raise
    except EntryNotFoundError:
        pass
    return None
