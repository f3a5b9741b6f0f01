"""The YAML file of a build, whose keys are the options: read and write it.

Objects of Python, aliases and duplicate keys are refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig, check_keys
from packprep.config.options import options_in
from packprep.support.errors import ConfigError

DEFAULT_FILE = "packprep.yaml"

_YAML_BYTES = 1_000_000


def from_yaml(path: Path, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Read the options from a YAML file and check the keys; - and _ are the same in a key.

    extra: keys allowed besides the fields of BuildConfig.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_YAML_BYTES + 1)
        if len(content) > _YAML_BYTES:
            raise ValueError(f"it has more than {_YAML_BYTES:,} bytes")
        loaded = load_yaml(content.decode())
    except FileNotFoundError:
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
    return check_keys(
        {str(key).replace("-", "_"): value for key, value in (loaded or {}).items()},
        str(path),
        extra,
    )


def load_yaml(text: str) -> Any:
    """Load YAML like `yaml.safe_load`, but refuse aliases, long numbers and duplicate keys.

    A few lines with aliases can expand to gigabytes.
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

    return Loader(text).get_single_data()


def to_yaml(config: BuildConfig) -> str:
    """Write the options of a build as YAML that `from_yaml` reads back to an equal config.

    Without the options of `_is_left_out`.
    """
    import yaml

    options = {
        spec.name: list(value) if isinstance(value := getattr(config, spec.name), tuple) else value
        for spec in fields(config)
        if not _is_left_out(spec.name, getattr(config, spec.name))
    }
    text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=10**9)
    # PyYAML writes some Unicode line breaks unescaped and reads them back as spaces; escape them.
    return (
        text
        if yaml.safe_load(text) == options
        else yaml.safe_dump(options, sort_keys=False, width=10**9)
    )


def _is_left_out(key: str, value: Any) -> bool:
    """True for options that a YAML file leaves out.

    These are options not given, a tokenizer object, and the options of one command.
    """
    return (
        value is None
        or key in options_in("once")
        or (key == "tokenizer" and not isinstance(value, str))
    )
