"""What the readers of JSON and CSV share: a `datasets` builder whose files become tables one after another."""

from collections.abc import Iterable, Iterator
from typing import Any

import datasets
import pyarrow as pa

from packprep.sources import decompressed


class RowBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """A builder that need only say how an open file becomes tables."""

    def tables(self, file: Any) -> Iterator[pa.Table]:
        """Tables of the asked columns and `problem`, in row order. file: its plain bytes."""
        raise NotImplementedError

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator("train", {"files": self.config.data_files["train"]})]

    def _generate_tables(self, files: Iterable[str]) -> Iterator[tuple[Any, pa.Table]]:
        for number, path in enumerate(files):
            with decompressed(path) as file:
                for block, table in enumerate(self.tables(file)):
                    yield datasets.builder.Key(number, block), table
