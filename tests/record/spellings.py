"""Options of a set-up as the second edition spells them, from those of the first.

A set-up is written with fields of BuildConfig. `second` gives the command line and the YAML file of
the second edition for them; HOW names every option that the second edition has, so that a test can
say which of them no set-up uses.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Options = Mapping[str, Any]

FLAGS = {
    "text_column": "--text",
    "text_template": "--text",
    "segments_column": "--pieces",
    "limit": "--limit",
    "on_error": "--on-error",
    "tokenizer": "--tokenizer",
    "vocab_size": "--tokenizer",
    "bos": "--bos",
    "eos": "--eos",
    "chat_template": "--chat-template",
    "renderer": "--chat-template",
    "train_on": "--train-on",
    "turns": "--turns",
    "max_length": "--max-length",
    "strategy": "--strategy",
    "overflow": "--overflow",
    "stride": "--stride",
    "min_document_tokens": "--min-document-tokens",
    "max_document_tokens": "--max-document-tokens",
    "min_pack_tokens": "--min-pack-tokens",
    "max_segments_per_pack": "--max-segments",
    "pad_segment_to_multiple": "--pad-to-multiple",
    "order": "--order",
    "seed": "--seed",
    "group_column": "--group",
    "weights": "--weights",
    "max_tokens": "--max-tokens",
    "packs_multiple_of": "--multiple",
    "executor": "--executor",
    "num_proc": "--num-proc",
    "part": "--part",
    "keep_tokens": "--store",
    "output": "-o",
}
"""First -> second, with the same value."""
YAML = {
    "max_memory": "max_memory",
    "window": "window",
    "shard_size": "shard_size",
    "token_type": "token_type",
    "truncate_at": "truncate_at",
    "boundaries": "split_at",
    "engine": "engine",
    "continuation_bos": "continuation_bos",
    "shuffle_documents": "shuffle_documents",
    "include": "include",
}
"""First -> key of the second edition, which has no flag for it."""
SWITCHES = {"overwrite": "--overwrite", "dry_run": "--dry-run", "quiet": "-q"}
ELSEWHERE = (
    *("sources", "sample_by", "max_epochs", "messages_column", "prompt_column", "response_column"),
    *("pair_columns", "input_ids_column", "labels_column", "carry", "group_prefix", "epochs"),
    *("template_variables", "columns", "names", "materialize", "holdout"),
)
"""Options of the first edition that `second` spells with others, or in a way of their own."""
GOES = (
    *("phases", "unit_size", "join_pieces", "max_row_size", "parse_special_tokens"),
    *("verify_engine", "check_against", "template_date", "train_fields", "train_overlap"),
    *("min_loss_tokens", "skip_rows", "share_prefixes", "cost_of", "work_dir", "unproven_store"),
    "append",
)
"""Options of the first edition that the second one has not."""
OF_SOURCE = {
    "path": "path",
    "weight": "weight",
    "max_epochs": "max_epochs",
    "limit": "limit",
    "text_column": "text",
    "text_template": "text",
    "input_ids_column": "ids",
    "sample_by": "sample_by",
}
"""Keys of a source in YAML."""
HOW = (
    *("-o", "--store", "--overwrite", "max_memory", "window", "shard_size", "token_type"),
    *("--text", "--messages", "--pairs", "--ids", "--pieces", "--carry", "--group", "--limit"),
    *("--on-error", "truncate_at", "split_at", "--tokenizer", "--bos", "--eos", "--chat-template"),
    *("--train-on", "--turns", "template_variables", "engine", "--max-length", "--strategy"),
    *("--overflow", "--stride", "--min-document-tokens", "--max-document-tokens"),
    *("--min-pack-tokens", "--max-segments", "--pad-to-multiple", "--order", "--seed", "--epoch"),
    *("continuation_bos", "shuffle_documents", "--weights", "--max-tokens", "--multiple"),
    *("--holdout", "--columns", "--executor", "--num-proc", "--part", "--dry-run", "-q", "-c"),
    *(f"source: {key}" for key in OF_SOURCE.values()),
)
"""Every option of `build`, `tokenize` and `pack`; but `--after`, which the first edition lacks."""


def second(command: str, options: Options) -> dict[str, Any]:
    """Return a command of the second edition: its arguments and the keys of its YAML file."""
    arguments, keys = [], {}
    sources = _sources(options)
    if any(isinstance(source, Mapping) for source in sources):
        keys["sources"] = sources
    else:
        arguments += sources
    for name, value in options.items():
        if name in FLAGS and "${" in str(value):
            keys[FLAGS[name].removeprefix("--").replace("-", "_")] = value
        elif name in FLAGS:
            arguments += [FLAGS[name], _text(value)]
        elif name in YAML:
            keys[YAML[name]] = value
        elif name in SWITCHES:
            arguments += [SWITCHES[name]] * bool(value)
        elif name not in ELSEWHERE:
            raise ValueError(f"{name} has no spelling in the second edition")
    if variables := options.get("template_variables"):
        keys["template_variables"] = json.loads(variables)
    arguments += [*_rows(options), *_amounts(options)]
    if keys:
        arguments += ["-c", "second.yaml"]
    return {"command": command, "arguments": arguments, "yaml": keys}


def _sources(options: Options) -> list[Any]:
    """The sources; keys of a source where the first edition has an option of the build."""
    sources = list(options.get("sources", ()))
    more = {key: options[key] for key in ("sample_by", "max_epochs") if key in options}
    if more or any(isinstance(source, Mapping) for source in sources):
        tables = [source if isinstance(source, Mapping) else {"path": source} for source in sources]
        return [
            {OF_SOURCE[key]: value for key, value in {**more, **table}.items()} for table in tables
        ]
    return sources


def _rows(options: Options) -> Iterator[str]:
    """The options that say what a row is."""
    pairs = options.get("pair_columns", ())
    prompt = options.get("prompt_column")
    if pairs:
        yield from ("--pairs", ",".join([*([prompt] if prompt else []), *pairs]))
    elif prompt:
        yield from ("--messages", f"{prompt},{options['response_column']}")
    if "messages_column" in options:
        yield from ("--messages", options["messages_column"])
    if "input_ids_column" in options:
        labels = options.get("labels_column")
        yield from ("--ids", ",".join(filter(None, [options["input_ids_column"], labels])))
    for entry in options.get("carry", ()):
        yield from ("--carry", entry)
    if "group_prefix" in options and options["group_prefix"] != options.get("group_column"):
        raise ValueError("rows of a group are held out together: give group_column too")


def _amounts(options: Options) -> Iterator[str]:
    if options.get("materialize") == "index":
        yield from ("--columns", "plan")
    elif options.get("names") == "hf":
        yield from ("--columns", "hf")
    elif "columns" in options:
        yield from ("--columns", ",".join(options["columns"]))
    if "holdout" in options:
        seed = options.get("seed", 0)
        yield from (
            "--holdout",
            f"{options['holdout']}:{seed}" if seed else f"{options['holdout']}",
        )
    if options.get("epochs", 1) > 1:  # the record keeps the packs of the last one
        yield from ("--epoch", str(options["epochs"] - 1))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def used(commands: Sequence[Mapping[str, Any]]) -> set[str]:
    """Options of HOW that these commands of the second edition have."""
    options = set()
    for each in commands:
        options |= {*each["arguments"], *each["yaml"]}
        for source in each["yaml"].get("sources", ()):
            options |= {f"source: {key}" for key in source}
    return options & {*HOW}
