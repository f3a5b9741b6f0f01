"""A build as any process can take part in it: resolved options, tokenizer, sources, and where its files lie.

The two tasks of a build are pure functions from files to files: `tokens.tokenize_slice` makes the token file of a
slice, `windowfiles.Windows.write` the shards of a window whose token files are all there. Each leaves a receipt last,
so a task may be done in any order, by any process, twice or by two at once, and one that is done is found done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packprep.config import BuildConfig
from packprep.planning import Planner
from packprep.sources import Source
from packprep.tokenizer import Tokenizer
from packprep.tokens import tokens_key


@dataclass(frozen=True, kw_only=True)
class Job:
    """One build and its staging directory. planner: a packer of the user's own, known to this process only."""

    config: BuildConfig
    staging: Path
    tokenizer: Tokenizer
    sources: Sequence[Source]
    planner: Planner | None = None
    tokens: Path = field(init=False)

    def __post_init__(self) -> None:
        key = tokens_key(self.sources, self.tokenizer, self.config)
        tokens = Path(self.config.keep_tokens) / key if self.config.keep_tokens else self.staging / "tokens"
        object.__setattr__(self, "tokens", tokens)

    @property
    def scratch(self) -> Path:
        return self.staging / "scratch"

    @property
    def shards(self) -> Path:
        return self.staging / "shards"

    @property
    def receipts(self) -> Path:
        return self.staging / "receipts"

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "validation") if self.config.holdout else ("train",)
