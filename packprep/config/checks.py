"""Check the options of a build: ranges, and combinations that exclude each other.

The first wrong option raises ConfigError.
"""

import re
from dataclasses import fields

from packprep.config.executors import EXECUTORS, MERGE
from packprep.config.option import COLUMN_CHOICE, TRAIN_FIELDS
from packprep.config.options import Options
from packprep.schemas.columns import COLUMN_NAME, HF_NAMES, NUMBER_TYPES, STANDARD_COLUMNS
from packprep.support.errors import ConfigError, brief, nearest

CARRY_TYPES = tuple(name for name, number in NUMBER_TYPES.items() if number.carried)
# Columns that token files have beside those of shards.
_OF_TOKEN_FILES = (
    "turn_rows",
    "turns",
    "text",
    "ids",
    "group",
    "prefix_group",
    "problem",
    "trained",
    "specials",
    "left_out",
    "second",
    "pair_split",
)
RESERVED = frozenset({*STANDARD_COLUMNS, *_OF_TOKEN_FILES})

_FOR_CHATS = "{} is for conversations; give --messages-column too (auto finds it)"
ENDS_OF_TEMPLATE = "the chat template writes BOS and EOS; leave out --bos and --eos"


def check(config: Options) -> None:
    """Raise ConfigError for the first option that is wrong."""
    _check_ranges(config)
    _check_columns(config)
    _check_executor(config)
    _check_phases(config)
    _check_output(config)
    _check_packing(config)
    _check_epochs(config)


def _check_ranges(config: Options) -> None:
    for spec in fields(config):
        value, least = getattr(config, spec.name), spec.metadata["least"]
        if None not in (value, least) and value < least:
            raise ConfigError(f"{spec.name} is {value:,}, expected at least {least}")
    for key in ("max_length", "max_row_size"):
        if getattr(config, key) >= 2**31:
            raise ConfigError(f"{key} is {getattr(config, key):,}, expected less than 2^31")
    if not 0 <= config.verify_engine <= 1:
        raise ConfigError(
            f"verify_engine is {config.verify_engine:g}, expected a share from 0 to 1"
        )
    if not 0 <= config.holdout < 1:
        raise ConfigError(
            f"holdout is {config.holdout:g}, expected a share of at least 0 and less than 1"
        )
    for column in config.columns:
        if column not in (*COLUMN_CHOICE, "tokens", "cu_seqlens"):
            raise ConfigError(
                f"columns has {brief(column)}, expected some of {', '.join(COLUMN_CHOICE)}"
            )
    for name in config.train_fields or ("",):
        if name not in TRAIN_FIELDS:
            raise ConfigError(
                f"train_fields has {brief(name)}, expected some of {', '.join(TRAIN_FIELDS)}"
                if name
                else f"train_fields is empty, expected some of {', '.join(TRAIN_FIELDS)}"
            )
    if config.truncate_at is not None:
        try:
            re.compile(config.truncate_at)
        except re.error as error:
            raise ConfigError(
                f"truncate_at {config.truncate_at!r} is not a regular expression: {error}"
            ) from None
    config.cost()
    config.boundary()


def _check_columns(config: Options) -> None:
    """Raise ConfigError for wrong options that name the columns of a row."""
    if config.text_template is not None and config.text_column != "text":
        raise ConfigError(
            "text_column and text_template both say what the text is; give one of them"
        )
    if config.pair_columns:
        _check_pairs(config)
    elif (config.prompt_column is None) != (config.response_column is None):
        raise ConfigError("prompt_column and response_column go together; give both")
    if config.messages_column is not None and config.prompt_column is not None:
        raise ConfigError(
            "messages_column and prompt_column both say where conversations are; give one of them"
        )
    if config.input_ids_column is not None and (
        config.messages_column is not None
        or (config.prompt_column is not None and not config.pair_columns)
    ):
        raise ConfigError(
            "input_ids_column cannot be used with conversations, which are rendered as text; give "
            "one of them"
        )
    if not config.chats:
        for key in ("chat_template", "template_date", "template_variables"):
            if getattr(config, key) is not None:
                raise ConfigError(_FOR_CHATS.format(key))
        if {*config.train_fields} != {*TRAIN_FIELDS}:
            raise ConfigError(_FOR_CHATS.format("train_fields"))
    if {*config.train_fields} != {*TRAIN_FIELDS} and config.train_on != "assistant":
        raise ConfigError(
            f"train_fields is for train_on assistant, not {config.train_on}; leave out one of them"
        )
    _check_turns(config)
    if config.input_ids_column is None:
        for key in ("labels_column", "loss_mask_column", "vocab_size", "boundaries"):
            if getattr(config, key) is not None:
                raise ConfigError(f"{key} is for rows of token ids; give --input-ids-column too")
    if (
        config.truncation_side == "balanced"
        and config.input_ids_column is None
        and not config.chats
    ):
        raise ConfigError(
            "truncation_side balanced is for rows with a prompt and a response, not for text"
        )
    if config.chats or config.input_ids_column is not None:
        rows = "conversations" if config.chats else "rows of token ids"
        for key in ("text_template", "truncate_at", "parse_special_tokens"):
            if getattr(config, key):
                raise ConfigError(f"{key} is for text and has no meaning for {rows}; leave it out")
    if config.messages_column is not None and not {config.bos, config.eos} <= {"auto", "none"}:
        raise ConfigError(ENDS_OF_TEMPLATE)
    config.variables()
    names = [entry.partition(":")[0] for entry in config.carry]
    for entry, name in zip(config.carry, names, strict=True):
        dtype = entry.removeprefix(name)[1:]
        if ":" in entry and dtype not in CARRY_TYPES:
            raise ConfigError(
                f"carry {entry!r} has the type {dtype!r}{nearest(dtype, CARRY_TYPES)}"
            )
        if not COLUMN_NAME.fullmatch(name):
            raise ConfigError(
                f"carry {name!r} cannot be the name of a column in a shard; rename the column, "
                "with letters, digits and _ only"
            )
        if config.names == "hf" and name in HF_NAMES.values():
            raise ConfigError(
                f"carry {name!r} is a column name of names hf; rename the column, or leave names "
                "as packprep"
            )
        if name in RESERVED:
            instead = "give --labels-column" if name == "labels" else "rename the column"
            raise ConfigError(f"carry {name!r} is a column name that packprep uses; {instead}")
        if names.count(name) > 1:
            raise ConfigError(f"carry names {name!r} twice; give it once")


def _check_turns(config: Options) -> None:
    """Raise ConfigError for options of documents per turn that have no meaning."""
    if config.turns == "row":
        if config.max_turns is not None:
            raise ConfigError(
                "max_turns counts documents of turns, but a row is one document; give --turns each "
                "or auto"
            )
        return
    if not config.chats:
        raise ConfigError(_FOR_CHATS.format(f"turns {config.turns}"))
    if config.train_on != "assistant":
        raise ConfigError(
            f"turns {config.turns} trains one turn of the assistant in each document, so it cannot "
            f"be used with train_on {config.train_on}; leave one of them out"
        )
    if config.pair_columns:
        raise ConfigError(
            f"turns {config.turns} cannot be used with pair_columns: a pair is one document; leave "
            "one of them out"
        )


def _check_pairs(config: Options) -> None:
    if len(config.pair_columns) != 2 or config.pair_columns[0] == config.pair_columns[1]:
        raise ConfigError(
            f"pair_columns is {', '.join(config.pair_columns)}; expected two columns: "
            "chosen,rejected"
        )
    for key in ("text_template", "truncate_at", "response_column", "boundaries"):
        if getattr(config, key) is not None:
            raise ConfigError(
                f"{key} cannot be used with pair_columns, which define both sides; leave it out"
            )
    if config.input_ids_column not in (None, "auto"):
        raise ConfigError(
            "pair_columns name the columns with the token ids; give --input-ids-column auto"
        )
    for key in ("labels_column", "loss_mask_column"):
        names = getattr(config, key)
        if names is not None and names.count(",") != 1:
            raise ConfigError(
                f"{key} is {names}; expected a column for each side of a pair, such as "
                "chosen_labels,rejected_labels"
            )
    if config.messages_column not in (None, "auto"):
        raise ConfigError(
            "pair_columns name the columns with the conversations; give --messages-column auto"
        )
    if config.names == "hf":
        raise ConfigError(
            "names hf cannot be used with pair_columns: trainers that read these names would train "
            "on the rejected answers too; leave names out, and train with PackedLoader(sides=...)"
        )
    if config.strategy == "wrapped":
        raise ConfigError("strategy wrapped would split pairs; choose another strategy")
    if config.max_segments_per_pack == 1:
        raise ConfigError(
            "max_segments_per_pack is 1, but the sides of a pair are two segments of one pack; "
            "give 2 or more"
        )
    if config.overflow == "split":
        raise ConfigError(
            "overflow split would split pairs; leave it out, or choose truncate, drop or error"
        )
    if config.truncation_side == "balanced":
        raise ConfigError(
            "truncation_side balanced cannot be used with pair_columns: both sides are cut in "
            "proportion anyway; leave it out"
        )


def _check_executor(config: Options) -> None:
    for name, executor in EXECUTORS.items():
        for key in executor.options:
            if getattr(config, key) is not None and config.executor != name:
                raise ConfigError(
                    f"{key} is for executor {name}, not {config.executor}; give --executor {name}"
                )
    if (
        config.task_index is not None
        and config.task_index != MERGE
        and not re.fullmatch("[0-9]+", config.task_index)
    ):
        raise ConfigError(
            f"task_index is {config.task_index!r}, expected a number from 0, or {MERGE}"
        )
    values = {
        "keep_tokens": config.keep_tokens is not None,
        "isolate": config.isolate,
        "standard_input": "-" in config.sources,
    }
    for key, sentence in EXECUTORS[config.executor].refuses.items():
        if values[key]:
            raise ConfigError(sentence)


def _check_output(config: Options) -> None:
    in_a_store = "://" in config.output
    if not in_a_store and config.work_dir is not None:
        raise ConfigError("work_dir is for an output in a store; leave it out for a directory")
    if in_a_store and config.append:
        raise ConfigError(
            "append cannot change an output in a store; build the new files at another address, "
            "and merge the two"
        )
    if config.append and config.overwrite:
        raise ConfigError("append keeps the output and overwrite replaces it; give one of them")
    if config.append and config.is_mix:
        raise ConfigError(
            "append cannot keep the shares of a mix, which is drawn from all sources together; "
            "build the mix again with --overwrite and a token store (--keep-tokens)"
        )


def _check_packing(config: Options) -> None:
    if config.stride:
        if config.overflow != "split" or config.strategy == "wrapped":
            other = (
                "strategy wrapped"
                if config.strategy == "wrapped"
                else f"overflow {config.overflow}"
            )
            raise ConfigError(
                f"stride is for overflow split and has no meaning with {other}; leave it out"
            )
        later = config.max_length - config.continuation_bos  # document tokens of a later piece
        if config.stride >= later:
            raise ConfigError(
                f"stride is {config.stride:,} but a piece has {later:,} tokens of the document; "
                "choose a smaller stride"
            )
    if config.continuation_bos and (config.overflow != "split" or config.strategy == "wrapped"):
        raise ConfigError(
            "continuation_bos is for overflow split with a strategy other than wrapped"
        )
    if config.truncation_side != "right" and config.overflow != "truncate":
        raise ConfigError(f"truncation_side is for overflow truncate, not {config.overflow}")
    if config.truncation_side == "balanced" and config.strategy == "wrapped":
        raise ConfigError(
            "truncation_side balanced has no meaning with strategy wrapped; choose another strategy"
        )
    if config.train_overlap and not config.stride:
        raise ConfigError(
            "train_overlap is for tokens that stride repeats; give --stride or leave it out"
        )
    if config.max_length % config.pad_segment_to_multiple:
        raise ConfigError(
            f"max_length {config.max_length:,} is not a multiple of pad_segment_to_multiple "
            f"{config.pad_segment_to_multiple:,}; choose one that is"
        )
    if config.strategy == "wrapped":
        for key, neutral in (
            ("max_segments_per_pack", None),
            ("group_column", None),
            ("pad_segment_to_multiple", 1),
        ):
            if getattr(config, key) != neutral:
                raise ConfigError(
                    f"{key} cannot be used with strategy wrapped; choose another strategy"
                )
    if config.share_prefixes:
        _check_trees(config)
    elif config.group_prefix is not None:
        raise ConfigError(
            f"group_prefix {config.group_prefix} is for rows that share prefixes; give "
            "--share-prefixes too"
        )
    phases = config.phase_list() if config.min_pack_tokens else ()
    shortest = min([config.max_length, *(phase.max_length for phase in phases)])
    if config.min_pack_tokens > shortest:
        raise ConfigError(
            f"min_pack_tokens {config.min_pack_tokens:,} is more than max_length {shortest:,}; "
            "every pack would be dropped"
        )
    if config.num_packs is not None and config.strategy != "balanced":
        raise ConfigError(f"num_packs is for strategy balanced, not {config.strategy}")
    if (
        config.max_document_tokens is not None
        and config.max_document_tokens < config.min_document_tokens
    ):
        raise ConfigError(
            f"max_document_tokens {config.max_document_tokens:,} is less than min_document_tokens "
            f"{config.min_document_tokens:,}; every document would be dropped"
        )


def _check_trees(config: Options) -> None:
    """Raise ConfigError for options that cannot be used with trees."""
    for key, neutral, why in (
        ("strategy", None, "which would cut trees"),
        ("names", "packprep", "whose trainers would read a tree as documents"),
        ("pad_segment_to_multiple", 1, "because a row goes on in another segment"),
    ):
        value = getattr(config, key)
        if value == "wrapped" or (neutral is not None and value != neutral):
            raise ConfigError(
                f"share_prefixes cannot be used with {key} {value}, {why}; leave out one of them"
            )
    if config.truncation_side == "balanced":
        raise ConfigError(
            "share_prefixes cannot be used with truncation_side balanced, which leaves holes in "
            "rows; choose --truncation-side right or left"
        )


def _check_epochs(config: Options) -> None:
    if config.epochs > 1 and not config.repack:
        raise ConfigError(
            f"epochs is {config.epochs:,} and each would have the same packs, which a loader "
            "repeats anyway; add --repack for other neighbours in each epoch, or leave epochs out"
        )
    if config.repack and config.epochs == 1:
        raise ConfigError(
            "repack packs the documents once for each epoch, and epochs is 1; give --epochs"
        )
    if config.repack and config.order == "input":
        raise ConfigError(
            "order input keeps documents beside the same neighbours in every epoch; choose another "
            "order, or leave out repack"
        )


def _check_phases(config: Options) -> None:
    """Raise ConfigError for options that have no meaning with phases, or without them."""
    if not config.phases:
        return
    if config.append:
        raise ConfigError(
            "append cannot add to phases, which are drawn from all sources together; build again "
            "with --overwrite and a token store (--keep-tokens)"
        )
    if config.repack:
        raise ConfigError(
            "repack cannot be used with phases, each of which has documents of its own; leave out "
            "one of them"
        )
    if config.materialize == "index":
        raise ConfigError(
            "materialize index holds one length of packs, and each phase has its own; build the "
            "phases as shards"
        )
    if config.strategy == "balanced":
        raise ConfigError(
            "strategy balanced packs one window, and each phase has windows of its own; choose "
            "another strategy"
        )
