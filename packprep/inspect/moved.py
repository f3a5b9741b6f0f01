"""Where the inputs of an output are now."""

from dataclasses import dataclass
from pathlib import Path

from packprep.schemas.index.token_store import Stores


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Places of inputs that have moved since the build; None for those of the manifest.

    root: folder that relative paths of sources and tokenizer start from.
    tokenizer: its path or name; without a manifest its vocabulary bounds the ids.
    store: folders of the token stores of an index output.
    """

    root: str | Path | None = None
    tokenizer: str | None = None
    store: Stores = None


IN_PLACE = Moved()
