"""Present places of the inputs of an output."""

from dataclasses import dataclass
from pathlib import Path

from packprep.schemas.index.token_store import Stores
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.storage.places import finished_output
from packprep.tokens.reading import MovedStore


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Places of inputs that have moved since the build; None for those of the manifest.

    root: folder that relative paths of sources and tokenizer start from.
    renderer: of the build, FILE.py:FUNCTION; code that an output names is not run.
    tokenizer: its path or name; without a manifest its vocabulary bounds the ids.
    store: folders of the token stores of an index output.
    """

    root: str | Path | None = None
    renderer: str | None = None
    tokenizer: str | None = None
    store: Stores = None

    def opened(self, path: str | Path) -> tuple[Output, Manifest]:
        """A finished output and its manifest, with the token stores where they are now.

        Raises FormatError if it is none.
        """
        output = finished_output(path)
        manifest = read_manifest(output)
        if not self.store or not manifest.is_index:
            return output, manifest
        moved = MovedStore(output, manifest, self.store)
        return moved, moved.manifest


IN_PLACE = Moved()
