"""Parts that the readers of JSON, CSV and text share.

A `datasets` builder whose files become tables one after another.

No row is read beyond `max_row_size`, so that a compressed file that unpacks to one endless line
costs no more memory than a long row.
"""

import dataclasses
import io
from collections.abc import Iterable, Iterator
from typing import Any

import datasets
import pyarrow as pa

from packprep.sources.formats.raw_files import decompressed

# UTF-16 without its mark is valid UTF-8 full of NULs, and so are most binary files.
NUL = "holds a NUL, as text in UTF-8 does not; save it as UTF-8"


@dataclasses.dataclass
class RowsConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """Settings of a reader of rows.

    file: its path or URL. source_version: see `Source.version`. columns: names of the columns to
    read. source: the file as messages name it. max_row_size: in bytes.
    """

    file: str = ""
    source_version: str = ""
    columns: tuple[str, ...] = ("text",)
    source: str = ""
    max_row_size: int = 256_000_000


class RowBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """A builder that need only say how an open file becomes tables."""

    BUILDER_CONFIG_CLASS = RowsConfig

    def tables(self, file: Any) -> Iterator[pa.Table]:
        """Tables of the asked columns and `problem`, in row order. file: its plain bytes."""
        raise NotImplementedError

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator("train", {"files": [self.config.file]})]

    def _generate_tables(self, files: Iterable[str]) -> Iterator[tuple[Any, pa.Table]]:
        for number, path in enumerate(files):
            with decompressed(path, self.config.source_version) as file:
                for block, table in enumerate(self.tables(file)):
                    yield datasets.builder.Key(number, block), table


def numbered_lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and beginning of every line that is not blank.

    Given before the line is read to its end.
    """
    number, said = 1, False
    while piece := file.readline(1 << 20):
        if not said and (first := piece.strip()):
            yield number, first
            said = True
        if piece.endswith(b"\n"):
            number, said = number + 1, False


def escaped_bytes(text: str) -> int:
    """Offset of the first byte that is not UTF-8, or of the first lone surrogate.

    In text decoded with surrogateescape; -1 where there is none.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1
