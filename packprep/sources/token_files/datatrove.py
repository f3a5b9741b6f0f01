"""datatrove's .ds: raw tokens, with an index of documents.

x.ds            uint16 or uint32, one token after another
x.ds.index      uint64 [documents]: the token at which each document ends
x.ds.metadata   tokenizer|bytes of a token, then the number of tokens
x.ds.loss       a byte for each token, 1 where there is a loss
"""

from pathlib import Path

import numpy as np

from packprep.schemas.findings import Finding, Findings
from packprep.sources.token_files.layout import UNSIGNED, TokenLayout, check_rising, width_of


def datatrove_layout(data: Path, where: str, findings: Findings) -> TokenLayout | None:
    """Layout of a .ds; None after a fault that leaves documents unknown.

    where: name of the .ds, for messages.
    """
    index, metadata, loss = (
        data.with_name(data.name + ending) for ending in (".index", ".metadata", ".loss")
    )

    def fault(file: str, kind: str, what: str) -> None:
        findings.add(Finding(kind=kind, file=where + file, what=what))

    size = index.stat().st_size
    if size % 8 or not size:
        fault(".index", "size", f"it has {size:,} bytes; expected 8 for each document")
        return None
    ends = np.fromfile(index, "<u8").astype(np.int64)
    offsets = np.append(0, ends)
    if not check_rising(offsets, f"{where}.index", findings):
        return None
    tokens, bytes_ = int(offsets[-1]), data.stat().st_size
    width = width_of(bytes_, tokens)
    if width not in (2, 4):
        fault(
            "",
            "size",
            f"it has {bytes_:,} bytes, and the documents in {where}.index end at token "
            f"{tokens:,}; expected 2 or 4 bytes for each token",
        )
        return None
    if metadata.exists() and (recorded := _metadata_of(metadata)) != f"{width} {tokens}":
        fault(
            ".metadata",
            "metadata",
            f"it records the bytes of a token and the number of tokens as {recorded}; expected "
            f"{width} {tokens}",
        )
        return None
    if loss.exists() and loss.stat().st_size != tokens:
        fault(
            ".loss", "size", f"it has {loss.stat().st_size:,} bytes; expected {tokens:,}, one each"
        )
        return None
    return TokenLayout(
        data=data,
        dtype=UNSIGNED[width],
        offsets=offsets,
        mask=loss if loss.exists() else None,
        packs=len(ends),
    )


def _metadata_of(path: Path) -> str:
    """Bytes of a token and number of tokens. Example: "gpt2|2\n120\n120 T" -> "2 120"."""
    lines = [*path.read_text(errors="replace").split("\n"), ""]
    return f"{lines[0].rpartition('|')[2]} {lines[1]}"[:100]
