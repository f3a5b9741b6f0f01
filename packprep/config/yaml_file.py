"""The YAML file of a build, whose keys are the options; - and _ are the same in a key.

`include` names files whose keys are defaults of this one. ${NAME} is a variable of the environment,
${NAME:default} has a default, which may be a variable itself; $${ is a plain ${. Objects of Python,
aliases and duplicate keys are refused.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..support.errors import ConfigError, nearest
from .options import BuildConfig

_MOST_BYTES = 1_000_000
_DEEPEST = 8  # files between the first one and the last one that is included
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::((?:[^${}]|\$(?!\{))*))?\}")

HINTS = {
    "seq_length": "max_length",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "block_size": "max_length",
    "context_length": "max_length",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "max_len": "max_length",
    "packing_strategy": "strategy",
    "text_column": "text",
    "text_field": "text",
    "dataset_text_field": "text",
    "text_template": "text",
    "messages_column": "messages",
    "input_ids_column": "ids",
    "labels_column": "ids",
    "pair_columns": "pairs",
    "output_dir": "output",
    "workers": "num_proc",
    "num_workers": "num_proc",
    "jobs": "num_proc",
    "keep_tokens": "store",
    "val_split": "holdout",
    "validation_split": "holdout",
    "tokenizer_name": "tokenizer",
    "tokenizer_path": "tokenizer",
    "epochs": "epoch",
}
"""Names of other tools -> the option here."""


def from_yaml(path: Path, including: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The options in a YAML file and in those that it includes. Raises ConfigError.

    A key of the file wins over those of the files that it includes. including: files that led here.
    """
    if len(including) > _DEEPEST:
        raise ConfigError(f"{path} is included through {_DEEPEST} files, or by itself; do it once")
    options = load_table(path, including)
    names = options.pop("include", [])
    merged: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise ConfigError(f"{path} includes {name!r}, expected the name of a file")
        merged |= from_yaml(path.parent / name, (*including, path))
    known = [spec.name for spec in fields(BuildConfig)]
    for name in options:
        if name not in known:
            hint = f"; it is called {HINTS[name]} here" if name in HINTS else nearest(name, known)
            raise ConfigError(f"{path} has the unknown key {name!r}{hint}")
    return merged | options


def load_table(path: Path, including: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Keys and values of one file of YAML or JSON, with _ in the keys. Raises ConfigError."""
    try:
        content = path.read_bytes()
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        loaded = load_yaml(content.decode(), str(path))
    except ConfigError:
        raise
    except FileNotFoundError:
        by = f"{including[-1]} includes {path}, which" if including else f"{path}"
        raise ConfigError(f"{by} does not exist; check the path") from None
    except Exception as error:  # PyYAML also lets errors of int(), date() and re through
        shown = " ".join(str(error).split())[:300]
        raise ConfigError(f"{path} is not readable as YAML: {shown}") from None
    if not isinstance(loaded or {}, Mapping):
        raise ConfigError(f"{path} is no table; expected lines of NAME: VALUE")
    return {str(key).replace("-", "_"): value for key, value in (loaded or {}).items()}


def load_yaml(text: str, where: str = "") -> Any:
    """Load YAML as `yaml.safe_load`, with variables; refuse aliases and duplicate keys.

    A few lines with aliases can expand to gigabytes. where: the file, for errors.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
                raise yaml.YAMLError(f"line {line} has an alias; write it out")
            node = super().compose_node(parent, index)
            if isinstance(node, yaml.ScalarNode) and "${" in node.value:
                node.value = _filled(node.value, f"{where} line {node.start_mark.line + 1}")
                if node.style is None:  # not quoted: ${LENGTH:4096} is a number
                    kind: Any = self.resolve  # has no types
                    node.tag = kind(yaml.ScalarNode, node.value, (True, False))
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(str(key.value).replace("-", "_") for key, _ in node.value)
            for key, count in keys.items():
                if count > 1:
                    line = node.start_mark.line + 1
                    raise yaml.YAMLError(f"duplicate key {key!r} in the table at line {line}")
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if node.tag.endswith((":int", ":float")) and len(node.value) > 100:  # takes minutes
                raise yaml.YAMLError(f"line {node.start_mark.line + 1} has a very long number")
            return super().construct_object(node, deep)

    return Loader(text).get_single_data()


def _filled(text: str, where: str) -> str:
    """The text with its variables; inner ones first, so that a default may be a variable."""

    def value(match: "re.Match[str]") -> str:
        if match[0] == "$${":
            return "\0"
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(
                f"{where} needs the environment variable {match[1]}, which is not set; set it, or "
                f"give a default: ${{{match[1]}:...}}"
            )
        return found.replace("${", "\0")

    for _ in range(20):  # defaults in defaults
        text = _VARIABLE.sub(value, text)
    if "${" in text:
        raise ConfigError(
            f"{where} has {text[text.index('${') :][:40]!r}, expected ${{NAME}} or "
            "${NAME:default}; write $${ for a plain ${"
        )
    return text.replace("\0", "${")
