"""What cutting a document means, in plain Python, token by token: the fast one in packprep.segments must agree."""

from dataclasses import dataclass, field

from packprep.config import BuildConfig


@dataclass
class Cut:
    """Pieces (start, own tokens, extra BOS) of one document, and what became of the rest."""

    pieces: list[tuple[int, int, bool]] = field(default_factory=list)
    truncated: int = 0
    overlap: int = 0
    continuation_bos: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def cut_document(length: int, ends: int, config: BuildConfig, *, has_bos: bool) -> Cut:
    """One document of `length` tokens, `ends` of them BOS and EOS."""
    if length == 0:
        return Cut()
    text = length - ends
    if text < config.min_len:
        return Cut(dropped={"too_short": length})
    if config.max_len is not None and text > config.max_len:
        return Cut(dropped={"too_long": length})
    if length <= config.max_length:
        return Cut(pieces=[(0, length, False)])
    if config.overflow == "drop":
        return Cut(dropped={"overflow": length})
    if config.overflow == "truncate":
        lost = length - config.max_length
        start = lost if config.truncation_side == "left" else 0
        return Cut(pieces=[(start, config.max_length, False)], truncated=lost)
    return _split(length, config, bos=config.continuation_bos and has_bos)


def _split(length: int, config: BuildConfig, *, bos: bool) -> Cut:
    cut = Cut(pieces=[(0, config.max_length, False)])
    covered = config.max_length
    while covered < length:
        start = covered - config.stride
        end = min(start + config.max_length - bos, length)
        new = end - covered
        if end == length and new < config.min_len:
            cut.dropped = {"short_tail": new}
            break
        cut.pieces.append((start, end - start, bos))
        cut.overlap += config.stride
        cut.continuation_bos += bos
        covered = end
    return cut
