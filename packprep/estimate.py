"""What a build would give, from a sample of each source; only a temporary folder is written, and it goes away again."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packprep.config import BuildConfig
from packprep.engines import load_engine
from packprep.errors import InputError
from packprep.planning import plan_window, window_seed
from packprep.reading import decompressed
from packprep.shards import Layout, shard_bytes
from packprep.sources import Source, resolve
from packprep.tokenizer import load_tokenizer
from packprep.tokens import TokenFile, tokenize_unit
from packprep.units import Part, read_units
from packprep.windows import read_documents

SAMPLE_BYTES = 8_000_000  # of text over all sources: some four seconds of the reference engine
_UNIT_BYTES = 1_000_000
_HEAD_BYTES = 16_000_000  # line formats larger than this are judged by their beginning


@dataclass(frozen=True)
class _Sampled:
    """Token files of a source's sample, and text bytes of the source: counted, or scaled up from its beginning."""

    files: list[TokenFile]
    text_bytes: float


def estimate(config: BuildConfig) -> dict[str, dict[str, Any]]:
    """Two tables: the resolved `options`, and the `prediction` for the whole input."""
    tokenizer = load_tokenizer(config.tokenizer, revision=config.tokenizer_revision, bos=config.bos, eos=config.eos)
    engine = load_engine("hf", tokenizer.json, parse_special_tokens=config.parse_special_tokens)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sources = resolve(config, scratch)
        share = SAMPLE_BYTES // len(sources)
        sampled: list[_Sampled] = []
        for source in sources:
            head, scale = _head(source, config, scratch)
            files: list[TokenFile] = []
            text = sampled_text = 0
            for unit in read_units([head], replace(config, unit_size=_UNIT_BYTES, max_tokens=None), scratch):
                text += unit.text_bytes
                if sampled_text <= share:
                    number = sum(len(other.files) for other in sampled) + len(files)
                    parts = tuple(Part(len(sampled), part.rows, part.skipped) for part in unit.parts)
                    unit = replace(unit, number=number, parts=parts)
                    files.append(tokenize_unit(unit, scratch, engine, tokenizer, config))
                    sampled_text += unit.text_bytes
            sampled.append(_Sampled(files, text * scale))
        every = [file for sample in sampled for file in sample.files]
        if not every:
            raise InputError("the sources hold no rows; expected at least one document")
        plan = plan_window(read_documents(scratch, every), tokenizer, config, window_seed(config, 0, 0))
        prediction = _scaled(every, sampled, int(plan.packs.lengths.sum()), len(plan.packs), config)
        prediction["bytes"] = round(
            float(shard_bytes(plan.packs, Layout.of(config, tokenizer)).sum()) * prediction.pop("scale")
        )
    options = {key: value for key, value in asdict(config).items() if value is not None}
    return {"options": options | {"tokenizer": str(config.tokenizer)}, "prediction": prediction}


def _scaled(
    files: Sequence[TokenFile], sampled: Sequence[_Sampled], tokens: int, packs: int, config: BuildConfig
) -> dict[str, Any]:
    text = sum(sample.text_bytes for sample in sampled)
    in_sample = sum(file.text_bytes for file in files)
    scale = text / in_sample if in_sample else 1.0
    whole = scale <= 1.0
    return {
        "from": "the whole input" if whole else f"a sample of {in_sample:,} bytes of text, {1 / scale:.2%} of it",
        "text_bytes": round(text),
        "documents": round(sum(file.documents for file in files) * scale),
        "tokens_in": round(sum(file.tokens for file in files) * scale),
        "tokens_packed": round(float(tokens) * scale),
        "packs": round(packs * scale),
        "utilization": round(float(tokens) / (packs * config.max_length), 4) if packs else 1.0,
        "scale": scale,
    }


def _head(source: Source, config: BuildConfig, scratch: Path) -> tuple[Source, float]:
    """The beginning of a large file of lines as a source of its own, and how many times larger the file is."""
    lines = source.kind in ("json", "csv") or (source.kind == "text" and config.sample_by != "document")
    if not lines or source.path is None or source.bytes <= _HEAD_BYTES or config.limit is not None:
        return source, 1.0
    with decompressed(source.path) as file:
        block = file.read(_HEAD_BYTES)
    # Compressed data is assumed to stay as compressible as its beginning.
    consumed = len(block) if not source.compressed else _compressed_size(source.path, block)
    if block.lstrip()[:1] == b"[" or b"\n" not in block:
        return source, 1.0
    path = scratch / f"head-{source.sha256}.{source.suffix}"
    path.write_bytes(block[: block.rindex(b"\n") + 1])
    return Source(source.name, source.kind, path, path.stat().st_size, source.sha256), source.bytes / consumed


def _compressed_size(path: Path, block: bytes) -> float:
    """Bytes that `block` takes in its file, to the percent: the beginning is packed again with a like method."""
    import zlib

    if path.suffix.lower() == ".gz":
        return float(len(zlib.compress(block, 6)))
    import zstandard

    return float(len(zstandard.compress(block)))
