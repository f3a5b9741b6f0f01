"""The tokenizer of a build: its file and, where rows are conversations, their template."""

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packprep.config.checks import CONTINUATION_OF_TEMPLATE, ENDS_OF_TEMPLATE
from packprep.config.grammar.option import TRAIN_FIELDS
from packprep.config.stages import Cutting, Parsing, Tokenizing
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.chat.rendering.renderer import Renderer
    from packprep.chat.template import ChatTemplate


NO_END_OF_TURN = (
    "the chat template ends a turn of the assistant without a special token: turns are trained to "
    "their last token, and a model may not learn to stop"
)


@dataclass(frozen=True, kw_only=True)
class ChatTokenizer(Tokenizer):
    """A tokenizer with a chat template, or with a renderer of the user in its place."""

    template: "ChatTemplate | Renderer"

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {self.template.FACT: self.template.as_dict()}


def with_template(tokenizer: Tokenizer, template: "ChatTemplate | Renderer") -> ChatTokenizer:
    """The same tokenizer with this template."""
    return ChatTokenizer(
        **{spec.name: getattr(tokenizer, spec.name) for spec in fields(Tokenizer)},
        template=template,
    )


def ends_of(tokenizer: Tokenizer) -> dict[str, object]:
    """BOS and EOS of an output for people: text and id of each, None for none.

    by: what writes them, the chat template or renderer; None if they are added to each document.
    """
    by, ends = None, {end: token and asdict(token) for end, token in tokenizer.ends().items()}
    if isinstance(tokenizer, ChatTokenizer):
        by = tokenizer.template.FACT.replace("_", " ")
        for end in ends:
            if text := tokenizer.named_tokens.get(f"{end}_token"):
                ends[end] = {"text": text, "id": tokenizer.named_ids.get(f"{end}_token")}
    return {**ends, "by": by}


def load_build_tokenizer(
    tokenizing: Tokenizing, parsing: Parsing, token_type: Literal["auto", "int32", "uint16"]
) -> Tokenizer:
    """The tokenizer of a build; ConfigError if `token_type` does not hold its ids.

    Rows of token ids: it only bounds the ids, and no BOS or EOS is added unless asked for. With
    `vocab_size` it may be left out. Pieces: no BOS or EOS either. Conversations: their template
    writes BOS and EOS. Prompts and responses need no template; without one they get BOS and EOS as
    text does.
    """
    if parsing.chats:
        tokenizer = _of_chats(tokenizing, parsing)
    elif parsing.input_ids_column is not None:
        tokenizer = _of_ids(tokenizing)
    elif parsing.segments_column is not None:
        tokenizer = load_tokenizer(tokenizing.tokenizer, **tokenizing.asked_ends())
    else:
        tokenizer = _loaded(tokenizing, tokenizing.bos, tokenizing.eos)
    if tokenizing.vocab_size is not None:
        tokenizer = replace(tokenizer, vocab_size=tokenizing.vocab_size)
    tokenizer.shard_type(token_type)
    if parsing.parses_special_tokens and tokenizer.splits_special_tokens:
        raise ConfigError(
            "tokenizer_config.json says split_special_tokens is true: transformers keeps special "
            "tokens in a text as text, but --parse-special-tokens, chat templates and pieces turn "
            "them into ids; remove the key"
        )
    if (boundary := parsing.boundary()) is None:
        return tokenizer
    return replace(tokenizer, boundary=_boundary(*boundary, tokenizer, tokenizing))


def check_continuation(cutting: Cutting, tokenizer: Tokenizer) -> None:
    """Raise ConfigError if later pieces of a document need a BOS, and there is none to add."""
    if cutting.continuation_bos and isinstance(tokenizer, ChatTokenizer):
        raise ConfigError(CONTINUATION_OF_TEMPLATE)
    if cutting.continuation_bos and tokenizer.bos is None:
        raise ConfigError(
            "--continuation-bos needs a BOS, and none is added here; choose one with --bos TOKEN"
        )


def _boundary(
    kind: str, token: int | None, tokenizer: Tokenizer, tokenizing: Tokenizing
) -> tuple[str, int]:
    """The token at which rows of ids are split; without an id, the tokenizer's own EOS or BOS."""
    if token is None:
        named = None
        if tokenizing.tokenizer is not None:
            named = _loaded(tokenizing, "auto", "auto").ends()[kind]
        if named is None:
            raise ConfigError(
                f"--boundaries {kind}: the id of {kind.upper()} is not known; give it, such as "
                f"--boundaries {kind}:2, or --tokenizer with a tokenizer that names it"
            )
        token = named.id
    if token >= tokenizer.vocab_size:
        raise ConfigError(
            f"--boundaries {kind}:{token} is outside of the vocabulary of {tokenizer.vocab_size:,}"
        )
    return kind, token


def _loaded(tokenizing: Tokenizing, bos: str, eos: str) -> Tokenizer:
    return load_tokenizer(tokenizing.tokenizer, bos=bos, eos=eos)


def _of_ids(tokenizing: Tokenizing) -> Tokenizer:
    """The tokenizer of rows of token ids, without its text if only the vocabulary is given."""
    ends = tokenizing.asked_ends()
    if tokenizing.tokenizer is not None:
        return load_tokenizer(tokenizing.tokenizer, **ends)
    if tokenizing.vocab_size is None:
        raise ConfigError(
            "token ids are checked against a vocabulary; give --vocab-size or --tokenizer"
        )
    if {*ends.values()} != {"none"}:
        raise ConfigError("--bos and --eos name tokens of a tokenizer; give --tokenizer too")
    digest, size = hashlib.sha256(b"").hexdigest(), tokenizing.vocab_size
    return Tokenizer(json=b"", sha256=digest, vocab_size=size, bos=None, eos=None, pad_id=0)


def _of_chats(tokenizing: Tokenizing, parsing: Parsing) -> Tokenizer:
    """The tokenizer with its chat template.

    Where it has none and rows are prompts and responses: the tokenizer with BOS and EOS.
    """
    from packprep.chat.masks import exact_encoder
    from packprep.chat.rendering.renderer import load_renderer
    from packprep.chat.template import load_chat_template, template_file
    from packprep.chat.turns import TurnFinder

    file, date = tokenizing.chat_template, tokenizing.template_date
    if tokenizing.renderer is not None:
        if tokenizing.names_ends:
            raise ConfigError(ENDS_OF_TEMPLATE)
        renderer = load_renderer(tokenizing.renderer, tokenizing.variables())
        return with_template(_loaded(tokenizing, "none", "none"), renderer)
    if parsing.join_pieces:
        raise ConfigError(
            "--join-pieces is for pieces, and a chat template makes one text; leave it out"
        )
    if file is not None:  # checked first, because fetching a tokenizer from the hub may take long
        template_file(Path(file))
    tokenizer = _loaded(tokenizing, "none", "none")
    asked = (file, date, tokenizing.template_variables)
    is_pair = parsing.prompt_column is not None
    if is_pair and not tokenizer.chat_templates and asked == (None, None, None):
        if parsing.turns != "row":
            raise ConfigError(
                f"--turns {parsing.turns} needs a chat template, and the tokenizer has none; give "
                "one with --chat-template FILE, or leave --turns out"
            )
        if {*tokenizing.train_fields} != {*TRAIN_FIELDS}:
            raise ConfigError(
                "--train-fields is for fields of messages, and without a chat template a response "
                "is one text; give a template with --chat-template, or leave it out"
            )
        bare = _loaded(tokenizing, tokenizing.bos, tokenizing.eos)
        note = "the tokenizer has no chat template: prompt and response are joined as they are"
        return replace(bare, notes=(*bare.notes, note))
    if tokenizing.names_ends:
        raise ConfigError(ENDS_OF_TEMPLATE)
    template = load_chat_template(tokenizer, file, date=date, variables=tokenizing.variables())
    notes = (*tokenizer.notes, *template.notes)
    specials, train_on = exact_encoder(tokenizer.json).specials, tokenizing.train_on
    if train_on != "all" and not TurnFinder(template, specials, train_on).ends_turns():
        notes = (*notes, NO_END_OF_TURN)
    return with_template(replace(tokenizer, notes=notes), template)
