"""Keys of tokenizer_config.json that change ids in transformers, next to the tokenizer.json.

packprep's ids are those of the tokenizer.json. A key that makes transformers 5.23 give others is
refused; one that agrees with the file, or that transformers reads no longer, is not. Classes that
are not in _FROM_FILE build the tokenizer again, from its vocabulary and these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from packprep.engines.tokenizer_files import NAMED_TOKENS, SIDE_FILES, Step, TokenizerJson
from packprep.support.errors import InputError

_FROM_FILE = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")


@dataclass(frozen=True, kw_only=True)
class _File:
    """A tokenizer.json and its configuration. steps: normalizers and pre-tokenizers."""

    config: Mapping[str, object]
    steps: tuple[Step, ...]
    vocabulary: Container[str]

    @property
    def is_built_again(self) -> bool:
        return self.config.get("tokenizer_class") not in _FROM_FILE

    def adds_space(self) -> bool:
        """True if it adds a space before the first word."""
        return any(
            step.get("add_prefix_space") is True
            or step["type"] == "Prepend"
            or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in self.steps
        )


def _tokenizer_file(value: object, file: _File) -> tuple[str, bool] | None:
    if value is not None:
        return None
    return (
        "tokenizer.json was read; some versions of transformers before 5.23 read the other "
        "vocabulary files"
    ), False


def _add_prefix_space(value: object, file: _File) -> tuple[str, bool] | None:
    if not isinstance(value, bool) or not file.is_built_again or value == file.adds_space():
        return None
    return f"tokenizer.json {'adds no' if value else 'adds a'} space before the first word", True


def _legacy(value: object, file: _File) -> tuple[str, bool] | None:
    """False: a space before the first word only; true: after each special token too."""
    if not isinstance(value, bool) or not file.is_built_again:
        return None
    if any(step["type"] == "Prepend" for step in file.steps):
        return (
            "transformers 5.23 gives other ids than its tokenizer.json after special tokens, or "
            "for text that begins with a space; --check-against transformers names them"
        ), False
    schemes = {s.get("prepend_scheme") for s in file.steps if s["type"] == "Metaspace"}
    if schemes & {"always", "first"} and {"always" if value else "first"} != schemes:
        return f"tokenizer.json adds spaces by the rule {', '.join(map(str, schemes))}", True
    return None


def _extra_tokens(value: object, file: _File) -> tuple[str, bool] | None:
    missing = [text for text in token_texts(value) if text and text not in file.vocabulary]
    if not missing:
        return None
    return f"{missing[0]!r} is not in tokenizer.json, and gets an id after its last one", True


def token_texts(value: object) -> list[str]:
    """Texts of a list of tokens, or of the values of a dict; each is text, or has a `content`."""
    tokens = list(value.values()) if isinstance(value, dict) else value or []
    if not isinstance(tokens, list):
        raise ValueError(f"{str(tokens)[:60]} is no list of tokens")
    return [str(token["content"] if isinstance(token, dict) else token) for token in tokens]


def named_by_model(file: Mapping[str, object], *, is_legacy: bool = False) -> dict[str, str]:
    """Texts of the tokens that a model names besides the usual ones, such as image_token, by name.

    file: tokenizer_config.json; is_legacy: special_tokens_map.json.
    """
    names = {key: value for key, value in file.items() if key.endswith("_token")}
    named = {
        key: text
        for key, value in names.items()
        if key not in NAMED_TOKENS and (text := _text(value, is_legacy=is_legacy)) is not None
    }
    extra = file.get(EXTRA_TOKENS[0]) or file.get(EXTRA_TOKENS[1])
    if isinstance(extra, dict):
        named |= dict(zip(extra, token_texts(extra), strict=True))
    explicit = file.get("model_specific_special_tokens")
    if not named and isinstance(explicit, dict):
        named = dict(zip(explicit, token_texts(explicit), strict=True))
    return named


def _text(token: object, *, is_legacy: bool) -> str | None:
    """Text of a token, which is text or an object that says that it is one; None for others."""
    if isinstance(token, dict) and (is_legacy or token.get("__type") == "AddedToken"):
        token = token.get("content")
    return token if isinstance(token, str) else None


_KEYS: dict[str, Callable[[object, _File], tuple[str, bool] | None]] = {
    "tokenizer_file": _tokenizer_file,
    "add_prefix_space": _add_prefix_space,
    "legacy": _legacy,
    **dict.fromkeys(EXTRA_TOKENS, _extra_tokens),
}
"""By key: a function of its value and the file, to what differs and if it is refused; else None."""


def read_keys(
    name: str, config: Mapping[str, object], parsed: TokenizerJson, vocabulary: Container[str]
) -> list[str]:
    """Notes about keys of tokenizer_config.json. name: of the tokenizer, for messages.

    Raises InputError for a key with which transformers gives other ids than the tokenizer.json.
    """
    file = _File(config=config, steps=(*_steps(parsed),), vocabulary=vocabulary)
    notes = []
    values = {key: config[key] for key in _KEYS if key in config}
    values |= {key: [text] for key, text in named_by_model(config).items() if key in config}
    for key, value in values.items():
        if (found := _KEYS.get(key, _extra_tokens)(value, file)) is None:
            continue
        what, is_refused = found
        says = f"{name}: {SIDE_FILES[0]} says {key} is {str(config[key])[:60]}, and {what}"
        if is_refused:
            raise InputError(
                f"{says}: transformers would give other ids than it; save both files again with "
                "transformers, or remove the key"
            )
        notes.append(says)
    return notes


def _steps(parsed: TokenizerJson) -> list[Step]:
    """Normalizers and pre-tokenizers of a tokenizer.json, without those that hold others."""
    pending = [step for step in (parsed.get("normalizer"), parsed.get("pre_tokenizer")) if step]
    steps: list[Step] = []
    while pending:
        step = pending.pop(0)
        inner = [*step.get("normalizers", []), *step.get("pretokenizers", [])]
        pending = inner + pending
        steps += [] if inner else [step]
    return steps
