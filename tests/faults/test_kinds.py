"""Every kind of bad input, plain and compressed.

One sentence with file and row, exit 2, no output, exact counts.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.helpers.files import PACK

from .build import build
from .build import refused as one_sentence
from .kinds import AT, FILES, FORMATS, GOOD, LIMIT, BadFile, BadRow, flipped, whole

ROWS = [(suffix, kind) for suffix, form in FORMATS.items() for kind in form.rows]


def refused(folder: Path, path: Path, *options: str) -> str:
    """The one sentence of a build that is refused, behind the name of the file."""
    sentence = one_sentence(folder, path, "--max-row-size", LIMIT, *options)
    assert sentence.startswith(f"{path} "), sentence
    return sentence.removeprefix(f"{path} ")


def test_there_are_more_than_forty_kinds() -> None:
    assert len(ROWS) + len(FILES) >= 75
    assert len({(kind.suffix, kind.name) for kind in FILES}) == len(FILES)


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize(
    ("suffix", "kind"), ROWS, ids=[f"{suffix} {kind.name}" for suffix, kind in ROWS]
)
def test_a_bad_row_is_named_with_its_file_row_and_line(
    tmp_path: Path, suffix: str, kind: BadRow, compression: str
) -> None:
    form = FORMATS[suffix]
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(PACK[compression](form.bad(kind)))
    assert refused(tmp_path, path, *form.options) == (
        f"{form.place(AT)}: {kind.sentence}; fix it, or skip such rows with --on-error skip"
    )


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("suffix", FORMATS)
def test_skipped_rows_are_counted_exactly_and_every_other_row_is_packed(
    tmp_path: Path, suffix: str, compression: str
) -> None:
    form = FORMATS[suffix]
    rows: list[bytes | None] = list(form.good)
    planted: dict[str, int] = {}
    for number, kind in enumerate(form.rows):
        for _ in range(number + 1):  # as many as no other kind has
            rows.insert((7 * len(rows)) % len(form.good) + 1, kind.row)
        planted[kind.reason] = planted.get(kind.reason, 0) + number + 1
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(PACK[compression](form.make(rows)))
    options = ("--json", "--max-row-size", LIMIT, *form.options)
    report = json.loads(build(tmp_path, path, "--on-error", "skip", *options).out)
    assert report["documents"]["skipped"] == dict(sorted(planted.items()))
    assert report["documents"]["in"] == len(rows)

    (tmp_path / "alone").mkdir()
    path = tmp_path / "alone" / f"a{suffix}"
    path.write_bytes(whole(suffix))
    alone = json.loads(build(tmp_path / "alone", path, *options).out)
    assert alone["documents"]["in"] == len(GOOD)
    assert report["tokens"] == alone["tokens"]
    assert report["documents"]["empty"] == alone["documents"]["empty"]


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("kind", FILES, ids=lambda kind: f"{kind.suffix} {kind.name}")
def test_a_bad_file_is_named_with_what_is_wrong(
    tmp_path: Path, kind: BadFile, compression: str
) -> None:
    path = tmp_path / f"a{kind.suffix}{compression}"
    path.write_bytes(PACK[compression](kind.make()))
    assert re.fullmatch(kind.sentence, sentence := refused(tmp_path, path)), sentence
    if not compression:
        assert refused(tmp_path, path, "--dry-run") == sentence


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: f"{kind.suffix} {kind.name}")
def test_a_bad_file_is_refused_where_rows_are_skipped_too(tmp_path: Path, kind: BadFile) -> None:
    path = tmp_path / f"a{kind.suffix}"
    path.write_bytes(kind.make())
    sentence = one_sentence(tmp_path, path, "--max-row-size", LIMIT, "--on-error", "skip")
    nothing_left = (
        r"no document is left for the split train \(\d+ rows were skipped: \d+ (not_text|bad_\w+)"
    )
    assert sentence.startswith(f"{path} ") or re.match(nothing_left, sentence), sentence


PACKED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (
        lambda data: data[: len(data) // 2],
        r"is cut off at byte [\d,]+: the compressed data ends early.*",
    ),
    "cut off at the end": (
        lambda data: data[:-3],
        r"is cut off at byte [\d,]+: the compressed data ends early.*",
    ),
    "its header alone": (
        lambda data: data[:6],
        r"is cut off at byte 6: the compressed data ends early.*",
    ),
    "a byte flipped": (
        lambda data: flipped(data, len(data) // 2),
        r"does not decompress by byte [\d,]+: .*",
    ),
    "its checksum flipped": (
        lambda data: flipped(data, len(data) - 5),
        r"does not decompress by byte [\d,]+: .*",
    ),
    "garbage behind it": (
        lambda data: data + b"garbage" * 9,
        r"does not decompress by byte [\d,]+: .*"
        r"|is intact up to byte [\d,]+, and what follows is neither gzip nor padding with zeros; "
        r"remove it \(head -c \d+\) or fetch the file again",
    ),
    "not compressed at all": (
        lambda data: b"plain text\n" * 99,
        r"does not decompress by byte [\d,]+: .*",
    ),
}
"""Ways to damage a compressed file, whatever it holds."""


@pytest.mark.parametrize("compression", [".gz", ".zst"])
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("damage", PACKED)
def test_a_damaged_compressed_file_is_named_with_a_byte(
    tmp_path: Path, damage: str, suffix: str, compression: str
) -> None:
    change, sentence = PACKED[damage]
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    pack = {".gz": gzip.compress, ".zst": compressor.compress}[compression]
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(change(pack(whole(suffix))))
    found = refused(tmp_path, path, *FORMATS[suffix].options)
    assert re.fullmatch(sentence, found), found
    assert refused(tmp_path, path, "--on-error", "skip", *FORMATS[suffix].options) == found
