"""Sentence of a build that has no packs: where its tokens are, and the options that decide that."""

from collections.abc import Mapping

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Cutting, Parsing, Tokenizing
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
    if reason is Dropped.FEW_LOSS_TOKENS and rules.cutting.min_loss_tokens == 1:
        return "in segments without a trained token"
    values = vars(rules.cutting) | vars(rules.packing)
    return reason.place.format(**values, packs_multiple_of=multiple)


def _cure(reason: Dropped, cutting: Cutting, labelled_by: str) -> str:
    if reason is Dropped.FEW_LOSS_TOKENS and cutting.min_loss_tokens == 1:
        cut = ", and raise max_length if truncation cuts answers off"
        return f"check {labelled_by}" + (cut if cutting.too_long.name == "truncate" else "")
    return reason.cure


def labelled_by(parsing: Parsing, tokenizing: Tokenizing) -> str:
    """Options and columns that decide which tokens of a row are trained."""
    if parsing.segments_column is not None:
        columns = parsing.pair_columns or (parsing.segments_column,)
        return f"train in the pieces of the column {' and '.join(columns)}"
    if tokenizing.renderer is not None:
        return f"train in the pieces of {tokenizing.renderer}"
    if not parsing.chats:
        return f"the column {' and '.join(parsing.label_columns.names)}"
    if parsing.messages_column is None:
        return f"the column {parsing.response_column or ' and '.join(parsing.pair_columns)}"
    return f"the roles of the messages and train_on {tokenizing.train_on}"


def _rows(skipped: Mapping[str, int]) -> str:
    """Part of a sentence such as " (3 rows were skipped: 2 bad_json, 1 null)"; "" for none."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
    return f" ({sum(skipped.values()):,} rows were skipped: {counts})" if skipped else ""
