"""Every option of a build, in one place: the command line, the YAML file and Python all read this dataclass.

A field's metadata carries its help text, its choices and whether it decides the bytes of the output (`identity`).
Sizes are bytes; "64MB" is 64,000,000 and "64MiB" 67,108,864.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_origin

from packprep import mixture
from packprep.errors import ConfigError, brief, nearest

MERGE = "merge"  # the task of an array that signs off
# In no file of an output.
ONCE = ("overwrite", "restart", "append", "executor", "task_index", "num_tasks", "ray_address", "work_dir")
COLUMN_CHOICE = ("position_ids", "document_ids", "document_starts")  # tokens and cu_seqlens are always written

# What a carried column may be, as the format has it (packprep.schemas, which takes too long to import for --help), and
# the names that columns of shards and token files have of their own.
CARRY_TYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "float64")
RESERVED = (
    "tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts", "labels", "segment_lengths",
    "pair_ids", "pair_sides", "text", "ids", "group", "problem", "trained", "specials", "second", "pair_split",
)  # fmt: skip

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def _option(
    default: Any, group: str, text: str, metavar: str = "N", *, identity: bool = True, size: bool = False
) -> Any:
    """A field of BuildConfig with its help; metavar is what the help page writes for the value."""
    return field(
        default=default,
        metadata={"group": group, "help": text, "metavar": metavar, "identity": identity, "size": size},
    )


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Options of one build, checked at construction: a wrong value raises ConfigError before any work is done.

    Example: BuildConfig(sources=["docs/*.jsonl"], output="packed", tokenizer="tokenizer.json", max_length=8192)
    """

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
    prompt_column: str | None = _option(None, "Sources", "Column of prompts; with --response-column.", "COLUMN")
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
    min_loss_tokens: int = _option(1, "Packing", "Where rows have labels: drop segments with fewer trained tokens.")
    min_len: int = _option(1, "Packing", "Drop documents with fewer text tokens.")
    max_len: int | None = _option(None, "Packing", "Drop documents with more text tokens.")
    window: int = _option("4GB", "Packing", "Text whose documents are packed together.", "SIZE", size=True)
    max_segments_per_pack: int | None = _option(None, "Packing", "At most this many segments in a pack.")
    pad_segment_to_multiple: int = _option(1, "Packing", "Pad each segment to a multiple (context parallel: 2*cp).")
    group_column: str | None = _option(None, "Packing", "Rows with different values here never share a pack.", "COLUMN")
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
        _memory() // 2, "Output", "Memory to use; never changes the output.", identity=False, size=True
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
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.metadata["size"]:
                value = parse_size(value, spec.name)
            elif spec.name == "sources":
                value = _sources(value)
            elif isinstance(spec.default, tuple):
                value = _names(spec.name, value)
            elif isinstance(value, os.PathLike):
                value = os.fspath(value)
            elif spec.name == "template_variables" and isinstance(value, Mapping):
                value = _json(value)
            elif spec.name == "task_index" and type(value) is int:
                value = str(value)
            _check_type(spec, value)
            if spec.type is float:
                value = float(value)
            object.__setattr__(self, spec.name, value)
        self._check_ranges()
        self._check_combinations()
        for entry in self.entries():
            for key in mixture.NUMBERS:
                if key in entry.reading and (entry.reading[key] is None) != (getattr(self, key) is None):
                    raise ConfigError(
                        f"source {entry.label} alone has {key}: rows of one build are alike; give the build one too"
                    )
            try:
                self.reading(entry.reading)
            except ConfigError as error:
                raise ConfigError(f"source {entry.label}: {error}") from None
        object.__setattr__(self, "columns", tuple(name for name in COLUMN_CHOICE if name in self.columns))

    def _check_ranges(self) -> None:
        least = {
            "max_length": 2, "stride": 0, "min_len": 0, "max_len": 0, "limit": 1, "max_tokens": 1, "num_proc": 1,
            "max_memory": 1, "max_row_size": 1, "unit_timeout": 1, "num_tasks": 1, "min_loss_tokens": 0,
            "vocab_size": 1,
            "shard_size": 1, "unit_size": 1, "window": 1, "max_segments_per_pack": 1, "pad_segment_to_multiple": 1,
            "packs_multiple_of": 1, "balance_ranks": 1, "num_packs": 1, "seed": 0,
        }  # fmt: skip
        for key, bound in least.items():
            value = getattr(self, key)
            if value is not None and value < bound:
                raise ConfigError(f"{key} is {value:,}, expected at least {bound}")
        for key in ("max_length", "max_row_size"):
            if getattr(self, key) >= 2**31:
                raise ConfigError(f"{key} is {getattr(self, key):,}, expected less than 2^31")
        if not 0 <= self.verify_engine <= 1:
            raise ConfigError(f"verify_engine is {self.verify_engine:g}, expected a share from 0 to 1")
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout is {self.holdout:g}, expected a share of at least 0 and less than 1")
        for column in self.columns:
            if column not in (*COLUMN_CHOICE, "tokens", "cu_seqlens"):
                raise ConfigError(f"columns has {brief(column)}, expected some of {', '.join(COLUMN_CHOICE)}")
        if self.truncate_at is not None:
            try:
                re.compile(self.truncate_at)
            except re.error as error:
                raise ConfigError(f"truncate_at {self.truncate_at!r} is not a regular expression: {error}") from None
        self.cost()

    def _check_combinations(self) -> None:
        self._check_columns()
        self._check_executor()
        if self.append and self.overwrite:
            raise ConfigError("append keeps the output and overwrite replaces it; give one of them")
        if self.append and mixture.is_mix(self.entries()):
            raise ConfigError(
                "append cannot keep the shares of a mix, which are drawn from all of its sources together; "
                "build the mix again with --overwrite and a token store (--keep-tokens)"
            )
        if self.text_template is not None and self.text_column != "text":
            raise ConfigError("text_column and text_template both say what the text is; give one of them")
        if self.stride:
            if self.overflow != "split" or self.strategy == "wrapped":
                other = "strategy wrapped" if self.strategy == "wrapped" else f"overflow {self.overflow}"
                raise ConfigError(f"stride is for overflow split and has no meaning with {other}; leave it out")
            own = self.max_length - self.continuation_bos
            if self.stride >= own:
                raise ConfigError(
                    f"stride is {self.stride:,} but a piece has {own:,} tokens of its own; choose a smaller stride"
                )
        if self.continuation_bos and (self.overflow != "split" or self.strategy == "wrapped"):
            raise ConfigError("continuation_bos is for overflow split with a strategy other than wrapped")
        if self.truncation_side != "right" and self.overflow != "truncate":
            raise ConfigError(f"truncation_side is for overflow truncate, not {self.overflow}")
        if self.truncation_side == "balanced" and self.strategy == "wrapped":
            raise ConfigError("truncation_side balanced has no meaning with strategy wrapped; choose another strategy")
        if self.train_overlap and not self.stride:
            raise ConfigError("train_overlap is for tokens that stride repeats; give --stride or leave it out")
        if self.max_length % self.pad_segment_to_multiple:
            raise ConfigError(
                f"max_length {self.max_length:,} is not a multiple of pad_segment_to_multiple "
                f"{self.pad_segment_to_multiple:,}; choose one that is"
            )
        if self.strategy == "wrapped":
            for key, neutral in (
                ("max_segments_per_pack", None), ("group_column", None), ("pad_segment_to_multiple", 1)
            ):  # fmt: skip
                if getattr(self, key) != neutral:
                    raise ConfigError(f"{key} cannot be held by strategy wrapped; choose another strategy")
        if self.num_packs is not None and self.strategy != "balanced":
            raise ConfigError(f"num_packs is for strategy balanced, not {self.strategy}")
        if self.max_len is not None and self.max_len < self.min_len:
            raise ConfigError(f"max_len {self.max_len:,} is less than min_len {self.min_len:,}; no document would stay")

    def _check_executor(self) -> None:
        for key, executor in (("task_index", "array"), ("num_tasks", "array"), ("ray_address", "ray")):
            if getattr(self, key) is not None and self.executor != executor:
                raise ConfigError(f"{key} is for executor {executor}, not {self.executor}; give --executor {executor}")
        if self.task_index is not None and self.task_index != MERGE and not re.fullmatch("[0-9]+", self.task_index):
            raise ConfigError(f"task_index is {self.task_index!r}, expected a number from 0, or {MERGE}")
        if "://" not in self.output and self.work_dir is not None:
            raise ConfigError("work_dir is for an output in a store; a directory is made beside where it will be")
        if "://" in self.output and self.overwrite:
            raise ConfigError(
                "overwrite is for a directory, which is swapped at once: in a store readers would see a mix of old and "
                "new; choose another -o, and delete the old output when nobody reads it"
            )
        if "://" in self.output and self.append:
            raise ConfigError(
                "append is for a directory, which is swapped at once; build what is new at another address, and merge "
                "the two"
            )
        if self.executor != "local" and self.keep_tokens is not None:
            raise ConfigError(f"keep_tokens is for one process, and executor {self.executor} has many; leave it out")
        if self.executor == "ray" and self.isolated:
            raise ConfigError(
                "executor ray replaces processes that die without being asked; leave isolate and unit_timeout out"
            )
        if self.executor == "array":
            if "-" in self.sources:
                raise ConfigError("standard input cannot be read by every task of an array; name a file")
            if self.restart:
                raise ConfigError(
                    "restart would throw away what other tasks do; delete the unfinished build before tasks start"
                )

    def _check_columns(self) -> None:
        """Which columns make a row."""
        if self.pair_columns:
            self._check_pairs()
        elif (self.prompt_column is None) != (self.response_column is None):
            raise ConfigError("prompt_column and response_column go together; give both")
        if self.messages_column is not None and self.prompt_column is not None:
            raise ConfigError("messages_column and prompt_column both say where conversations are; give one of them")
        if self.chats and self.input_ids_column is not None:
            raise ConfigError("input_ids_column has token ids, and conversations are rendered; give one of them")
        if not self.chats:
            for key in ("chat_template", "template_date", "template_variables"):
                if getattr(self, key) is not None:
                    raise ConfigError(f"{key} is for conversations; give --messages-column too, with auto to find it")
        if self.input_ids_column is None:
            for key in ("labels_column", "loss_mask_column", "vocab_size"):
                if getattr(self, key) is not None:
                    raise ConfigError(f"{key} is for rows of token ids; give --input-ids-column too")
        if self.truncation_side == "balanced" and self.input_ids_column is None and not self.chats:
            raise ConfigError("truncation_side balanced is for rows with a prompt and a response, not for text")
        if self.chats or self.input_ids_column is not None:
            rows = "conversations" if self.chats else "rows of token ids"
            for key in ("text_template", "truncate_at", "parse_special_tokens"):
                if getattr(self, key):
                    raise ConfigError(f"{key} is for text and has no meaning for {rows}; leave it out")
        if self.chats and not {self.bos, self.eos} <= {"auto", "none"}:
            raise ConfigError("the template of conversations writes BOS and EOS itself; leave --bos and --eos out")
        self.variables()
        names = [entry.partition(":")[0] for entry in self.carry]
        for entry, name in zip(self.carry, names, strict=True):
            dtype = entry.removeprefix(name)[1:]
            if ":" in entry and dtype not in CARRY_TYPES:
                raise ConfigError(f"carry {entry!r} has the type {dtype!r}{nearest(dtype, CARRY_TYPES)}")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
                raise ConfigError(f"carry {name!r} is no name for a column of a shard; rename it to letters, digits, _")
            if name in RESERVED:
                instead = "give --labels-column" if name == "labels" else "rename the column"
                raise ConfigError(f"carry {name!r} is a name that packprep uses itself; {instead}")
            if names.count(name) > 1:
                raise ConfigError(f"carry names {name!r} twice; give it once")

    def _check_pairs(self) -> None:
        if len(self.pair_columns) != 2 or self.pair_columns[0] == self.pair_columns[1]:
            raise ConfigError(f"pair_columns is {', '.join(self.pair_columns)}; expected two columns: chosen,rejected")
        for key in ("input_ids_column", "text_template", "truncate_at", "response_column"):
            if getattr(self, key) is not None:
                raise ConfigError(f"{key} has no meaning with pair_columns, which say what the two sides are")
        if self.messages_column not in (None, "auto"):
            raise ConfigError("pair_columns say where the conversations are; give --messages-column auto with them")
        if self.overflow == "split" or self.strategy == "wrapped":
            what = "strategy wrapped" if self.strategy == "wrapped" else "overflow split"
            raise ConfigError(f"{what} would tear pairs apart; choose --overflow truncate, drop or error")
        if self.truncation_side == "balanced":
            raise ConfigError("truncation_side balanced is for one side; pairs are cut in proportion by themselves")

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

    def reading(self, own: Mapping[str, Any]) -> "BuildConfig":
        """These options with those that a source has for itself, to read its rows with."""
        if not own:
            return self
        if ("text_column" in own) != ("text_template" in own):  # either says what the text is, in place of both
            own = {"text_column": "text", "text_template": None} | dict(own)
        return replace(self, sources=(), weights=(), max_epochs=1.0, **own)

    @property
    def tokens_to_read(self) -> int | None:
        """Tokens after which no more text is read. A mix is drawn from all of it, so there max_tokens stops nothing."""
        return None if mixture.is_mix(self.entries()) else self.max_tokens

    def identity(self) -> dict[str, Any]:
        """The options that decide the bytes of the output; sources and tokenizer enter by digest instead."""
        decided_by_digest = ("sources", "tokenizer", "name", "split", "revision")
        return {
            spec.name: list(value) if isinstance(value := getattr(self, spec.name), tuple) else value
            for spec in fields(self)
            if spec.metadata["identity"] and spec.name not in decided_by_digest
        }


def _names(key: str, value: Any) -> tuple[str, ...]:
    """A tuple of names or numbers; they may also be one text with commas."""
    given = [value] if isinstance(value, str) or (key == "weights" and isinstance(value, (int, float))) else value
    kinds = (str, int, float) if key == "weights" else (str,)
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, kinds) for name in given):
        raise ConfigError(f"{key} is {brief(value)}, expected a list of {'numbers' if key == 'weights' else 'names'}")
    return tuple(name for part in given for name in map(str.strip, str(part).split(",")) if name)


def _sources(value: Any) -> tuple[str | dict[str, Any], ...]:
    """Names of sources, and tables that say more of one; one of either may stand alone."""
    value = [value] if isinstance(value, (str, os.PathLike, Mapping)) else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, (str, os.PathLike, Mapping)) for one in value):
        raise ConfigError(f"sources is {brief(value)}, expected a list of names, or of tables with path and weight")
    return tuple(_table(one) if isinstance(one, Mapping) else os.fspath(one) for one in value)


def _table(source: Mapping[Any, Any]) -> dict[str, Any]:
    """The table of a source with its keys as options are written."""
    table = {str(key).replace("-", "_"): value for key, value in source.items()}
    paths = table.get("path")
    if isinstance(paths, (list, tuple)):
        table["path"] = [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
    elif isinstance(paths, os.PathLike):
        table["path"] = os.fspath(paths)
    return table


def _json(variables: Mapping[Any, Any]) -> str:
    try:
        return json.dumps(variables, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"template_variables is {brief(variables)}, expected values of JSON: {error}") from None


def parse_size(value: int | str, key: str) -> int:
    """Bytes of "64MB", "1.5GiB", "4096" or 4096."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]I?)?B?\s*", str(value).upper())
    try:
        if match is None:
            raise ValueError
        return int(float(match[1]) * _UNITS[match[2] or ""])
    except (ValueError, OverflowError):
        raise ConfigError(f"{key} is {brief(value)}, expected a size such as 500MB or 64MiB") from None


def check_keys(options: dict[str, Any], where: str, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The same options; an unknown name raises ConfigError that suggests the nearest one."""
    known = [*(spec.name for spec in fields(BuildConfig)), *extra]
    for key in options:
        if key not in known:
            raise ConfigError(f"{where} has an unknown option {key!r}{nearest(key, known)}")
    return options


def _check_type(spec: "Field[Any]", value: Any) -> None:
    if get_origin(spec.type) is Literal:
        choices = get_args(spec.type)
        if value not in choices:
            raise ConfigError(f"{spec.name} is {brief(value)}{nearest(brief(value), choices)}")
        return
    optional = value is None and spec.default is None
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    wanted: type | None = next((base for base in kind if spec.type in (base, base | None)), None)
    if wanted is None or optional:
        return
    right = isinstance(value, (int, float) if wanted is float else wanted)
    if not right or (isinstance(value, bool) and wanted is not bool):
        raise ConfigError(f"{spec.name} is {brief(value)}, expected {kind[wanted]}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{spec.name} is {brief(value)}, expected a number of 64 bits")
