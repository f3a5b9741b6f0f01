"""Rules for the options of a build: settings that exclude or need each other, by subject.

A setting is an option that does not have its default, `--stride`, or that has a value,
`--strategy wrapped`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from packprep.config.carried import CARRIED
from packprep.config.grammar.option import COLUMN_CHOICE, TRAIN_FIELDS
from packprep.config.grammar.rules import Rule, enforce, flag, unknown
from packprep.config.options import Options

_Rules = tuple[Rule[Options], ...]

ENDS_OF_TEMPLATE = "the chat template or renderer writes BOS and EOS; leave out --bos and --eos"
CONTINUATION_OF_TEMPLATE = (
    "--continuation-bos adds the BOS of --bos, and here the chat template or renderer writes BOS; "
    "leave it out"
)

EXCLUDED: Mapping[str, Mapping[str, str]] = {
    "--text-template": {"--text-column": "both say what the text is; give one of them"},
    "--messages-column": {
        "--prompt-column": "both say where conversations are; give one of them",
        "--input-ids-column": "conversations are rendered as text; give one of them",
    },
    "--segments-column": {
        **dict.fromkeys(
            ("--messages-column", "--prompt-column", "--input-ids-column"),
            "both say what a row is; give one of them",
        ),
        "--train-on last-turn": "train of each piece says what is trained; leave it out",
    },
    "--renderer": {
        "--chat-template": "both render conversations; give one of them",
        "--template-date": "a renderer has its own; leave it out",
        **dict.fromkeys(
            ("--train-on last-turn", "--train-fields", "--turns each", "--turns auto"),
            "train of its pieces says what is trained; leave it out",
        ),
    },
    "--pair-columns": {
        **dict.fromkeys(
            (
                "--text-column",
                "--text-template",
                "--sample-by",
                "--truncate-at",
                "--response-column",
                "--boundaries",
            ),
            "they define both sides; leave it out",
        ),
        "--turns each": "a pair is one document; leave one of them out",
        "--turns auto": "a pair is one document; leave one of them out",
        "--names hf": "trainers that read these names would train on the rejected answers too; "
        "leave --names out, and train with PackedLoader(sides=...)",
        "--strategy wrapped": "it would split pairs; choose another strategy",
        "--overflow split": "it would split pairs; choose truncate, drop or error",
        "--max-segments-per-pack 1": "the sides are two segments of one pack; give 2 or more",
        "--overflow truncate:balanced": "both sides are cut in proportion anyway; choose truncate",
    },
    "--append": {
        "--overwrite": "one keeps the output and the other replaces it; give one of them",
        "--phases": "they are drawn from all sources together; build again with --overwrite and a "
        "token store (--keep-tokens)",
    },
    "--phases": {
        "--epochs": "each phase has documents of its own; leave out one of them",
        "--materialize index": "an index has one length, and each phase its own; write shards",
        "--strategy balanced": "it packs one window, and each phase has windows of its own; choose "
        "another strategy",
    },
    "--strategy wrapped": dict.fromkeys(
        (
            "--max-segments-per-pack",
            "--group-column",
            "--pad-segment-to-multiple",
            "--stride",
            "--continuation-bos",
            "--overflow truncate:balanced",
        ),
        "it cuts the text where packs end; choose another strategy",
    ),
    "--share-prefixes": {
        "--strategy wrapped": "it would cut trees; leave out one of them",
        "--names hf": "its trainers would read a tree as documents; leave out one of them",
        "--pad-segment-to-multiple": "a row goes on in another segment; leave out one of them",
        "--overflow truncate:balanced": "it leaves holes in rows; choose truncate or truncate:left",
    },
    "--order input": {
        "--epochs": "documents would have the same neighbours in every epoch; choose another order",
    },
    "--executor ray": {
        "--part": "Ray divides the work; leave it out",
    },
}
"""Setting -> settings that cannot be used with it, why, and what to do."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "--input-ids-column": (
        "--labels-column",
        "--vocab-size",
        "--boundaries",
    ),
    "--train-on assistant": ("--train-fields", "--turns"),
    "--overflow split": ("--stride", "--continuation-bos"),
    "--stride": ("--train-overlap",),
    "--strategy stream or greedy or first_fit_input": ("--shuffle-documents",),
}
"""Setting -> options that have no meaning without it."""


def check(build: Options) -> None:
    """Raise ConfigError for the first rule that the options break."""
    enforce(RULES, build)
    build.boundary()
    build.variables()


def _is_set(build: Options, setting: str) -> bool:
    """True if the options have a setting, such as `--stride` or `--turns each or auto`."""
    name, _, values = setting.removeprefix("--").partition(" ")
    option = name.replace("-", "_")
    value = getattr(build, option)
    if values:
        return not {str(value), str(value).partition(":")[0]}.isdisjoint(values.split(" or "))
    default = _DEFAULTS[option]
    if isinstance(value, tuple) and isinstance(default, tuple):  # in any order
        return sorted(map(str, value)) != sorted(default)
    return bool(value != default)


_DEFAULTS = {spec.name: spec.default for spec in fields(Options)}


def _exclusions() -> Iterator[Rule[Options]]:
    for one, others in EXCLUDED.items():
        for other, why in others.items():
            yield Rule(f"{one} cannot be used with {other}: {why}", _both(one, other))


def _both(one: str, other: str) -> Callable[[Options], bool]:
    return lambda build: _is_set(build, one) and _is_set(build, other)


def _needs() -> Iterator[Rule[Options]]:
    for needed, options in NEEDED.items():
        for option in options:
            name, _, value = needed.partition(" ")
            found = f", not {{{name[2:].replace('-', '_')}}}" if value else ""
            do = f"give {needed} too, or leave out {option}"
            yield Rule(f"{option} is for {needed}{found}; {do}", _without(option, needed))


def _without(option: str, needed: str) -> Callable[[Options], bool]:
    return lambda build: _is_set(build, option) and not _is_set(build, needed)


def _of_kind(
    options: tuple[str, ...], sentence: str, applies: Callable[[Options], bool]
) -> Iterator[Rule[Options]]:
    """Rules for options of one kind of rows. applies: true for a build of other rows."""

    def is_wrong(option: str) -> Callable[[Options], bool]:
        return lambda build: _is_set(build, option) and applies(build)

    for option in options:
        yield Rule(f"{option} {sentence}", is_wrong(option))


def _regex_fault(pattern: str | None) -> Mapping[str, re.error] | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        return {"fault": error}
    return None


def _is_text(build: Options) -> bool:
    return not build.is_rendered and build.input_ids_column is None


def _has_labels(build: Options) -> bool:
    """True if some tokens of a row may be trained and others not."""
    return bool(build.label_columns.names) or (build.is_rendered and build.train_on != "all")


def _shortest(build: Options) -> int:
    return min((build.max_length, *(phase.max_length for phase in build.phase_list())))


VALUE_RULES: tuple[Rule[Options], ...] = (
    Rule(
        "--verify-engine is {verify_engine:g}, expected a share from 0 to 1",
        lambda build: not 0 <= build.verify_engine <= 1,
    ),
    Rule(
        "--holdout is {holdout:g}, expected a share of at least 0 and less than 1",
        lambda build: not 0 <= build.holdout < 1,
    ),
    Rule(
        f"--columns has {{name!r}}, expected some of {', '.join(COLUMN_CHOICE)}",
        lambda build: unknown(build.columns, (*COLUMN_CHOICE, "tokens", "cu_seqlens")),
    ),
    Rule(
        f"--train-fields has {{name!r}}, expected some of {', '.join(TRAIN_FIELDS)}",
        lambda build: unknown(build.train_fields or ("",), TRAIN_FIELDS),
    ),
    Rule(
        "--truncate-at {truncate_at!r} is not a regular expression: {fault}",
        lambda build: _regex_fault(build.truncate_at),
    ),
)

ROW_RULES: tuple[Rule[Options], ...] = (
    Rule(
        "--prompt-column and --response-column go together; give both",
        lambda build: (
            not build.pair_columns
            and (build.prompt_column is None) != (build.response_column is None)
        ),
    ),
    Rule(
        "--input-ids-column cannot be used with --prompt-column: conversations are rendered as "
        "text; give one of them",
        lambda build: (
            build.input_ids_column is not None
            and build.prompt_column is not None
            and not build.pair_columns
        ),
    ),
    *_of_kind(
        (
            "--chat-template",
            "--renderer",
            "--template-date",
            "--template-variables",
            "--train-fields",
            "--turns",
        ),
        "is for conversations; give --messages-column too (auto finds it)",
        lambda build: not build.chats,
    ),
    *_of_kind(
        ("--join-pieces",),
        "is for pieces; give --segments-column or --renderer too, or leave it out",
        lambda build: build.segments_column is None and build.renderer is None,
    ),
    *_of_kind(
        (
            "--text-column",
            "--text-template",
            "--sample-by",
            "--truncate-at",
            "--parse-special-tokens",
        ),
        "is for text, and rows are conversations, pieces or token ids; leave it out",
        lambda build: not _is_text(build),
    ),
    *_of_kind(
        ("--train-on",),
        "{train_on} is for conversations and pieces; give --messages-column (auto finds it) or "
        "--segments-column too, or leave it out",
        lambda build: not build.is_rendered,
    ),
    *_of_kind(
        ("--check-against",),
        "compares the ids of text, and rows are token ids already; leave it out",
        lambda build: build.input_ids_column is not None,
    ),
    *_of_kind(
        ("--overflow truncate:balanced",),
        "is for rows with a prompt and a response, and all tokens of these rows are trained; "
        "choose truncate or truncate:left",
        lambda build: not _has_labels(build),
    ),
    Rule(
        ENDS_OF_TEMPLATE,
        lambda build: build.messages_column is not None and build.names_ends,
    ),
    Rule(
        CONTINUATION_OF_TEMPLATE,
        lambda build: build.messages_column is not None and build.continuation_bos,
    ),
    Rule(
        "--pair-columns is {names}; expected two columns: chosen,rejected",
        lambda build: (
            (
                len({*build.pair_columns}) != len(build.pair_columns)
                or len(build.pair_columns) not in (0, 2)
            )
            and {"names": ", ".join(build.pair_columns)}
        ),
    ),
    Rule(
        "--pair-columns name the columns with the rows; give {option} auto",
        lambda build: (
            {"option": flag(key)}
            for key in ("messages_column", "segments_column", "input_ids_column")
            if build.pair_columns and getattr(build, key) not in (None, "auto")
        ),
    ),
    Rule(
        "{option} is {columns}; expected a column for each side of a pair, such as "
        "chosen_labels,rejected_labels",
        lambda build: (
            {"option": "--labels-column", "columns": names}
            for names in build.label_columns.names
            if build.pair_columns and names.count(",") != 1
        ),
    ),
)

OUTPUT_RULES: tuple[Rule[Options], ...] = (
    Rule(
        "standard input cannot be read by every task of --executor array; give files",
        lambda build: (
            any("-" in entry.paths for entry in build.entries()) and build.part is not None
        ),
    ),
    Rule(
        "--work-dir is for an output in a store; leave it out for a directory",
        lambda build: build.work_dir is not None and "://" not in build.output,
    ),
    Rule(
        "--append cannot change an output in a store; build the new files at another address, and "
        "merge the two",
        lambda build: build.append and "://" in build.output,
    ),
    Rule(
        "--append cannot keep the shares of a mix, which is drawn from all sources together; "
        "build the mix again with --overwrite and a token store (--keep-tokens)",
        lambda build: build.append and build.is_mix,
    ),
)

CUTTING_RULES: tuple[Rule[Options], ...] = (
    Rule(
        "--stride is {stride:,} but a piece has {later:,} tokens of the document; choose a smaller "
        "stride",
        lambda build: (
            build.stride >= (later := build.max_length - build.continuation_bos)
            and {"later": later}
        ),
    ),
    Rule(
        "--max-document-tokens {max_document_tokens:,} is less than --min-document-tokens "
        "{min_document_tokens:,}; every document would be dropped",
        lambda build: (
            build.max_document_tokens is not None
            and build.max_document_tokens < build.min_document_tokens
        ),
    ),
    Rule(
        "--max-length {max_length:,} is not a multiple of --pad-segment-to-multiple "
        "{pad_segment_to_multiple:,}; choose one that is",
        lambda build: build.max_length % build.pad_segment_to_multiple,
    ),
    Rule(
        "--max-length {shortest:,} has no room for a pair, whose sides take at least "
        "{pad_segment_to_multiple:,} each; choose a larger one",
        lambda build: (
            build.pair_columns
            and (shortest := _shortest(build)) < 2 * build.pad_segment_to_multiple
            and {"shortest": shortest}
        ),
    ),
    Rule(
        "--min-pack-tokens {min_pack_tokens:,} is more than --max-length {shortest:,}; every pack "
        "would be dropped",
        lambda build: (
            build.min_pack_tokens
            and build.min_pack_tokens > (shortest := _shortest(build))
            and {"shortest": shortest}
        ),
    ),
)

RULES = (
    *VALUE_RULES,
    *_exclusions(),
    *ROW_RULES,
    *CARRIED,
    *_needs(),
    *OUTPUT_RULES,
    *CUTTING_RULES,
)
"""All rules, in the order of checking."""
