"""Forecast of a build from a sample of each source. Only a temporary folder is written.

For a mix it also says how much of each source would be drawn.

An input of at most 8 MB of text is tokenized completely, in the units of the build, so its figures
are those of the build. Of more text, a sample of 8 MB is tokenized, in some four seconds: a large
file of JSON lines is sampled at places spread over it, a compressed one at its start, Parquet and
saved datasets by their first rows, and other files are read completely. `sweep` plans the
sample, as for `packprep plan`, whose sample however draws from all documents and so reads all of
the text.
"""

import math
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packprep.config.grammar.known_columns import not_read
from packprep.config.pack_rules import MixRules, PackRules
from packprep.engines.tokenizer import Tokenizer
from packprep.execute.job import Job
from packprep.execute.stored import Tokens
from packprep.execute.window_files import Windows
from packprep.execute.work import Work
from packprep.output.report import unread_in
from packprep.output.staging import Staging
from packprep.preview.draws import SampledDocuments
from packprep.preview.stored_lengths import Lengths, of_files
from packprep.preview.sweep import Row, sweep
from packprep.sources.formats.raw_files import unpacking
from packprep.sources.source import Source
from packprep.sources.units import Slice, read_slices
from packprep.support.arrays import Bools
from packprep.support.errors import ConfigError, InputError
from packprep.support.progress import Silent
from packprep.support.redact import redacted, redacted_source
from packprep.tokens.encode import Encoder, load_encoder
from packprep.tokens.store import TokenFile
from packprep.tokens.token_files import quiet_datasets, tokenize_slice, tokenize_slices
from packprep.windows.documents import Documents, held_out, read_documents
from packprep.windows.planner import packed_tokens
from packprep.windows.segments import TooLongError

SAMPLE_BYTES = 8_000_000  # of text over all sources
_BEGINNING = 10 << 20  # unpacked bytes of a compressed file, enough for its compression ratio
_PIECE = 100_000  # bytes at one place of an uncompressed file
# A mix and phases draw documents by their sizes, not those that the build will draw.
_WHOLE_INPUT = {
    False: "the whole input",
    True: "the whole input, up to a document of each source in each draw",
}


@dataclass(frozen=True)
class _Sample:
    """Token files of the sample of a source. scale: size of the source relative to the sample."""

    files: list[TokenFile]
    scale: float

    def total(self, field: str) -> float:
        return self.scale * float(sum(getattr(file, field) for file in self.files))


def estimate(work: Work[Any]) -> dict[str, dict[str, object]]:
    """Tables: the resolved `options`, the `prediction` for the whole input, and `mix` for a mix.

    Also `contents`, by phase: those of the packs, see `PackContents`.

    With append the prediction is for the sources that the output does not hold yet. All tokens of a
    store are planned.
    """
    tokenizer = work.tokenizer(Silent())
    with tempfile.TemporaryDirectory() as folder, quiet_datasets():
        staging = Staging(Path(folder))
        staging.scratch.mkdir()
        job = work.job(tokenizer, staging, Silent())
        tables: dict[str, dict[str, object]] = {"prediction": {"from": "no new sources"}}
        if job.sources and isinstance(work.origin, Tokens):
            directory, stored = work.origin.joined(job)
            tables = _tables(job, directory, [_Sample(stored, 1.0)], whole=True)
        elif job.sources:
            stages = job.config.parsing, job.config.tokenizing
            encoder = load_encoder(tokenizer, *stages, job.config.seed, job.config.num_proc)
            files = _whole_input(job, encoder)
            whole, samples = files is not None, [_Sample(files or [], 1.0)]
            if not whole:
                samples = list(_samples(job, encoder))
            tables = _tables(job, job.scratch, samples, whole=whole)
    options = {
        key: value for key, value in asdict(job.config).items() if value not in (None, (), "")
    }
    names = cast("Sequence[str | Mapping[str, object]]", job.config.sources)
    options["sources"] = tuple(map(redacted_source, names))
    return {"options": options | {"tokenizer": redacted(str(job.config.tokenizer))}} | tables


def _tables(
    job: Job, directory: Path, samples: list[_Sample], *, whole: bool
) -> dict[str, dict[str, object]]:
    """The tables of a prediction. directory: of the token files of all samples."""
    files = [file for sample in samples for file in sample.files]
    rules = Windows(job, files).rules if whole else job.config.pack_rules()
    epochs = [
        of_files("a sample", job, directory, files, rules, epoch)
        for epoch in range(job.config.epochs)
    ]
    mix_rules = job.config.mix_rules(rules.skipped)
    documents = read_documents(directory, files)
    return _prediction(job, samples, documents, epochs, mix_rules, whole=whole)


def _whole_input(job: Job, encoder: Encoder) -> list[TokenFile] | None:
    """Token files that the build will make; None if the input has more text than a sample."""
    slices, text = [], 0
    for piece in read_slices(job.sources, job.plans[0], job.config.reading, job.scratch):
        slices.append(piece)
        text += piece.text_bytes
        if text > SAMPLE_BYTES:
            return None

    def make(piece: Slice, stop: threading.Event) -> TokenFile:
        return tokenize_slice(piece, job.scratch, encoder, stop=stop)

    most = job.config.reading.tokens_to_read
    return tokenize_slices(iter(slices), job.scratch, make, most_tokens=most)


def _samples(job: Job, encoder: Encoder) -> Iterator[_Sample]:
    """Samples of the sources, in proportion to their sizes."""
    sources, reading, scratch = job.sources, job.config.reading, job.scratch
    size = sum(source.bytes for source in sources)
    left, number, before = reading.limit, 0, 0
    left_of_entry = {source.entry: source.limit for source in sources}
    for place, source in enumerate(sources):
        if left == 0:
            return
        if (entry_left := left_of_entry[source.entry]) is not None:
            source = replace(source, reading={**source.reading, "limit": entry_left})
        if entry_left == 0:
            yield _Sample([], 1.0)
            continue
        share = SAMPLE_BYTES * source.bytes / size
        # With a limit, all of its rows are read and counted.
        limited = left is not None or entry_left is not None
        part, scale = _part(source, share, scratch) if not limited else (source, 1.0)
        if part is not source and not source.compression:
            share = math.inf  # only all pieces together are a sample
        count = source.format.count
        rows = None
        if count is not None and not limited:
            rows = count(source)
        plan = job.plans[0][place]
        if part is not source:  # rows of a part have other numbers
            plan = replace(plan, on_error="skip")
        few = replace(reading, unit_size=min(_PIECE, reading.unit_size), limit=left)
        files: list[TokenFile] = []
        read = text = 0
        for piece in read_slices([part], [plan], few, scratch):
            read, text = read + len(piece.table), text + piece.text_bytes
            if sum(file.text_bytes for file in files) < share or not files:
                files.append(
                    tokenize_slice(_numbered(piece, number, place, before), scratch, encoder)
                )
                number += 1
                before += files[-1].documents
            elif rows is not None:
                break
        if left is not None:
            left -= read
        if entry_left is not None:
            left_of_entry[source.entry] = entry_left - read
        sampled = sum(file.text_bytes for file in files)
        yield _Sample(
            files, scale * (rows / read if rows else 1.0) * (text / sampled if sampled else 1.0)
        )


def _numbered(piece: Slice, number: int, source: int, first: int) -> Slice:
    """The slice as a unit of all samples. first: rows of the samples before it."""
    return replace(
        piece,
        unit=number,
        slice=0,
        first_document=first,
        parts=tuple(replace(part, source=source) for part in piece.parts),
    )


def _prediction(
    job: Job,
    samples: list[_Sample],
    documents: Documents,
    epochs: Sequence[Lengths],
    rules: MixRules,
    *,
    whole: bool,
) -> dict[str, dict[str, object]]:
    """Prediction for the whole input.

    documents: of the samples; epochs: their lengths, in the windows of each epoch. whole: True if
    the samples are all that the build reads.
    """
    sources, reading, tokenizer = job.sources, job.config.reading, job.tokenizer
    files = [file for sample in samples for file in sample.files]
    text, tokens = sum(file.text_bytes for file in files), sum(file.tokens for file in files)
    total = {
        field: sum(sample.total(field) for sample in samples) for field in ("text_bytes", "tokens")
    }
    most = reading.tokens_to_read
    if not whole and most is not None and total["tokens"] > most:
        unit = (
            reading.unit_size * total["tokens"] / total["text_bytes"]
        )  # the unit that reaches the limit is read completely
        share = min(1.0, -(-most // unit) * unit / total["tokens"])
        total = {field: share * count for field, count in total.items()}
    scale = total["tokens"] / tokens if tokens else 1.0
    mix: dict[str, dict[str, float]] = {}
    validation = held_out(documents, rules.holdout, rules.ordering.seed)
    drawn = _sampled(samples, sources, documents, validation)
    plans, repeated = [(rules.packs[0], scale)], 0.0
    if rules.phases:
        plans, repeated = _phases(drawn, documents, sources, tokenizer, rules)
    else:
        kept = _kept(documents, sources, tokenizer, rules.packs[0])
        if reading.is_mix:
            mix, copies = drawn.of_mix(kept, reading)
            amount = float((copies * kept * drawn.scale).sum())
            plans = [(rules.packs[0], amount / (int(kept.sum()) or 1))]
            repeated = drawn.repeated(copies)
    share = 1.0 if whole else min(1.0, text / total["text_bytes"])

    def planned(lengths: Lengths, rules: PackRules, scale: float) -> Row:
        # Without a number of packs: a sample has fewer.
        cutting = replace(rules.cutting, strategy=rules.cutting.packer.name)
        sample = replace(lengths, share=share, scale=scale)
        [row] = sweep(sample, [replace(rules, cutting=cutting)], job.config.writing)
        if row.problem:
            raise ConfigError(
                f"nothing can be planned: {row.problem}; choose another --overflow or --strategy"
            )
        return row

    rows = [planned(lengths, *plan) for lengths in epochs for plan in plans]
    packs = [row.figures["packs"] for row in rows]
    places = [count * row.max_length for count, row in zip(packs, rows, strict=True)]
    full = sum(row.figures["utilization"] * each for row, each in zip(rows, places, strict=True))
    unread = unread_in(part for file in files for part in file.parts)
    line = not_read(unread.get("columns", ()), unread.get("keys", {}).items())
    prediction = {
        "from": _WHOLE_INPUT[reading.is_mix]
        if whole
        else _sample_size(text, total["text_bytes"]) + _with_listed(sources),
        "text_bytes": round(total["text_bytes"]),
        "tokens_in": len(epochs) * round(total["tokens"] + repeated),
        "tokens_packed": sum(row.tokens_packed for row in rows),
        "packs": sum(packs),
        "utilization": round(full / (sum(places) or 1), 4),
        "bytes": sum(row.bytes for row in rows),
    }
    if line:
        prediction["not_read"] = line
    of_phases = enumerate(rows[: len(plans)], 1)  # of the first epoch
    contents: dict[str, object] = {
        str(number): row.contents.as_dict() for number, row in of_phases if row.contents is not None
    }
    tables = {"prediction": prediction, "contents": contents}
    if rules.phases:
        return tables | {
            "phases": {
                f"phase {number}": {
                    "tokens": row.tokens_packed,
                    "packs": row.figures["packs"],
                    "max_length": row.max_length,
                }
                for number, row in enumerate(rows, 1)
            }
        }
    return tables | ({"mix": mix} if mix else {})


def _sample_size(sampled: int, read: float) -> str:
    """Text of the sample, and its share of the text that the build reads."""
    if sampled > read:  # max_tokens ends the build before the end of the sample
        return f"a sample of {sampled:,} bytes, more than the text_bytes that the build reads"
    return f"a sample of {sampled:,} bytes, {sampled / read:.2%} of text_bytes"


def _with_listed(sources: Sequence[Source]) -> str:
    """End of the words for a sample, whose rows have no numbers."""
    rows = sum(len(source.skip_rows) for source in sources)
    return f"; the {rows:,} rows of skip_rows are counted too" if rows else ""


def _phases(
    drawn: SampledDocuments,
    documents: Documents,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    rules: MixRules,
) -> tuple[list[tuple[PackRules, float]], float]:
    """Rules of each phase, and tokens of the phase for each token that the sample has for it.

    Also the tokens of copies of documents that phases repeat.
    """
    sizes = [_kept(documents, sources, tokenizer, each) * ~drawn.validation for each in rules.packs]
    tokens, copies = drawn.of_phases(sizes, rules.phases, rules.entries)
    plans = [
        (each, amount / (int(size.sum()) or 1))
        for each, amount, size in zip(rules.packs, tokens, sizes, strict=True)
    ]
    return plans, drawn.repeated(copies)


def _sampled(
    samples: list[_Sample], sources: Sequence[Source], documents: Documents, validation: Bools
) -> SampledDocuments:
    missing = len(sources) - len(samples)  # sources that a limit leaves out
    scales = np.array([*(sample.scale for sample in samples), *[1.0] * missing])
    return SampledDocuments(
        length=documents.length,
        entry=np.array([source.entry for source in sources])[documents.source],
        scale=scales[documents.source],
        validation=validation,
    )


def _kept(
    documents: Documents, sources: Sequence[Source], tokenizer: Tokenizer, rules: PackRules
) -> NDArray[np.int64]:
    """Tokens of each document in packs, [documents]."""
    try:
        return packed_tokens(documents, tokenizer, rules)
    except TooLongError as error:
        name = sources[int(documents.source[error.document])].name
        raise InputError(
            f"{name} has a document of {error.tokens:,} tokens but a pack holds "
            f"{rules.cutting.max_length:,}; choose --overflow split, truncate or drop"
        ) from None


def _part(source: Source, share: float, scratch: Path) -> tuple[Source, float]:
    """Part of a large file with one row per line, and the size of the file relative to the part."""
    has_row_a_line = source.format.has_row_a_line
    if (
        has_row_a_line is None
        or source.path is None
        or source.bytes < 2 * (_BEGINNING if source.compression else share)
    ):
        return source, 1.0
    block, taken = (
        _beginning(source) if source.compression else _pieces(source, math.ceil(share / _PIECE))
    )
    lines = block.rpartition(b"\n")[0]
    if not has_row_a_line(lines):
        return source, 1.0
    path = scratch / f"part-{source.sha256}.{source.format.endings[0]}"
    path.write_bytes(lines)
    return replace(source, path=path), source.bytes / taken * len(block) / len(lines)


def _beginning(source: Source) -> tuple[bytes, int]:
    """The first unpacked bytes of a compressed file, and the bytes that they take in the file."""
    with (
        source.raw() as file,
        unpacking(file, source.compression, source.max_window) as plain,
    ):
        return plain.read(_BEGINNING), file.tell()


def _pieces(source: Source, count: int) -> tuple[bytes, int]:
    """Lines that begin in one of `count` ranges spread evenly over a file, and their bytes.

    The choice does not depend on the length of a line.
    """
    blocks = []
    with source.raw() as file:
        for place in range(count):
            start = place * source.bytes // count
            file.seek(start)
            if place:
                file.readline()
            if (rest := start + _PIECE - file.tell()) > 0:
                blocks.append(file.read(rest) + file.readline())
    block = b"".join(blocks)
    return block, len(block)
