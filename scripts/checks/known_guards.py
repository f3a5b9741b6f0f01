"""Find the characters on which fastokens differs from `tokenizers`: gate.DIFFERENT has them.

    python scripts/checks/known_guards.py FOLDER...   of these tokenizers, byte-level BPE

A difference shows only where the vocabulary has a token across it. So a tokenizer is tried with a
vocabulary of its own normalizer and pre-tokenizer in which every two bytes merge. Each code point
stands beside a letter, mark, number, sign, apostrophe, space and line end; of the large alphabets
of one kind every 17th does. Prints the characters, and exits 1 if DIFFERENT lacks one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
from tokenizers import pre_tokenizers

from packprep.tokens.engine import Fastokens, Reference
from packprep.tokens.gate import DIFFERENT, unequal

PLACES = (
    "aX",
    "a'X",
    "X's ",
    " X",
    "1X",
    ".X",
    "X\n",
    "AX\u0301",
    "\u0301X",
    "A'Xb",
    "1'Xb",
    ".'Xb",
)
UNIFORM = ((0x3400, 0x9FFF), (0xA000, 0xA48D), (0xAC00, 0xD7A4), (0x17000, 0x18D09))
UNIFORM_STEP = 17
SURROGATES = (0xD800, 0xE000)
END = 0x33480  # behind it are marks and private use
TEXTS = 4096  # of a call


def points() -> Iterator[int]:
    for point in range(0x80, END):
        uniform = any(first <= point < end for first, end in UNIFORM)
        if not SURROGATES[0] <= point < SURROGATES[1] and not (uniform and point % UNIFORM_STEP):
            yield point


def merging(tokenizer_json: bytes) -> bytes:
    """The tokenizer with a vocabulary in which every two bytes merge."""
    fields = json.loads(tokenizer_json)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(one, two) for one in letters for two in letters]
    tokens = [*letters, *(one + two for one, two in pairs)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    for added in fields.get("added_tokens", ()):
        added["id"] = vocabulary.setdefault(added["content"], len(vocabulary))
    merges = [f"{one} {two}" for one, two in pairs]
    fields["model"] |= {"vocab": vocabulary, "merges": merges, "unk_token": None}
    fields["post_processor"] = None
    return json.dumps(fields).encode()


def different(tokenizer_json: bytes) -> set[str]:
    """Characters that some place of them makes differ."""
    fast, reference = Fastokens(tokenizer_json), Reference(tokenizer_json)
    found, characters = set[str](), [chr(point) for point in points()]
    for at in range(0, len(characters), TEXTS // len(PLACES)):
        some = characters[at : at + TEXTS // len(PLACES)]
        texts = pa.array([2 * p.replace("X", c) for c in some for p in PLACES], pa.large_string())
        bad = unequal(fast.encode(texts), reference.encode(texts))
        found |= {some[number // len(PLACES)] for number in bad.tolist()}
    return found


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    unknown = set[str]()
    for folder in folders:
        found = different(merging((folder / "tokenizer.json").read_bytes()))
        click.echo(f"{folder.name}: {len(found):,} differ: {ascii(''.join(sorted(found)))[:200]}")
        unknown |= found - {*DIFFERENT}
    click.echo(f"{len(unknown):,} of them are not in DIFFERENT")
    sys.exit(bool(unknown))


if __name__ == "__main__":
    main()
