"""The table of formats."""

from .format import Format
from .jsonl import JSON
from .plain import CSV, TEXT
from .tables import ARROW, PARQUET
from .token_files import DATATROVE, MEGATRON, NPY

FORMATS: dict[str, Format] = {
    each.name: each for each in (JSON, CSV, TEXT, PARQUET, ARROW, MEGATRON, NPY, DATATROVE)
}
COMPRESSIONS = ("gz", "zst")


def format_of(path: str) -> tuple[Format | None, str]:
    """Format of a file by its ending, None for others, and its compression."""
    name = path.lower()
    compression = next((each for each in COMPRESSIONS if name.endswith(f".{each}")), "")
    ending = name.removesuffix(f".{compression}").rpartition(".")[2] if compression else ""
    ending = ending or name.rpartition(".")[2]
    return next((each for each in FORMATS.values() if ending in each.endings), None), compression
