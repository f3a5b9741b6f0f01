"""The tokenizer of a build: its file and, where rows are conversations, their template."""

import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packprep.config.build_config import BuildConfig
from packprep.config.checks import ENDS_OF_TEMPLATE
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.chat.template import ChatTemplate


NO_END_OF_TURN = (
    "the chat template ends a turn of the assistant without a special token: turns are trained to "
    "their last token, and a model may not learn to stop"
)


@dataclass(frozen=True, kw_only=True)
class ChatTokenizer(Tokenizer):
    """A tokenizer with a chat template."""

    template: "ChatTemplate"

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {"chat_template": self.template.as_dict()}


def with_template(tokenizer: Tokenizer, template: "ChatTemplate") -> ChatTokenizer:
    """The same tokenizer with this template."""
    return ChatTokenizer(
        **{spec.name: getattr(tokenizer, spec.name) for spec in fields(Tokenizer)},
        template=template,
    )


def load_build_tokenizer(config: BuildConfig) -> Tokenizer:
    """The tokenizer of a build; ConfigError if `token_type` does not hold its ids.

    Rows of token ids: it only bounds the ids, and no BOS or EOS is added unless asked for. With
    `vocab_size` it may be left out. Conversations: their template writes BOS and EOS. Prompts and
    responses need no template; without one they get BOS and EOS as text does.
    """
    tokenizer = _loaded(config)
    tokenizer.shard_type(config.token_type)
    if (boundary := config.boundary()) is None:
        return tokenizer
    return replace(tokenizer, boundary=_boundary(*boundary, tokenizer, config))


def _boundary(
    kind: str, token: int | None, tokenizer: Tokenizer, config: BuildConfig
) -> tuple[str, int]:
    """The token at which rows of ids are split; without an id, the tokenizer's own EOS or BOS."""
    if token is None:
        named = None
        if config.tokenizer is not None:
            own = load_tokenizer(config.tokenizer, revision=config.tokenizer_revision)
            named = own.ends()[kind]
        if named is None:
            raise ConfigError(
                f"boundaries {kind}: the id of {kind.upper()} is not known; give it, such as "
                f"--boundaries {kind}:2, or --tokenizer with a tokenizer that names it"
            )
        token = named.id
    if token >= tokenizer.vocab_size:
        raise ConfigError(
            f"boundaries {kind}:{token} is outside of the vocabulary of {tokenizer.vocab_size:,}"
        )
    return kind, token


def _loaded(config: BuildConfig) -> Tokenizer:
    bos, eos = config.bos, config.eos
    if config.input_ids_column is not None or config.chats:
        bos, eos = ("none" if asked == "auto" else asked for asked in (bos, eos))
        if config.tokenizer is None and not config.chats:
            if config.vocab_size is None:
                raise ConfigError(
                    "token ids are checked against a vocabulary; give --vocab-size or --tokenizer"
                )
            if (bos, eos) != ("none", "none"):
                raise ConfigError(
                    "--bos and --eos name tokens of a tokenizer; give --tokenizer too"
                )
            empty_digest = hashlib.sha256(b"").hexdigest()
            return Tokenizer(
                json=b"",
                sha256=empty_digest,
                vocab_size=config.vocab_size,
                bos=None,
                eos=None,
                pad_id=0,
            )
    if config.chats and config.chat_template is not None:
        from packprep.chat.template import template_file

        # Checked first, because fetching a tokenizer from the hub may take long.
        template_file(Path(config.chat_template))
    if config.chats:
        bos = eos = "none"
    tokenizer = load_tokenizer(
        config.tokenizer, revision=config.tokenizer_revision, bos=bos, eos=eos
    )
    if config.chats:
        tokenizer = _templated(tokenizer, config)
    return (
        tokenizer if config.vocab_size is None else replace(tokenizer, vocab_size=config.vocab_size)
    )


def _templated(tokenizer: Tokenizer, config: BuildConfig) -> Tokenizer:
    """The tokenizer with its chat template.

    Where it has none and rows are prompts and responses: the tokenizer with BOS and EOS.
    """
    from packprep.chat.masks import exact_encoder
    from packprep.chat.template import load_chat_template
    from packprep.chat.turns import TurnFinder

    asked = (config.chat_template, config.template_date, config.template_variables)
    if (
        config.prompt_column is not None
        and not tokenizer.chat_templates
        and asked == (None, None, None)
    ):
        bare = load_tokenizer(
            config.tokenizer, revision=config.tokenizer_revision, bos=config.bos, eos=config.eos
        )
        if config.turns != "row":
            raise ConfigError(
                f"turns {config.turns} needs a chat template, and the tokenizer has none; give one "
                "with --chat-template FILE, or leave turns out"
            )
        if "content" not in config.train_fields:
            raise ConfigError(
                "without a chat template a response is content, which --train-fields leaves out; "
                "give a template with --chat-template"
            )
        note = "the tokenizer has no chat template: prompt and response are joined as they are"
        return replace(bare, notes=(*bare.notes, note))
    if not {config.bos, config.eos} <= {"auto", "none"}:
        raise ConfigError(ENDS_OF_TEMPLATE)
    template = load_chat_template(
        tokenizer, config.chat_template, date=config.template_date, variables=config.variables()
    )
    notes = (*tokenizer.notes, *template.notes)
    specials = exact_encoder(tokenizer.json).specials
    if (
        config.train_on != "all"
        and not TurnFinder(template, specials, config.train_on).ends_turns()
    ):
        notes = (*notes, NO_END_OF_TURN)
    return with_template(replace(tokenizer, notes=notes), template)
