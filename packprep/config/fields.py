"""All options of a build.

The command line, the YAML file and Python read these fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal

from packprep.config.option import COLUMN_CHOICE, TRAIN_FIELDS, StrategyName, option
from packprep.support.limits import usable_cores, usable_memory

# Options under one heading of `--help`.
_sources = partial(option, "Sources")
_tokenizer = partial(option, "Tokenizer")
_packing = partial(option, "Packing")
_order = partial(option, "Order")
_output = partial(option, "Output")
_machines = partial(option, "Machines")


@dataclass(frozen=True, kw_only=True)
class OptionFields:
    """The fields of `BuildConfig`."""

    # A dict has options of the source, see mix.py.
    sources: Sequence[str | PathLike[str] | Mapping[str, Any]] = _sources(
        "read",
        (),
        "Files, globs, directories, - for stdin, or a hub dataset.",
        "SOURCE",
        identity=False,
        common=True,
    )
    output: str = _output(
        "run",
        "",
        "Output directory, or s3://bucket/folder. It appears only when it is complete.",
        "DIR",
        common=True,
    )
    tokenizer: Any = _tokenizer(
        "tokens",
        None,
        "A tokenizer.json, a directory that has one, or a hub name.",
        "PATH|NAME",
        identity=False,
        common=True,
    )

    name: str | None = _sources(
        "read", None, "Configuration of a hub dataset.", "NAME", identity=False, per_source=True
    )
    split: str | None = _sources(
        "read",
        None,
        "Split of a hub dataset or of a saved DatasetDict.",
        "NAME",
        identity=False,
        per_source=True,
    )
    revision: str | None = _sources(
        "read", None, "Revision of a hub dataset.", "NAME", identity=False, per_source=True
    )
    text_column: str = _sources(
        "rows", "text", "Column with the text.", "COLUMN", per_source=True, common=True
    )
    text_template: str | None = _sources(
        "rows",
        None,
        'Build the text from several columns: "{title}\\n\\n{body}".',
        "TEMPLATE",
        per_source=True,
        common=True,
    )
    messages_column: str | None = _sources(
        "rows",
        None,
        "Column with conversations, instead of text; auto finds it, or a prompt and a response "
        "column.",
        "COLUMN",
        common=True,
    )
    prompt_column: str | None = _sources(
        "rows",
        None,
        "Column with prompts; needs --response-column or --pair-columns. Without a chat template, "
        "prompt and response are joined unchanged.",
        "COLUMN",
        common=True,
    )
    response_column: str | None = _sources(
        "rows",
        None,
        "Column with the responses to the prompts.",
        "COLUMN",
        common=True,
    )
    pair_columns: Sequence[str] = _sources(
        "rows",
        (),
        "Two columns, such as chosen,rejected; both sides of a row share a pack.",
        "A,B",
        common=True,
    )
    input_ids_column: str | None = _sources(
        "rows",
        None,
        "Column with token ids, instead of text; auto for pairs of token ids.",
        "COLUMN",
        per_source=True,
        common=True,
    )
    boundaries: str | None = _sources(
        "rows",
        None,
        "Split rows of token ids that are packed already: after each EOS (eos) or before each BOS "
        "(bos); eos:2 names the id.",
        "KIND[:ID]",
    )
    labels_column: str | None = _sources(
        "rows",
        None,
        "Column with a label for each token id, -100 where there is no loss.",
        "COLUMN",
        per_source=True,
    )
    loss_mask_column: str | None = _sources(
        "rows",
        None,
        "Column with 0 or 1 for each token id, 1 where there is a loss.",
        "COLUMN",
        per_source=True,
    )
    carry: Sequence[str] = _sources(
        "rows",
        (),
        "Columns to copy into the shards, with a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = _sources(
        "rows",
        "document",
        "How a .txt file is split into documents. document does not split it.",
        per_source=True,
    )
    limit: int | None = _sources(
        "read",
        None,
        "Read only the first N rows of all sources together.",
        per_source=True,
        least=1,
    )
    max_tokens: int | None = _sources(
        "read",
        None,
        "Stop after the unit of text that reaches N tokens. From a mix, draw N tokens.",
        least=1,
        common=True,
    )
    weights: Sequence[str | float] = _sources(
        "read",
        (),
        "Make a mix: the share of tokens from each source, such as 50,30,20.",
        "W,W,...",
        identity=False,
        common=True,
    )
    max_epochs: float = _sources(
        "read",
        1.0,
        "How many times a mix may use each source. A higher number allows a larger mix.",
        "X",
        identity=False,
    )
    phases: Sequence[Mapping[str, Any]] = _sources(
        "read",
        (),
        "Parts of the output, one after another, each with tokens, weights and max_length of its "
        "own; in a YAML file a list of tables.",
        "JSON",
        identity=False,
        common=True,
    )
    on_error: Literal["stop", "skip"] = _sources("rows", "stop", "What to do with a bad row.")
    max_row_size: int = _sources(
        "rows", "256MB", "A larger row is a bad row.", "SIZE", size=True, least=1
    )
    unit_size: int = _sources(
        "read",
        "64MB",
        "Text in one unit. One task tokenizes a unit; windows are made of shuffled units.",
        "SIZE",
        size=True,
        least=1,
    )

    tokenizer_revision: str | None = _tokenizer(
        "tokens", None, "Revision of a hub tokenizer.", "NAME", identity=False
    )
    bos: str = _tokenizer(
        "tokens", "auto", "Token before each document: auto, none or a token.", "TOKEN"
    )
    eos: str = _tokenizer(
        "tokens", "auto", "Token after each document: auto, none or a token.", "TOKEN"
    )
    parse_special_tokens: bool = _tokenizer(
        "tokens", False, "Turn special tokens that are spelled out in the text into their ids."
    )
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = _tokenizer(
        "tokens", "auto", "Tokenizer engine. All of them give the same ids.", identity=False
    )
    # The reference takes 18 times the CPU of a whole build with a fast engine: this costs 2 %.
    verify_engine: float = _tokenizer(
        "tokens",
        0.001,
        "Share of documents to encode again with the reference engine and compare.",
        "SHARE",
        identity=False,
    )
    chat_template: str | None = _tokenizer(
        "tokens",
        None,
        "Jinja template for conversations; default: the template of the tokenizer.",
        "FILE",
        identity=False,
        common=True,
    )
    template_date: str | None = _tokenizer(
        "tokens", None, "Today's date, for templates that ask for it.", "YYYY-MM-DD"
    )
    template_variables: str | None = _tokenizer(
        "tokens",
        None,
        'Variables for the chat template, such as {"enable_thinking": false}.',
        "JSON",
    )
    train_on: Literal["assistant", "last-turn", "all"] = _tokenizer(
        "tokens",
        "assistant",
        "Turns of a conversation to train on.",
        common=True,
    )
    train_fields: Sequence[str] = _tokenizer(
        "tokens",
        TRAIN_FIELDS,
        "Fields of the assistant's messages to train on: some of content,reasoning,tool_calls.",
        "NAMES",
    )
    turns: Literal["row", "each", "auto"] = _tokenizer(
        "tokens",
        "row",
        "Documents of a conversation: row makes one. each makes one per turn of the assistant, up "
        "to that turn, and trains only it. auto does so for rows in which the chat template "
        "changes earlier turns.",
        common=True,
    )
    max_turns: int | None = _tokenizer(
        "tokens",
        None,
        "Make documents only of the last N turns of a row; needs --turns each or auto.",
        least=1,
    )
    vocab_size: int | None = _tokenizer(
        "tokens",
        None,
        "Size of the vocabulary: token ids are below N; needs --input-ids-column.",
        least=1,
        common=True,
    )
    truncate_at: str | None = _tokenizer(
        "rows", None, "Cut each text at the first match of this regex.", "REGEX"
    )
    keep_tokens: str | None = _tokenizer(
        "run",
        None,
        "Token store: directory that keeps tokens for later builds.",
        "DIR",
        common=True,
    )

    max_length: int = _packing(
        "segments",
        4096,
        "Tokens per pack, at least 2: 4096 or 4Ki.",
        least=2,
        common=True,
    )
    strategy: StrategyName = _packing(
        "segments",
        "best_fit",
        "How to pack documents. knapsack is first fit decreasing, filled pack by pack.",
        common=True,
    )
    overflow: Literal["split", "truncate", "drop", "error"] = _packing(
        "segments",
        "split",
        "What to do with a document longer than max_length; for pairs the default is truncate.",
        common=True,
    )
    stride: int = _packing(
        "segments", 0, "Tokens that consecutive pieces of a split document share.", least=0
    )
    truncation_side: Literal["right", "left", "balanced"] = _packing(
        "segments",
        "right",
        "End that truncate cuts off. balanced keeps whole turns, and cuts prompt and response of "
        "the next one in proportion.",
    )
    continuation_bos: bool = _packing(
        "segments", False, "Start the later pieces of a split document with BOS too."
    )
    train_overlap: bool = _packing(
        "segments", False, "Train the tokens that stride repeats in both pieces."
    )
    min_loss_tokens: int = _packing(
        "segments",
        1,
        "Drop segments (wrapped: also packs) with fewer trained tokens, if rows have labels.",
        least=0,
    )
    min_document_tokens: int = _packing(
        "segments", 1, "Drop documents with fewer text tokens.", least=0
    )
    max_document_tokens: int | None = _packing(
        "segments", None, "Drop documents with more text tokens.", least=0
    )
    min_pack_tokens: int = _packing(
        "plan",
        0,
        "Drop packs with fewer tokens, padding not counted; max_length/64 to /16 is usual.",
        added=0,
        least=0,
    )
    window: int = _packing(
        "output",
        "4GB",
        "Amount of text whose documents are packed together.",
        "SIZE",
        size=True,
        least=1,
    )
    share_prefixes: bool = _packing(
        "segments",
        False,
        "Write tokens with which several segments of a row begin once, as a tree: turns of a "
        "conversation, sides of a pair.",
        common=True,
    )
    min_shared: int = _packing(
        "segments", 16, "share-prefixes: share prefixes of at least N tokens.", least=1
    )
    group_prefix: str | None = _packing(
        "rows",
        None,
        "share-prefixes: rows with the same value in this column share prefixes too, such as "
        "several answers to one prompt, and are held out together. Values are compared as text.",
        "COLUMN",
        added=True,
    )
    max_segments_per_pack: int | None = _packing(
        "plan", None, "Maximum number of segments in a pack.", least=1
    )
    pad_segment_to_multiple: int = _packing(
        "plan", 1, "Pad each segment to a multiple of N (context parallel: 2*cp).", least=1
    )
    group_column: str | None = _packing(
        "rows",
        None,
        "Rows with different values in this column never share a pack. Values are compared as "
        "text: 1 is '1', true is 'true'.",
        "COLUMN",
    )
    num_packs: int | None = _packing(
        "plan", None, "strategy balanced: number of packs; default: as few as possible.", least=1
    )
    shuffle_documents: bool = _packing(
        "plan",
        False,
        "strategy stream, greedy or first_fit_input: take documents in a seeded random order.",
    )

    epochs: int = _order(
        "output",
        1,
        "Number of epochs to pack; more than one needs repack.",
        least=1,
        common=True,
    )
    repack: bool = _order(
        "output",
        False,
        "Pack the documents again for each epoch, so that they get other neighbours.",
        common=True,
    )
    order: Literal["shuffle", "input", "length", "balanced"] = _order(
        "order", "shuffle", "Order of the packs."
    )
    seed: int = _order(
        "order", 0, "Seed of every random choice; the same seed gives the same bytes.", least=0
    )
    balance_ranks: int = _order(
        "order", 8, "order balanced: number of ranks that step together.", least=1
    )
    attention_cost: str = _order(
        "order", "24576,1", "Cost of a pack for balancing, a * tokens + b * sum(segment^2).", "A,B"
    )
    packs_multiple_of: int = _order(
        "output",
        1,
        "Make the number of packs a multiple of N, such as world size times batch size.",
        least=1,
    )
    remainder: Literal["drop", "fill"] = _order(
        "output", "drop", "packs-multiple-of: drop packs, or fill up with packs of one pad token."
    )

    columns: Sequence[str] = _output(
        "output",
        COLUMN_CHOICE,
        "Columns to write in addition to tokens and cu_seqlens; '' for none.",
        "NAMES",
    )
    names: Literal["packprep", "hf"] = _output(
        "output",
        "packprep",
        "Names of the columns: those of packprep, or input_ids, labels, position_ids and "
        "seq_lengths, which TRL and transformers read.",
    )
    token_type: Literal["auto", "int32", "uint16"] = _output(
        "output",
        "int32",
        "Type of token ids in the shards. uint16 takes half of the bytes and holds vocabularies of "
        "up to 65,536 ids; auto takes it where it does. Positions have the same type.",
        added="int32",
    )
    materialize: Literal["auto", "shards", "index"] = _output(
        "output",
        "auto",
        "Write the tokens of the packs, or an index: their plan, which points into token files. "
        "auto is index for several epochs, else shards.",
        added="shards",
        common=True,
    )
    shard_size: int = _output("output", "500MB", "Size of one shard.", "SIZE", size=True, least=1)
    holdout: float = _output(
        "output",
        0.0,
        "Share of documents for a validation split, such as 0.01 or 1%; DIR becomes a DatasetDict.",
        "SHARE",
        common=True,
    )
    num_proc: int = _output(
        "run", usable_cores().value, "CPU cores to use; does not change the output.", least=1
    )
    max_memory: int = _output(
        "run",
        usable_memory().value // 2,
        "Memory to use, memory-mapped files not counted; does not change the output.",
        size=True,
        least=1,
    )
    isolate: bool = _output(
        "run",
        False,
        "Tokenize in separate processes; one that dies, hangs or grows too large is replaced.",
    )
    executor: Literal["local", "ray", "array"] = _machines(
        "once", "local", "Where the work runs; does not change the output."
    )
    task_index: str | None = _machines(
        "once",
        None,
        "executor array: number of this task, from 0; merge signs off the output.",
        "I|merge",
    )
    num_tasks: int | None = _machines("once", None, "executor array: number of tasks.", least=1)
    ray_address: str | None = _machines(
        "once",
        None,
        "executor ray: address of the cluster, auto or HOST:PORT; default: this machine.",
        "ADDRESS",
    )
    work_dir: str | None = _machines(
        "once",
        None,
        "Working directory for an output in a store; on a cluster, a shared one; default: the "
        "current directory.",
        "DIR",
    )
    unproven_store: bool = _machines(
        "once",
        False,
        "Write to a store that the tests of packprep have not run with: two builds may mix there.",
    )
    overwrite: bool = _output(
        "once",
        False,
        "Replace an output, or discard an unfinished one, of other settings; in a store, only an "
        "unfinished one.",
        common=True,
    )
    append: bool = _output(
        "once", False, "Add the source files that are not in the output yet, in new windows."
    )

    def __post_init__(self) -> None:
        """Keep the values unchanged; `BuildConfig` checks them here."""
