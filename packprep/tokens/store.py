"""Receipts of token files, and the store that keeps token files after a build.

A receipt is next to its file and has its digest: a file is used only if both exist and agree. The
digest protects against damage only (xxh3, 128 bits, ten times as fast as the sha256 that signs an
output). A receipt has a digest of itself too, because its counts decide an output; older ones have
none. The key of a store is a digest of everything that decides token files (sources, tokenizer,
text options): builds with another max_length or strategy use them again, builds with another
tokenizer cannot.
"""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packprep.chat.turn_counts import TurnCounts
from packprep.config.aliases import recorded_in
from packprep.config.stages import Parsing, Reading, Tokenizing
from packprep.engines.tokenizer import Tokenizer
from packprep.schemas.canonical import (
    canonical_json,
    digest_of,
    file_size,
    file_xxh3,
    parse_json,
)
from packprep.sources.position import Extent
from packprep.sources.source import Source
from packprep.sources.units import Part, Start
from packprep.support.from_json import from_json

STORED = "files.json"  # in a finished store

OF_ITSELF = "sha256"  # in a file: digest of everything else in it
STORE_VERSION = 8  # increased when the same inputs would give other token files


class LeftOutCount(NamedTuple):
    """Text of the messages of a source that its chat template does not write.

    documents: rows with such text. fields: characters and tokens of each field of the messages.
    example: row in the source, message and field of the first such text. in_turns: characters that
    the template writes while no later message follows.
    """

    documents: int
    fields: dict[str, tuple[int, int]]
    example: tuple[int, int, str]
    in_turns: int


@dataclass(frozen=True, kw_only=True)
class TokenFile(Extent):
    """Receipt of one tokenized slice.

    cut: number of documents and characters that truncate_at removed, by source. left_out, turns: by
    source; no turns where every row is one document.
    """

    tokens: int
    verified: int  # documents that the reference engine encoded as well
    parts: tuple[Part, ...]
    cut: dict[str, tuple[int, int]]
    left_out: dict[str, LeftOutCount]
    turns: dict[str, TurnCounts] = field(default_factory=dict)
    bytes: int
    xxh3: str

    @property
    def name(self) -> str:
        return file_name(self.unit, self.slice)

    @property
    def documents_made(self) -> int:
        """Documents of all its rows, which are more than `documents` where turns are documents."""
        return sum(count.documents for count in self.turns.values()) or self.documents

    def remove(self, directory: Path) -> None:
        (directory / self.name).unlink()
        (directory / self.name).with_suffix(".json").unlink()


def file_name(unit: int, number: int) -> str:
    """Token file of slice `number` of a unit."""
    return f"unit-{unit:06d}-{number:03d}.arrow"


def rows_of_sources(files: Sequence[TokenFile], sources: int) -> list[int]:
    """Rows read from each source."""
    rows = [0] * sources
    for file in files:
        for part in file.parts:
            rows[part.source] += part.rows
    return rows


def tokens_key(
    sources: Sequence[Source], tokenizer: Tokenizer, options: Mapping[str, object]
) -> str:
    """Digest of everything that decides the token files. options: see `text_options`."""
    return digest_of(
        {
            "version": STORE_VERSION,
            "sources": [
                {key: value for key, value in source.as_dict().items() if key != "bytes"}
                for source in sources
            ],
            "tokenizer": tokenizer.as_dict(),
            "options": options,
        }
    )


def text_options(identity: Mapping[str, object], tokens_to_read: int | None) -> dict[str, object]:
    """The options that decide the token files, of those that decide an output."""
    deciding = recorded_in(Reading, Parsing, Tokenizing)
    options = {name: value for name, value in identity.items() if name in deciding}
    return options | {"max_tokens": tokens_to_read}


def stored(directory: Path, *, digests: bool = True) -> list[TokenFile] | None:
    """The token files of a finished store; None if it is not finished or a file has changed.

    digests: read every file to see whether a byte has changed, not its size alone.
    """
    try:
        names = listed_files((directory / STORED).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    files = [read_token_receipt(directory, name, digests=digests) for name in names]
    return None if None in files else [file for file in files if file]


def listed_files(content: bytes) -> list[str]:
    """Names of the token files in a files.json. Raises ValueError if it is damaged."""
    pairs = from_json(list[tuple[int, int]], parse_json(content))
    if not all(number in range(1 << 31) for pair in pairs for number in pair):
        raise ValueError("it is not a list of token files")
    return [file_name(unit, number) for unit, number in pairs]


def committed(directory: Path) -> list[TokenFile]:
    """Token files from the beginning of the input up to the first missing or changed one.

    Digests are checked.
    """
    names = sorted(path.with_suffix(".arrow").name for path in directory.glob("unit-*.json"))
    done: list[TokenFile] = []
    with ThreadPoolExecutor(2) as pool:
        for file in pool.map(functools.partial(read_token_receipt, directory), names):
            if file is None or file.first_document != (done[-1].end if done else 0):
                break
            done.append(file)
    return done


def start_after(done: Sequence[TokenFile], sources: int, unit_size: int) -> Start:
    """Position at which reading resumes after these token files."""
    if not done:
        return Start()
    last = done[-1]
    before = sum(file.text_bytes for file in done if file.unit == last.unit)
    ended = before >= unit_size
    rows = rows_of_sources(done, sources)
    return Start(
        unit=last.unit + ended,
        slice=0 if ended else last.slice + 1,
        first_document=last.end,
        before=0 if ended else before,
        rows=rows,
        source=max((number for number, read in enumerate(rows) if read), default=0),
    )


def read_token_receipt(directory: Path, name: str, *, digests: bool = True) -> TokenFile | None:
    """The receipt of a token file; None without one, or if the file does not match it.

    Without digests only its size is compared.
    """
    path = directory / name
    try:
        receipt = parse_receipt(undamaged(parse_json(path.with_suffix(".json").read_bytes())))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    same = file_size(path) == receipt.bytes and (not digests or file_xxh3(path) == receipt.xxh3)
    return receipt if receipt.name == name and same else None


def receipt_json(receipt: TokenFile) -> bytes:
    """Content of a receipt's file."""
    return with_digest(asdict(receipt))


def with_digest(facts: Mapping[str, object]) -> bytes:
    """Content of a file of facts and their digest, see `undamaged`."""
    return canonical_json({**facts, OF_ITSELF: digest_of(facts)})


def undamaged(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a file with a digest of itself. Raises ValueError if they differ from it."""
    rest = {key: value for key, value in facts.items() if key != OF_ITSELF}
    if facts.get(OF_ITSELF, digest := digest_of(rest)) != digest:
        raise ValueError("it has changed since it was written")
    return rest


def parse_receipt(facts: Mapping[str, object]) -> TokenFile:
    """The receipt of these JSON values. Raises KeyError, TypeError or ValueError for others."""
    if not _are_counts(
        [value for name, value in facts.items() if name not in ("xxh3", "left_out")]
    ):
        raise ValueError("it has something else than counts")
    return from_json(TokenFile, facts)


def _are_counts(values: list[object]) -> bool:
    """True if there is nothing but numbers from 0 on in lists and objects."""
    pending = values
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif type(value) is not int or value < 0:
            return False
    return True
