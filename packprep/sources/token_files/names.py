"""Files of token ids and the files beside them that say where documents end.

    x.bin   x.idx                                       Megatron
    x.npy   x.csv.gz, x.offsets.npy, x.label_mask.npy   flat ids: dolma, OLMo, packprep export
    x.ds    x.ds.index, x.ds.metadata, x.ds.loss        datatrove

Those with a mask, .ds.metadata, and one of x.csv.gz and x.offsets.npy are optional.

Names are paths or URLs. `exists` says if there is a file of a name.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from packprep.support.errors import InputError

Exists = Callable[[str], bool]
METADATA, OFFSETS, MASK = ".csv.gz", ".offsets.npy", ".label_mask.npy"
"""Endings of the files beside a .npy."""


def is_file(name: str) -> bool:
    """True if there is a local file of this name."""
    return Path(name).is_file()


def tokens_name(name: str, exists: Exists) -> str:
    """The file of tokens that `name` means: x.bin of x.idx, and x.npy of x.offsets.npy."""
    for ending, of_tokens in ((".idx", ".bin"), (OFFSETS, ".npy"), (MASK, ".npy")):
        if name.endswith(ending) and exists(tokens := name.removesuffix(ending) + of_tokens):
            return tokens
    return name


def beside_megatron(name: str, exists: Exists) -> list[str]:
    """The index of a .bin. Raises InputError if it is missing."""
    stem = name.rpartition(".")[0]
    if name.endswith(".idx"):
        raise InputError(f"{name} is an index without its tokens; expected {stem}.bin beside it")
    if not exists(f"{stem}.idx"):
        raise InputError(
            f"{name} has no index, so its documents are not known; expected {stem}.idx beside it, "
            "as Megatron writes both"
        )
    return [f"{stem}.idx"]


def beside_npy(name: str, exists: Exists) -> list[str]:
    """The files with documents, packs and mask of a .npy. Raises InputError without the first two.

    METADATA, then OFFSETS, then MASK, if they exist.
    """
    stem = name.rpartition(".")[0]
    documents = [stem + ending for ending in (METADATA, OFFSETS)]
    if not any(map(exists, documents)):
        raise InputError(
            f"{name} has no offsets, so its documents are not known; expected beside it "
            f"{documents[1]} (tokens before each document, and all tokens) or {documents[0]} "
            "(start,end of each document, as dolma writes it)"
        )
    return [*filter(exists, [*documents, stem + MASK])]


def beside_datatrove(name: str, exists: Exists) -> list[str]:
    """The index of a .ds, and its metadata and loss if it has them.

    Raises InputError if the index is missing.
    """
    if not exists(f"{name}.index"):
        raise InputError(
            f"{name} has no index, so its documents are not known; expected {name}.index beside "
            "it, which datatrove writes with save_index=True"
        )
    optional = [f"{name}.metadata", f"{name}.loss"]
    return [f"{name}.index", *filter(exists, optional)]


_BESIDE_OF = {
    "bin": beside_megatron,
    "idx": beside_megatron,
    "npy": beside_npy,
    "ds": beside_datatrove,
}
TOKEN_KINDS = tuple(_BESIDE_OF)
"""Endings of files of token ids and of Megatron's index."""


def beside_tokens(name: str, exists: Exists) -> list[str]:
    """The files beside a file of tokens. Raises InputError if one that it needs is missing."""
    return _BESIDE_OF[name.rpartition(".")[2]](name, exists)


def token_sources(names: Sequence[str], exists: Exists, *, lone: bool) -> list[str]:
    """The names without those that belong to another one, each once, in order.

    lone: keep a file of tokens whose other files are missing, which opening it then reports.
    Example: a.bin, a.idx, b.jsonl -> a.bin, b.jsonl
    """
    kept = dict.fromkeys(tokens_name(name, exists) for name in names)
    others: set[str] = set()
    for name in list(kept):
        if name.rpartition(".")[2] not in TOKEN_KINDS:
            continue
        try:
            others.update(beside_tokens(name, exists))
        except InputError:
            if not lone:
                del kept[name]
    return [name for name in kept if name not in others]
