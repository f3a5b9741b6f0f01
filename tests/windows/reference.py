"""Cut a document in plain Python, token by token. packprep.windows.cut must agree."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from packprep.config.build_config import BuildConfig


@dataclass
class Cut:
    """Pieces of one document, and the account of its other tokens.

    A piece: offsets of its tokens in the document, and True for an extra BOS.
    """

    pieces: list[tuple[list[int], bool]] = field(default_factory=list)
    truncated: int = 0
    overlap: int = 0
    continuation_bos: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def cut_document(
    length: int,
    ends: int,
    config: BuildConfig,
    *,
    has_bos: bool,
    trained: Sequence[bool] | None = None,
) -> Cut:
    """Cut one document of `length` tokens; `ends` of them are BOS and EOS.

    trained: mask of the tokens with a label.
    """
    cut = _cut(length, ends, config, has_bos=has_bos, trained=trained)
    if trained is None:
        return cut
    pieces: list[tuple[list[int], bool]] = []
    for offsets, bos in cut.pieces:
        if sum(labelled(offsets, bos, trained, config, pieces)) >= config.min_loss_tokens:
            pieces.append((offsets, bos))
    if len(pieces) == len(cut.pieces):
        return cut
    before = {offset for offsets, _ in cut.pieces for offset in offsets}
    after = [offset for offsets, _ in pieces for offset in offsets]
    few = len(before - set(after))
    if not pieces:
        few, cut.truncated = few + cut.truncated, 0
    cut.dropped = cut.dropped | {"few_loss_tokens": few}
    cut.overlap = len(after) - len(set(after))
    cut.continuation_bos = sum(bos for _, bos in pieces)
    cut.pieces = pieces
    return cut


def labelled(
    offsets: Sequence[int],
    bos: bool,
    trained: Sequence[bool],
    config: BuildConfig,
    earlier: Sequence[tuple[list[int], bool]],
) -> list[bool]:
    """Mask of the document tokens of a piece that have a label in the shard.

    earlier: the pieces of the document before this one in the shard.
    """
    taken = (
        set() if config.train_overlap else {offset for offsets, _ in earlier for offset in offsets}
    )
    has = [trained[offset] and offset not in taken for offset in offsets]
    return has if bos else [False, *has[1:]]


def infer_seqlen(source: int, target: int, cutoff: int) -> tuple[int, int]:
    """Tokens that LLaMA-Factory keeps of a prompt and a response that are too long together."""
    if 2 * target < cutoff:
        most = cutoff
    elif 2 * source < cutoff:
        most = cutoff - source
    else:
        most = int(cutoff * (target / (source + target)))
    kept = min(most, target)
    return min(max(cutoff - kept, 0), source), kept


def _cut(
    length: int, ends: int, config: BuildConfig, *, has_bos: bool, trained: Sequence[bool] | None
) -> Cut:
    if length == 0:
        return Cut()
    text = length - ends
    if text < config.min_document_tokens:
        return Cut(dropped={"too_short": length})
    if config.max_document_tokens is not None and text > config.max_document_tokens:
        return Cut(dropped={"too_long": length})
    if length <= config.max_length:
        return Cut(pieces=[([*range(length)], False)])
    if config.overflow == "drop":
        return Cut(dropped={"overflow": length})
    if config.too_long.name == "truncate":
        lost = length - config.max_length
        kept = [*range(config.max_length)]
        if config.too_long.side == "left":
            kept = [*range(lost, length)]
        elif config.too_long.side == "balanced" and trained is not None:
            kept = _whole_turns_then_a_part(trained, config.max_length)
        return Cut(pieces=[(kept, False)], truncated=lost)
    return _split(length, config, bos=config.continuation_bos and has_bos)


def _whole_turns_then_a_part(trained: Sequence[bool], most: int) -> list[int]:
    """Offsets that LLaMA-Factory keeps of a conversation with more than `most` tokens.

    As in `SupervisedDatasetProcessor._encode_data_example` of version 0.9.5.
    """
    runs = [[*run] for _, run in itertools.groupby(range(len(trained)), lambda i: trained[i])]
    if trained[0]:
        runs.insert(0, [])
    kept: list[int] = []
    if len(runs) % 2:
        runs.append([])
    for prompt, response in zip(runs[::2], runs[1::2], strict=True):
        if len(kept) >= most:
            break
        source, target = infer_seqlen(len(prompt), len(response), most - len(kept))
        kept += [*prompt[:source], *response[:target]]
    return kept


def _split(length: int, config: BuildConfig, *, bos: bool) -> Cut:
    cut = Cut(pieces=[([*range(config.max_length)], False)])
    covered = config.max_length
    while covered < length:
        start = covered - config.stride
        end = min(start + config.max_length - bos, length)
        new = end - covered
        if end == length and new < config.min_document_tokens:
            cut.dropped = {"short_tail": new}
            break
        cut.pieces.append(([*range(start, end)], bos))
        cut.overlap += config.stride
        cut.continuation_bos += bos
        covered = end
    return cut
