"""Every option of a build, in one place.

The command line, the YAML file and Python all read these fields.

A field's metadata carries its help text, its stage and whether it decides the bytes of the output
(`identity`).
"""

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from packprep.config import mix
from packprep.config.executors import EXECUTORS, MERGE
from packprep.support.errors import ConfigError, brief

COLUMN_CHOICE = (
    "position_ids",
    "document_ids",
    "document_starts",
)  # tokens and cu_seqlens are always written


# The part of a build that an option decides; whatever depends on a set of options is derived
# from these:
#   read      which rows there are, and in which units
#   rows      what one row is
#   tokens    the ids of a row
#   segments  how documents are filtered and cut
#   plan      which segments share a pack
#   order     the order of packs
#   output    windows, splits, columns and files
#   run       how a build works: never its bytes
#   once      this call alone: written to no file
Stage = Literal["read", "rows", "tokens", "segments", "plan", "order", "output", "run", "once"]

StrategyName = Literal[
    "best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy", "wrapped", "balanced"
]
"""packing/strategies.py maps each to its function, but wrapped, which cuts documents."""
STRATEGY_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


def _option(
    default: Any,
    stage: Stage,
    group: str,
    text: str,
    metavar: str = "N",
    *,
    identity: bool = True,
    per_source: bool = False,
    size: bool = False,
) -> Any:
    """A field with its help.

    metavar: the value's name on the help page. identity: whether the value decides bytes of the
    output; False where a digest of what it names does. per_source: a table in `sources` may have a
    value of its own. size: bytes.
    """
    return field(
        default=default,
        metadata={
            "stage": stage,
            "group": group,
            "help": text,
            "metavar": metavar,
            "identity": identity and stage not in ("run", "once"),
            "per_source": per_source,
            "size": size,
        },
    )


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The fields of `BuildConfig`, and what follows from them."""

    sources: tuple[str | dict[str, Any], ...] = (
        _option(  # a dict says how much of it and how it is read: mix.py
            (),
            "read",
            "Sources",
            "Files, globs, directories, - for stdin, or a hub dataset.",
            "SOURCE",
            identity=False,
        )
    )
    output: str = _option(
        "",
        "run",
        "Output",
        "Directory to write, or s3://bucket/folder; absent or complete, never half-written.",
        "DIR",
    )
    tokenizer: Any = _option(
        None,
        "tokens",
        "Tokenizer",
        "A tokenizer.json, a directory holding one, or a hub name.",
        "PATH|NAME",
        identity=False,
    )

    name: str | None = _option(
        None,
        "read",
        "Sources",
        "Configuration of a hub dataset.",
        "NAME",
        identity=False,
        per_source=True,
    )
    split: str | None = _option(
        None,
        "read",
        "Sources",
        "Split of a hub dataset or of a saved DatasetDict.",
        "NAME",
        identity=False,
        per_source=True,
    )
    revision: str | None = _option(
        None,
        "read",
        "Sources",
        "Revision of a hub dataset.",
        "NAME",
        identity=False,
        per_source=True,
    )
    text_column: str = _option(
        "text", "rows", "Sources", "Column that holds the text.", "COLUMN", per_source=True
    )
    text_template: str | None = _option(
        None,
        "rows",
        "Sources",
        'Text made of several columns: "{title}\\n\\n{body}".',
        "TEMPLATE",
        per_source=True,
    )
    messages_column: str | None = _option(
        None,
        "rows",
        "Sources",
        "Column of conversations, in place of text; auto finds it, or a prompt and its response.",
        "COLUMN",
    )
    prompt_column: str | None = _option(
        None,
        "rows",
        "Sources",
        "Column of prompts; with --response-column. Without a chat template both are joined as "
        "they are.",
        "COLUMN",
    )
    response_column: str | None = _option(
        None, "rows", "Sources", "Column of responses to prompts.", "COLUMN"
    )
    pair_columns: tuple[str, ...] = _option(
        (),
        "rows",
        "Sources",
        "Two columns, such as chosen,rejected: sides of a row that share a pack.",
        "A,B",
    )
    input_ids_column: str | None = _option(
        None, "rows", "Sources", "Column of token ids, in place of text.", "COLUMN", per_source=True
    )
    labels_column: str | None = _option(
        None,
        "rows",
        "Sources",
        "Beside token ids: column of labels, -100 where there is no loss.",
        "COLUMN",
        per_source=True,
    )
    loss_mask_column: str | None = _option(
        None,
        "rows",
        "Sources",
        "Beside token ids: column of 0 and 1, 1 where there is a loss.",
        "COLUMN",
        per_source=True,
    )
    carry: tuple[str, ...] = _option(
        (),
        "rows",
        "Sources",
        "Columns to keep in the shards: a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = _option(
        "document", "rows", "Sources", "What one document of a .txt file is.", per_source=True
    )
    limit: int | None = _option(
        None, "read", "Sources", "Only the first N rows of the whole input.", per_source=True
    )
    max_tokens: int | None = _option(
        None,
        "read",
        "Sources",
        "Stop after the unit of text that reaches N tokens; of a mix, draw N tokens.",
    )
    weights: tuple[str, ...] = _option(
        (),
        "read",
        "Sources",
        "Share of tokens of each source, such as 50,30,20: a mix.",
        "W,W,...",
        identity=False,
    )
    max_epochs: float = _option(
        1.0,
        "read",
        "Sources",
        "How often a mix may repeat a source to keep the shares of larger ones.",
        "X",
        identity=False,
    )
    on_error: Literal["stop", "skip"] = _option(
        "stop", "rows", "Sources", "What to do with a row that cannot be used."
    )
    max_row_size: int = _option(
        "256MB", "rows", "Sources", "A row of more bytes is bad input.", "SIZE", size=True
    )
    unit_size: int = _option(
        "64MB",
        "read",
        "Sources",
        "Text tokenized by one task; decides what is shuffled.",
        "SIZE",
        size=True,
    )

    tokenizer_revision: str | None = _option(
        None, "tokens", "Tokenizer", "Revision of a hub tokenizer.", "NAME", identity=False
    )
    bos: str = _option(
        "auto", "tokens", "Tokenizer", "Token before each document: auto, none or a token.", "TOKEN"
    )
    eos: str = _option(
        "auto", "tokens", "Tokenizer", "Token after each document: auto, none or a token.", "TOKEN"
    )
    parse_special_tokens: bool = _option(
        False, "tokens", "Tokenizer", "Let text that spells a special token become that token."
    )
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = _option(
        "auto",
        "tokens",
        "Tokenizer",
        "What runs the tokenizer; every one gives the same ids.",
        identity=False,
    )
    verify_engine: float = _option(
        # the reference takes 18 times the CPU of a whole build with a fast engine, so this costs 2
        # %
        0.001,
        "tokens",
        "Tokenizer",
        "Share of documents encoded again by the reference engine and compared.",
        "SHARE",
        identity=False,
    )
    chat_template: str | None = _option(
        None,
        "tokens",
        "Tokenizer",
        "Jinja template of conversations; default: the tokenizer's own.",
        "FILE",
        identity=False,
    )
    template_date: str | None = _option(
        None, "tokens", "Tokenizer", "Today, for templates that ask for it.", "YYYY-MM-DD"
    )
    template_variables: str | None = _option(
        None,
        "tokens",
        "Tokenizer",
        'Variables of the template: {"enable_thinking": false}.',
        "JSON",
    )
    train_on: Literal["assistant", "last-turn", "all"] = _option(
        "assistant", "tokens", "Tokenizer", "Which turns of a conversation are trained."
    )
    vocab_size: int | None = _option(
        None, "tokens", "Tokenizer", "Token ids are below this; with --input-ids-column."
    )
    truncate_at: str | None = _option(
        None, "rows", "Tokenizer", "Cut the text at the first match of this regex.", "REGEX"
    )
    keep_tokens: str | None = _option(
        None, "run", "Tokenizer", "Token store: tokens are kept there and reused.", "DIR"
    )

    max_length: int = _option(4096, "segments", "Packing", "Tokens per pack, at least 2.")
    strategy: StrategyName = _option(
        "best_fit",
        "segments",
        "Packing",
        "How documents are put together. knapsack is first fit decreasing, filled pack by pack.",
    )
    overflow: Literal["split", "truncate", "drop", "error"] = _option(
        "split", "segments", "Packing", "What to do with documents longer than max_length."
    )
    stride: int = _option(
        0, "segments", "Packing", "Tokens that neighbouring pieces of a split document share."
    )
    truncation_side: Literal["right", "left", "balanced"] = _option(
        "right",
        "segments",
        "Packing",
        "Which end truncate cuts off; balanced: of prompt and response, in proportion.",
    )
    continuation_bos: bool = _option(
        False, "segments", "Packing", "Begin the later pieces of a split document with BOS too."
    )
    train_overlap: bool = _option(
        False, "segments", "Packing", "Train tokens that stride repeats in both pieces."
    )
    min_loss_tokens: int = _option(
        1,
        "segments",
        "Packing",
        "Where rows have labels: drop segments (wrapped: packs) with fewer trained tokens.",
    )
    min_len: int = _option(1, "segments", "Packing", "Drop documents with fewer text tokens.")
    max_len: int | None = _option(
        None, "segments", "Packing", "Drop documents with more text tokens."
    )
    window: int = _option(
        "4GB", "output", "Packing", "Text whose documents are packed together.", "SIZE", size=True
    )
    max_segments_per_pack: int | None = _option(
        None, "plan", "Packing", "At most this many segments in a pack."
    )
    pad_segment_to_multiple: int = _option(
        1, "plan", "Packing", "Pad each segment to a multiple (context parallel: 2*cp)."
    )
    group_column: str | None = _option(
        None,
        "rows",
        "Packing",
        "Rows with different values here never share a pack. Compared as text: 1 is '1', true is "
        "'true'.",
        "COLUMN",
    )
    num_packs: int | None = _option(
        None, "plan", "Packing", "Number of packs for balanced; default: as few as can be."
    )
    shuffle_documents: bool = _option(
        False, "plan", "Packing", "stream, greedy: take documents in seeded random order."
    )

    order: Literal["shuffle", "input", "length", "balanced"] = _option(
        "shuffle", "order", "Order", "Order of the packs."
    )
    seed: int = _option(0, "order", "Order", "Decides every random choice; same seed, same bytes.")
    balance_ranks: int = _option(8, "order", "Order", "order balanced: ranks that step together.")
    attention_cost: str = _option(
        "24576,1",
        "order",
        "Order",
        "a,b of the cost of a pack, a * tokens + b * sum(segment^2); decides balance.",
        "A,B",
    )
    packs_multiple_of: int = _option(
        1, "output", "Order", "Make the number of packs a multiple, of world size times batch."
    )
    remainder: Literal["drop", "fill"] = _option(
        "drop", "output", "Order", "packs-multiple-of: drop packs or add empty ones."
    )

    columns: tuple[str, ...] = _option(
        COLUMN_CHOICE,
        "output",
        "Output",
        "Columns to write beside tokens and cu_seqlens: some of these, or '' for none.",
        "NAMES",
    )
    shard_size: int = _option("500MB", "output", "Output", "Bytes of one shard.", "SIZE", size=True)
    holdout: float = _option(
        0.0,
        "output",
        "Output",
        "Share of documents, such as 0.01, for a validation split; DIR becomes a DatasetDict.",
        "SHARE",
    )
    num_proc: int = _option(
        os.cpu_count() or 1, "run", "Output", "Cores to use; never changes the output."
    )
    max_memory: int = _option(
        _memory() // 2,
        "run",
        "Output",
        "Memory to use beside files that are mapped; never changes the output.",
        size=True,
    )
    isolate: bool = _option(
        False,
        "run",
        "Output",
        "Tokenize in processes of their own; one that dies, hangs or grows is replaced.",
    )
    unit_timeout: int | None = _option(
        None,
        "run",
        "Output",
        "Seconds for 16 MB of text, then its process is replaced; means isolate.",
        "SECONDS",
    )
    executor: Literal["local", "ray", "array"] = _option(
        "local", "once", "Machines", "What does the work; never changes the output."
    )
    task_index: str | None = _option(
        None,
        "once",
        "Machines",
        "executor array: which task this is, from 0; merge signs off.",
        "I|merge",
    )
    num_tasks: int | None = _option(None, "once", "Machines", "executor array: number of tasks.")
    ray_address: str | None = _option(
        None,
        "once",
        "Machines",
        "executor ray: a cluster to use, auto or HOST:PORT; default: this machine.",
        "ADDRESS",
    )
    work_dir: str | None = _option(
        None,
        "once",
        "Machines",
        "Output in a store: where to work, on a cluster a shared directory; default: here.",
        "DIR",
    )
    overwrite: bool = _option(False, "once", "Output", "Replace an output of other settings.")
    append: bool = _option(
        False,
        "once",
        "Output",
        "Add the source files that the output does not hold yet, as windows of their own.",
    )
    restart: bool = _option(
        False, "once", "Output", "Start over instead of going on with an unfinished build."
    )

    def __post_init__(self) -> None:
        """Values are as they were given; `BuildConfig` checks them here."""

    @property
    def chats(self) -> bool:
        """True if rows are conversations."""
        return self.messages_column is not None or self.prompt_column is not None

    @property
    def parses_special_tokens(self) -> bool:
        """True if text that spells a special token becomes it.

        A template writes the special tokens of conversations, and turns.py sees to it that only
        those are parsed.
        """
        return self.parse_special_tokens or self.chats

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template."""
        try:
            found = json.loads(self.template_variables or "{}")
            if not isinstance(found, dict):
                raise ValueError
        except (ValueError, RecursionError):
            given = brief(self.template_variables)
            raise ConfigError(
                f'template_variables is {given}, expected JSON such as {{"enable_thinking": false}}'
            ) from None
        return found

    def cost(self) -> tuple[float, float]:
        """Coefficients (a, b) of the attention cost of a pack: a * tokens + b * sum(segment^2)."""
        try:
            linear, quadratic = (float(part) for part in self.attention_cost.split(","))
            if not (min(linear, quadratic) >= 0 and 0 < linear + quadratic < float("inf")):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"attention_cost is {self.attention_cost!r}, expected two numbers of at least 0 "
                "such as 24576,1"
            ) from None
        return linear, quadratic

    @property
    def isolated(self) -> bool:
        """True if text is tokenized in worker processes."""
        return self.isolate or self.unit_timeout is not None

    @property
    def is_task(self) -> bool:
        """True for a task of several that another command signs off."""
        return EXECUTORS[self.executor].many_commands and self.task_index != MERGE

    def entries(self) -> tuple[mix.Entry, ...]:
        """One entry for each source, from `sources` and `weights`."""
        return mix.entries(self.sources, self.weights, self.max_epochs, PER_SOURCE)

    @property
    def tokens_to_read(self) -> int | None:
        """Tokens after which no more text is read.

        A mix is drawn from all of it, so there max_tokens stops nothing.
        """
        return None if mix.is_mix(self.entries()) else self.max_tokens


PER_SOURCE = tuple(spec.name for spec in fields(Options) if spec.metadata["per_source"])


def options_in(*stages: Stage) -> frozenset[str]:
    """Names of the options of these stages."""
    return frozenset(spec.name for spec in fields(Options) if spec.metadata["stage"] in stages)
