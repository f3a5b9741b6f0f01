"""All options of a build, by stage: one field each, with its help.

The command line, the YAML file and Python read these fields. A field holds what the user wrote, as
text and numbers; `parsed` gives its parts. Functions take the stage that they need: a `BuildConfig`
is all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..support.limits import usable_cores, usable_memory
from .grammar import Holdout, Multiple, Order, Overflow, Strategy, count_of, size_of, wrong


def option(default: Any, words: str, metavar: str = "", **facts: Any) -> Any:
    """Make a field.

    words: its help. facts: `group` of the help page; `yaml`: it is not on the command line;
    `short`: its short flag; `read`: count or size; `least` value; `decides` (False: no byte of an
    output depends on it).
    """
    return field(default=default, metadata={"help": words, "metavar": metavar, **facts})


EVERY, TEXT, CHATS, IDS = "Every build", "Text", "Chats", "Pairs, ids, pieces"
PACKS, MIXES, TRAINER = "Packs", "Mixes and amounts", "For a trainer"
FIRST, RUN = "First tries", "Running"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Decides what is read, and where files are written."""

    sources: Sequence[str | Mapping[str, Any]] = option((), "", "SOURCE", group="")
    output: str = option(
        "",
        "Folder or URL; it appears when it is complete.",
        "OUT",
        group=EVERY,
        short="-o",
        decides=False,
    )
    store: str | None = option(
        None, "Keep tokens here, and use those here.", "DIR", group=RUN, decides=False
    )
    overwrite: bool = option(
        False, "Replace an output of other settings.", group=RUN, decides=False
    )
    max_memory: int | str | None = option(
        None, "Memory to use.", "SIZE", yaml=True, read="size", least=1, decides=False
    )
    window: int | str = option(
        "4GB", "Text that is packed together.", "SIZE", yaml=True, read="size", least=1
    )
    shard_size: int | str = option(
        "500MB", "Size of a shard.", "SIZE", yaml=True, read="size", least=1
    )
    token_type: Literal["auto", "int32"] = option(
        "auto", "Type of ids and positions: auto is uint16 where it fits.", yaml=True
    )

    @property
    def memory(self) -> int:
        """Bytes of memory to use; by default half of what this process may use."""
        return size_of(self.max_memory) or usable_memory() // 2


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Decides which documents a row makes."""

    text: str | None = option(
        None, 'Column, or "{title}\\n\\n{body}".  [text]', "COLUMN|TEMPLATE", group=TEXT
    )
    messages: str | None = option(
        None, "Column, PROMPT,RESPONSE, or auto: find them.", "COLUMN", group=CHATS
    )
    pairs: str | None = option(
        None, "Preference pairs; both sides share a pack.", "[PROMPT,]A,B", group=IDS
    )
    ids: str | None = option(
        None, "Token ids; labels, or a mask.", "COLUMN[,LABELS[:labels|:mask]]", group=IDS
    )
    pieces: str | None = option(
        None, "Rendered text, or lists of {text, train}.", "COLUMN", group=IDS
    )
    carry: Sequence[str] = option(
        (), "Copy a column of numbers; may be repeated.", "NAME[:TYPE]", group=TRAINER
    )
    group: str | None = option(
        None, "Rows of different groups never share a pack.", "COLUMN", group=PACKS
    )
    limit: int | str | None = option(
        None, "Read the first N rows only.", "N", group=FIRST, read="count", least=1
    )
    on_error: Literal["stop", "skip"] = option("stop", "What to do with a bad row.", group=RUN)
    truncate_at: str | None = option(None, "Cut texts at the first match.", "REGEX", yaml=True)
    split_at: str | None = option(
        None, "Split rows of ids after EOS or before BOS.", "eos|bos[:ID]", yaml=True
    )


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Decides the ids of a document."""

    tokenizer: Any = option(
        None, "File, folder or hub name; a number for --ids.", "NAME[@REV]", group=EVERY
    )
    bos: str = option("auto", "Before each document: auto, none, a token.", "TOKEN", group=TEXT)
    eos: str = option("auto", "After each document: auto, none, a token.", "TOKEN", group=TEXT)
    chat_template: str | None = option(None, "Jinja, or FILE.py:FUNCTION.", "FILE", group=CHATS)
    train_on: Literal["assistant", "last-turn", "all"] = option(
        "assistant", "Turns to train on.", group=CHATS
    )
    turns: Literal["row", "each", "auto"] = option(
        "row", "A document for each row, or turn.", group=CHATS
    )
    template_variables: Mapping[str, Any] | None = option(
        None, "Variables of the chat template.", "{NAME: VALUE}", yaml=True
    )
    engine: Literal["auto", "hf", "fastokens"] = option(
        "auto", "Tokenizing engine; all give the same ids.", yaml=True, decides=False
    )


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Decides how documents are cut, and which of them share a pack."""

    max_length: int | str = option(
        4096, "Tokens of a pack.", "N", group=EVERY, read="count", least=2
    )
    strategy: str = option(
        "best_fit",
        "best_fit, first_fit, knapsack, optimal, stream, greedy, first_fit_input, wrapped, or "
        "balanced[:N].",
        "NAME[:N]",
        group=EVERY,
    )
    overflow: str | None = option(
        None,
        "split, truncate[:left|balanced], drop, error.  [split; pairs: truncate]",
        "NAME[:HOW]",
        group=EVERY,
    )
    stride: int | str = option(
        0, "Tokens that pieces of a document share.", "N", group=PACKS, read="count", least=0
    )
    min_document_tokens: int | str = option(
        1, "Drop shorter documents.", "N", group=PACKS, read="count", least=0
    )
    max_document_tokens: int | str | None = option(
        None, "Drop longer documents.", "N", group=PACKS, read="count", least=0
    )
    min_pack_tokens: int | str = option(
        0, "Drop packs with fewer tokens.", "N", group=PACKS, read="count", least=0
    )
    max_segments: int | str | None = option(
        None, "Most segments of a pack.", "N", group=PACKS, read="count", least=1
    )
    pad_to_multiple: int | str = option(
        1, "Pad each segment (2 x context parallel ranks).", "N", group=PACKS, read="count", least=1
    )
    order: str = option(
        "shuffle", "shuffle, input, length, balanced[:RANKS[:A,B]].", "NAME", group=PACKS
    )
    seed: int | str = option(
        0, "The same seed gives the same bytes.", "N", group=EVERY, read="count", least=0
    )
    epoch: int | str = option(
        0, "Other neighbours for each N above 0.", "N", group=PACKS, read="count", least=0
    )
    continuation_bos: bool = option(False, "Begin later pieces with BOS too.", yaml=True)
    shuffle_documents: bool = option(
        False, "stream, greedy, first_fit_input: take documents in random order.", yaml=True
    )


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Decides how much is drawn of each source, and which splits and columns are written."""

    weights: Sequence[str | float] = option(
        (), "A mix: shares of tokens by source.", "W,W,...", group=MIXES
    )
    max_tokens: int | str | None = option(
        None, "Draw N tokens.", "N", group=MIXES, read="count", least=1
    )
    multiple: int | str = option(
        1, "Packs of a window are a multiple of N.", "N[:fill]", group=TRAINER
    )
    holdout: str | float | None = option(
        None, "A validation split, such as 1%.", "SHARE[:SEED]", group=TRAINER
    )
    after: str | None = option(None, "Begin where OUT ends: nothing twice.", "OUT", group=MIXES)
    columns: Sequence[str] | str | None = option(
        None, "Besides tokens and cu_seqlens; or hf, or plan.", "NAMES|hf|plan", group=TRAINER
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Decides how a command runs; no byte of an output depends on it."""

    executor: str = option("local", "local, or ray[:ADDRESS].", "NAME", group=RUN, decides=False)
    num_proc: int | str | None = option(
        None, "Cores to use.  [all]", "N", group=RUN, read="count", least=1, decides=False
    )
    part: str | None = option(
        None, "Do part I of N, from 0, by any scheduler.", "I/N", group=RUN, decides=False
    )

    @property
    def cores(self) -> int:
        """Cores to use."""
        return count_of(self.num_proc) or usable_cores()


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Where, RowOptions, TokenOptions, PackOptions, Amounts, Running):
    """All options of a build, checked: ConfigError for one that is wrong, or can do nothing.

    >>> BuildConfig(sources=["docs.jsonl"], output="packed", tokenizer="gpt2", max_length="8Ki")
    """

    def __post_init__(self) -> None:
        from .checks import check

        for spec in fields(self):
            object.__setattr__(self, spec.name, _value(spec, getattr(self, spec.name)))
        check(self)

    @property
    def packer(self) -> Strategy:
        """Parts of `strategy`."""
        return Strategy.parse(self.strategy)

    @property
    def too_long(self) -> Overflow:
        """Parts of `overflow`; by default split, or truncate of pairs."""
        return Overflow.parse(self.overflow or ("truncate" if self.pairs else "split"))

    @property
    def pack_order(self) -> Order:
        """Parts of `order`."""
        return Order.parse(self.order)

    @property
    def multiples(self) -> Multiple:
        """Parts of `multiple`."""
        return Multiple.parse(self.multiple)

    @property
    def held_out(self) -> Holdout:
        """Parts of `holdout`."""
        return Holdout.parse(self.holdout)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in their order."""
        return ("train", "validation") if self.held_out.share else ("train",)

    def deciding(self) -> dict[str, Any]:
        """The options that decide bytes, without those that have their default."""
        return {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.metadata.get("decides", True)
            and spec.name not in ("sources", "tokenizer", "chat_template")
            and getattr(self, spec.name) != _value(spec, spec.default)
        }


def _value(spec: Any, value: Any) -> Any:
    """The value of a field: amounts as whole numbers, lists as tuples; ConfigError for others."""
    facts = spec.metadata
    if isinstance(value, list | tuple) and spec.name in ("weights", "carry", "columns", "sources"):
        return tuple(str(each) if not isinstance(each, Mapping) else each for each in value)
    if spec.name in ("weights", "carry", "columns", "sources") and isinstance(value, str):
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        whole = spec.name == "sources" or value in ("hf", "plan")
        return value if spec.name == "columns" and whole else (value,) if whole else parts
    if "read" in facts and value is not None:
        number = {"count": count_of, "size": size_of}[facts["read"]](value)
        if number is None or number < facts["least"] or number >= 2**63:
            example = "64MB" if facts["read"] == "size" else "8192 or 8Ki"
            wrong(spec.name, value, f"a number of at least {facts['least']}, such as {example}")
        return number
    if hasattr(spec.type, "__args__") and all(isinstance(a, str) for a in spec.type.__args__):
        if value not in spec.type.__args__:
            wrong(spec.name, value, f"one of {', '.join(spec.type.__args__)}")
    elif spec.type is bool and not isinstance(value, bool):
        wrong(spec.name, value, "true or false")
    elif spec.type in (str, str | None) and not isinstance(value, str | None):
        wrong(spec.name, value, "text")
    return value
