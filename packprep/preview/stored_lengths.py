"""Lengths of documents from an array, a token store or a finished output; no tokens are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.option import COLUMN_CHOICE
from packprep.config.pack_rules import PackRules
from packprep.config.verbs import check_verb
from packprep.derive.entries import find_entries
from packprep.engines.tokenizer import Special, Tokenizer
from packprep.execute.job import Job
from packprep.execute.stored import Tokens
from packprep.execute.window_files import Windows
from packprep.inspect.histograms import read_windows
from packprep.packing.account import Sums
from packprep.preview.window_plan import WindowDocuments, of_lengths
from packprep.schemas.columns import Column
from packprep.schemas.manifest import Output, read_manifest
from packprep.support.arrays import NPY_ERRORS, Int64
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream
from packprep.support.redact import redacted
from packprep.tokens.store import TokenFile
from packprep.tokens.store_entries import is_store
from packprep.windows.documents import (
    PREFIX_GROUP,
    carried_columns,
    file_schema,
    held_out,
)
from packprep.windows.specs import list_windows, read_window
from packprep.windows.trees import sharing_groups

_OWN = (
    "tokens",
    "cu_seqlens",
    "segment_lengths",
    *COLUMN_CHOICE,
)  # columns that a layout adds by itself

_UNREADABLE: tuple[type[Exception], ...] = (OSError, *NPY_ERRORS)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths to plan.

    origin: the source, in words.
    tokenizer: has the BOS and EOS of the documents.
    carried: columns of the documents beside their tokens.
    share: share of the documents that was drawn, 1 for all.
    scale: size of the whole relative to the sample.
    skipped: see `PackRules`.
    tokenize_seconds: measured or estimated time to tokenize all of the text; None if there is
    nothing to tokenize.
    """

    origin: str
    windows: Sequence[WindowDocuments]
    tokenizer: Tokenizer
    carried: Sequence[Column] = ()
    share: float = 1.0
    scale: float = 1.0
    skipped: Int64 | None = None
    tokenize_seconds: float | None = None

    @property
    def documents(self) -> int:
        return sum(len(window.documents) for window in self.windows)

    @property
    def longest(self) -> int:
        lengths = [window.documents.length for window in self.windows]
        return max((int(length.max()) for length in lengths if len(length)), default=0)


def lengths_of_array(path: Path, holdout: float, seed: int) -> Lengths:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise InputError(
            f"{path} cannot be read as an array: {error}; expected a file of numpy.save"
        ) from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        content = (
            f"{values.dtype} of shape {values.shape}"
            if isinstance(values, np.ndarray)
            else "several arrays"
        )
        raise InputError(
            f"{path} holds {content}; expected integers, [documents]: the length of each in tokens"
        )
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < 2**31:
        wrong = int(np.flatnonzero((values < 0) | (values >= 2**31))[0])
        raise InputError(
            f"{path} has {values[wrong]} tokens in row {wrong}; expected 0 to 2^31 - 1"
        )
    whole = of_lengths("train", 0, values.astype(np.int32))
    windows = [whole]
    if holdout:
        out = held_out(whole.documents, holdout, seed)
        windows = [whole.take(~out), replace(whole.take(out), split="validation")]
    return Lengths(origin=redacted(str(path)), windows=windows, tokenizer=_policy({}))


def lengths_of_output(path: Output) -> Lengths:
    manifest = read_manifest(path)
    if manifest.has_trees:
        raise ConfigError(
            f"{path} has trees, whose segments are not documents; plan its sources, or its token "
            "store, instead"
        )
    windows = [
        of_lengths(packs.split, packs.window, packs.document_lengths().astype(np.int32))
        for packs in read_windows(path, manifest)
    ]
    lost = Sums.of_ledger(manifest.ledger).tokens_lost
    without = f", without the {lost:,} tokens it lost" if lost else ""
    return Lengths(
        origin=redacted(f"{path}{without}"),
        windows=windows,
        tokenizer=_policy(manifest.data["inputs"].get("tokenizer", {})),
        carried=[
            column for column in manifest.columns if column.name not in (*_OWN, *manifest.added)
        ],
    )


def store_tokens(sources: object) -> Tokens | None:
    """The tokens of stores or of entries of one; None for other `sources` of a config."""
    names = sources if isinstance(sources, list | tuple) else [sources]
    stores = [str(each) for each in names if isinstance(each, str | Path) and is_store(Path(each))]
    return Tokens(find_entries(stores)) if names and len(stores) == len(names) else None


def options_to_plan(tokens: Tokens, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a plan of tokens. options: those that are given.

    Raises ConfigError for one of the text that is not that of the tokens.
    """
    of_text = tokens.options
    every = {**of_text, **options, "sources": of_text["sources"]}
    typed, stored = BuildConfig(**every), BuildConfig(**of_text)
    changed = [name for name in of_text if getattr(typed, name) != getattr(stored, name)]
    check_verb(changed, frozenset(), "plan of a store", "tokenize")
    return every


def lengths_of_tokens(tokens: Tokens, job: Job) -> Lengths:
    """Lengths of the tokens of stores. job: of a config with `options_to_plan`."""
    paths = [entry.path for entry in tokens.entries]
    places = paths if len(paths) == 1 else dict.fromkeys(path.parent for path in paths)
    origin = f"tokens at {', '.join(map(str, places))}"
    directory, files = tokens.joined(job)
    return of_files(origin, job, directory, files, Windows(job, files).rules)


def of_files(
    origin: str,
    job: Job,
    directory: Path,
    files: Sequence[TokenFile],
    rules: PackRules,
    run: int = 0,
) -> Lengths:
    """Lengths of the token files of a directory, in the windows of a run of a build."""
    schema, parsing = file_schema(directory, files), job.config.parsing
    windows = [
        WindowDocuments(spec.split, spec.number, read_window(spec, directory))
        for spec in list_windows(files, rules, job.config.writing)
        if spec.run == run
    ]
    for option, given, stored_as in (
        ("--group-column", parsing.group_column, "group"),
        ("--group-prefix", parsing.group_prefix, PREFIX_GROUP),
    ):
        if given is not None and stored_as not in schema.names:
            raise InputError(
                f"{directory} was built without {option}; build it again with that option"
            )
    carried = carried_columns(schema)
    return Lengths(
        origin=redacted(origin),
        windows=windows,
        tokenizer=job.tokenizer,
        carried=carried,
        skipped=rules.skipped,
    )


def sampled(lengths: Lengths, share: float, seed: int, *, trees: bool) -> Lengths:
    """Draw a share of the documents. The sample is scaled by tokens, as their total is known.

    trees: draw all rows that may share prefixes, or none of them.
    """
    if share == 1:
        return lengths
    windows = [
        window.take(
            drawn(
                stream(seed, Purpose.PLAN_LENGTHS, number),
                sharing_groups(window.documents) if trees else np.arange(len(window.documents)),
                share,
            )
        )
        for number, window in enumerate(lengths.windows)
    ]
    total = sum(window.tokens for window in lengths.windows)
    drawn_tokens = sum(window.tokens for window in windows)
    scale = scale_of(total, drawn_tokens, share)
    return replace(lengths, windows=windows, share=share, scale=scale)


def scale_of(total: int, sample: int, share: float) -> float:
    """Size of the whole relative to the sample. Raises InputError for an empty sample."""
    if not sample:
        raise InputError(
            f"a sample of {share:.3%} has no document with tokens; choose a larger --sample"
        )
    return total / sample


def _policy(facts: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer that has only the vocabulary's size, BOS and EOS of a manifest, or none."""
    bos, eos = (
        Special(str(facts[end]["token"]), int(facts[end]["id"])) if facts.get(end) else None
        for end in ("bos", "eos")
    )
    size = int(facts.get("vocab_size", 1))
    return Tokenizer(json=b"{}", sha256="", vocab_size=size, bos=bos, eos=eos, pad_id=0)
