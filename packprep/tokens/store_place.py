"""Check of the place of a token store: it may be in no output.

An output that is published replaces its directory, with all that is in it. In another output the
tokens would be surplus files, or would be deleted with it.
"""

from pathlib import Path

from packprep.schemas.canonical import read_object
from packprep.schemas.errors import FormatError
from packprep.schemas.files import BUILD
from packprep.schemas.manifest import read_manifest
from packprep.schemas.storage.export_manifest import read_export
from packprep.sources.resolve import OUTPUT_ENDINGS
from packprep.support.errors import ConfigError


def check_store_place(keep_tokens: str | None, path: Path | None) -> None:
    """Raise ConfigError for a --keep-tokens in this output or in another one, links followed.

    path: of the output, beside which the build has its staging directory; None without one.
    """
    if not keep_tokens:
        return
    store = Path(keep_tokens).resolve()
    for output in [Path(f"{path}{ending}") for ending in OUTPUT_ENDINGS if path is not None]:
        if store.is_relative_to(output.resolve()):
            raise ConfigError(
                f"--keep-tokens {keep_tokens} is in {output}, which the build replaces when "
                "it is done; choose a folder outside it"
            )
    for folder in (store, *store.parents):
        if _is_output(folder):
            raise ConfigError(
                f"--keep-tokens {keep_tokens} is in {folder}, another output of packprep, "
                "whose files may not change; choose a folder outside it"
            )


def _is_output(folder: Path) -> bool:
    """True for a finished output or export, and for the directory in which one is made."""
    marks = ((BUILD, "inputs"), ("progress.json", "made_from"))
    return any(key in read_object(folder / name) for name, key in marks) or _is_finished(folder)


def _is_finished(folder: Path) -> bool:
    try:
        return read_export(folder) is not None or bool(read_manifest(folder))
    except (FormatError, OSError):
        return False
