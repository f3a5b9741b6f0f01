"""Zstandard files as `zstd -d --long=31` reads them: many frames, wide windows, damage."""

import io
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedShards
from packprep.sources.formats.zstd_reader import ZstdReader
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts
from tests.helpers.errors import assert_says


def framed(content: bytes, window_log: int) -> bytes:
    """A frame that says this window, as `zstd --long` writes it."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=window_log, enable_ldm=True
    )
    sink = io.BytesIO()
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with compressor.stream_writer(sink, closefd=False) as writer:
        writer.write(content)
    return sink.getvalue()


def skippable(content: bytes) -> bytes:
    """A frame without text, as pzstd and seekable files have them."""
    return b"\x50\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


LINES = "".join(f'{{"text": "{text}"}}\n' for text in texts(30)).encode()
HALF = len(LINES) // 2
TABLE, TEXT = b"text\n" + b"some text\n" * 29, b"a text"
# By name of the file: its text, its bytes, and the widest window in it.
FILES = {
    "usual.jsonl.zst": (LINES, framed(LINES, 27), 27),
    "wide.jsonl.zst": (LINES, framed(LINES, 28), 28),
    "second.jsonl.zst": (LINES, framed(LINES[:HALF], 20) + framed(LINES[HALF:], 28), 28),
    "skippable.jsonl.zst": (LINES, skippable(b"index") + framed(LINES, 29), 29),
    "table.csv.zst": (TABLE, framed(TABLE, 28) + skippable(b""), 28),
    "document.txt.zst": (TEXT, framed(TEXT, 30), 30),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wide_window_is_read_within_max_memory_or_named(tmp_path: Path, name: str) -> None:
    plain, packed, widest = FILES[name]
    file = tmp_path / name
    file.write_bytes(packed)
    file.with_suffix("").write_bytes(plain)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")

    def build(source: Path, memory: str) -> Result:
        more = ["--tokenizer", tokenizer, "--max-length", 64, "--max-memory", memory, "-q"]
        return run("build", source, "-o", tmp_path / f"{source.name}-{memory}", *more)

    def packs(name: str) -> list[list[int]]:
        return [pack.tokens.tolist() for pack in PackedShards(tmp_path / name)]

    assert (build(file, "3GB").code, build(file.with_suffix(""), "3GB").code) == (0, 0)
    assert packs(f"{name}-3GB") == packs(f"{file.with_suffix('').name}-3GB")
    little = build(file, "700MB")  # room for a window of 128 MB, as everywhere
    if widest <= 27:
        assert little.code == 0, little.err
        return
    assert little.code == 2
    assert_says(little.err, f"{file} has a zstd window of more than", 134_217_728, "--max-memory")
    assert_says(little.err, f"zstd -d --long=31 {file}")


@given(
    frames=st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 3), st.booleans())),
    at_once=st.integers(1, 5_000),
)
def test_frames_one_after_another_are_one_text(
    frames: list[tuple[bytes, int, bool]], at_once: int
) -> None:
    plain = [content * 20**more for content, more, _ in frames]
    packed = b"".join(
        zstandard.compress(content) + skippable(content[:9]) * skips
        for content, (_, _, skips) in zip(plain, frames, strict=True)
    )
    with ZstdReader(io.BytesIO(packed)) as raw, io.BufferedReader(raw, at_once) as file:
        assert file.read() == b"".join(plain)
