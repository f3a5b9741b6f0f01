"""Allowed values of the options of a build, alone and together with others.

Anything else is refused with a sentence.

Values come as Python, YAML and the command line write them. "64MB" is 64,000,000 bytes and "64MiB"
67,108,864.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, Literal, get_args, get_origin

from packprep.config import mix
from packprep.config.executors import EXECUTORS, MERGE
from packprep.config.options import COLUMN_CHOICE, Options
from packprep.support.errors import ConfigError, brief, nearest

# What a carried column may be, as the format has it (packprep.schemas, which takes too long to
# import for --help), and the names that columns of shards and token files have of their own.
CARRY_TYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "float64")
RESERVED = (
    "tokens",
    "position_ids",
    "cu_seqlens",
    "document_ids",
    "document_starts",
    "labels",
    "segment_lengths",
    "pair_ids",
    "pair_sides",
    "text",
    "ids",
    "group",
    "problem",
    "trained",
    "specials",
    "second",
    "pair_split",
)

ENDS_OF_TEMPLATE = (
    "the template of conversations writes BOS and EOS itself; leave --bos and --eos out"
)
_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


def value_of(spec: "Field[Any]", value: Any) -> Any:
    """The value of an option as BuildConfig keeps it, from what may be written for it.

    ConfigError if that is wrong.
    """
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
    return float(value) if spec.type is float else value


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


def _names(key: str, value: Any) -> tuple[str, ...]:
    """A tuple of names or numbers; they may also be one text with commas."""
    given = (
        [value]
        if isinstance(value, str) or (key == "weights" and isinstance(value, (int, float)))
        else value
    )
    kinds = (str, int, float) if key == "weights" else (str,)
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, kinds) for name in given):
        raise ConfigError(
            f"{key} is {brief(value)}, expected a list of "
            f"{'numbers' if key == 'weights' else 'names'}"
        )
    return tuple(name for part in given for name in map(str.strip, str(part).split(",")) if name)


def _sources(value: Any) -> tuple[str | dict[str, Any], ...]:
    """Names of sources, and tables that say more of one; one of either may stand alone."""
    value = [value] if isinstance(value, (str, os.PathLike, Mapping)) else value
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(one, (str, os.PathLike, Mapping)) for one in value
    ):
        raise ConfigError(
            f"sources is {brief(value)}, expected a list of names, or of tables with path and "
            "weight"
        )
    return tuple(_table(one) if isinstance(one, Mapping) else os.fspath(one) for one in value)


def _table(source: Mapping[Any, Any]) -> dict[str, Any]:
    """The table of a source with its keys as options are written."""
    table = {str(key).replace("-", "_"): value for key, value in source.items()}
    paths = table.get("path")
    if isinstance(paths, (list, tuple)):
        table["path"] = [
            os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths
        ]
    elif isinstance(paths, os.PathLike):
        table["path"] = os.fspath(paths)
    return table


def _json(variables: Mapping[Any, Any]) -> str:
    try:
        return json.dumps(variables, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"template_variables is {brief(variables)}, expected values of JSON: {error}"
        ) from None


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
        raise ConfigError(
            f"{key} is {brief(value)}, expected a size such as 500MB or 64MiB"
        ) from None


def check(config: Options) -> None:
    """ConfigError with the first thing that is wrong."""
    _check_ranges(config)
    _check_columns(config)
    _check_executor(config)
    _check_output(config)
    _check_packing(config)


def _check_ranges(config: Options) -> None:
    least = {
        "max_length": 2,
        "stride": 0,
        "min_len": 0,
        "max_len": 0,
        "limit": 1,
        "max_tokens": 1,
        "num_proc": 1,
        "max_memory": 1,
        "max_row_size": 1,
        "unit_timeout": 1,
        "num_tasks": 1,
        "min_loss_tokens": 0,
        "vocab_size": 1,
        "shard_size": 1,
        "unit_size": 1,
        "window": 1,
        "max_segments_per_pack": 1,
        "pad_segment_to_multiple": 1,
        "packs_multiple_of": 1,
        "balance_ranks": 1,
        "num_packs": 1,
        "seed": 0,
    }
    for key, bound in least.items():
        value = getattr(config, key)
        if value is not None and value < bound:
            raise ConfigError(f"{key} is {value:,}, expected at least {bound}")
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
    if config.truncate_at is not None:
        try:
            re.compile(config.truncate_at)
        except re.error as error:
            raise ConfigError(
                f"truncate_at {config.truncate_at!r} is not a regular expression: {error}"
            ) from None
    config.cost()


def _check_columns(config: Options) -> None:
    """Check the options that name the columns of a row."""
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
    if config.chats and config.input_ids_column is not None:
        raise ConfigError(
            "input_ids_column has token ids, and conversations are rendered; give one of them"
        )
    if not config.chats:
        for key in ("chat_template", "template_date", "template_variables"):
            if getattr(config, key) is not None:
                raise ConfigError(
                    f"{key} is for conversations; give --messages-column too, with auto to find it"
                )
    if config.input_ids_column is None:
        for key in ("labels_column", "loss_mask_column", "vocab_size"):
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
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
            raise ConfigError(
                f"carry {name!r} is no name for a column of a shard; rename it to letters, digits, "
                "_"
            )
        if name in RESERVED:
            instead = "give --labels-column" if name == "labels" else "rename the column"
            raise ConfigError(f"carry {name!r} is a name that packprep uses itself; {instead}")
        if names.count(name) > 1:
            raise ConfigError(f"carry names {name!r} twice; give it once")


def _check_pairs(config: Options) -> None:
    if len(config.pair_columns) != 2 or config.pair_columns[0] == config.pair_columns[1]:
        raise ConfigError(
            f"pair_columns is {', '.join(config.pair_columns)}; expected two columns: "
            "chosen,rejected"
        )
    for key in ("input_ids_column", "text_template", "truncate_at", "response_column"):
        if getattr(config, key) is not None:
            raise ConfigError(
                f"{key} has no meaning with pair_columns, which say what the two sides are"
            )
    if config.messages_column not in (None, "auto"):
        raise ConfigError(
            "pair_columns say where the conversations are; give --messages-column auto with them"
        )
    if config.overflow == "split" or config.strategy == "wrapped":
        what = "strategy wrapped" if config.strategy == "wrapped" else "overflow split"
        raise ConfigError(
            f"{what} would tear pairs apart; choose --overflow truncate, drop or error"
        )
    if config.truncation_side == "balanced":
        raise ConfigError(
            "truncation_side balanced is for one side; pairs are cut in proportion by themselves"
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
    has = {
        "keep_tokens": config.keep_tokens is not None,
        "isolated": config.isolated,
        "standard_input": "-" in config.sources,
        "restart": config.restart,
    }
    for key, sentence in EXECUTORS[config.executor].refuses.items():
        if has[key]:
            raise ConfigError(sentence)


def _check_output(config: Options) -> None:
    in_a_store = "://" in config.output
    if not in_a_store and config.work_dir is not None:
        raise ConfigError(
            "work_dir is for an output in a store; a directory is made beside where it will be"
        )
    if in_a_store and config.overwrite:
        raise ConfigError(
            "overwrite is for a directory, which is swapped at once: in a store readers would see "
            "a mix of old and "
            "new; choose another -o, and delete the old output when nobody reads it"
        )
    if in_a_store and config.append:
        raise ConfigError(
            "append is for a directory, which is swapped at once; build what is new at another "
            "address, and merge "
            "the two"
        )
    if config.append and config.overwrite:
        raise ConfigError("append keeps the output and overwrite replaces it; give one of them")
    if config.append and mix.is_mix(config.entries()):
        raise ConfigError(
            "append cannot keep the shares of a mix, which are drawn from all of its sources "
            "together; "
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
        own = config.max_length - config.continuation_bos
        if config.stride >= own:
            raise ConfigError(
                f"stride is {config.stride:,} but a piece has {own:,} tokens of its own; choose a "
                "smaller stride"
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
                    f"{key} cannot be held by strategy wrapped; choose another strategy"
                )
    if config.num_packs is not None and config.strategy != "balanced":
        raise ConfigError(f"num_packs is for strategy balanced, not {config.strategy}")
    if config.max_len is not None and config.max_len < config.min_len:
        raise ConfigError(
            f"max_len {config.max_len:,} is less than min_len {config.min_len:,}; no document "
            "would stay"
        )
