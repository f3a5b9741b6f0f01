import functools
import gc
import operator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from packprep.config.stages import Ordering, Writing
from packprep.schemas import FormatError
from packprep.sources.units import Part
from packprep.tokens.store import TokenFile
from packprep.windows.documents import held_out, join_documents, read_chosen
from packprep.windows.specs import form_windows, list_windows
from tests.helpers.documents import make_documents, tokenizer
from tests.helpers.errors import refused
from tests.helpers.files import config


def token_file(unit: int, *, first: int = 0, parts: tuple[int, ...] = (1,)) -> TokenFile:
    """A receipt. parts: documents of each source."""
    documents = sum(parts)
    return TokenFile(
        unit=unit,
        slice=0,
        first_document=first,
        documents=documents,
        text_bytes=10 * documents,
        tokens=0,
        verified=0,
        parts=tuple(Part(source, count, {}) for source, count in enumerate(parts) if count),
        cut={},
        left_out={},
        bytes=0,
        xxh3="",
    )


def write_tokens(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def units(windows: list[list[TokenFile]]) -> list[list[int]]:
    return [[file.unit for file in window] for window in windows]


def test_the_seed_deals_units_to_windows_and_a_window_is_in_input_order() -> None:
    files = [token_file(unit) for unit in range(40)]
    in_order = units(form_windows(files[:5], 20, Ordering(order="input")))
    assert in_order == [[0, 1], [2, 3], [4]], "a window ends with the unit that reaches its size"
    rules = config(order="input").pack_rules()
    whole, part = (list_windows(files[:size], rules, Writing(window=20)) for size in (9, 5))
    assert part[:-1] == whole[:2], "of a part of the input only the last one may grow"
    assert form_windows([], 20, Ordering()) == []
    windows = units(form_windows(files, 100, Ordering(seed=3)))
    assert all(window == sorted(window) for window in windows)
    assert sorted(functools.reduce(operator.iadd, windows, [])) == list(range(40))
    assert windows != units(form_windows(files, 100, Ordering(seed=4)))
    assert windows == units(form_windows(files, 100, Ordering(seed=3)))


def test_labels_outlive_their_documents() -> None:
    gc.collect()  # what other tests left would be freed below
    before = pa.total_allocated_bytes()
    columns = {"tokens": pa.list_(pa.int32()), "labels": pa.list_(pa.int8())}
    batch = pa.record_batch({name: pa.array([[1] * 9_000], kind) for name, kind in columns.items()})
    documents = join_documents([batch], np.arange(1), np.zeros(1, np.int32))
    labels = documents.labels
    assert labels is not None
    del batch, documents
    gc.collect()
    assert 9_000 <= pa.total_allocated_bytes() - before < 36_000, (
        "the mask is there, the tokens are not"
    )
    _reused = pa.array(np.zeros(9_000, np.int8))
    assert labels.count(*np.array([[0], [1], [8_999]], np.int32)).tolist() == [8_999]


def test_token_files_of_two_widths_are_never_read_as_one(tmp_path: Path) -> None:
    files = [token_file(number, first=number) for number in range(2)]
    tables = [
        pa.table({"tokens": pa.array([[7, 8]], pa.list_(kind))})
        for kind in (pa.int32(), pa.uint16())
    ]
    for file, table in zip(files, tables, strict=True):
        write_tokens(tmp_path / file.name, table)
    with refused(FormatError, "token files of different versions of packprep"):
        read_chosen(tmp_path, files, lambda _, documents: np.arange(len(documents)))
    batches = [table.to_batches()[0] for table in tables]
    with refused(FormatError, "token files of different versions of packprep"):
        join_documents(batches, np.arange(2), np.zeros(2, np.int32))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_the_held_out_share_is_as_configured_and_depends_only_on_the_document(share: float) -> None:
    documents = make_documents([1] * 100_000, tokenizer())
    validation = held_out(documents, share, seed=0)
    assert abs(validation.mean() - share) < 0.01
    backwards = np.arange(100_000)[::-1]
    found = held_out(documents.take(backwards), share, seed=0)
    assert (found == validation[backwards]).all()
