"""All options of a build, by stage: one field each, with its help.

The command line, the YAML file and Python read these fields. A field holds what the user wrote, as
text and numbers; properties give its parts. Functions take the stage that they need: a
`BuildConfig` is all of them.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

from ..support.limits import usable_cores, usable_memory
from .checks import check
from .grammar import (
    ONE_BY_ONE,
    STRATEGIES,
    Holdout,
    Multiple,
    Order,
    Overflow,
    Strategy,
    count_of,
    size_of,
    wrong,
)

Number = Any
"""A number, or text such as 8Ki; the number, once the config is made."""

GROUPS = {
    "Every build": ("output", "tokenizer", "max_length", "strategy", "overflow", "seed"),
    "Plans": ("sample", "global_batch_size", "padding_of_batch", "recipe", "ranks", "as_json"),
    "Text": ("text", "bos", "eos"),
    "Chats": ("messages", "chat_template", "train_on", "turns"),
    "Pairs, ids, pieces": ("pairs", "ids", "pieces"),
    "Packs": (
        *("stride", "min_document_tokens", "max_document_tokens", "min_pack_tokens"),
        *("max_segments", "pad_to_multiple", "order", "epoch", "group"),
    ),
    "Mixes and amounts": ("weights", "max_tokens", "after"),
    "For a trainer": ("columns", "carry", "multiple", "holdout"),
    "First tries": ("limit", "dry_run"),
    "Running": (
        *("store", "overwrite", "on_error", "executor", "num_proc", "part"),
        *("config_file", "quiet"),
    ),
}
"""Options on the command line by headings of the help page, those of one command among them.

The other fields are for YAML and Python.
"""


def option(default: Any, words: str, metavar: str = "", **facts: Any) -> Any:
    """Make a field.

    words: its help. facts: `short`: its short flag; `rows`: kinds of rows that it is for, of text,
    messages, pairs, ids and pieces; `several`: it is a list; `decides` (False: no byte of an output
    depends on what the user wrote).
    """
    return field(default=default, metadata={"help": words, "metavar": metavar, **facts})


def number(default: int | None, least: int, words: str, metavar: str = "N", **facts: Any) -> Any:
    """Make a field that is a number of at least `least`."""
    return option(default, words, metavar, **{"read": count_of, "least": least, **facts})


@dataclass(frozen=True, kw_only=True)
class Where:
    """Decides what is read, and where files are written."""

    sources: Sequence[str | Mapping[str, Any]] = option(
        (), "", "SOURCE", several=True, decides=False
    )
    output: str = option(
        "", "Folder or URL that appears when it is complete.", "OUT", short="-o", decides=False
    )
    store: str | None = option(
        None, "Keep tokens here, and use those here.", "DIR|URL", decides=False
    )
    overwrite: bool = option(False, "Replace an output of other settings.", decides=False)
    max_memory: Number = number(None, 1, "Memory to use.", "SIZE", read=size_of, decides=False)
    window: Number = number(4 * 10**9, 1, "Text that is packed together.", "SIZE", read=size_of)
    shard_size: Number = number(5 * 10**8, 1, "Size of a shard.", "SIZE", read=size_of)
    token_type: Literal["auto", "int32"] = option(
        "auto", "Type of ids and positions: auto is uint16 where it fits."
    )

    @property
    def memory(self) -> int:
        """Bytes of memory to use; by default half of what this process may use."""
        return self.max_memory or usable_memory() // 2


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Decides which documents a row makes."""

    text: str | None = option(
        None, 'Column, or "{title}\\n\\n{body}".  [text]', "COLUMN|TEMPLATE", rows="text"
    )
    messages: str | None = option(None, "Column, PROMPT,RESPONSE, or auto: find them.", "COLUMN")
    pairs: str | None = option(None, "Preference pairs, truncated if too long.", "[PROMPT,]A,B")
    ids: str | None = option(None, "Token ids; LABELS:labels or LABELS:mask.", "COLUMN[,LABELS]")
    pieces: str | None = option(None, "Rendered text, or lists of {text, train}.", "COLUMN")
    carry: Sequence[str] = option(
        (), "Copy a column of numbers; may be repeated.", "NAME[:TYPE]", several=True
    )
    group: str | None = option(None, "Rows of different groups never share a pack.", "COLUMN")
    limit: Number = number(None, 1, "Read the first N rows only.")
    on_error: Literal["stop", "skip"] = option("stop", "What to do with a bad row.")
    truncate_at: str | None = option(None, "Cut texts at the first match.", "REGEX", rows="text")
    split_at: str | None = option(
        None, "Split rows of ids after EOS or before BOS.", "eos|bos[:ID]", rows="ids"
    )


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Decides the ids of a document."""

    tokenizer: Any = option(
        None, "File, folder or hub name; a number for --ids.", "NAME", decides=False
    )
    bos: str = option("auto", "Before each document: auto, none, a token.", "TOKEN")
    eos: str = option("auto", "After each document: auto, none, a token.", "TOKEN")
    chat_template: str | None = option(
        None, "Jinja, or FILE.py:FUNCTION.", "FILE", rows="messages, pairs", decides=False
    )
    train_on: Literal["assistant", "last-turn", "all"] = option(
        "assistant", "assistant, last-turn, or all.", "WHOM", rows="messages, pairs, pieces"
    )
    turns: Literal["row", "each", "auto"] = option(
        "row", "A document for each row, or turn.", rows="messages"
    )
    template_variables: Mapping[str, Any] | None = option(
        None, "Variables of the chat template.", "{NAME: VALUE}", rows="messages, pairs"
    )
    engine: Literal["auto", "hf", "fastokens"] = option(
        "auto", "Tokenizing engine; all give the same ids.", decides=False
    )


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Decides how documents are cut, and which of them share a pack."""

    max_length: Number = number(4096, 2, "Tokens of a pack.")
    strategy: str = option(
        "best_fit",
        f"{', '.join(STRATEGIES[:-1])}, or {STRATEGIES[-1]}[:N].",
        "NAME[:N]",
    )
    overflow: str | None = option(
        None, "split, truncate[:left|balanced], drop, error.  [split]", "NAME"
    )
    stride: Number = number(0, 0, "Tokens that pieces of a document share.")
    min_document_tokens: Number = number(1, 0, "Drop shorter documents.")
    max_document_tokens: Number = number(None, 0, "Drop longer documents.")
    min_pack_tokens: Number = number(0, 0, "Drop packs with fewer tokens.")
    max_segments: Number = number(None, 1, "Most segments of a pack.")
    pad_to_multiple: Number = number(1, 1, "Pad each segment (2 x context parallel ranks).")
    order: str = option("shuffle", "shuffle, input, length, balanced[:RANKS[:A,B]].", "NAME")
    seed: Number = number(0, 0, "The same seed gives the same bytes.")
    epoch: Number = number(0, 0, "Other neighbours for each N above 0.")
    continuation_bos: bool = option(False, "Begin later pieces with BOS too.")
    shuffle_documents: bool = option(
        False, f"{', '.join(ONE_BY_ONE)}: take documents in random order."
    )

    @property
    def packer(self) -> Strategy:
        """Parts of `strategy`."""
        return Strategy.parse(self.strategy)

    @property
    def pack_order(self) -> Order:
        """Parts of `order`."""
        return Order.parse(self.order)


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Decides how much is drawn of each source, and which splits and columns are written."""

    weights: Sequence[str | float] = option(
        (), "A mix: shares of tokens by source.", "W,W,...", several=True
    )
    max_tokens: Number = number(None, 1, "Draw N tokens.")
    multiple: int | str = option(1, "Packs of a window are a multiple of N.", "N[:fill]")
    holdout: str | int | float | None = option(
        None, "A validation split, such as 1%.", "SHARE[:SEED]"
    )
    after: str | None = option(None, "Begin where OUT ends: nothing twice.", "OUT", decides=False)
    columns: Sequence[str] | None = option(
        None, "Besides tokens and cu_seqlens; or hf, plan.", "NAMES|hf|plan", several=True
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Decides how a command runs; no byte of an output depends on it."""

    executor: str = option("local", "local, or ray[:ADDRESS].", "NAME", decides=False)
    num_proc: Number = number(None, 1, "Cores to use.  [all]", decides=False)
    part: str | None = option(
        None, "Do part I of N, from 0, by any scheduler.", "I/N", decides=False
    )

    @property
    def cores(self) -> int:
        """Cores to use."""
        return self.num_proc or usable_cores()


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Where, RowOptions, TokenOptions, PackOptions, Amounts, Running):
    """All options of a build, checked: ConfigError for one that is wrong, or can do nothing.

    >>> BuildConfig(sources=["docs.jsonl"], output="packed", tokenizer="gpt2", max_length="8Ki")
    """

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, _value(spec, getattr(self, spec.name)))
        check(self)

    @property
    def too_long(self) -> Overflow:
        """Parts of `overflow`; by default split, or truncate of pairs."""
        return Overflow.parse(self.overflow or ("truncate" if self.pairs else "split"))

    @property
    def multiples(self) -> Multiple:
        """Parts of `multiple`."""
        return Multiple.parse(self.multiple)

    @property
    def held_out(self) -> Holdout:
        """Parts of `holdout`."""
        return Holdout.parse(self.holdout)

    @property
    def is_plan(self) -> bool:
        """True if tokens stay in the store, and the output has the plan of the packs."""
        return self.columns == ("plan",)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in their order."""
        return ("train", "validation") if self.held_out.share else ("train",)

    def is_set(self, name: str) -> bool:
        """True if an option has another value than its default."""
        return bool(getattr(self, name) != getattr(BuildConfig, name))

    def deciding(self) -> dict[str, Any]:
        """The options that decide bytes, without those that have their default."""
        names = [spec.name for spec in fields(self) if spec.metadata.get("decides", True)]
        return {name: getattr(self, name) for name in names if self.is_set(name)}

    def to_yaml(self) -> str:
        """The options that have a value, as YAML that `from_yaml` reads back to an equal config.

        Options of one command, such as part, and tokenizer objects are left out.
        """
        import yaml

        left_out = ["executor", "part", "overwrite", "num_proc", "max_memory"]
        left_out += [] if isinstance(self.tokenizer, str | int) else ["tokenizer"]
        options = {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name not in left_out and (spec.default or self.is_set(spec.name))
        }
        plain = json.loads(json.dumps(options, default=str).replace("${", "$${"))
        return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=10**9)


def _value(spec: Any, value: Any) -> Any:
    """The value of a field: amounts as whole numbers, lists as tuples, the default for None.

    Raises ConfigError for others.
    """
    kinds = tuple(get_origin(kind) or kind for kind in get_args(spec.type) or (spec.type,))
    read: Callable[[Any], int | None] | None = spec.metadata.get("read")
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    value = str(value) if spec.name in ("bos", "eos") and type(value) is int else value  # an id
    if value is None:
        return spec.default
    if spec.metadata.get("several"):
        if isinstance(value, str):
            value = [value] if spec.name == "sources" else [v for v in value.split(",") if v]
        elif not isinstance(value, list | tuple):
            wrong(spec.name, value, "a list")
        return tuple(each if isinstance(each, Mapping) else str(each).strip() for each in value)
    if read is not None:
        amount = read(value)
        if amount is None or not spec.metadata["least"] <= amount < 2**63:
            example = "64MB" if read is size_of else "8192 or 8Ki"
            least = f"a number of at least {spec.metadata['least']}, such as {example}"
            wrong(spec.name, value, least)
        return amount
    if isinstance(kinds[0], str) and value not in kinds:
        wrong(spec.name, value, f"one of {', '.join(kinds)}")
    if not (isinstance(kinds[0], str) or Any in kinds or isinstance(value, kinds)):
        names = {bool: "true or false", str: "text", int: "a number"}
        wrong(spec.name, value, names.get(kinds[0], "a table"))
    if kinds[0] is Mapping:  # as JSON has it: YAML reads 2026-01-31 as a day, not as text
        return json.loads(json.dumps(value, default=lambda day: day.isoformat()))
    return value
