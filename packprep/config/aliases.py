"""Options of earlier versions, and the options that replace them.

An earlier option works as before, on the command line, in YAML and in Python: its value is folded
into the new option. The identity of an output, which manifests and reports record, has the earlier
names and values.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from os import PathLike
from typing import Any

from packprep.config.grammar.amounts import count_of
from packprep.config.grammar.label_columns import LabelColumns, with_label_kind, without_mask
from packprep.config.grammar.rules import flag
from packprep.config.grammar.settings import AUTO, PartKind, Setting
from packprep.config.grammar.source_names import at_revision, hub_tokenizer
from packprep.config.grammar.spellings import RENAMED, recorded_name, silent
from packprep.config.options import Options
from packprep.config.stages import LEAST_SHARED, options_in
from packprep.support.errors import ConfigError, brief

_SPECS = {spec.name: spec for spec in fields(Options)}
_SETTINGS: Mapping[str, type[Setting]] = {
    name: setting for name, spec in _SPECS.items() if (setting := spec.metadata["setting"])
}
_TABLES = {"sources": "source", "phases": "phase"}


@dataclass(frozen=True, kw_only=True)
class Alias:
    """An option of earlier versions.

    option: the one that replaces it.
    fold: (options, value) -> the options that the value changes. Raises ConfigError if it is wrong
    or disagrees with them.
    rest: the value of `option` without what this one says; None if nothing is left.
    metavar: the name of the value on the command line; "" for a switch.
    says: the end of the line about it; "" for the new value.
    in_tables: true for a key of a table in `sources` or `phases` too.
    """

    option: str
    fold: Callable[[Mapping[str, object], object], Mapping[str, object]]
    rest: Callable[[object], object] = lambda _: None
    metavar: str = "VALUE"
    says: str = ""
    in_tables: bool = False


def disagree(earlier: str, value: object, option: str, other: object) -> ConfigError:
    """The error for an earlier option that contradicts the one that replaces it."""
    return ConfigError(
        f"{flag(earlier)} {value} and {flag(option)} {other} disagree; leave out {flag(earlier)}"
    )


def default_overflow(options: Mapping[str, object]) -> str:
    """The overflow of a build whose options name none: split, but truncate for pairs."""
    return "truncate" if options.get("pair_columns") else "split"


def _of_part(option: str, spec: "Field[Any]", earlier: str, kind: PartKind) -> Alias:
    """An alias whose value is one part of the option."""
    setting = _SETTINGS[option]

    def fold(options: Mapping[str, object], value: object) -> Mapping[str, object]:
        if value is None:
            return {}
        if (read := kind.read(str(value))) is None:
            raise ConfigError(f"{flag(earlier)} is {brief(value)}, expected {kind.expected}")
        given = options.get(option)
        default = default_overflow(options) if option == "overflow" else setting()
        stated = setting.stated(option, default if given is None else given)
        if given is None and spec is fields(setting)[0]:
            stated = {}
        first = next(iter(stated.values()), None)
        if not setting.allows(spec.name, first):
            if read == spec.default:
                return {}
            needed = f"{flag(option)} {' or '.join(sorted(spec.metadata['of'], reverse=True))}"
            raise ConfigError(
                f"{flag(earlier)} is for {needed}, not {first}; give {needed} too, or leave out "
                f"{flag(earlier)}"
            )
        if stated.get(spec.name, read) != read:
            raise disagree(earlier, value, option, given)
        return {option: str(setting(**stated | {spec.name: read}))}

    def rest(value: object) -> object:
        stated = setting.stated(option, value)
        kept = {name: part for name, part in stated.items() if name != spec.name}
        return value if kept == stated else str(setting(**kept))

    return Alias(option=option, fold=fold, rest=rest)


def _parts() -> Iterable[tuple[str, Alias]]:
    for option, setting in _SETTINGS.items():
        for spec in fields(setting):
            if (earlier := spec.metadata["earlier"]) != option:
                yield earlier, _of_part(option, spec, earlier, spec.metadata["kind"])


def _renamed(earlier: str, option: str) -> Alias:
    def fold(options: Mapping[str, object], value: object) -> Mapping[str, object]:
        if options.get(option, value) != value:
            raise disagree(earlier, value, option, options[option])
        return {option: value}

    return Alias(option=option, fold=fold, in_tables=True)


def _shuffle(option: str = "order") -> Alias:
    words = {"True": "shuffle", "False": "input"}
    kind = PartKind(expected="true or false", read=words.get)
    alias = _of_part(option, fields(_SETTINGS[option])[0], "shuffle", kind)
    return Alias(option=option, fold=alias.fold, metavar="")


def _switched(earlier: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{flag(earlier)} is {brief(value)}, expected true or false")


def _repack(options: Mapping[str, object], value: object) -> Mapping[str, object]:
    epochs = options.get("epochs", 1)
    several = epochs != 1 and count_of(str(epochs)) != 1
    if _switched("repack", value) and not several:
        raise ConfigError(
            "--repack packs the documents once for each epoch, and --epochs is 1; give --epochs"
        )
    if several and not value:
        raise disagree("repack", "false", "epochs", epochs)
    return {}


def _isolate(options: Mapping[str, object], value: object) -> Mapping[str, object]:
    executor = options.get("executor", "local")
    if not _switched("isolate", value):
        if executor == "isolated":
            raise disagree("isolate", "false", "executor", executor)
        return {}
    if str(executor).partition(":")[0] == "ray":
        raise ConfigError(
            "--executor ray cannot be used with --isolate: ray replaces processes that die "
            "already; leave it out"
        )
    of_array = {"part": options.get("part") or AUTO} if executor == "array" else {}
    return {"executor": "isolated"} | of_array


def _text(option: str, value: object) -> str | None:
    """The value of an option that is text, or None."""
    if isinstance(value, str | None):
        return value
    raise ConfigError(f"{flag(option)} is {brief(value)}, expected text")


def _part_of_source(key: str, now: str) -> Alias:
    """An alias for a part of all datasets among the sources."""

    def fold(options: Mapping[str, object], value: object) -> Mapping[str, object]:
        value = _text(key, value)
        sources = options.get("sources", ())
        several = [sources] if isinstance(sources, (str, PathLike, Mapping)) else sources
        if value is None or not isinstance(several, (list, tuple)):
            return {"sources": sources}
        return {"sources": [_given(source, key, value) for source in several]}

    return Alias(
        option="sources",
        fold=fold,
        rest=lambda value: value,
        says=f"part of the source now: {now}",
    )


def _given(source: object, key: str, value: str) -> object:
    """The table of a source, with what is asked of all sources; not part of its own options."""
    table = {"path": source} if isinstance(source, (str, PathLike)) else source
    if not isinstance(table, Mapping) or not isinstance(given := table.get("given", {}), Mapping):
        return source
    return {**table, "given": {**given, key: value}}


def _tokenizer_revision(options: Mapping[str, object], value: object) -> Mapping[str, object]:
    tokenizer = options.get("tokenizer")
    value = _text("tokenizer_revision", value)
    if isinstance(tokenizer, str) and hub_tokenizer(tokenizer)[1] not in (None, value):
        raise disagree("tokenizer_revision", value, "tokenizer", tokenizer)
    return {"tokenizer": at_revision(tokenizer, value)}


def _loss_mask(options: Mapping[str, object], value: object) -> Mapping[str, object]:
    labels = options.get("labels_column")
    if value is None or not isinstance(labels, str | None):
        return {}
    value = _text("loss_mask_column", value)
    named = LabelColumns.parse(labels)
    if named.mask not in (None, value):
        raise disagree("loss_mask_column", value, "labels_column", labels)
    return {"labels_column": str(replace(named.of_kind("labels"), mask=value))}


def _min_shared(options: Mapping[str, object], value: object) -> Mapping[str, object]:
    """Fold it into shared prefixes; without them it means nothing, as before."""
    least, given = count_of(str(value)), str(options.get("share_prefixes", False)).lower()
    if least is None or least < 1:
        raise ConfigError(f"--min-shared is {brief(value)}, expected a whole number of at least 1")
    if given in ("false", "0"):
        return {}
    if given != "true" and count_of(given) != least:
        raise disagree("min_shared", value, "share_prefixes", given)
    return {"share_prefixes": least}


ALIASES: Mapping[str, Alias] = {
    **{earlier: _renamed(earlier, option) for earlier, option in RENAMED.items()},
    "shuffle": _shuffle(),
    **dict(_parts()),
    "repack": Alias(option="epochs", fold=_repack, rest=lambda value: value, metavar=""),
    "isolate": Alias(
        option="executor",
        fold=_isolate,
        rest=lambda value: "local" if value == "isolated" else value,
        metavar="",
    ),
    "name": _part_of_source("name", "hub:ORG/SET:NAME"),
    "split": _part_of_source("split", "hub:ORG/SET#SPLIT, or DIR/SPLIT of a saved DatasetDict"),
    "revision": _part_of_source("revision", "hub:ORG/SET@REVISION"),
    "tokenizer_revision": Alias(
        option="tokenizer",
        fold=_tokenizer_revision,
        rest=lambda value: hub_tokenizer(value)[0] if isinstance(value, str) else value,
    ),
    "loss_mask_column": Alias(
        option="labels_column",
        fold=_loss_mask,
        rest=lambda value: without_mask(str(value)),
        in_tables=True,
    ),
    "min_shared": Alias(
        option="share_prefixes", fold=_min_shared, rest=lambda value: str(value) != "0"
    ),
}
"""Earlier option -> what replaces it, in the order of folding."""


def respelled(
    options: Mapping[str, object],
    say: Callable[[str], None] = silent,
    spelled: Callable[[str], str] = str,
    but: Iterable[str] = (),
) -> dict[str, Any]:
    """The options with new ones for earlier ones. Raises ConfigError if both disagree.

    say: prints a line for each earlier option. spelled: an option as the user typed it. but: new
    options with several values, for which the earlier ones are kept.
    """
    kept = frozenset(but)
    new: dict[str, Any] = {**options}
    aliases = {earlier: alias for earlier, alias in ALIASES.items() if earlier in options}
    for earlier, alias in aliases.items():
        if alias.option not in kept:
            new |= alias.fold(new, new.pop(earlier))
    for earlier, alias in aliases.items():
        typed, option = spelled(earlier), alias.option
        option = flag(option) if typed.startswith("-") else option
        if earlier in RENAMED:
            say(f"{typed} is called {option} now")
        elif alias.option in kept:
            say(f"{typed} is part of {option} now")
        elif alias.says:
            say(f"{typed} is {alias.says}")
        else:
            say(f"{typed} is {option} {new.get(alias.option, _SPECS[alias.option].default)} now")
    for option, place in _TABLES.items():
        if option in new:
            new[option] = _in_tables(new[option], place, say)
    return new


def _in_tables(value: object, place: str, say: Callable[[str], None]) -> object:
    """A list of tables with new keys; what is no such list unchanged."""
    tables = [value] if place == "source" and isinstance(value, Mapping) else value
    try:
        tables = json.loads(tables) if place == "phase" and isinstance(tables, str) else tables
    except (ValueError, RecursionError):
        return value
    if not isinstance(tables, (list, tuple)):
        return tables
    return [
        _in_table(each, f"{place} {number}: ", say) if isinstance(each, Mapping) else each
        for number, each in enumerate(tables, 1)
    ]


def _in_table(
    table: Mapping[object, object], where: str, say: Callable[[str], None]
) -> dict[str, object]:
    keys = {str(key).replace("-", "_"): value for key, value in table.items()}
    for earlier, alias in ALIASES.items():
        if alias.in_tables and earlier in keys:
            try:
                keys |= alias.fold(keys, keys.pop(earlier))
            except ConfigError as error:
                raise ConfigError(f"{where}{error.args[0]}") from None
            option = alias.option
            now = f"called {option}" if earlier in RENAMED else f"{option} {keys.get(option)}"
            say(f"{where}{earlier} is {now} now")
    return keys


def over(lower: Mapping[str, object], upper: Mapping[str, object]) -> dict[str, Any]:
    """The options of two places, such as a file and a command line; those of `upper` win."""
    below = dict(lower)
    for earlier, alias in ALIASES.items():
        option = alias.option
        if earlier in upper and option in below and option not in upper:
            below[option] = alias.rest(below[option])
            if below[option] is None:
                del below[option]
        elif (
            earlier in below.keys() - upper.keys()
            and option in upper
            and alias.rest(upper[option]) != upper[option]
        ):
            del below[earlier]
    return {**below, **upper}


def recorded(option: str, value: Any) -> dict[str, Any]:
    """An option by its earlier names, as the identity of an output has it."""
    if setting := _SETTINGS.get(option):
        return setting.parse(option, value).recorded()
    if option == "labels_column":
        return {**LabelColumns.parse(value).recorded()}
    if option == "share_prefixes":
        return {option: value > 0, "min_shared": value or LEAST_SHARED}
    if option == "epochs":
        return {option: value, "repack": value > 1}
    return {recorded_name(option): list(value) if isinstance(value, tuple) else value}


def recorded_in(*stages: type) -> frozenset[str]:
    """Earlier names of the options of these stages."""
    return frozenset(
        name
        for option in options_in(*stages)
        if _SPECS[option].default is not None or option not in _SETTINGS
        for name in recorded(option, _SPECS[option].default)
    )


def from_recorded(options: Mapping[str, object]) -> dict[str, Any]:
    """The options of an identity by their names now, as far as they fit together."""
    options = with_label_kind(options, "labels")
    try:
        return respelled(options)
    except ConfigError:  # those of merged outputs that differ are missing
        return {RENAMED.get(key, key): value for key, value in options.items()}
