"""The YAML file of a build.

Its keys are the options, read without code, aliases or doubles, and written back.
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
    """Options in a YAML file, keys checked; - and _ are the same in a key.

    extra: keys beside those of BuildConfig.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_YAML_BYTES + 1)
        if len(content) > _YAML_BYTES:
            raise ValueError(f"it has more than {_YAML_BYTES:,} bytes")
        loaded = _load_yaml(content.decode())
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {path}; check the path given with -c") from None
    except RecursionError:
        raise ConfigError(f"{path} is not readable as YAML: it nests too deeply") from None
    except (
        Exception
    ) as error:  # beside its own kinds PyYAML lets out what int(), date() and re.match give it
        raise ConfigError(
            f"{path} is not readable as YAML: {' '.join(str(error).split())[:300]}"
        ) from None
    if not isinstance(loaded or {}, Mapping):
        raise ConfigError(f"{path} holds a {type(loaded).__name__}, expected option: value lines")
    return check_keys(
        {str(key).replace("-", "_"): value for key, value in (loaded or {}).items()},
        str(path),
        extra,
    )


def _load_yaml(text: str) -> Any:
    """`yaml.safe_load` without aliases, endless numbers and duplicate keys.

    Aliases make gigabytes of a few lines.
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
            if twice := [key for key, count in Counter(keys).items() if count > 1]:
                raise yaml.YAMLError(
                    f"the key {twice[0]!r} stands twice from line {node.start_mark.line + 1} on"
                )
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if (
                node.tag.endswith((":int", ":float")) and len(node.value) > 100
            ):  # 1:1:1:1 and so on takes minutes
                raise yaml.YAMLError(
                    f"line {node.start_mark.line + 1} has a number of {len(node.value):,} "
                    "characters"
                )
            return super().construct_object(node, deep)

    return Loader(text).get_single_data()


def to_yaml(config: BuildConfig) -> str:
    """The options of a build as the YAML file that `from_yaml` reads back to an equal config.

    See `_not_kept`.
    """
    import yaml

    options = {
        spec.name: list(value) if isinstance(value := getattr(config, spec.name), tuple) else value
        for spec in fields(config)
        if not _not_kept(spec.name, getattr(config, spec.name))
    }
    text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=10**9)
    # PyYAML writes some line breaks of Unicode as they are and reads them as spaces; escaped, they
    # are safe.
    return (
        text
        if yaml.safe_load(text) == options
        else yaml.safe_dump(options, sort_keys=False, width=10**9)
    )


def _not_kept(key: str, value: Any) -> bool:
    """Options that a file of options leaves out.

    Those not given, a tokenizer that is an object, and how this one run was made.
    """
    return (
        value is None
        or key in options_in("once")
        or (key == "tokenizer" and not isinstance(value, str))
    )
