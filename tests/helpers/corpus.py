"""Small inputs for tests: a byte-level BPE trained on a few lines, JSON lines, real data."""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from packprep.config.build_config import BuildConfig
from packprep.sources.formats.format import Wanted
from packprep.sources.formats.raw_files import suffixes
from packprep.sources.formats.registry import format_of
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.reading import read_rows
from packprep.sources.resolve import resolve
from packprep.sources.source import Source
from packprep.support.problems import READER_PROBLEM
from packprep.support.progress import Silent

from . import stand_ins

ROOT = Path(__file__).parents[2]
_SHARED = Path(os.environ.get("PACKPREP_TEST_DATA", ROOT.parent / "shared" / "data"))
SHARED = _SHARED if _SHARED.exists() else stand_ins.data()
REAL_TOKENIZERS = {
    "gpt2": ("<|endoftext|>", "<|endoftext|>"),
    "llama3_2": ("<|begin_of_text|>", "<|eot_id|>"),
    "qwen3": (None, "<|im_end|>"),
    "mistral_nemo": ("<s>", "</s>"),
    "gemma2": ("<bos>", "<eos>"),
    "t5_small": (None, "</s>"),
    "bert_base_uncased": ("[CLS]", "[SEP]"),
}
"""Folders of real tokenizers below SHARED, with their BOS and EOS."""
"""Real text and tokenizers where a checkout has them beside it; else some that are made here."""

_LINES = [
    "The cat sat on the mat, and the dog sat on the log.",
    "Packing puts short documents together so that no token of a sequence is padding.",
    "Größe, naïveté, 東京 and emoji 🙂 are bytes like any other.",
    "def pack(lengths, max_length): return sorted(lengths, reverse=True)",
]


@cache
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE of 320 tokens with <s> and </s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES * 3, trainer)
    return tokenizer


def save_tokenizer(folder: Path, *, config: dict[str, Any] | None = None) -> Path:
    """Save the tiny tokenizer as a directory.

    config: content of tokenizer_config.json; by default it names <s> and </s>.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    side = {"bos_token": "<s>", "eos_token": "</s>"} if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps(side))
    return folder


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write one JSON value per line; a text becomes a row with this `text`."""
    lines = [json.dumps({"text": row} if isinstance(row, str) else row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of 0 to about 300 words, the same for the same seed."""
    words = " ".join(_LINES).split()
    sizes = [
        (seed * 7919 + 31 * number * number + 17 * number) % (300 if number % 7 == 0 else 40)
        for number in range(count)
    ]
    return [
        " ".join(words[(number + place) % len(words)] for place in range(size))
        for number, size in enumerate(sizes)
    ]


def build_options(
    folder: Path, files: Mapping[str, Iterable[Any]], **options: Any
) -> dict[str, Any]:
    """Options of a build of these files (name -> rows) into packs of 64 tokens.

    Everything is in `folder`; the output is `out`.
    """
    return {
        "sources": tuple(str(write_jsonl(folder / name, rows)) for name, rows in files.items()),
        "output": str(folder / "out"),
        "tokenizer": str(save_tokenizer(folder / "tokenizer")),
        "max_length": 64,
    } | options


def tables_of(file: Any, name: str, **options: Any) -> Iterator[pa.Table]:
    """Tables with column text, read from a file with this name and these uncompressed bytes."""
    source = source_of(file, name)
    wanted = Wanted(row_plan(BuildConfig(**options).parsing))
    tables: Iterator[pa.Table] = source.format.tables(source, None, wanted)
    return tables


def resolved(settings: BuildConfig, scratch: Path, *progress: Any) -> list[Source]:
    """The sources of a build."""
    return resolve(settings.reading, settings.parsing, settings.output, scratch, *progress)


def rows_in(source: Source, settings: BuildConfig, *place: Any, **known: Any) -> Iterator[pa.Table]:
    """Tables of a source, as a build reads them. place, known: of `read_rows`, `row_plan`."""
    plan = row_plan(settings.parsing.of_source(source.reading), **known)
    return read_rows(source, plan, *place)


def source_of(file: Any, name: str) -> Any:
    """A source with this name and these uncompressed bytes, which can be read once."""
    kind = format_of(name)
    assert kind is not None
    source = mock.Mock(spec=Source(name, kind.name, name, 0, ""))
    source.name, source.suffix, source.format = name, suffixes(name)[0], kind
    source.plain.return_value = io.BufferedReader(file)
    return source


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a reader, with reason and detail of a problem in one line."""
    names = ["problem" if name == READER_PROBLEM else name for name in table.column_names]
    rows = table.rename_columns(names).to_pylist()
    return [row | {"problem": one_line(row["problem"])} for row in rows]


def one_line(problem: Mapping[str, str] | None) -> str | None:
    return None if problem is None else f"{problem['reason']}: {problem['detail']}"


class RecordedProgress(Silent):
    """Progress that records the lines of a build."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def expected_ids(
    documents: Sequence[str], tokenizer: Tokenizer, bos: int | None, eos: int | None
) -> list[list[int]]:
    """Ids of each document by `tokenizers` alone, with BOS and EOS if there are any ids."""
    tokenizer.encode_special_tokens = True
    encodings = tokenizer.encode_batch(list(documents), add_special_tokens=False)
    before, after = [[token] if token is not None else [] for token in (bos, eos)]
    return [before + encoding.ids + after if encoding.ids else [] for encoding in encodings]


@contextmanager
def disk_fails(place: Any, name: str, calls: int = 0) -> Iterator[None]:
    """Let the disk fail after this many calls of `place.name`, and expect that error."""
    real, left = getattr(place, name), [calls]

    def failing(*arguments: Any, **settings: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error", "somewhere")
        return real(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, failing)
        with pytest.raises(OSError, match="Input/output error"):
            yield
