"""All options of a build.

The command line, the YAML file and Python read these fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

from packprep.config.option import COLUMN_CHOICE, TRAIN_FIELDS, StrategyName, option
from packprep.support.limits import usable_cores, usable_memory


@dataclass(frozen=True, kw_only=True)
class OptionFields:
    """The fields of `BuildConfig`."""

    sources: Sequence[str | PathLike[str] | Mapping[str, Any]] = (
        option(  # a dict has options of the source, see mix.py
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
        "Output directory, or s3://bucket/folder. It appears only when it is complete.",
        "DIR",
    )
    tokenizer: Any = option(
        None,
        "tokens",
        "Tokenizer",
        "A tokenizer.json, a directory that has one, or a hub name.",
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
        "text", "rows", "Sources", "Column with the text.", "COLUMN", per_source=True
    )
    text_template: str | None = option(
        None,
        "rows",
        "Sources",
        'Build the text from several columns: "{title}\\n\\n{body}".',
        "TEMPLATE",
        per_source=True,
    )
    messages_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column with conversations, instead of text; auto finds it, or a prompt and a response "
        "column.",
        "COLUMN",
    )
    prompt_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column with prompts; needs --response-column or --pair-columns. Without a chat template, "
        "prompt and response are joined unchanged.",
        "COLUMN",
    )
    response_column: str | None = option(
        None, "rows", "Sources", "Column with the responses to the prompts.", "COLUMN"
    )
    pair_columns: Sequence[str] = option(
        (),
        "rows",
        "Sources",
        "Two columns, such as chosen,rejected; both sides of a row share a pack.",
        "A,B",
    )
    input_ids_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column with token ids, instead of text; auto for pairs of token ids.",
        "COLUMN",
        per_source=True,
    )
    boundaries: str | None = option(
        None,
        "rows",
        "Sources",
        "Split rows of token ids that are packed already: after each EOS (eos) or before each BOS "
        "(bos); eos:2 names the id.",
        "KIND[:ID]",
    )
    labels_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column with a label for each token id, -100 where there is no loss.",
        "COLUMN",
        per_source=True,
    )
    loss_mask_column: str | None = option(
        None,
        "rows",
        "Sources",
        "Column with 0 or 1 for each token id, 1 where there is a loss.",
        "COLUMN",
        per_source=True,
    )
    carry: Sequence[str] = option(
        (),
        "rows",
        "Sources",
        "Columns to copy into the shards, with a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = option(
        "document",
        "rows",
        "Sources",
        "How a .txt file is split into documents. document does not split it.",
        per_source=True,
    )
    limit: int | None = option(
        None,
        "read",
        "Sources",
        "Read only the first N rows of all sources together.",
        per_source=True,
    )
    max_tokens: int | None = option(
        None,
        "read",
        "Sources",
        "Stop after the unit of text that reaches N tokens. From a mix, draw N tokens.",
    )
    weights: Sequence[str | float] = option(
        (),
        "read",
        "Sources",
        "Make a mix: the share of tokens from each source, such as 50,30,20.",
        "W,W,...",
        identity=False,
    )
    max_epochs: float = option(
        1.0,
        "read",
        "Sources",
        "How many times a mix may use each source. A higher number allows a larger mix.",
        "X",
        identity=False,
    )
    phases: Sequence[Mapping[str, Any]] = option(
        (),
        "read",
        "Sources",
        "Parts of the output, one after another, each with tokens, weights and max_length of its "
        "own; in a YAML file a list of tables.",
        "JSON",
        identity=False,
    )
    on_error: Literal["stop", "skip"] = option(
        "stop", "rows", "Sources", "What to do with a bad row."
    )
    max_row_size: int = option(
        "256MB", "rows", "Sources", "A larger row is a bad row.", "SIZE", size=True
    )
    unit_size: int = option(
        "64MB",
        "read",
        "Sources",
        "Text in one unit. One task tokenizes a unit; windows are made of shuffled units.",
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
        False,
        "tokens",
        "Tokenizer",
        "Turn special tokens that are spelled out in the text into their ids.",
    )
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = option(
        "auto",
        "tokens",
        "Tokenizer",
        "Tokenizer engine. All of them give the same ids.",
        identity=False,
    )
    verify_engine: float = option(
        # the reference takes 18 times the CPU of a whole build with a fast engine, so this costs 2
        # %
        0.001,
        "tokens",
        "Tokenizer",
        "Share of documents to encode again with the reference engine and compare.",
        "SHARE",
        identity=False,
    )
    chat_template: str | None = option(
        None,
        "tokens",
        "Tokenizer",
        "Jinja template for conversations; default: the template of the tokenizer.",
        "FILE",
        identity=False,
    )
    template_date: str | None = option(
        None, "tokens", "Tokenizer", "Today's date, for templates that ask for it.", "YYYY-MM-DD"
    )
    template_variables: str | None = option(
        None,
        "tokens",
        "Tokenizer",
        'Variables for the chat template, such as {"enable_thinking": false}.',
        "JSON",
    )
    train_on: Literal["assistant", "last-turn", "all"] = option(
        "assistant", "tokens", "Tokenizer", "Turns of a conversation to train on."
    )
    train_fields: Sequence[str] = option(
        TRAIN_FIELDS,
        "tokens",
        "Tokenizer",
        "Fields of the assistant's messages to train on: some of content,reasoning,tool_calls.",
        "NAMES",
    )
    turns: Literal["row", "each", "auto"] = option(
        "row",
        "tokens",
        "Tokenizer",
        "Documents of a conversation: row makes one. each makes one per turn of the assistant, up "
        "to that turn, and trains only it. auto does so for rows in which the chat template "
        "changes earlier turns.",
    )
    max_turns: int | None = option(
        None,
        "tokens",
        "Tokenizer",
        "Make documents only of the last N turns of a row; needs --turns each or auto.",
    )
    vocab_size: int | None = option(
        None,
        "tokens",
        "Tokenizer",
        "Size of the vocabulary: token ids are below N; needs --input-ids-column.",
    )
    truncate_at: str | None = option(
        None, "rows", "Tokenizer", "Cut each text at the first match of this regex.", "REGEX"
    )
    keep_tokens: str | None = option(
        None,
        "run",
        "Tokenizer",
        "Token store: directory that keeps tokens for later builds.",
        "DIR",
    )

    max_length: int = option(
        4096, "segments", "Packing", "Tokens per pack, at least 2: 4096 or 4Ki."
    )
    strategy: StrategyName = option(
        "best_fit",
        "segments",
        "Packing",
        "How to pack documents. knapsack is first fit decreasing, filled pack by pack.",
    )
    overflow: Literal["split", "truncate", "drop", "error"] = option(
        "split",
        "segments",
        "Packing",
        "What to do with a document longer than max_length; for pairs the default is truncate.",
    )
    stride: int = option(
        0, "segments", "Packing", "Tokens that consecutive pieces of a split document share."
    )
    truncation_side: Literal["right", "left", "balanced"] = option(
        "right",
        "segments",
        "Packing",
        "End that truncate cuts off. balanced keeps whole turns, and cuts prompt and response of "
        "the next one in proportion.",
    )
    continuation_bos: bool = option(
        False, "segments", "Packing", "Start the later pieces of a split document with BOS too."
    )
    train_overlap: bool = option(
        False, "segments", "Packing", "Train the tokens that stride repeats in both pieces."
    )
    min_loss_tokens: int = option(
        1,
        "segments",
        "Packing",
        "Drop segments (wrapped: also packs) with fewer trained tokens, if rows have labels.",
    )
    min_document_tokens: int = option(
        1, "segments", "Packing", "Drop documents with fewer text tokens."
    )
    max_document_tokens: int | None = option(
        None, "segments", "Packing", "Drop documents with more text tokens."
    )
    min_pack_tokens: int = option(
        0,
        "plan",
        "Packing",
        "Drop packs with fewer tokens, padding not counted; max_length/64 to /16 is usual.",
        added=0,
    )
    window: int = option(
        "4GB",
        "output",
        "Packing",
        "Amount of text whose documents are packed together.",
        "SIZE",
        size=True,
    )
    share_prefixes: bool = option(
        False,
        "segments",
        "Packing",
        "Write tokens with which several segments of a row begin once, as a tree: turns of a "
        "conversation, sides of a pair.",
    )
    min_shared: int = option(
        16, "segments", "Packing", "share-prefixes: share prefixes of at least N tokens."
    )
    group_prefix: str | None = option(
        None,
        "rows",
        "Packing",
        "share-prefixes: rows with the same value in this column share prefixes too, such as "
        "several answers to one prompt, and are held out together. Values are compared as text.",
        "COLUMN",
        added=True,
    )
    max_segments_per_pack: int | None = option(
        None, "plan", "Packing", "Maximum number of segments in a pack."
    )
    pad_segment_to_multiple: int = option(
        1, "plan", "Packing", "Pad each segment to a multiple of N (context parallel: 2*cp)."
    )
    group_column: str | None = option(
        None,
        "rows",
        "Packing",
        "Rows with different values in this column never share a pack. Values are compared as "
        "text: 1 is '1', true is 'true'.",
        "COLUMN",
    )
    num_packs: int | None = option(
        None, "plan", "Packing", "strategy balanced: number of packs; default: as few as possible."
    )
    shuffle_documents: bool = option(
        False,
        "plan",
        "Packing",
        "strategy stream, greedy or first_fit_input: take documents in a seeded random order.",
    )

    epochs: int = option(
        1, "output", "Order", "Number of epochs to pack; more than one needs repack."
    )
    repack: bool = option(
        False,
        "output",
        "Order",
        "Pack the documents again for each epoch, so that they get other neighbours.",
    )
    order: Literal["shuffle", "input", "length", "balanced"] = option(
        "shuffle", "order", "Order", "Order of the packs."
    )
    seed: int = option(
        0, "order", "Order", "Seed of every random choice; the same seed gives the same bytes."
    )
    balance_ranks: int = option(
        8, "order", "Order", "order balanced: number of ranks that step together."
    )
    attention_cost: str = option(
        "24576,1",
        "order",
        "Order",
        "Cost of a pack for balancing, a * tokens + b * sum(segment^2).",
        "A,B",
    )
    packs_multiple_of: int = option(
        1,
        "output",
        "Order",
        "Make the number of packs a multiple of N, such as world size times batch size.",
    )
    remainder: Literal["drop", "fill"] = option(
        "drop",
        "output",
        "Order",
        "packs-multiple-of: drop packs, or fill up with packs of one pad token.",
    )

    columns: Sequence[str] = option(
        COLUMN_CHOICE,
        "output",
        "Output",
        "Columns to write in addition to tokens and cu_seqlens; '' for none.",
        "NAMES",
    )
    names: Literal["packprep", "hf"] = option(
        "packprep",
        "output",
        "Output",
        "Names of the columns: those of packprep, or input_ids, labels, position_ids and "
        "seq_lengths, which TRL and transformers read.",
    )
    token_type: Literal["auto", "int32", "uint16"] = option(
        "int32",
        "output",
        "Output",
        "Type of token ids in the shards. uint16 takes half of the bytes and holds vocabularies of "
        "up to 65,536 ids; auto takes it where it does. Positions have the same type.",
        added="int32",
    )
    materialize: Literal["auto", "shards", "index"] = option(
        "auto",
        "output",
        "Output",
        "Write the tokens of the packs, or an index: their plan, which points into token files. "
        "auto is index for several epochs, else shards.",
        added="shards",
    )
    shard_size: int = option("500MB", "output", "Output", "Size of one shard.", "SIZE", size=True)
    holdout: float = option(
        0.0,
        "output",
        "Output",
        "Share of documents for a validation split, such as 0.01 or 1%; DIR becomes a DatasetDict.",
        "SHARE",
    )
    num_proc: int = option(
        usable_cores().value, "run", "Output", "CPU cores to use; does not change the output."
    )
    max_memory: int = option(
        usable_memory().value // 2,
        "run",
        "Output",
        "Memory to use, memory-mapped files not counted; does not change the output.",
        size=True,
    )
    isolate: bool = option(
        False,
        "run",
        "Output",
        "Tokenize in separate processes; one that dies, hangs or grows too large is replaced.",
    )
    executor: Literal["local", "ray", "array"] = option(
        "local", "once", "Machines", "Where the work runs; does not change the output."
    )
    task_index: str | None = option(
        None,
        "once",
        "Machines",
        "executor array: number of this task, from 0; merge signs off the output.",
        "I|merge",
    )
    num_tasks: int | None = option(None, "once", "Machines", "executor array: number of tasks.")
    ray_address: str | None = option(
        None,
        "once",
        "Machines",
        "executor ray: address of the cluster, auto or HOST:PORT; default: this machine.",
        "ADDRESS",
    )
    work_dir: str | None = option(
        None,
        "once",
        "Machines",
        "Working directory for an output in a store; on a cluster, a shared one; default: the "
        "current directory.",
        "DIR",
    )
    unproven_store: bool = option(
        False,
        "once",
        "Machines",
        "Write to a store that the tests of packprep have not run with: two builds may mix there.",
    )
    overwrite: bool = option(
        False,
        "once",
        "Output",
        "Replace an output, or discard an unfinished one, of other settings; in a store, only an "
        "unfinished one.",
    )
    append: bool = option(
        False,
        "once",
        "Output",
        "Add the source files that are not in the output yet, in new windows.",
    )

    def __post_init__(self) -> None:
        """Keep the values unchanged; `BuildConfig` checks them here."""
