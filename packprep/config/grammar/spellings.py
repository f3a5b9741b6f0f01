"""Names of options in other tools and in earlier versions, and their names here.

Those of other tools are from the options of Axolotl, LLaMA-Factory, Megatron-LM, ms-swift,
torchtitan, torchtune, transformers' examples and TRL that prepare data.
"""

import sys

SPELLINGS = {
    "append_bos": "bos",
    "append_eod": "eos",
    "append_eos": "eos",
    "block_size": "max_length",
    "chat_template_path": "chat_template",
    "concurrency": "num_proc",
    "context_length": "max_length",
    "cutoff_len": "max_length",
    "data_files": "sources",
    "data_path": "sources",
    "dataset": "sources",
    "dataset_config_name": "sources",
    "dataset_name": "sources",
    "dataset_num_proc": "num_proc",
    "dataset_prepared_path": "output",
    "dataset_processes": "num_proc",
    "dataset_split": "sources",
    "dataset_text_field": "text_column",
    "datasets": "sources",
    "json_keys": "text_column",
    "max_model_len": "max_length",
    "max_samples": "limit",
    "max_seq_len": "max_length",
    "max_seq_length": "max_length",
    "max_seqlen": "max_length",
    "max_train_samples": "limit",
    "messages_field": "messages_column",
    "messages_key": "messages_column",
    "n_proc": "num_proc",
    "n_workers": "num_proc",
    "num_workers": "num_proc",
    "out_dir": "output",
    "output_dir": "output",
    "output_path": "output",
    "output_prefix": "output",
    "overwrite_cache": "overwrite",
    "overwrite_output_dir": "overwrite",
    "pack_size": "max_length",
    "packed_sequence_size": "max_length",
    "packing_algorithm": "strategy",
    "packing_method": "strategy",
    "packing_strategy": "strategy",
    "preprocessing_num_workers": "num_proc",
    "processes": "num_proc",
    "prompt_field": "prompt_column",
    "random_seed": "seed",
    "response_field": "response_column",
    "save_dir": "output",
    "seq_len": "max_length",
    "seq_length": "max_length",
    "seqlen": "max_length",
    "sequence_len": "max_length",
    "sequence_length": "max_length",
    "text_column_name": "text_column",
    "text_field": "text_column",
    "text_key": "text_column",
    "threads": "num_proc",
    "tokenized_path": "output",
    "tokenizer_config": "tokenizer",
    "tokenizer_model": "tokenizer",
    "tokenizer_name": "tokenizer",
    "tokenizer_name_or_path": "tokenizer",
    "tokenizer_path": "tokenizer",
    "train_on_inputs": "train_on",
    "train_on_prompt": "train_on",
    "truncation_strategy": "overflow",
    "val_set_size": "holdout",
    "val_size": "holdout",
    "validation_split": "holdout",
    "workers": "num_proc",
}
"""Name in another tool -> option of `packprep build`."""


RENAMED = {"min_len": "min_document_tokens", "max_len": "max_document_tokens"}
"""Earlier name of an option -> its name. Manifests and reports keep the earlier name."""
_RECORDED = {name: earlier for earlier, name in RENAMED.items()}


GONE = {
    "bundle": "add packprep env --json, and report.json and build.yaml of the output, to the issue",
    "from_phase": "--overwrite with --keep-tokens makes all phases again in seconds; earlier ones "
    "with a number of tokens keep their bytes",
    "junit": "packprep check --json prints the result, packprep check --summary FILE writes it as "
    "Markdown",
    "plots": "the page of packprep report has the charts",
    "restart": "--overwrite discards an unfinished output of other settings; to do finished work "
    "again, delete OUT.incomplete",
    "unit_timeout": "with --executor isolated a process that makes no progress for ten minutes is "
    "replaced, and its rows are named",
}
"""Option of earlier versions -> what serves instead."""
GONE_FORMATS = {
    "xtuner": "packprep.loaders reads the packs as they are, and --to parquet has every column",
}
"""Format of `packprep export` in earlier versions -> what serves instead."""


def recorded_name(option: str) -> str:
    """Name of an option in manifests and reports."""
    return _RECORDED.get(option, option)


def say(line: str) -> None:
    """Print a line about an option on standard error."""
    print(f"packprep: {line}", file=sys.stderr)


def silent(line: str) -> None:
    """Print nothing in place of `say`."""


def option_here(name: str) -> str | None:
    """Option of `packprep build` for a name of another tool, as key or as flag; None for others."""
    return SPELLINGS.get(_key(name))


def gone(name: str) -> str | None:
    """Answer to an option of earlier versions, as key or as flag; None for other names."""
    instead = GONE.get(_key(name))
    return None if instead is None else f"{name} is gone: {instead}"


def gone_format(name: str) -> str | None:
    """Answer to a format of earlier versions; None for other names."""
    instead = GONE_FORMATS.get(name)
    return None if instead is None else f"{name} is gone: {instead}"


def _key(name: str) -> str:
    return name.removeprefix("--").removeprefix("no-").replace("-", "_")
