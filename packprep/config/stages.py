"""All options of a build, by the part of it that they decide; the rows of one table.

The command line, the YAML file and Python read these fields; functions take the stage that they
need. A `BuildConfig` has all of them and checks them: a stage made by hand is not checked.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from typing import Any, Literal, cast

from packprep.config.grammar import mix
from packprep.config.grammar.label_columns import LabelColumns, labels_of_source
from packprep.config.grammar.option import COLUMN_CHOICE, TRAIN_FIELDS, option
from packprep.config.grammar.settings import (
    ExecutorSetting,
    MultipleSetting,
    OrderSetting,
    OverflowSetting,
    PartSetting,
    StrategySetting,
    TurnSetting,
)
from packprep.config.grammar.source_names import HubPart
from packprep.support.errors import ConfigError, brief
from packprep.support.limits import usable_cores, usable_memory

LEAST_SHARED = 16  # tokens of a shared prefix


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Decides which rows are read, and how they are divided among tasks."""

    # A dict has options of the source, see mix.py.
    sources: Sequence[str | PathLike[str] | Mapping[str, Any]] = option(
        (),
        "Files, globs, folders, FOLDER#SPLIT, - for stdin, hub:ORG/SET#SPLIT.",
        "SOURCE",
        identity=False,
        common=True,
    )
    limit: int | None = option(
        None,
        "Read only the first N rows of all sources together.",
        per_source=True,
        least=1,
    )
    max_tokens: int | None = option(
        None,
        "Stop after the unit of text that reaches N tokens. From a mix, draw N tokens.",
        least=1,
        common=True,
    )
    weights: Sequence[str | float] = option(
        (),
        "Make a mix: shares of tokens by source, such as 50,30,20.",
        "W,W,...",
        identity=False,
        common=True,
    )
    max_epochs: float = option(
        1.0,
        "How many times a mix may use each source. A higher number allows a larger mix.",
        "X",
        identity=False,
    )
    phases: Sequence[Mapping[str, Any]] = option(
        (),
        "Parts of the output, one after another; each has tokens, weights and max_length of "
        "its own. In a YAML file, a list of tables.",
        "JSON",
        identity=False,
        common=True,
    )
    unit_size: int = option(
        "64MB",
        "Text in one unit. One task tokenizes a unit; windows are made of shuffled units.",
        "SIZE",
        least=1,
    )

    def entries(self) -> tuple[mix.Entry, ...]:
        """One entry for each source, from `sources` and `weights`."""
        sources = cast("Sequence[str | Mapping[str, Any]]", self.sources)  # paths are text here
        weights = cast("Sequence[str]", self.weights)
        return mix.entries(sources, weights, self.max_epochs, PER_SOURCE, phased=bool(self.phases))

    @property
    def is_mix(self) -> bool:
        """True if documents are drawn from the sources, rather than all of them taken once."""
        return bool(self.phases) or mix.is_mix(self.entries())

    @property
    def tokens_to_read(self) -> int | None:
        """Tokens after which no more text is read; None to read everything.

        A mix is drawn from all the text, so its max_tokens does not stop reading.
        """
        return None if self.is_mix else self.max_tokens

    @property
    def reads_all(self) -> bool:
        """True if no limit of the build ends the reading before the last row."""
        return self.limit is None and self.tokens_to_read is None


@dataclass(frozen=True, kw_only=True)
class Parsing:
    """Decides what one row is, and which documents it makes."""

    text_column: str = option(
        "text", "Column with the text.", "COLUMN", per_source=True, common=True
    )
    text_template: str | None = option(
        None,
        'Text of several columns: "{title}\\n\\n{body}".',
        "TEMPLATE",
        per_source=True,
        common=True,
    )
    messages_column: str | None = option(
        None,
        "Column with conversations, or auto to find it; a prompt and a response column are found "
        "too.",
        "COLUMN",
        common=True,
    )
    prompt_column: str | None = option(
        None,
        "Column with prompts; needs --response-column or --pair-columns. Without a chat template, "
        "prompt and response are joined unchanged.",
        "COLUMN",
        common=True,
    )
    response_column: str | None = option(
        None, "Column with the responses to the prompts.", "COLUMN", common=True
    )
    pair_columns: Sequence[str] = option(
        (),
        "Two columns, such as chosen,rejected; both sides of a row share a pack.",
        "A,B",
        common=True,
    )
    input_ids_column: str | None = option(
        None,
        "Column with token ids, instead of text; auto for pairs of token ids.",
        "COLUMN",
        per_source=True,
        common=True,
    )
    segments_column: str | None = option(
        None,
        "Column with pieces: a list of {text, train} and {token_ids, train}, in the order of the "
        "row; train is true or false. auto for pairs of such columns.",
        "COLUMN",
        identity="later",
    )
    join_pieces: bool = option(
        False,
        "Encode pieces of text that follow each other as one text, instead of each by itself.",
        identity="later",
    )
    boundaries: str | None = option(
        None,
        "Split rows of token ids that are packed already: after each EOS (eos) or before each BOS "
        "(bos); eos:2 names the id.",
        "KIND[:ID]",
    )
    labels_column: str | None = option(
        None,
        "Column with a number for each token id: labels, -100 where there is no loss, or a mask of "
        "0 and 1. The first rows tell which; NAME:labels or NAME:mask says it.",
        "COLUMN",
        per_source=True,
    )
    carry: Sequence[str] = option(
        (),
        "Columns to copy into the shards, with a number per row or per token id; may be repeated.",
        "NAME[:TYPE]",
    )
    sample_by: Literal["document", "paragraph", "line"] = option(
        "document",
        "How a .txt file is split into documents. document does not split it.",
        per_source=True,
    )
    on_error: Literal["stop", "skip"] = option("stop", "What to do with a bad row.")
    max_row_size: int = option("256MB", "A larger row is a bad row.", "SIZE", least=1)
    truncate_at: str | None = option(
        None, "Cut each text at the first match of this regex.", "REGEX"
    )
    group_prefix: str | None = option(
        None,
        "Rows with the same value in this column are held out together, and with --share-prefixes "
        "share prefixes, such as several answers to one prompt. Values are compared as text.",
        "COLUMN",
    )
    group_column: str | None = option(
        None,
        "Rows with different values in this column never share a pack. Values are compared as "
        "text: 1 is '1', true is 'true'.",
        "COLUMN",
    )
    parse_special_tokens: bool = option(
        False,
        "Turn special tokens that are spelled out in the text into their ids. BOS and EOS of the "
        "text are then those of the document.",
    )
    turns: str = option(
        "row",
        "Make a document of a conversation, or of each turn; each goes up to a turn of the "
        "assistant, and trains only it. auto does so for rows in which the chat template changes "
        "earlier turns. each:N and auto:N make documents only of the last N turns of a row.",
        "NAME[:N]",
        setting=TurnSetting,
        common=True,
    )

    @property
    def label_columns(self) -> LabelColumns:
        """The columns that say which token ids have a loss."""
        return LabelColumns.parse(self.labels_column)

    @property
    def chats(self) -> bool:
        """True if rows are conversations."""
        return self.input_ids_column is None and (
            self.messages_column is not None or self.prompt_column is not None
        )

    @property
    def is_rendered(self) -> bool:
        """True if a row is text, and a mask of what is trained in it."""
        return self.chats or self.segments_column is not None

    split_turns = TurnSetting.of("turns")

    @property
    def splits_rows(self) -> bool:
        """True if a row may be several documents."""
        return self.turns != "row" or self.boundaries is not None

    @property
    def parses_special_tokens(self) -> bool:
        """True if special tokens in the text are parsed.

        In conversations the template writes them; turns.py makes sure that no others are parsed. In
        pieces their renderer wrote them.
        """
        return self.parse_special_tokens or self.is_rendered

    @property
    def may_have_ends(self) -> bool:
        """True if documents may begin with BOS and end with EOS of their own."""
        has_ids = self.input_ids_column is not None or self.segments_column is not None
        return self.parse_special_tokens or has_ids

    def of_source(self, options: Mapping[str, object]) -> "Parsing":
        """The stage for a source with `options` of its own; those of other stages are ignored."""
        own = {name: value for name, value in options.items() if hasattr(self, name)}
        own = replaced_by(own, self.labels_column)
        return replace(self, **own)  # type: ignore[arg-type]  # checked by `BuildConfig`

    def boundary(self) -> tuple[str, int | None] | None:
        """Kind of `boundaries`, eos or bos, and the token, None for the tokenizer's own."""
        if self.boundaries is None:
            return None
        kind, _, token = self.boundaries.partition(":")
        if kind not in ("eos", "bos") or not (token.isdecimal() or self.boundaries == kind):
            raise ConfigError(
                f"--boundaries is {brief(self.boundaries)}, expected eos or bos, or one of them "
                "with the id of the token, such as eos:2"
            )
        return kind, int(token) if token else None


def replaced_by(options: Mapping[str, Any], labels_column: str | None) -> dict[str, Any]:
    """Options that a source replaces in a build with this `labels_column`.

    A column or a template of text replaces both of the build.
    """
    if ("text_column" in options) != ("text_template" in options):
        options = {"text_column": "text", "text_template": None, **options}
    return {**options, **labels_of_source(options, labels_column)}


@dataclass(frozen=True, kw_only=True)
class Tokenizing:
    """Decides the token ids of a row."""

    tokenizer: Any = option(
        None,
        "A tokenizer.json, or a file in another format, or its directory, or a hub name; "
        "NAME@REVISION of the hub.",
        "PATH|NAME",
        identity=False,
        common=True,
    )
    bos: str = option("auto", "Token before each document: auto, none or a token.", "TOKEN")
    eos: str = option("auto", "Token after each document: auto, none or a token.", "TOKEN")
    engine: Literal["auto", "hf", "fastokens", "gigatoken"] = option(
        "auto", "Tokenizer engine. All of them give the same ids.", identity=False
    )
    # The reference takes 18 times the CPU of a whole build with a fast engine: this costs 2 %.
    verify_engine: float = option(
        0.001,
        "Share of documents to encode again with the reference engine and compare.",
        "SHARE",
        identity=False,
    )
    check_against: str | None = option(
        None,
        "Before the build, compare ids with those of AutoTokenizer, of the tokenizer or the one at "
        "NAME, and stop at a difference.",
        "transformers[:NAME]",
        identity=False,
    )
    chat_template: str | None = option(
        None,
        "Jinja template for conversations; default: the template of the tokenizer.",
        "FILE",
        identity=False,
        common=True,
    )
    renderer: str | None = option(
        None,
        "Function of your own from messages and tools to pieces, in place of a chat template: "
        "FILE.py:FUNCTION or MODULE:FUNCTION.",
        "FILE:NAME",
        identity=False,
    )
    template_date: str | None = option(
        None, "Today's date, for templates that ask for it.", "YYYY-MM-DD"
    )
    template_variables: str | None = option(
        None,
        'Variables for the chat template, such as {"enable_thinking": false}.',
        "JSON",
    )
    train_on: Literal["assistant", "last-turn", "all"] = option(
        "assistant", "Turns to train on.", common=True
    )
    train_fields: Sequence[str] = option(
        TRAIN_FIELDS,
        "Fields of the assistant's messages to train on: some of content,reasoning,tool_calls.",
        "NAMES",
    )
    vocab_size: int | None = option(
        None,
        "Size of the vocabulary; token ids are below N. Needs --input-ids-column.",
        least=1,
        common=True,
    )

    @property
    def names_ends(self) -> bool:
        """True if BOS or EOS is asked for, or asked not to be."""
        return (self.bos, self.eos) != ("auto", "auto")

    def asked_ends(self) -> dict[str, str]:
        """BOS and EOS of rows of tokens, which have their own: none unless asked for."""
        ends = {"bos": self.bos, "eos": self.eos}
        return {end: "none" if asked == "auto" else asked for end, asked in ends.items()}

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template."""
        try:
            variables = json.loads(self.template_variables or "{}")
            if not isinstance(variables, dict):
                raise ValueError
        except (ValueError, RecursionError):
            value = brief(self.template_variables)
            raise ConfigError(
                f"--template-variables is {value}, expected JSON such as "
                '{"enable_thinking": false}'
            ) from None
        return variables


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """Decides how documents are filtered and cut."""

    max_length: int = option(
        4096, "Tokens per pack; at least 2, such as 8192 or 8Ki.", least=2, common=True
    )
    strategy: str = option(
        "best_fit",
        "How to pack documents. knapsack is first fit decreasing, filled pack by pack; balanced:N "
        "makes N packs, balanced as few as possible.",
        "NAME[:N]",
        setting=StrategySetting,
        common=True,
    )
    overflow: str = option(
        "split",
        "What to do with longer documents; for pairs the default is truncate. truncate cuts off "
        "the end, truncate:left the beginning; truncate:balanced keeps whole turns, and cuts "
        "prompt and response of the next one in proportion.",
        "NAME[:SIDE]",
        setting=OverflowSetting,
        common=True,
    )
    stride: int = option(0, "Tokens that consecutive pieces of a split document share.", least=0)
    continuation_bos: bool = option(
        False, "Start the later pieces of a split document with BOS too."
    )
    train_overlap: bool = option(False, "Train the tokens that stride repeats in both pieces.")
    min_loss_tokens: int = option(
        1,
        "Drop segments (wrapped: also packs) with fewer trained tokens, if rows have labels.",
        least=0,
    )
    min_document_tokens: int = option(1, "Drop documents with fewer text tokens.", least=0)
    max_document_tokens: int | None = option(None, "Drop documents with more text tokens.", least=0)
    skip_rows: str | None = option(
        None,
        "Leave out the rows of a list, a SOURCE:ROW a line, as packprep spike --rows writes it. "
        "All documents of a row go: its turns, pieces, and both sides of a pair; other rows of "
        "its group stay. An output in place of the list: the rows that its build left out.",
        "FILE",
        identity=False,
    )
    share_prefixes: int = option(
        0,
        "Write a prefix that segments of a row share once; turns of a conversation or sides of "
        f"a pair become a tree. Prefixes of fewer than N tokens, {LEAST_SHARED} without N, are not "
        "shared; 0 shares none.",
        "[N]",
        least=0,
        common=True,
    )

    packer = StrategySetting.of("strategy")

    too_long = OverflowSetting.of("overflow")


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Decides which segments share a pack."""

    min_pack_tokens: int = option(
        0,
        "Drop packs with fewer tokens, padding not counted; max_length/64 to /16 is usual.",
        least=0,
    )
    max_segments_per_pack: int | None = option(
        None, "Maximum number of segments in a pack.", least=1
    )
    pad_segment_to_multiple: int = option(
        1, "Pad each segment to a multiple of N (context parallel: 2*cp).", least=1
    )
    shuffle_documents: bool = option(
        False,
        "strategy stream, greedy or first_fit_input: take documents in a seeded random order.",
    )


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Decides the order of the packs."""

    order: str = option(
        "shuffle",
        "Order of the packs. balanced:RANKS:A,B gives ranks that step together packs of equal "
        "cost, a * tokens + b * sum(segment^2) and c of each window, A,B,C@WINDOW; without them it "
        "is balanced:8:24576,1. After "
        "another name they decide only the figures of ranks in the report.",
        "NAME[:RANKS[:A,B]]",
        setting=OrderSetting,
    )
    cost_of: str | None = option(
        None,
        "Take the costs A,B of --order from a model's config.json, or the folder with it: FLOPs of "
        "its layers, windows and active experts.",
        "FILE",
        identity=False,
    )
    seed: int = option(
        0, "Seed of every random choice; the same seed gives the same bytes.", least=0
    )

    pack_order = OrderSetting.of("order")


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Decides windows, splits, columns and files."""

    window: int = option(
        "4GB",
        "Amount of text whose documents are packed together.",
        "SIZE",
        least=1,
    )
    epochs: int = option(
        1,
        "Number of epochs to pack; in each the documents are packed again, and get other "
        "neighbours.",
        least=1,
        common=True,
    )
    packs_multiple_of: int | str = option(
        1,
        "Make the number of packs a multiple of N, such as world size times batch size. N drops "
        "packs, N:fill fills up with packs of one pad token.",
        "N[:fill]",
        setting=MultipleSetting,
    )
    columns: Sequence[str] = option(
        COLUMN_CHOICE,
        "Columns to write in addition to tokens and cu_seqlens; '' for none.",
        "NAMES",
    )
    names: Literal["packprep", "hf"] = option(
        "packprep",
        "Names of the columns: those of packprep, or input_ids, labels, position_ids and "
        "seq_lengths, which TRL and transformers read.",
    )
    token_type: Literal["auto", "int32", "uint16"] = option(
        "int32",
        "Type of token ids in the shards. uint16 takes half of the bytes and holds vocabularies of "
        "up to 65,536 ids; auto takes it where it does. Positions have the same type.",
        identity="later",
    )
    materialize: Literal["auto", "shards", "index"] = option(
        "auto",
        "Write the tokens of the packs, or an index; an index is their plan, which points into "
        "token files. auto is index for several epochs, else shards.",
        identity="later",
        earlier=("shards",),
        common=True,
    )
    shard_size: int = option("500MB", "Size of one shard.", "SIZE", least=1)
    holdout: float = option(
        0.0,
        "Share of documents for a validation split: 0.01 or 1%; DIR becomes a DatasetDict.",
        "SHARE",
        common=True,
    )

    multiple = MultipleSetting.of("packs_multiple_of")

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in their order."""
        return ("train", "validation") if self.holdout else ("train",)


@dataclass(frozen=True, kw_only=True)
class Running:
    """Decides how the build runs; it never changes the shards."""

    output: str = option(
        "",
        "Output directory, or s3://bucket/folder. It appears only when it is complete.",
        "DIR",
        common=True,
    )
    keep_tokens: str | None = option(
        None, "Token store: folder that keeps tokens for later builds.", "DIR", common=True
    )
    num_proc: int = option(
        usable_cores().value, "CPU cores to use; does not change the output.", least=1
    )
    max_memory: int = option(
        usable_memory().value // 2,
        "Memory to use, memory-mapped files not counted; does not change the output.",
        "SIZE",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class Command:
    """Decides what this command alone does; build.yaml of the output does not keep it."""

    executor: str = option(
        "local",
        "Where the work runs; does not change the output. isolated tokenizes in separate "
        "processes, and replaces one that dies, hangs or grows too large; ray:ADDRESS is a "
        "cluster, auto or HOST:PORT, and ray this machine; array is one task of a scheduler's "
        "job array.",
        "NAME[:ADDRESS]",
        setting=ExecutorSetting,
    )
    part: str | None = option(
        None,
        "Do part I of N, from 0, by any scheduler; merge signs off the output. In a job array "
        "the scheduler gives I.",
        "I/N|merge",
        setting=PartSetting,
    )
    work_dir: str | None = option(
        None,
        "Working directory for an output in a store; on a cluster, a shared one; default: the "
        "current directory.",
        "DIR",
    )
    unproven_store: bool = option(
        False,
        "Write to a store that the tests of packprep have not run with: two builds may mix there.",
    )
    overwrite: bool = option(
        False,
        "Replace an output of other settings, finished or not; in a store, only an unfinished one.",
        common=True,
    )
    append: bool = option(
        False, "Add the source files that are not in the output yet, in new windows."
    )

    place = ExecutorSetting.of("executor")

    @cached_property
    def task(self) -> PartSetting | None:
        """The parts of `part`."""
        return None if self.part is None else PartSetting.parse("part", self.part)

    @property
    def runner(self) -> str:
        """The executor that runs the tasks: local, ray or array."""
        runner = "local" if self.place.name == "isolated" else self.place.name
        return runner if self.part is None else "array"

    @property
    def many_processes(self) -> bool:
        """True if the process that signs off is one of several, which share only files."""
        return self.runner != "local"

    @property
    def isolated(self) -> bool:
        """True if separate processes tokenize."""
        return self.place.name == "isolated"

    @property
    def is_task(self) -> bool:
        """True if this command is one task of several, and another command signs off."""
        return self.task is not None and not self.task.signs_off


STAGES = (Reading, Parsing, Tokenizing, Cutting, Packing, Ordering, Writing, Running, Command)
"""The headings of `--help` and of the page of options, with the first line of each."""
PER_SOURCE = (
    *HubPart._fields,
    *(spec.name for stage in STAGES for spec in fields(stage) if spec.metadata["per_source"]),
)


def options_in(*stages: type) -> frozenset[str]:
    """Names of the options of these stages."""
    return frozenset(spec.name for stage in stages for spec in fields(stage))
