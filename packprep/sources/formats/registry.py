"""All file formats: a new one is imported here and named in one line of FORMATS."""

from packprep.sources.formats.arrow_rows import ARROW
from packprep.sources.formats.csv_rows import CSV
from packprep.sources.formats.datasets_rows import HUB, SAVED
from packprep.sources.formats.format import Format
from packprep.sources.formats.jsonl import JSON
from packprep.sources.formats.parquet_rows import PARQUET
from packprep.sources.formats.raw_files import COMPRESSED, suffixes
from packprep.sources.formats.text_rows import TEXT
from packprep.sources.formats.token_rows import DATATROVE, MEGATRON, NPY
from packprep.support.errors import InputError

_ALL = (JSON, CSV, TEXT, PARQUET, ARROW, MEGATRON, NPY, DATATROVE, SAVED, HUB)
FORMATS = {one.name: one for one in _ALL}


def format_of(name: str) -> Format | None:
    """The format of a file with this name; None if it is not known."""
    ending = suffixes(name)[0]
    return next((one for one in FORMATS.values() if ending in one.endings), None)


def known_format(name: str) -> Format:
    """The format of a file. Raises InputError if it is not known, or not as it is compressed."""
    if (found := format_of(name)) is None:
        raise InputError(f"{name} has no known format; expected {known_endings()}")
    if found.beside is not None and suffixes(name)[1]:
        raise InputError(f"{name} is compressed; unpack it, with the files beside it")
    return found


def known_endings() -> str:
    """The endings of names that files may have, for messages."""
    rows, tokens = (
        "/".join(
            f".{ending}"
            for one in FORMATS.values()
            if (one.beside is not None) == of_tokens
            for ending in one.endings
        )
        for of_tokens in (False, True)
    )
    packed = " or ".join(f".{name}" for name in COMPRESSED)
    return f"{rows} (plain, {packed}) or token ids in {tokens}"
