"""Rules that the documents of an output follow, and their sources, from its manifest.

How documents were cut, what was dropped, and which BOS and EOS they have. `verify` checks the
shards against them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packprep.config.aliases import recorded_in
from packprep.config.grammar.spellings import recorded_name
from packprep.config.stages import Cutting
from packprep.packing.account import DROPPING, Dropped
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.support.arrays import Int64

WHOLE_DOCUMENTS = tuple(reason for reason in Dropped if reason.takes == "whole documents")
_TAILS = tuple(
    reason for reason in Dropped if reason.takes == "tails"
)  # any other reason may take any part
# Options that say how documents were cut, without filters and labels. A merged output keeps only
# those that all of its parts agree on.
_CUTTING = recorded_in(Cutting) - {*map(recorded_name, DROPPING), "num_packs", "train_overlap"}
# Options with which documents may have ends of their own, see `Parsing.may_have_ends`, and their
# values where they are missing: a merge has only those that its parts agree on.
_OWN_ENDS = {"parse_special_tokens": True, "input_ids_column": True, "segments_column": None}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Settings of a manifest on cut documents, and on BOS and EOS.

    bos, eos: id or None. says_ends: the manifest has BOS and EOS. may_have_ends: documents may have
    ends of their own, even twice, so that only the first and the last token are checked. says_cuts:
    it says how documents were cut; the manifest of a merge may not. repeated: copies beyond the
    first of documents in a mix. pairs: a document is two segments. trains_overlap: pieces train
    what stride repeats in both. skip_rows: of each source, the rows that the build left out.
    """

    bos: int | None
    eos: int | None
    says_ends: bool
    may_have_ends: bool
    says_cuts: bool
    wrapped: bool
    overflow: str
    stride: int
    continuation_bos: bool
    cut_left: bool
    dropped: Mapping[str, int]
    truncated: int
    repeated: int
    pairs: bool
    trains_overlap: bool
    skip_rows: Sequence[Int64]

    @staticmethod
    def from_manifest(manifest: Manifest) -> "Policy":
        """Read the policy. Raises FormatError for values that no build writes."""
        options, tokenizer = (
            manifest.data["inputs"].get("options"),
            manifest.data["inputs"].get("tokenizer"),
        )
        try:
            ends = {end: tokenizer.get(end) for end in ("bos", "eos")}
            ids = {end: None if token is None else int(token["id"]) for end, token in ends.items()}
            return Policy(
                **ids,
                says_ends="bos" in tokenizer and "eos" in tokenizer,
                may_have_ends=any(
                    options.get(name, missing) for name, missing in _OWN_ENDS.items()
                ),
                says_cuts="generations" not in manifest.data["inputs"] or set(options) >= _CUTTING,
                wrapped=options.get("strategy") == "wrapped",
                overflow=str(options.get("overflow", "split")),
                stride=int(options.get("stride", 0)),
                continuation_bos=bool(options.get("continuation_bos", False)),
                trains_overlap=bool(options.get("train_overlap", False)),
                cut_left=options.get("truncation_side") == "left",
                dropped=manifest.ledger["dropped"],
                truncated=manifest.ledger["truncated"],
                pairs=any(column.name == "pair_ids" for column in manifest.columns),
                skip_rows=[
                    np.array(source.get("skip_rows", ()), np.int64).ravel()
                    for source in manifest.data["inputs"].get("sources", ())
                ],
                repeated=int(manifest.data.get("repeated", {}).get("documents", 0)),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise FormatError(
                "manifest.json has inputs that no build writes; restore the file"
            ) from None

    @property
    def any_part_may_lack(self) -> bool:
        """True if any part of any document may be missing.

        Packs (packs_multiple_of) or segments (min_loss_tokens) were dropped, or both sides of
        pairs were truncated.
        """
        return (self.pairs and self.truncated > 0) or bool(
            set(self.dropped) - {*WHOLE_DOCUMENTS, *_TAILS}
        )

    @property
    def packs_may_lack(self) -> bool:
        """True if packs were left out, with whatever they held."""
        return bool({Dropped.REMAINDER, Dropped.SMALL_PACK} & set(self.dropped))

    @property
    def one_piece(self) -> bool:
        """True if each document has at most one segment, wherever the segment starts."""
        return self.cut_left and not (self.wrapped or self.pairs)

    @property
    def copies_may_lack_beginnings(self) -> bool:
        """True if copies of documents cannot be counted by their first segments."""
        return self.repeated > 0 and (
            self.any_part_may_lack or (self.cut_left and not self.one_piece)
        )
