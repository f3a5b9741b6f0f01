"""datatrove's .ds: raw tokens, with an index of documents.

x.ds            uint16 or uint32, one token after another
x.ds.index      uint64 [documents]: the token at which each document ends
x.ds.metadata   tokenizer|bytes of a token, then the number of tokens
x.ds.loss       a byte for each token, 1 where there is a loss
"""

from pathlib import Path

import numpy as np

from packprep.schemas.errors import FormatError
from packprep.sources.token_files.layout import UNSIGNED, TokenLayout, check_rising, width_of


def datatrove_layout(data: Path, where: str) -> TokenLayout:
    """Layout of a .ds. Raises FormatError for a fault.

    where: name of the .ds, for messages.
    """
    index, metadata, loss = (
        data.with_name(data.name + ending) for ending in (".index", ".metadata", ".loss")
    )
    size = index.stat().st_size
    if size % 8 or not size:
        raise FormatError(f"{where}.index: it has {size:,} bytes; expected 8 for each document")
    offsets = np.append(0, np.fromfile(index, "<u8").astype(np.int64))
    check_rising(offsets, f"{where}.index")
    tokens, bytes_ = int(offsets[-1]), data.stat().st_size
    width = width_of(bytes_, tokens)
    if width not in (2, 4):
        raise FormatError(
            f"{where}: it has {bytes_:,} bytes, and the documents in {where}.index end at token "
            f"{tokens:,}; expected 2 or 4 bytes for each token"
        )
    if metadata.exists() and (recorded := _metadata_of(metadata)) != f"{width} {tokens}":
        raise FormatError(
            f"{where}.metadata: it records the bytes of a token and the number of tokens as "
            f"{recorded}; expected {width} {tokens}"
        )
    if loss.exists() and (size := loss.stat().st_size) != tokens:
        raise FormatError(f"{where}.loss: it has {size:,} bytes; expected {tokens:,}, one each")
    return TokenLayout(
        data=data,
        dtype=UNSIGNED[width],
        offsets=offsets,
        mask=loss if loss.exists() else None,
    )


def _metadata_of(path: Path) -> str:
    """Bytes of a token and number of tokens. Example: "gpt2|2\n120\n120 T" -> "2 120"."""
    lines = [*path.read_text(errors="replace").split("\n"), ""]
    return f"{lines[0].rpartition('|')[2]} {lines[1]}"[:100]
