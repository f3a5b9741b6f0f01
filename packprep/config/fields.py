"""Every option of a build, in one place.

The command line, the YAML file and Python all read these fields.
"""

import os
from dataclasses import dataclass
from typing import Any, Literal

from packprep.config.option import COLUMN_CHOICE, StrategyName, option


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class OptionFields:
    """The fields of `BuildConfig`."""

    sources: tuple[str | dict[str, Any], ...] = (
        option(  # a dict says how much of it and how it is read: mix.py
            (),
            "read",
            "Sources",
            "Files, globs, directories, - for stdin, or a hub dataset.",
            "SOURCE",
            identity=False,
        )
    )
    output: str = option(
        "",
        "run",
        "Output",
        "Directory to write, or s3://bucket/folder; absent or complete, never half-written.",
        "DIR",
    )
    tokenizer: Any = option(
        None,
        "tokens",
        "Tokenizer",
        "A tokenizer.json, a directory holding one, or a hub name.",
        "PATH|NAME",
        identity=False,
    )

    name: str | None = option(
        None,
        "read",
        "Sources",
        "Configuration of a hub dataset.",
        "NAME",
        identity=False,
        per_source=True,
    )
    split: str | None = option(
        None,
        "read",
        "Sources",
        "Split of a hub dataset or of a saved DatasetDict.",
        "NAME",
        identity=False,
        per_source=True,
    )
    revision: str | None = option(
        None,
        "read",
        "Sources",
        "Revision of a hub dataset.",
        "NAME",
        identity=False,
        per_source=True,
    )
    text_column: str = option(
        "text", "rows", "Sources", "Column that holds the text.", "COLUMN", per_source=True
    )
    text_template: str | None = option(
        None,
        "rows",
        "Sources",
        'Text made of several columns: "{title}\\n\\n{body}".',
        "TEMPLATE",
        per_source=True,
    )
    messages_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column of conversations, in place of text; auto finds it, or a prompt and its response.",
        "COLUMN",
    )
    prompt_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column of prompts; with --response-column. Without a chat template both are joined as "
        "they are.",
        "COLUMN",
    )
    response_column: str | None = option(
        None, "rows", "Sources", "Column of responses to prompts.", "COLUMN"
    )
    pair_columns: tuple[str, ...] = option(
        (),
        "rows",
        "Sources",
        "Two columns, such as chosen,rejected: sides of a row that share a pack.",
        "A,B",
    )
    input_ids_column: str | None = option(
        None, "rows", "Sources", "Column of token ids, in place of text.", "COLUMN", per_source=True
    )
    labels_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Beside token ids: column of labels, -100 where there is no loss.",
        "COLUMN",
        per_source=True,
    )
    loss_mask_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Beside token ids: column of 0 and 1, 1 where there is a loss.",
        "COLUMN",
        per_source=True,
    )
    carry: tuple[str, ...] = option(
        (),
        "rows",
        "Sources",
        "Columns to keep in the shards: a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = option(
        "document", "rows", "Sources", "What one document of a .txt file is.", per_source=True
    )
    limit: int | None = option(
        None, "read", "Sources", "Only the first N rows of the whole input.", per_source=True
    )
    max_tokens: int | None = option(
        None,
        "read",
        "Sources",
        "Stop after the unit of text that reaches N tokens; of a mix, draw N tokens.",
    )
    weights: tuple[str, ...] = option(
        (),
        "read",
        "Sources",
        "Share of tokens of each source, such as 50,30,20: a mix.",
        "W,W,...",
        identity=False,
    )
    max_epochs: float = option(
        1.0,
        "read",
        "Sources",
        "How often a mix may repeat a source to keep the shares of larger ones.",
        "X",
        identity=False,
    )
    on_error: Literal["stop", "skip"] = option(
        "stop", "rows", "Sources", "What to do with a row that cannot be used."
    )
    max_row_size: int = option(
        "256MB", "rows", "Sources", "A row of more bytes is bad input.", "SIZE", size=True
    )
    unit_size: int = option(
        "64MB",
        "read",
        "Sources",
        "Text tokenized by one task; decides what is shuffled.",
        "SIZE",
        size=True,
    )

    tokenizer_revision: str | None = option(
        None, "tokens", "Tokenizer", "Revision of a hub tokenizer.", "NAME", identity=False
    )
    bos: str = option(
        "auto", "tokens", "Tokenizer", "Token before each document: auto, none or a token.", "TOKEN"
    )
    eos: str = option(
        "auto", "tokens", "Tokenizer", "Token after each document: auto, none or a token.", "TOKEN"
    )
    parse_special_tokens: bool = option(
        False, "tokens", "Tokenizer", "Let text that spells a special token become that token."
    )
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = option(
        "auto",
        "tokens",
        "Tokenizer",
        "What runs the tokenizer; every one gives the same ids.",
        identity=False,
    )
    verify_engine: float = option(
        # the reference takes 18 times the CPU of a whole build with a fast engine, so this costs 2
        # %
        0.001,
        "tokens",
        "Tokenizer",
        "Share of documents encoded again by the reference engine and compared.",
        "SHARE",
        identity=False,
    )
    chat_template: str | None = option(
        None,
        "tokens",
        "Tokenizer",
        "Jinja template of conversations; default: the tokenizer's own.",
        "FILE",
        identity=False,
    )
    template_date: str | None = option(
        None, "tokens", "Tokenizer", "Today, for templates that ask for it.", "YYYY-MM-DD"
    )
    template_variables: str | None = option(
        None,
        "tokens",
        "Tokenizer",
        'Variables of the template: {"enable_thinking": false}.',
        "JSON",
    )
    train_on: Literal["assistant", "last-turn", "all"] = option(
        "assistant", "tokens", "Tokenizer", "Which turns of a conversation are trained."
    )
    vocab_size: int | None = option(
        None, "tokens", "Tokenizer", "Token ids are below this; with --input-ids-column."
    )
    truncate_at: str | None = option(
        None, "rows", "Tokenizer", "Cut the text at the first match of this regex.", "REGEX"
    )
    keep_tokens: str | None = option(
        None, "run", "Tokenizer", "Token store: tokens are kept there and reused.", "DIR"
    )

    max_length: int = option(4096, "segments", "Packing", "Tokens per pack, at least 2.")
    strategy: StrategyName = option(
        "best_fit",
        "segments",
        "Packing",
        "How documents are put together. knapsack is first fit decreasing, filled pack by pack.",
    )
    overflow: Literal["split", "truncate", "drop", "error"] = option(
        "split", "segments", "Packing", "What to do with documents longer than max_length."
    )
    stride: int = option(
        0, "segments", "Packing", "Tokens that neighbouring pieces of a split document share."
    )
    truncation_side: Literal["right", "left", "balanced"] = option(
        "right",
        "segments",
        "Packing",
        "Which end truncate cuts off; balanced: of prompt and response, in proportion.",
    )
    continuation_bos: bool = option(
        False, "segments", "Packing", "Begin the later pieces of a split document with BOS too."
    )
    train_overlap: bool = option(
        False, "segments", "Packing", "Train tokens that stride repeats in both pieces."
    )
    min_loss_tokens: int = option(
        1,
        "segments",
        "Packing",
        "Where rows have labels: drop segments (wrapped: packs) with fewer trained tokens.",
    )
    min_len: int = option(1, "segments", "Packing", "Drop documents with fewer text tokens.")
    max_len: int | None = option(
        None, "segments", "Packing", "Drop documents with more text tokens."
    )
    window: int = option(
        "4GB", "output", "Packing", "Text whose documents are packed together.", "SIZE", size=True
    )
    max_segments_per_pack: int | None = option(
        None, "plan", "Packing", "At most this many segments in a pack."
    )
    pad_segment_to_multiple: int = option(
        1, "plan", "Packing", "Pad each segment to a multiple (context parallel: 2*cp)."
    )
    group_column: str | None = option(
        None,
        "rows",
        "Packing",
        "Rows with different values here never share a pack. Compared as text: 1 is '1', true is "
        "'true'.",
        "COLUMN",
    )
    num_packs: int | None = option(
        None, "plan", "Packing", "Number of packs for balanced; default: as few as can be."
    )
    shuffle_documents: bool = option(
        False, "plan", "Packing", "stream, greedy: take documents in seeded random order."
    )

    order: Literal["shuffle", "input", "length", "balanced"] = option(
        "shuffle", "order", "Order", "Order of the packs."
    )
    seed: int = option(0, "order", "Order", "Decides every random choice; same seed, same bytes.")
    balance_ranks: int = option(8, "order", "Order", "order balanced: ranks that step together.")
    attention_cost: str = option(
        "24576,1",
        "order",
        "Order",
        "a,b of the cost of a pack, a * tokens + b * sum(segment^2); decides balance.",
        "A,B",
    )
    packs_multiple_of: int = option(
        1, "output", "Order", "Make the number of packs a multiple, of world size times batch."
    )
    remainder: Literal["drop", "fill"] = option(
        "drop", "output", "Order", "packs-multiple-of: drop packs or add empty ones."
    )

    columns: tuple[str, ...] = option(
        COLUMN_CHOICE,
        "output",
        "Output",
        "Columns to write beside tokens and cu_seqlens: some of these, or '' for none.",
        "NAMES",
    )
    shard_size: int = option("500MB", "output", "Output", "Bytes of one shard.", "SIZE", size=True)
    holdout: float = option(
        0.0,
        "output",
        "Output",
        "Share of documents, such as 0.01, for a validation split; DIR becomes a DatasetDict.",
        "SHARE",
    )
    num_proc: int = option(
        os.cpu_count() or 1, "run", "Output", "Cores to use; never changes the output."
    )
    max_memory: int = option(
        _memory() // 2,
        "run",
        "Output",
        "Memory to use beside files that are mapped; never changes the output.",
        size=True,
    )
    isolate: bool = option(
        False,
        "run",
        "Output",
        "Tokenize in processes of their own; one that dies, hangs or grows is replaced.",
    )
    unit_timeout: int | None = option(
        None,
        "run",
        "Output",
        "Seconds for 16 MB of text, then its process is replaced; means isolate.",
        "SECONDS",
    )
    executor: Literal["local", "ray", "array"] = option(
        "local", "once", "Machines", "What does the work; never changes the output."
    )
    task_index: str | None = option(
        None,
        "once",
        "Machines",
        "executor array: which task this is, from 0; merge signs off.",
        "I|merge",
    )
    num_tasks: int | None = option(None, "once", "Machines", "executor array: number of tasks.")
    ray_address: str | None = option(
        None,
        "once",
        "Machines",
        "executor ray: a cluster to use, auto or HOST:PORT; default: this machine.",
        "ADDRESS",
    )
    work_dir: str | None = option(
        None,
        "once",
        "Machines",
        "Output in a store: where to work, on a cluster a shared directory; default: here.",
        "DIR",
    )
    overwrite: bool = option(False, "once", "Output", "Replace an output of other settings.")
    append: bool = option(
        False,
        "once",
        "Output",
        "Add the source files that the output does not hold yet, as windows of their own.",
    )
    restart: bool = option(
        False, "once", "Output", "Start over instead of going on with an unfinished build."
    )

    def __post_init__(self) -> None:
        """Values are as they were given; `BuildConfig` checks them here."""
