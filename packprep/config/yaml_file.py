"""The YAML file of a build, whose keys are the options: read and write it.

`include` names files whose keys are defaults of this one. ${NAME} is a variable of the environment.
Objects of Python, aliases and duplicate keys are refused.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from packprep.config.aliases import over, respelled
from packprep.config.build_config import BuildConfig, check_keys
from packprep.config.grammar.label_columns import with_label_kind
from packprep.config.grammar.spellings import GONE
from packprep.config.stages import Command, options_in
from packprep.config.yaml_variables import escaped, fill_variables, unescaped
from packprep.support.errors import ConfigError, brief

DEFAULT_FILE = "packprep.yaml"

_YAML_BYTES = 1_000_000
_DEEPEST = 8  # files between the first one and the last one that is included


def from_yaml(path: Path, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Read the options from a YAML file and check the keys; - and _ are the same in a key.

    extra: keys allowed besides the options of a build. A key of the file wins over those of the
    files that it includes, and these win over those included before them. Earlier options are kept.
    """
    return _with_included(path, extra, ())


def from_output(path: Path) -> dict[str, Any]:
    """Read the options in the build.yaml of an output.

    They are resolved: no variable is filled in, and no line names the new name of an option.
    Options that are gone, which never decided the bytes, are left out.
    """
    options = {
        key: value for key, value in _loaded(path, (), fill=False).items() if key not in GONE
    }
    check_keys(options, str(path))
    return respelled(with_label_kind(options, "labels"))


def _with_included(path: Path, extra: Sequence[str], including: tuple[Path, ...]) -> dict[str, Any]:
    """Options of a file and of those it includes. including: the files that led here."""
    if any(path.exists() and path.samefile(other) for other in including):
        chain = " includes ".join(map(str, (*including, path)))
        raise ConfigError(f"{chain}, so it includes itself; leave out one of the includes")
    if len(including) > _DEEPEST:
        raise ConfigError(f"{path} is included through {_DEEPEST} files; include it in fewer steps")
    options = _loaded(path, including)
    names = options.pop("include", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path} has include {brief(names)}, expected a file or a list of files")
    merged: dict[str, Any] = {}
    for name in names:
        merged = over(merged, _with_included(path.parent / name, extra, (*including, path)))
    check_keys(options, str(path), extra)
    return over(merged, options)


def _loaded(path: Path, including: tuple[Path, ...], *, fill: bool = True) -> dict[str, Any]:
    """Keys and values of one file, with _ in the keys. fill: fill in variables."""
    try:
        with path.open("rb") as file:
            content = file.read(_YAML_BYTES + 1)
        if len(content) > _YAML_BYTES:
            raise ValueError(f"it has more than {_YAML_BYTES:,} bytes")
        text = content.decode()
        loaded = load_yaml(text if fill else unescaped(text), variables_of=str(path) * fill)
    except ConfigError:
        raise
    except FileNotFoundError:
        if including:
            raise ConfigError(
                f"{including[-1]} includes {path}, which does not exist; check the path"
            ) from None
        raise ConfigError(f"no configuration file {path}; check the path given with -c") from None
    except RecursionError:
        raise ConfigError(f"{path} is not readable as YAML: it nests too deeply") from None
    # PyYAML also lets errors of int(), date() and re.match through.
    except Exception as error:
        raise ConfigError(
            f"{path} is not readable as YAML: {' '.join(str(error).split())[:300]}"
        ) from None
    if not isinstance(loaded or {}, Mapping):
        raise ConfigError(
            f"{path} has a {type(loaded).__name__}, expected lines such as max_length: 4096"
        )
    return {str(key).replace("-", "_"): value for key, value in (loaded or {}).items()}


def load_yaml(text: str, *, variables_of: str = "") -> Any:
    """Load YAML like `yaml.safe_load`, but refuse aliases, long numbers and duplicate keys.

    A few lines with aliases can expand to gigabytes. variables_of: the file, for errors, if
    variables of the environment are replaced; "" to leave them.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.YAMLError(
                    f"line {event.start_mark.line + 1} has the alias *{event.anchor}; write it out"
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if duplicates := [key for key, count in Counter(keys).items() if count > 1]:
                raise yaml.YAMLError(
                    f"duplicate key {duplicates[0]!r} in the table that starts on line "
                    f"{node.start_mark.line + 1}"
                )
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            # Numbers such as 1:1:1:1... take minutes.
            if node.tag.endswith((":int", ":float")) and len(node.value) > 100:
                raise yaml.YAMLError(
                    f"line {node.start_mark.line + 1} has a number of {len(node.value):,} "
                    "characters"
                )
            return super().construct_object(node, deep)

    loader = Loader(text)
    root = loader.get_single_node()
    if root is None:
        return None
    if variables_of:
        fill_variables(root, loader, os.environ, variables_of)
    return loader.construct_document(root)


def to_yaml(config: BuildConfig) -> str:
    """Write the options of a build as YAML that `from_yaml` reads back to an equal config.

    Without the options of `_is_left_out`.
    """
    import yaml

    options = {
        spec.name: _escaped(getattr(config, spec.name))
        for spec in fields(config)
        if not _is_left_out(spec, getattr(config, spec.name))
    }
    text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=10**9)
    # PyYAML writes some Unicode line breaks unescaped and reads them back as spaces; escape them.
    return (
        text
        if yaml.safe_load(text) == options
        else yaml.safe_dump(options, sort_keys=False, width=10**9)
    )


def _escaped(value: Any) -> Any:
    """The value as YAML writes it, without variables: a tuple as a list."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, (list, tuple)):
        return [_escaped(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in value.items()}
    return value


def _is_left_out(spec: "Field[Any]", value: Any) -> bool:
    """True for options that a YAML file leaves out.

    These are options without a value, a tokenizer object, and the options of one command.
    """
    return (
        (value is None and spec.default is None)
        or spec.name in options_in(Command)
        or (spec.name == "tokenizer" and not isinstance(value, str))
    )
