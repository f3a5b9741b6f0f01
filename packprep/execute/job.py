"""A build in a form that any process can work on: options, tokenizer, sources, and file paths.

Its tasks are in tasks.py.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packprep.config.build_config import BuildConfig
from packprep.engines.tokenizer import Tokenizer
from packprep.output.build_output import target_of
from packprep.output.staging import JOB
from packprep.schemas.canonical import canonical_json
from packprep.schemas.index_table import TOKENS
from packprep.schemas.storage.places import Files
from packprep.schemas.storage.writing import write_file
from packprep.sources.formats.row_plan import RowPlan
from packprep.sources.reading import plan_rows
from packprep.sources.source import Source
from packprep.support.from_json import from_json
from packprep.tokens.encode import Encoder
from packprep.tokens.made_from import tokenizer_facts, tokenizer_of
from packprep.tokens.store import text_options, tokens_key
from packprep.windows.planner import Planner

if TYPE_CHECKING:
    from packprep.engines.parity import EngineChoice


@dataclass(frozen=True, kw_only=True)
class Job:
    """One build and its staging directory.

    planner: a packer of the user's own, known to this process only.

    process: name of this process's scratch folder, if several processes work on the build.

    has_text, packs: False if its token files are all that there is of the text, and if it ends with
    token files.
    """

    config: BuildConfig
    staging: Path
    tokenizer: Tokenizer
    sources: Sequence[Source]
    planner: Planner | None = None
    process: str = ""
    has_text: bool = True
    packs: bool = True
    tokens: Path = field(init=False)

    def __post_init__(self) -> None:
        key = tokens_key(self.sources, self.tokenizer, self.text_options)
        if self.config.keep_tokens:
            tokens = Path(self.config.keep_tokens) / key
        elif self.config.materialize == "index":
            tokens = self.staging / TOKENS / key  # as in the finished output
        else:
            tokens = self.staging / TOKENS
        object.__setattr__(self, "tokens", tokens)

    @property
    def text_options(self) -> dict[str, object]:
        """The options that decide the token files."""
        return text_options(self.config.identity(), self.config.reading.tokens_to_read)

    @property
    def windows_need_tokens(self) -> bool:
        """True if windows depend on more than the amounts of text, or on this process.

        A mix draws by tokens; packs_multiple_of leaves out packs of the last windows.
        """
        is_own = self.planner is not None or not self.packs
        return is_own or self.config.is_mix or self.config.multiple.packs != 1

    @property
    def scratch(self) -> Path:
        return self.staging / "scratch" / self.process

    @cached_property
    def shards(self) -> Files:
        return target_of(self.config.output, self.config.command).shards(self.staging)

    @property
    def receipts(self) -> Path:
        return self.staging / "receipts"

    def engine(self, chosen: dict[str, str]) -> "EngineChoice | None":
        """Load the engine that another process of this build has chosen; None if it has none."""
        if not chosen:
            return None
        from packprep.engines.parity import trusted_engine

        return trusted_engine(
            chosen, self.tokenizer.json, parse_special_tokens=self.config.parses_special_tokens
        )

    def encoder(self, engine: "EngineChoice | None") -> Encoder:
        """The encoder of its rows. engine: None if rows are token ids."""
        config = self.config
        stages = config.parsing, config.tokenizing
        return Encoder(engine, self.tokenizer, *stages, config.seed, config.num_proc)

    @cached_property
    def plans(self) -> tuple[list[RowPlan], str | None]:
        """See `plan_rows`."""
        stages = self.config.parsing, self.config.tokenizing
        return plan_rows(self.sources, *stages, self.tokenizer, self.scratch)

    def save(self, engine: dict[str, str]) -> None:
        """Write all that another process needs into the staging directory.

        engine: the chosen one, of `EngineChoice.as_dict`. A planner of the user's own is not
        written: only the process that knows it can plan windows.
        """
        options = {spec.name: getattr(self.config, spec.name) for spec in fields(self.config)}
        facts = {
            "config": options | {"tokenizer": str(self.staging / JOB)},
            **tokenizer_facts(self.tokenizer),
            "sources": [
                [asdict(each) | {"path": None}, each.path and str(each.path), each.is_remote]
                for each in self.sources
            ],
            "has_text": self.has_text,
            "engine": engine,
        }
        write_file(self.staging / JOB, canonical_json(facts))


def load_job(staging: Path, process: str = "") -> tuple[Job, Any]:
    """Job that `Job.save` wrote, for one core, and its engine, for `Job.engine`.

    process: see `Job`.
    """
    facts = json.loads((staging / JOB).read_bytes())
    job = Job(
        config=BuildConfig(**facts["config"] | {"num_proc": 1}),
        staging=staging,
        process=process,
        tokenizer=tokenizer_of(facts),
        sources=[_source(*saved) for saved in facts["sources"]],
        has_text=facts["has_text"],
    )
    return job, facts["engine"]


def _source(facts: object, path: str | None, is_remote: bool) -> Source:
    """A source that `Job.save` wrote."""
    source = from_json(Source, facts)
    files = tuple(state._replace(inode=None) for state in source.files)
    return replace(source, files=files, path=path if path is None or is_remote else Path(path))
