"""The second edition in place of the first, for `scripts/check_trainers --edition second`.

Import it before anything that imports `packprep.loaders`. It goes when the second edition takes the
place of the first.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from packprep.next import loaders
from packprep.next.exports.export import export
from packprep.next.schemas.columns import DEFAULT_COLUMNS, STANDARD
from packprep.next.schemas.files import shard_name
from packprep.next.schemas.manifest import open_output
from packprep.next.write.layout import hf_column
from packprep.next.write.sign import write_dataset_files
from tests.docs.blocks import ROOT, Block, load
from tests.helpers import one_line, tiny_shards
from tests.second import outputs
from tests.second.test_exports import stored

SMALL = ("tokens", "position_ids")
GONE = ("to_flattening", "to_forgather", "to_trl_row", "with padding", "of equate")
"""Words in names of checks of what the second edition has not."""


class _Pack(dict[str, Any]):
    """A pack as the first edition gives it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    @property
    def columns(self) -> Mapping[str, Any]:
        return self


class _Shards(loaders.PackedShards):
    """Shards that give such packs."""

    def __iter__(self) -> Iterator[Any]:
        return map(_Pack, super().__iter__())

    @property
    def manifest(self) -> Any:
        return open_output(self.path).manifest.layout


_LOADER: Any = loaders.PackedLoader


def _loader(*arguments: Any, shuffle: bool = True, **options: Any) -> Any:
    """A loader in stored order, unless it shuffles."""
    return _LOADER(*arguments, **options, **({} if shuffle else {"shuffle_window": 0}))


def _gone(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the second edition has no such function")


def _write(
    directory: Path, splits: Mapping[str, Sequence[Any]], columns: Sequence[Any], **sizes: Any
) -> None:
    """Write an output, as `tiny_shards.write_output` does; first tokens have no label here."""
    names, shards = [STANDARD[column.name] for column in columns], list[list[Any]]()
    for packs in splits["train"]:
        shards.append([])
        for pack in packs:
            labels = np.array(pack["labels"])
            labels[pack["cu_seqlens"][:-1]] = -100
            shards[-1].append({**pack, "labels": labels})
    outputs.write(directory, shards, names, max_length=sizes["max_length"])
    files = sorted(path.name for path in directory.glob("*.arrow"))
    write_dataset_files(directory, files, "0", "train")


def _rename(_sources: Sequence[Path], directory: Path, **_: Any) -> None:
    """Write the packs of an output again, with the names and types of `--columns hf`."""
    columns = [STANDARD[name] for name in (*DEFAULT_COLUMNS, "labels")]
    small = [replace(c, dtype="uint16") if c.name in SMALL else c for c in columns]
    rows = [
        pack | {"input_ids": pack["tokens"], "seq_lengths": np.diff(pack["cu_seqlens"])}
        for pack in map(dict, loaders.PackedShards(directory))
    ]
    shutil.rmtree(directory)
    outputs.write(directory, [rows], [hf_column(column) for column in small])
    write_dataset_files(directory, [shard_name(0, 1)], "0", "train")


def _export(source: Path, output: str, to: str) -> Any:
    return SimpleNamespace(splits=export(str(source), to, output).rows)


def _swapped() -> Path:
    """A folder in which the second edition is `packprep`."""
    folder = Path(tempfile.mkdtemp())
    (folder / "packprep").symlink_to(ROOT / "packprep" / "next")
    return folder


SPELLED = {
    "messages_column": "messages",
    "import PackedLoader,": "import BatchShape, PackedLoader,",
    "packs_per_batch=config.packs": "shape=BatchShape(packs_per_batch=2, pad_to=seq_len)",
    "            pad_to=seq_len,\n": "",
}
"""Words of scripts of pages, and how the second edition spells them."""


def _load(page: Path) -> list[Block]:
    """The blocks of a page with the options of the second edition."""
    blocks = []
    for block in load(ROOT / page.relative_to(one_line.ROOT)):
        text = block.text
        for first, second in SPELLED.items():
            text = text.replace(first, second)
        blocks.append(replace(block, text=text))
    return blocks


def check_export(to: str, reader: Callable[[Path, str], Any], _: Path | None = None) -> None:
    """Compare the reader's own class with the packs; AssertionError for others."""
    for hides in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "in", Path(folder) / "out"
            pack = outputs.pack(3, 1, 7)
            labels = np.array(pack["tokens"])
            labels[: 6 if hides else 0] = -100
            pack |= {"labels": np.where(pack["position_ids"] > 0, labels, -100)}
            columns = (*outputs.COLUMNS, STANDARD["labels"])
            outputs.write(source, [[pack, pack], [pack]], columns)
            if hides and to == "megatron":
                continue
            export(str(source), to, str(out))
            made = json.loads((out / "export.json").read_bytes())
            (out / "export.json").write_text(json.dumps({"data": made}))
            assert reader(out, "train") == stored(source, to)


for name in GONE[:3]:
    setattr(loaders, name, _gone)
loaders.check_trl = lambda settings, **_: settings  # type: ignore[attr-defined]
kind: Any
for name, kind in (("PackedShards", _Shards), ("PackedLoader", _loader)):
    setattr(loaders, name, kind)
sys.modules["packprep.loaders"] = loaders
sys.modules["packprep.exports.export"] = SimpleNamespace(export=_export)  # type: ignore[assignment]
tiny_shards.write_output = _write  # type: ignore[assignment]
sys.modules["packprep.derive.merge"] = SimpleNamespace(merge=_rename)  # type: ignore[assignment]
one_line.ROOT, one_line.load = _swapped(), _load  # type: ignore[attr-defined, assignment]
