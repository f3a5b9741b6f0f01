"""Checks of options against each other: each is an `if` and a sentence."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..schemas.columns import CHOICES, STANDARD
from ..support.errors import ConfigError
from .grammar import ONE_BY_ONE, Carried, Part, count_of, flag, parts_of, share_of, wrong

if TYPE_CHECKING:
    from .options import BuildConfig
FUNCTION = re.compile(r"\.py:\w+$")
"""End of a chat template that is a function in Python."""

_KEYS = ("path", "weight", "max_epochs", "limit", "text", "ids", "sample_by")  # of a source


def kind_of_rows(config: "BuildConfig") -> str:
    """Return pairs, messages, ids, pieces or text; token files alone say that rows are ids."""
    kinds = ("pairs", "messages", "ids", "pieces")
    named = next((kind for kind in kinds if getattr(config, kind) is not None), None)
    return named or ("ids" if names_token_files(config.sources) else "text")


def kind_of_sides(config: "BuildConfig") -> str:
    """Return the kind of rows, of pairs that of both sides."""
    kind = kind_of_rows(config)
    if kind != "pairs":
        return kind
    named = [each for each in ("messages", "ids", "pieces") if config.is_set(each)]
    prompted = str(config.pairs).count(",") == 2
    return named[0] if named else "messages" if prompted else "text"


def names_token_files(sources: Sequence[Any]) -> bool:
    """True if a source is a file of token ids, or Megatron's name for a .bin and its .idx."""
    paths = [source for source in sources if isinstance(source, str)]
    with_index = [path for path in paths if os.path.isfile(f"{path}.idx")]  # noqa: PTH113 - any text
    return bool(with_index) or any(path.endswith((".bin", ".idx", ".npy", ".ds")) for path in paths)


def check(config: "BuildConfig") -> None:
    """Raise ConfigError for the first option that is wrong, or can do nothing in this build."""
    _check_rows(config)
    for checks, options in _CHECKS.items():
        if any(map(config.is_set, options)):
            checks(config)
    mix_of(config)


def _check_values(config: "BuildConfig") -> None:
    carried = [Carried.parse(each).name for each in config.carry]
    for name in carried:
        if carried.count(name) > 1:
            raise ConfigError(f"--carry names {name!r} twice; give it once")
        if name in (*STANDARD, "row", "part", "text", "ids", "pieces", "mask", "group"):
            raise ConfigError(
                f"--carry {name!r} is a column name that packprep uses; rename the column"
            )
    for parsed in ("packer", "too_long", "pack_order", "multiples", "held_out"):
        getattr(config, parsed)
    parts_of("executor", config.executor, ("local", "ray"))
    try:
        re.compile(config.truncate_at or "")
    except re.error as error:
        wrong("truncate_at", config.truncate_at, f"a regular expression: {error}")
    if not re.fullmatch(r"(eos|bos)(:[0-9]{1,9})?", config.split_at or "eos"):
        wrong("split_at", config.split_at, "eos or bos, or one of them with an id, such as eos:2")
    for name in config.columns or ():
        if config.columns not in (("hf",), ("plan",)) and name not in CHOICES:
            wrong("columns", name, f"hf or plan alone, or some of {', '.join(CHOICES)}")


def _check_rows(config: "BuildConfig") -> None:
    kind = kind_of_rows(config)
    named = [each for each in ("messages", "ids", "pieces") if config.is_set(each)]
    if len(named) > 1:
        _check_apart(config, flag(named[0]), named[1:], "both say what a row is")
    for spec in fields(config):
        rows = spec.metadata.get("rows", kind)
        if kind not in rows.split(", ") and config.is_set(spec.name):
            raise ConfigError(
                f"{flag(spec.name)} can do nothing here: it is for rows of {rows}, and these are "
                f"{kind}; leave it out"
            )
    if isinstance(config.tokenizer, int) and kind_of_sides(config) != "ids":
        raise ConfigError("--tokenizer is a number, which is for --ids; name a tokenizer")


def _check_apart(config: "BuildConfig", asked: str, options: Sequence[str], why: str) -> None:
    """Raise ConfigError if one of these options is set besides what is asked for."""
    for option in options:
        if config.is_set(option):
            raise ConfigError(
                f"{asked} and {flag(option)} cannot be used together: {why}; leave out one of them"
            )


def _check_pairs(config: "BuildConfig") -> None:
    names = str(config.pairs).split(",")
    if len(names) not in (2, 3) or len(set(names)) != len(names) or not all(names):
        wrong("pairs", config.pairs, "two columns, chosen,rejected, or PROMPT,CHOSEN,REJECTED")
    if config.too_long.name == "split":
        raise ConfigError("--overflow split would split pairs; choose truncate, drop or error")
    if config.columns == ("hf",):
        raise ConfigError(
            "--columns hf cannot be used with --pairs: trainers that read these names would train "
            "on rejected answers too; leave it out"
        )
    if (sides := kind_of_sides(config)) in ("ids", "text"):
        others = ["chat_template", "template_variables", "train_on"]
        _check_apart(config, f"--pairs of {sides}", others, "no chat is rendered")
    if config.max_length < 2 * config.pad_to_multiple or config.max_segments == 1:
        raise ConfigError(
            "a pair is 2 segments of a pack, and a pack has room for 1; make it larger"
        )


def _check_part(config: "BuildConfig") -> None:
    Part.parse(str(config.part))
    others = ["overwrite", "limit", "executor"]
    _check_apart(config, "--part", others, "a scheduler runs all parts at once")
    if "-" in config.sources:
        raise ConfigError("standard input cannot be read by every part; give files")
    if any("limit" in entry for entry in entries_of(config)):
        raise ConfigError("a source has a limit, which parts cannot keep; leave it or --part out")


def _check_together(config: "BuildConfig") -> None:
    strategy, overflow = config.packer.name, config.too_long
    if strategy == "wrapped":
        others = ["max_segments", "group", "stride", "continuation_bos", "shuffle_documents"]
        others += ["pairs", "pad_to_multiple"]
        _check_apart(config, "--strategy wrapped", others, "it cuts the text where packs end")
    if overflow.name != "split":
        others = ["stride", "continuation_bos"]
        _check_apart(config, f"--overflow {overflow.name}", others, "split alone makes pieces")
    if config.pack_order.name == "input":
        others = ["epoch", "weights"]
        _check_apart(config, "--order input", others, "it keeps the order of the sources")
    if config.after is not None:
        _check_apart(config, "--after", ("limit",), "its output has other rows then")
    pieces = FUNCTION.search(config.chat_template or "") or kind_of_sides(config) == "pieces"
    if pieces and (config.turns != "row" or config.train_on == "last-turn"):
        raise ConfigError("pieces say what is trained; leave out --turns and --train-on last-turn")
    if config.turns != "row" and config.train_on != "assistant":
        raise ConfigError(
            "--turns trains the answer of each turn; leave out --train-on, or --turns"
        )
    labelled = config.messages or config.pieces or "," in (config.ids or "")
    if overflow.how == "balanced" and (not labelled or strategy == "wrapped"):
        raise ConfigError(
            "--overflow truncate:balanced is for rows with a prompt and a response; choose "
            "truncate or truncate:left"
        )
    if config.shuffle_documents and strategy not in ONE_BY_ONE:
        names = ", ".join(ONE_BY_ONE)
        raise ConfigError(f"shuffle_documents is for the strategies {names}; leave it out")


def _check_numbers(config: "BuildConfig") -> None:
    length, later = config.max_length, config.max_length - config.continuation_bos
    least, most = config.min_document_tokens, config.max_document_tokens
    multiple = config.pad_to_multiple
    if config.stride >= later:
        wrong("stride", config.stride, f"fewer than the {later:,} tokens of a piece")
    if most is not None and most < least:
        raise ConfigError(
            f"--max-document-tokens {most:,} is less than --min-document-tokens {least:,}; every "
            "document would be dropped"
        )
    if length % multiple:
        raise ConfigError(
            f"--max-length {length:,} is not a multiple of --pad-to-multiple {multiple:,}; choose "
            "one that is"
        )
    if config.min_pack_tokens > length:
        raise ConfigError(
            f"--min-pack-tokens {config.min_pack_tokens:,} is more than --max-length {length:,}; "
            "every pack would be dropped"
        )


_CHECKS: dict[Callable[["BuildConfig"], None], tuple[str, ...]] = {
    _check_values: (
        *("carry", "strategy", "overflow", "order", "multiple", "holdout", "executor"),
        *("truncate_at", "split_at", "columns"),
    ),
    _check_pairs: ("pairs",),
    _check_part: ("part",),
    _check_together: (
        *("strategy", "overflow", "order", "stride", "continuation_bos", "after", "turns"),
        *("shuffle_documents", "chat_template", "train_on"),
    ),
    _check_numbers: ("stride", "max_document_tokens", "pad_to_multiple", "min_pack_tokens"),
}
"""Checks with the options that they are about: nothing is wrong where all have their defaults."""


def entries_of(config: "BuildConfig") -> list[dict[str, Any]]:
    """The entries of `sources`: `path`, a list, and the options that each has of its own."""
    entries: list[Any] = [{**s} if isinstance(s, Mapping) else {"path": s} for s in config.sources]
    for entry in entries:
        path = entry.get("path")
        entry["path"] = path if isinstance(path, list | tuple) else [path]
        if not path or not all(isinstance(each, str) and each for each in entry["path"]):
            raise ConfigError(f"a source has path {path!r}; expected a file, or a list of files")
        where = f"source {entry['path'][0]}"
        if unknown := sorted(map(str, {*entry} - {*_KEYS})):
            raise ConfigError(
                f"{where} has the unknown key {unknown[0]!r}, expected one of {', '.join(_KEYS)}"
            )
        if {"text", "sample_by"} & {*entry} and ("ids" in entry or kind_of_rows(config) != "text"):
            raise ConfigError(f"{where} has other rows than text; leave out text and sample_by")
        if (count_of(entry.get("limit", 1)) or 0) < 1:
            raise ConfigError(f"{where}: limit is {entry['limit']}, expected at least 1")
    return entries


def mix_of(config: "BuildConfig") -> list[tuple[Fraction, Fraction]]:
    """Weight and max_epochs of each source; [] without weights. Raises ConfigError."""
    entries = entries_of(config)
    if config.weights or any({"weight", "max_epochs"} & entry.keys() for entry in entries):
        return _mix(config, entries)
    return []


def _mix(config: "BuildConfig", tables: list[dict[str, Any]]) -> list[tuple[Fraction, Fraction]]:
    """See `mix_of`. A token store may have several sources, so weights may be more than tables."""
    if config.weights:
        if any("weight" in table for table in tables) or len(config.weights) < len(tables):
            raise ConfigError(
                f"--weights has {len(config.weights)} shares for {len(tables)} sources; give one "
                "for each, or each source a weight of its own"
            )
        tables += [{"path": ["of the store"]}] * (len(config.weights) - len(tables))
        tables = [{**t, "weight": w} for t, w in zip(tables, config.weights, strict=True)]
    is_mix = any("weight" in table for table in tables)
    if is_mix and config.pack_order.name == "input":
        raise ConfigError("a mix draws from its sources, and --order input keeps their order")
    mix = []
    for table in tables:
        if "weight" not in table and (is_mix or "max_epochs" in table):
            raise ConfigError(
                f"source {table['path'][0]} has no weight, which all sources of a mix need; add it"
            )
        weight, most = share_of(table.get("weight", 1)), share_of(table.get("max_epochs", 1))
        if not weight or not most:
            name = "max_epochs" if weight else "weight"
            raise ConfigError(
                f"source {table['path'][0]}: {name} is {table[name]}, expected a number above 0"
            )
        if is_mix:
            mix.append((weight, most))
    return mix
