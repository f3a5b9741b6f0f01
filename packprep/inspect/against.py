"""Comparison of an output's tokenizer with the one that a trainer loads.

The texts are the probes and documents of the packs, decoded: no source is read.
"""

import numpy as np

from packprep.engines.tokenizer import recorded_place, recorded_tokenizer
from packprep.engines.trainer import compare_with_trainer
from packprep.inspect.moved import Moved
from packprep.inspect.reencode import recorded_config
from packprep.inspect.verdict import Verdict
from packprep.schemas.findings import Finding
from packprep.schemas.manifest import Manifest, Output
from packprep.tokens.reading import reader


def compare_output(against: str, verdict: Verdict, sample: int, moved: Moved) -> None:
    """Compare ids of the probes and of `sample` documents; see `compare_with_trainer`.

    verdict: of an output that was verified; a difference is one more finding. Raises FormatError if
    it has no manifest, ConfigError if its tokenizer is missing.
    """
    if not verdict.sound:
        verdict.not_checked.append(f"ids of {against}: packs with findings may not be readable")
        return
    output, manifest = moved.opened(verdict.output)
    source = recorded_place(manifest, moved.tokenizer, moved.root)
    loaded = recorded_tokenizer(manifest, moved.tokenizer, root=moved.root, bos="none", eos="none")
    parsing = recorded_config(manifest).parsing
    parses = parsing.parses_special_tokens and parsing.input_ids_column is None
    documents = _documents(output, manifest, loaded.json, sample, keep_special=parses)
    compared, difference = compare_with_trainer(
        against, source, loaded.json, documents, parse_special_tokens=parses
    )
    verdict.against = compared
    if difference is not None:
        verdict.findings.add(Finding(kind="other ids", what=difference))


def _documents(
    output: Output, manifest: Manifest, tokenizer_json: bytes, count: int, *, keep_special: bool
) -> list[str]:
    """Text of at most `count` segments, those of packs that are spread evenly over each split."""
    from tokenizers import Tokenizer

    tokenizer, packs = Tokenizer.from_buffer(tokenizer_json), reader(output, manifest)
    entries = [entry for split in manifest.splits for entry in manifest.shards(split)]
    firsts = np.cumsum([0, *(int(entry.packs or 0) for entry in entries)])
    ids: list[list[int]] = []
    for number in np.unique(np.linspace(0, firsts[-1], count, endpoint=False, dtype=np.int64)):
        if len(ids) >= count or not firsts[-1]:
            break
        shard = int(np.searchsorted(firsts, number, side="right")) - 1
        view = packs.pack(entries[shard], int(number - firsts[shard]))
        ends = view.starts + view.real
        tokens = view.columns["tokens"]
        ids += [tokens[a:b].tolist() for a, b in zip(view.starts, ends, strict=True)]
    texts: list[str] = tokenizer.decode_batch(ids[:count], skip_special_tokens=not keep_special)
    return texts
