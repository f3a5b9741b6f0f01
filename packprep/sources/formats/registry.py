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

_ALL = (JSON, CSV, TEXT, PARQUET, ARROW, MEGATRON, NPY, DATATROVE, SAVED, HUB)
FORMATS = {one.name: one for one in _ALL}


def format_of(name: str) -> Format | None:
    """The format of a file with this name; None where it is not known."""
    ending = suffixes(name)[0]
    return next((one for one in FORMATS.values() if ending in one.endings), None)


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
