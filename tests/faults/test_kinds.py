"""Every kind of bad input, plain and compressed.

One sentence with file and row, exit 2, no output, exact counts.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.helpers.files import PACK

from .build import build
from .build import refused as one_sentence
from .kinds import AT, FILES, FORMATS, GOOD, LIMIT, BadRow, flipped, whole

ROWS = [(suffix, kind) for suffix, form in FORMATS.items() for kind in form.rows]
COMPRESSIONS = [pytest.param(name, marks=[pytest.mark.long] * bool(name)) for name in PACK]


def refused(folder: Path, path: Path, *options: str) -> str:
    """The one sentence of a build that is refused, behind the name of the file."""
    sentence = one_sentence(folder, path, "--max-row-size", LIMIT, *options)
    assert sentence.startswith(f"{path} "), sentence
    return sentence.removeprefix(f"{path} ")


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("suffix", "kind"), ROWS, ids=lambda each: str(each)[:60])
def test_a_bad_row_is_named_with_its_file_row_and_line(
    tmp_path: Path, suffix: str, kind: BadRow, compression: str
) -> None:
    form = FORMATS[suffix]
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(PACK[compression](form.bad(kind)))
    sentence = refused(tmp_path, path, *form.options)
    assert sentence.startswith(f"{form.place(AT)}: ")
    assert kind.words in sentence
    assert sentence.endswith("--on-error skip")


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("suffix", FORMATS)
def test_skipped_rows_are_counted_exactly_and_every_other_row_is_packed(
    tmp_path: Path, suffix: str, compression: str
) -> None:
    form = FORMATS[suffix]
    rows: list[bytes | None] = list(form.good)
    planted: Counter[str] = Counter()
    for number, kind in enumerate(form.rows, 1):  # as many as no other kind has
        for _ in range(number):
            rows.insert((7 * len(rows)) % len(form.good) + 1, kind.row)
        planted[kind.reason] += number
    (tmp_path / "alone").mkdir()
    paths = tmp_path / f"a{suffix}{compression}", tmp_path / "alone" / f"a{suffix}"
    reports = []
    for path, content in zip(
        paths, (PACK[compression](form.make(rows)), whole(suffix)), strict=True
    ):
        path.write_bytes(content)
        options = ("--on-error", "skip", "--json", "--max-row-size", LIMIT, *form.options)
        reports.append(json.loads(build(path.parent, path, *options).out))
    report, alone = reports
    assert report["documents"]["skipped"] == dict(sorted(planted.items()))
    assert report["documents"]["in"] == len(rows)
    assert alone["documents"]["in"] == len(GOOD)
    assert report["tokens"] == alone["tokens"]
    assert report["documents"]["empty"] == alone["documents"]["empty"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_is_named_with_what_is_wrong_and_refused_where_rows_are_skipped_too(
    tmp_path: Path, kind: str, compression: str
) -> None:
    suffix, content, words = FILES[kind]
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(PACK[compression](content))
    assert re.search(words, sentence := refused(tmp_path, path)), sentence
    if not compression:
        assert refused(tmp_path, path, "--dry-run") == sentence
        skipping = one_sentence(tmp_path, path, "--max-row-size", LIMIT, "--on-error", "skip")
        nothing_left = r"no document is left for the split train \(\d+ rows were skipped: \d+ "
        assert skipping.startswith(f"{path} ") or re.match(nothing_left, skipping), skipping


_CUT, _BROKEN = r"is cut off at byte [\d,]+: ", r"does not decompress by byte [\d,]+: "
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda data: data[: len(data) // 2], _CUT),
    "cut off at the end": (lambda data: data[:-3], _CUT),
    "its header alone": (lambda data: data[:6], "is cut off at byte 6: "),
    "a byte flipped": (lambda data: flipped(data, len(data) // 2), _BROKEN),
    "its checksum flipped": (lambda data: flipped(data, len(data) - 5), _BROKEN),
    "garbage behind it": (
        lambda data: data + b"garbage" * 9,
        _BROKEN + r"|is intact up to byte [\d,]+, .* remove it \(head -c \d+\)",
    ),
    "not compressed at all": (lambda data: b"plain text\n" * 99, _BROKEN),
}


@pytest.mark.parametrize("compression", [".gz", ".zst"])
@pytest.mark.parametrize(
    "suffix",
    [".jsonl", *(pytest.param(s, marks=pytest.mark.long) for s in FORMATS if s != ".jsonl")],
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_compressed_file_is_named_with_a_byte(
    tmp_path: Path, damage: str, suffix: str, compression: str
) -> None:
    change, words = DAMAGES[damage]
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    pack = {".gz": gzip.compress, ".zst": compressor.compress}[compression]
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(change(pack(whole(suffix))))
    sentence = refused(tmp_path, path, *FORMATS[suffix].options)
    assert re.match(words, sentence), sentence
    assert refused(tmp_path, path, "--on-error", "skip", *FORMATS[suffix].options) == sentence
