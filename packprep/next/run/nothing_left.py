"""Sentence of a build that has no packs: where its tokens are, and what decides that."""

from collections.abc import Mapping
from typing import Any

from ..config.options import BuildConfig
from ..plan.types import Dropped


def nothing_left(split: str, report: Mapping[str, Any], config: BuildConfig) -> str:
    """The sentence, with the causes that took documents and no others. report: of the build."""
    documents, tokens = report["documents"], report["tokens"]
    values = {name: getattr(config, name) for name in ("max_length", "min_document_tokens")}
    values |= {"max_document_tokens": config.max_document_tokens or 0, "multiple": config.multiple}
    values |= {"min_pack_tokens": config.min_pack_tokens}
    causes = [
        (f"{tokens['dropped'][each]:,} tokens are {each.place.format(**values)}", each.cure)
        for each in sorted(Dropped, key=lambda each: -tokens["dropped"].get(each, 0))
        if tokens["dropped"].get(each)
    ]
    if tokens["tokens_packed"]:
        causes.append(
            (f"{tokens['tokens_packed']:,} tokens are in the other split", "change holdout")
        )
    if not causes and documents["empty"]:
        causes.append(
            (f"{documents['empty']:,} rows have no text", "check the columns of the sources")
        )
    skipped = documents["skipped"]
    rows = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
    what = f"no document is left for the split {split}"
    what += f" ({sum(skipped.values()):,} rows were skipped: {rows})" if skipped else ""
    if not causes:
        return f"{what}; {'fix the rows' if skipped else 'give it more tokens'}"
    found, advice = (", ".join(dict.fromkeys(words)) for words in zip(*causes, strict=True))
    return f"{what}: {found}; {advice}"
