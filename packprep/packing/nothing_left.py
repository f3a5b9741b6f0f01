"""Sentence of a build that has no packs: where its tokens are, and the options that decide that."""

from collections.abc import Mapping

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Cutting, Parsing
from packprep.packing.account import Dropped, Sums


def nothing_left(
    what: str,
    sums: Sums,
    empty: int,
    skipped: Mapping[str, int],
    rules: PackRules,
    multiple: int,
    labelled_by: str,
) -> str:
    """The sentence, with the causes that took documents and no others.

    what: the beginning, such as "no document is left for the split train". sums: of the build, or
    of its phase. empty: rows without text. skipped: rows by reason. multiple: of packs.
    labelled_by: see there.
    """
    causes = [
        (
            f"{count:,} tokens are {_place(Dropped(reason), rules, multiple)}",
            _cure(Dropped(reason), rules.cutting, labelled_by),
        )
        for reason, count in sums.dropped.most_common()
    ]
    if sums.tokens_packed:
        causes.append((f"{sums.tokens_packed:,} tokens are in the other split", "change holdout"))
    if not causes and empty:
        causes.append((f"{empty:,} rows have no text", "check the columns of the sources"))
    if not causes:
        return f"{what}{_rows(skipped)}; {'fix the rows' if skipped else 'give it more tokens'}"
    found, advice = (", ".join(dict.fromkeys(words)) for words in zip(*causes, strict=True))
    return f"{what}{_rows(skipped)}: {found}; {advice}"


def _place(reason: Dropped, rules: PackRules, multiple: int) -> str:
    """Place of dropped tokens, which names the option that dropped them and its value."""
    cutting, least = rules.cutting, rules.packing.min_pack_tokens
    trained = (
        "without a trained token"
        if cutting.min_loss_tokens == 1
        else f"with fewer trained tokens than min_loss_tokens {cutting.min_loss_tokens:,}"
    )
    return {
        Dropped.TOO_SHORT: "in documents shorter than min_document_tokens "
        f"{cutting.min_document_tokens:,}",
        Dropped.TOO_LONG: "in documents longer than max_document_tokens "
        f"{cutting.max_document_tokens or 0:,}",
        Dropped.OVERFLOW: f"in documents longer than max_length {cutting.max_length:,}",
        Dropped.SHORT_TAIL: "in last pieces shorter than min_document_tokens "
        f"{cutting.min_document_tokens:,}",
        Dropped.FEW_LOSS_TOKENS: f"in segments {trained}",
        Dropped.SMALL_PACK: f"in packs smaller than min_pack_tokens {least:,}",
        Dropped.REMAINDER: f"in packs beyond a multiple of {multiple:,}",
        Dropped.NOT_DRAWN: "not drawn",
    }[reason]


def _cure(reason: Dropped, cutting: Cutting, labelled_by: str) -> str:
    if reason is Dropped.FEW_LOSS_TOKENS and cutting.min_loss_tokens == 1:
        cut = ", and raise max_length if truncation cuts answers off"
        return f"check {labelled_by}" + (cut if cutting.overflow == "truncate" else "")
    return {
        Dropped.TOO_SHORT: "lower min_document_tokens",
        Dropped.TOO_LONG: "raise max_document_tokens",
        Dropped.OVERFLOW: "raise max_length or choose overflow split or truncate",
        Dropped.SHORT_TAIL: "lower min_document_tokens",
        Dropped.FEW_LOSS_TOKENS: "lower min_loss_tokens",
        Dropped.SMALL_PACK: "lower min_pack_tokens",
        Dropped.REMAINDER: "choose remainder fill or a smaller packs_multiple_of",
        Dropped.NOT_DRAWN: "take more of each source",
    }[reason]


def labelled_by(parsing: Parsing, train_on: str) -> str:
    """Options and columns that decide which tokens of a row are trained."""
    if not parsing.chats:
        return f"the column {parsing.labels_column or parsing.loss_mask_column}"
    if parsing.messages_column is None:
        return f"the column {parsing.response_column or ' and '.join(parsing.pair_columns)}"
    return f"the roles of the messages and train_on {train_on}"


def _rows(skipped: Mapping[str, int]) -> str:
    """Part of a sentence such as " (3 rows were skipped: 2 bad_json, 1 null)"; "" for none."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
    return f" ({sum(skipped.values()):,} rows were skipped: {counts})" if skipped else ""
