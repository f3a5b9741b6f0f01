"""Tables one after another as a `datasets` object in streaming form."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa


@dataclasses.dataclass
class RowsConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """tables: reads the rows from the first on."""

    tables: Callable[[], Iterator[pa.Table]] = lambda: iter(())


class RowBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """A builder of the tables that its configuration reads."""

    BUILDER_CONFIG_CLASS = RowsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator("train")]

    def _generate_tables(self) -> Iterator[tuple[Any, pa.Table]]:
        for block, table in enumerate(self.config.tables()):
            yield datasets.builder.Key(0, block), table


def streamed(tables: Callable[[], Iterator[pa.Table]], scratch: Path) -> Any:
    """The rows of these tables as a `datasets` object. Nothing is written to `scratch`."""
    builder = RowBuilder(cache_dir=str(scratch))
    builder.config.tables = tables  # given to the constructor, it would be pickled for a digest
    return builder.as_streaming_dataset(split="train")
