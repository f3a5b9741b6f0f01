"""Every option of a build, in one place: the command line, the YAML file and Python all read these fields.

A field's metadata carries its help text, its choices and whether it decides the bytes of the output (`identity`).
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from packprep import mixture
from packprep.errors import ConfigError, brief

COLUMN_CHOICE = ("position_ids", "document_ids", "document_starts")  # tokens and cu_seqlens are always written


def _option(
    default: Any, group: str, text: str, metavar: str = "N", *, identity: bool = True, size: bool = False
) -> Any:
    """A field with its help; metavar is what the help page writes for the value."""
    return field(
        default=default,
        metadata={"group": group, "help": text, "metavar": metavar, "identity": identity, "size": size},
    )


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The fields of `BuildConfig`, and what follows from them."""

    sources: tuple[str | dict[str, Any], ...] = _option(  # a dict says how much of it and how it is read: mixture.py
        (), "Sources", "Files, globs, directories, - for stdin, or a hub dataset.", "SOURCE"
    )
    output: str = _option(
        "", "Output", "Directory to write, or s3://bucket/folder; absent or complete, never half-written.", "DIR",
        identity=False,
    )  # fmt: skip
    tokenizer: Any = _option(
        None, "Tokenizer", "A tokenizer.json, a directory holding one, or a hub name.", "PATH|NAME"
    )

    name: str | None = _option(None, "Sources", "Configuration of a hub dataset.", "NAME")
    split: str | None = _option(None, "Sources", "Split of a hub dataset or of a saved DatasetDict.", "NAME")
    revision: str | None = _option(None, "Sources", "Revision of a hub dataset.", "NAME")
    text_column: str = _option("text", "Sources", "Column that holds the text.", "COLUMN")
    text_template: str | None = _option(
        None, "Sources", 'Text made of several columns: "{title}\\n\\n{body}".', "TEMPLATE"
    )
    messages_column: str | None = _option(
        None,
        "Sources",
        "Column of conversations, in place of text; auto finds it, or a prompt and its response.",
        "COLUMN",
    )
    prompt_column: str | None = _option(
        None,
        "Sources",
        "Column of prompts; with --response-column. Without a chat template both are joined as they are.",
        "COLUMN",
    )
    response_column: str | None = _option(None, "Sources", "Column of responses to prompts.", "COLUMN")
    pair_columns: tuple[str, ...] = _option(
        (), "Sources", "Two columns, such as chosen,rejected: sides of a row that share a pack.", "A,B"
    )
    input_ids_column: str | None = _option(None, "Sources", "Column of token ids, in place of text.", "COLUMN")
    labels_column: str | None = _option(
        None, "Sources", "Beside token ids: column of labels, -100 where there is no loss.", "COLUMN"
    )
    loss_mask_column: str | None = _option(
        None, "Sources", "Beside token ids: column of 0 and 1, 1 where there is a loss.", "COLUMN"
    )
    carry: tuple[str, ...] = _option(
        (),
        "Sources",
        "Columns to keep in the shards: a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = _option(
        "document", "Sources", "What one document of a .txt file is."
    )
    limit: int | None = _option(None, "Sources", "Only the first N rows of the whole input.")
    max_tokens: int | None = _option(
        None, "Sources", "Stop after the unit of text that reaches N tokens; of a mix, draw N tokens."
    )
    weights: tuple[str, ...] = _option(
        (), "Sources", "Share of tokens of each source, such as 50,30,20: a mix.", "W,W,...", identity=False
    )
    max_epochs: float = _option(
        1.0, "Sources", "How often a mix may repeat a source to keep the shares of larger ones.", "X", identity=False
    )
    on_error: Literal["stop", "skip"] = _option("stop", "Sources", "What to do with a row that cannot be used.")
    max_row_size: int = _option("256MB", "Sources", "A row of more bytes is bad input.", "SIZE", size=True)
    unit_size: int = _option(
        "64MB", "Sources", "Text tokenized by one task; decides what is shuffled.", "SIZE", size=True
    )

    tokenizer_revision: str | None = _option(None, "Tokenizer", "Revision of a hub tokenizer.", "NAME", identity=False)
    bos: str = _option("auto", "Tokenizer", "Token before each document: auto, none or a token.", "TOKEN")
    eos: str = _option("auto", "Tokenizer", "Token after each document: auto, none or a token.", "TOKEN")
    parse_special_tokens: bool = _option(False, "Tokenizer", "Let text that spells a special token become that token.")
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = _option(
        "auto", "Tokenizer", "What runs the tokenizer; every one gives the same ids.", identity=False
    )
    verify_engine: float = _option(
        0.001,  # the reference takes 18 times the CPU of a whole build with a fast engine, so this costs 2 %
        "Tokenizer",
        "Share of documents encoded again by the reference engine and compared.",
        "SHARE",
        identity=False,
    )
    chat_template: str | None = _option(
        None, "Tokenizer", "Jinja template of conversations; default: the tokenizer's own.", "FILE", identity=False
    )
    template_date: str | None = _option(None, "Tokenizer", "Today, for templates that ask for it.", "YYYY-MM-DD")
    template_variables: str | None = _option(
        None, "Tokenizer", 'Variables of the template: {"enable_thinking": false}.', "JSON"
    )
    train_on: Literal["assistant", "last-turn", "all"] = _option(
        "assistant", "Tokenizer", "Which turns of a conversation are trained."
    )
    vocab_size: int | None = _option(None, "Tokenizer", "Token ids are below this; with --input-ids-column.")
    truncate_at: str | None = _option(None, "Tokenizer", "Cut the text at the first match of this regex.", "REGEX")
    keep_tokens: str | None = _option(
        None, "Tokenizer", "Token store: tokens are kept there and reused.", "DIR", identity=False
    )

    max_length: int = _option(4096, "Packing", "Tokens per pack, at least 2.")
    strategy: Literal["best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy", "wrapped", "balanced"] = (
        _option("best_fit", "Packing", "How documents are put together.")
    )
    overflow: Literal["split", "truncate", "drop", "error"] = _option(
        "split", "Packing", "What to do with documents longer than max_length."
    )
    stride: int = _option(0, "Packing", "Tokens that neighbouring pieces of a split document share.")
    truncation_side: Literal["right", "left", "balanced"] = _option(
        "right", "Packing", "Which end truncate cuts off; balanced: of prompt and response, in proportion."
    )
    continuation_bos: bool = _option(False, "Packing", "Begin the later pieces of a split document with BOS too.")
    train_overlap: bool = _option(False, "Packing", "Train tokens that stride repeats in both pieces.")
    min_loss_tokens: int = _option(
        1, "Packing", "Where rows have labels: drop segments (wrapped: packs) with fewer trained tokens."
    )
    min_len: int = _option(1, "Packing", "Drop documents with fewer text tokens.")
    max_len: int | None = _option(None, "Packing", "Drop documents with more text tokens.")
    window: int = _option("4GB", "Packing", "Text whose documents are packed together.", "SIZE", size=True)
    max_segments_per_pack: int | None = _option(None, "Packing", "At most this many segments in a pack.")
    pad_segment_to_multiple: int = _option(1, "Packing", "Pad each segment to a multiple (context parallel: 2*cp).")
    group_column: str | None = _option(
        None,
        "Packing",
        "Rows with different values here never share a pack. Compared as text: 1 is '1', true is 'true'.",
        "COLUMN",
    )
    num_packs: int | None = _option(None, "Packing", "Number of packs for balanced; default: as few as can be.")
    shuffle_documents: bool = _option(False, "Packing", "stream, greedy: take documents in seeded random order.")

    order: Literal["shuffle", "input", "length", "balanced"] = _option("shuffle", "Order", "Order of the packs.")
    seed: int = _option(0, "Order", "Decides every random choice; same seed, same bytes.")
    balance_ranks: int = _option(8, "Order", "order balanced: ranks that step together.")
    attention_cost: str = _option(
        "24576,1", "Order", "a,b of the cost of a pack, a * tokens + b * sum(segment^2); decides balance.", "A,B"
    )
    packs_multiple_of: int = _option(1, "Order", "Make the number of packs a multiple, of world size times batch.")
    remainder: Literal["drop", "fill"] = _option("drop", "Order", "packs-multiple-of: drop packs or add empty ones.")

    columns: tuple[str, ...] = _option(
        COLUMN_CHOICE,
        "Output",
        "Columns to write beside tokens and cu_seqlens: some of these, or '' for none.",
        "NAMES",
    )
    shard_size: int = _option("500MB", "Output", "Bytes of one shard.", "SIZE", size=True)
    holdout: float = _option(
        0.0, "Output", "Share of documents, such as 0.01, for a validation split; DIR becomes a DatasetDict.", "SHARE"
    )
    num_proc: int = _option(os.cpu_count() or 1, "Output", "Cores to use; never changes the output.", identity=False)
    max_memory: int = _option(
        _memory() // 2,
        "Output",
        "Memory to use beside files that are mapped; never changes the output.",
        identity=False,
        size=True,
    )
    isolate: bool = _option(
        False,
        "Output",
        "Tokenize in processes of their own; one that dies, hangs or grows is replaced.",
        identity=False,
    )
    unit_timeout: int | None = _option(
        None, "Output", "Seconds for 16 MB of text, then its process is replaced; means isolate.", "SECONDS",
        identity=False,
    )  # fmt: skip
    executor: Literal["local", "ray", "array"] = _option(
        "local", "Machines", "What does the work; never changes the output.", identity=False
    )
    task_index: str | None = _option(
        None, "Machines", "executor array: which task this is, from 0; merge signs off.", "I|merge", identity=False
    )
    num_tasks: int | None = _option(None, "Machines", "executor array: number of tasks.", identity=False)
    ray_address: str | None = _option(
        None, "Machines", "executor ray: a cluster to use, auto or HOST:PORT; default: this machine.", "ADDRESS",
        identity=False,
    )  # fmt: skip
    work_dir: str | None = _option(
        None, "Machines", "Output in a store: where to work, on a cluster a shared directory; default: here.", "DIR",
        identity=False,
    )  # fmt: skip
    overwrite: bool = _option(False, "Output", "Replace an output of other settings.", identity=False)
    append: bool = _option(
        False, "Output", "Add the source files that the output does not hold yet, as windows of their own.",
        identity=False,
    )  # fmt: skip
    restart: bool = _option(False, "Output", "Start over instead of going on with an unfinished build.", identity=False)

    def __post_init__(self) -> None:
        """Values are as they were given; `BuildConfig` checks them here."""

    @property
    def chats(self) -> bool:
        """Whether rows are conversations."""
        return self.messages_column is not None or self.prompt_column is not None

    @property
    def parses_special_tokens(self) -> bool:
        """Whether text that spells a special token becomes it: a template writes the special tokens of conversations,
        and turns.py sees to it that only those are parsed."""
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
                f"attention_cost is {self.attention_cost!r}, expected two numbers of at least 0 such as 24576,1"
            ) from None
        return linear, quadratic

    @property
    def isolated(self) -> bool:
        """Whether text is tokenized in worker processes."""
        return self.isolate or self.unit_timeout is not None

    def entries(self) -> tuple[mixture.Entry, ...]:
        """What `sources` and `weights` say, one entry for each source."""
        return mixture.entries(self.sources, self.weights, self.max_epochs)

    @property
    def tokens_to_read(self) -> int | None:
        """Tokens after which no more text is read. A mix is drawn from all of it, so there max_tokens stops nothing."""
        return None if mixture.is_mix(self.entries()) else self.max_tokens
