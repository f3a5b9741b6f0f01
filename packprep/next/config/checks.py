"""Checks of options against each other: each is an `if` and a sentence."""

import re
from dataclasses import fields
from pathlib import Path

from ..schemas.columns import DEFAULT_COLUMNS
from ..support.errors import ConfigError
from .grammar import Carried, Executor, Part, flag, wrong
from .options import BuildConfig

COLUMN_CHOICE = tuple(name for name in DEFAULT_COLUMNS if name not in ("tokens", "cu_seqlens"))
_TEXT, _IDS = ("text", "truncate_at"), ("split_at",)
_CHAT = ("chat_template", "template_variables", "train_on", "turns")
_ENDS = ("bos", "eos")
_NOTHING = {  # options that can do nothing with a kind of rows, and why
    "text": {**dict.fromkeys(_CHAT, "of chats: give --messages too"), "split_at": "of --ids"},
    "messages": {
        **dict.fromkeys(_TEXT, "of text, and rows are conversations"),
        **dict.fromkeys(_IDS, "of --ids"),
        **dict.fromkeys(_ENDS, "of text: the chat template writes BOS and EOS"),
    },
    "ids": {
        **dict.fromkeys(_TEXT, "of text, and rows are token ids"),
        **dict.fromkeys(_CHAT, "of chats, and rows are token ids"),
    },
    "pieces": {
        **dict.fromkeys(_TEXT, "of text, and rows are pieces"),
        **dict.fromkeys(_CHAT, "of chats: `train` of a piece says what is trained"),
        **dict.fromkeys(_IDS, "of --ids"),
    },
    "pairs": {"truncate_at": "of text", "split_at": "of --ids", "turns": "of single chats"},
}
_WRAPPED = ("max_segments", "group", "stride", "continuation_bos", "shuffle_documents")


def kind_of_rows(config: BuildConfig) -> str:
    """Return pairs, messages, ids, pieces or text; token files alone say that rows are ids."""
    kinds = ("pairs", "messages", "ids", "pieces")
    named = next((kind for kind in kinds if getattr(config, kind) is not None), None)
    return named or ("ids" if names_token_files(config) else "text")


def names_token_files(config: BuildConfig) -> bool:
    """True if a source is a file of token ids, or Megatron's name for a .bin and its .idx."""
    paths = [source for source in config.sources if isinstance(source, str)]
    return any(
        path.endswith((".bin", ".idx", ".npy", ".ds")) or Path(f"{path}.idx").is_file()
        for path in paths
    )


def is_set(config: BuildConfig, option: str) -> bool:
    """True if an option has another value than its default."""
    default = next(spec.default for spec in fields(BuildConfig) if spec.name == option)
    return bool(getattr(config, option) != default)


def check(config: BuildConfig) -> None:
    """Raise ConfigError for the first option that is wrong, or can do nothing in this build."""
    _check_values(config)
    _check_rows(config)
    _check_cutting(config)
    _check_amounts(config)
    _check_running(config)
    _check_later(config)


def _check_values(config: BuildConfig) -> None:
    carried = [Carried.parse(each).name for each in config.carry]
    for name in carried:
        if carried.count(name) > 1:
            raise ConfigError(f"--carry names {name!r} twice; give it once")
    Executor.parse(config.executor)
    for parsed in ("packer", "too_long", "pack_order", "multiples", "held_out"):
        getattr(config, parsed)
    if config.truncate_at is not None:
        try:
            re.compile(config.truncate_at)
        except re.error as error:
            raise ConfigError(
                f"--truncate-at {config.truncate_at!r} is not a regular expression: {error}"
            ) from None
    if config.split_at is not None and not re.fullmatch(
        r"(eos|bos)(:[0-9]{1,9})?", config.split_at
    ):
        wrong("split_at", config.split_at, "eos or bos, or one of them with an id, such as eos:2")
    if not isinstance(config.columns, str):
        for name in config.columns or ():
            if name not in (*COLUMN_CHOICE, "tokens", "cu_seqlens"):
                wrong("columns", name, f"hf, plan, or some of {', '.join(COLUMN_CHOICE)}")
    elif config.columns not in ("hf", "plan"):
        wrong("columns", config.columns, f"hf, plan, or some of {', '.join(COLUMN_CHOICE)}")


def _check_rows(config: BuildConfig) -> None:
    kinds = [k for k in ("messages", "ids", "pieces") if getattr(config, k) is not None]
    if len(kinds) > 1:
        raise ConfigError(
            f"{flag(kinds[0])} and {flag(kinds[1])} both say what a row is; give one of them"
        )
    kind = kind_of_rows(config)
    for option, why in _NOTHING[kind].items():
        if is_set(config, option):
            raise ConfigError(f"{flag(option)} can do nothing here: it is {why}; leave it out")
    if config.pairs is not None:
        names = config.pairs.split(",")
        if len(names) not in (2, 3) or len(set(names)) != len(names) or not all(names):
            wrong("pairs", config.pairs, "two columns, chosen,rejected, or PROMPT,CHOSEN,REJECTED")
        if config.columns == "hf":
            raise ConfigError(
                "--columns hf cannot be used with --pairs: trainers that read these names would "
                "train on rejected answers too; leave it out"
            )
    if isinstance(config.tokenizer, int) and kind != "ids":
        raise ConfigError("--tokenizer is a number, which is for --ids; name a tokenizer")


def _check_cutting(config: BuildConfig) -> None:
    length, overflow = int(config.max_length), config.too_long
    if config.strategy == "wrapped":
        for option in (*_WRAPPED, "pairs", "pad_to_multiple"):
            if is_set(config, option):
                raise ConfigError(
                    f"--strategy wrapped cannot be used with {flag(option)}: it cuts the text "
                    "where packs end; choose another strategy"
                )
    if overflow.name != "split" and (config.stride or config.continuation_bos):
        option = "stride" if config.stride else "continuation_bos"
        raise ConfigError(
            f"{flag(option)} is for --overflow split, not {overflow.name}; leave out one of them"
        )
    if config.pairs is not None and overflow.name == "split":
        raise ConfigError("--overflow split would split pairs; choose truncate, drop or error")
    labelled = config.messages or config.pieces or config.pairs or "," in (config.ids or "")
    if overflow.how == "balanced" and (
        not labelled or config.pairs or config.strategy == "wrapped"
    ):
        raise ConfigError(
            "--overflow truncate:balanced is for rows with a prompt and a response; choose "
            "truncate or truncate:left"
        )
    if config.shuffle_documents and config.packer.name not in (
        "stream",
        "greedy",
        "first_fit_input",
    ):
        raise ConfigError(
            "shuffle_documents is for strategy stream, greedy or first_fit_input; leave it out"
        )
    later = length - config.continuation_bos
    if int(config.stride) >= later:
        wrong("stride", config.stride, f"fewer than the {later:,} tokens of a piece")
    most = config.max_document_tokens
    if most is not None and int(most) < int(config.min_document_tokens):
        raise ConfigError(
            f"--max-document-tokens {most:,} is less than --min-document-tokens "
            f"{config.min_document_tokens:,}; every document would be dropped"
        )
    multiple = int(config.pad_to_multiple)
    if length % multiple:
        raise ConfigError(
            f"--max-length {length:,} is not a multiple of --pad-to-multiple {multiple:,}; choose "
            "one that is"
        )
    if config.pairs is not None and (length < 2 * multiple or config.max_segments == 1):
        raise ConfigError("a pack has no room for the two sides of a pair; make it larger")
    if int(config.min_pack_tokens) > length:
        raise ConfigError(
            f"--min-pack-tokens {config.min_pack_tokens:,} is more than --max-length {length:,}; "
            "every pack would be dropped"
        )
    if config.epoch and config.pack_order.name == "input":
        raise ConfigError(
            "--epoch gives documents other neighbours, and --order input keeps their order; leave "
            "out one of them"
        )


def _check_amounts(config: BuildConfig) -> None:
    if config.weights and len(config.weights) != len(config.sources):
        raise ConfigError(
            f"--weights has {len(config.weights)} shares for {len(config.sources)} sources; give "
            "one for each"
        )
    if config.weights and config.pack_order.name == "input":
        raise ConfigError(
            "--order input reads sources in order, and a mix draws from them; choose another order"
        )


def _check_running(config: BuildConfig) -> None:
    if config.part is None:
        return
    Part.parse(config.part)
    for option in ("overwrite", "limit"):
        if is_set(config, option):
            raise ConfigError(f"--part cannot be used with {flag(option)}; leave out one of them")
    if config.executor != "local":
        raise ConfigError("--part is for a scheduler, and --executor ray is one; leave out one")
    if "-" in config.sources:
        raise ConfigError("standard input cannot be read by every part; give files")


def _check_later(config: BuildConfig) -> None:
    """Refuse what this edition cannot do yet."""
    later = {
        flag(name): is_set(config, name) for name in ("weights", "max_tokens", "after", "part")
    }
    later["--executor ray"] = Executor.parse(config.executor).name == "ray"
    later["--columns plan"] = config.columns == "plan"
    for option, asked in later.items():
        if asked:
            raise ConfigError(f"{option} is not there yet in this edition; leave it out")
