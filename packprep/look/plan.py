"""Plans of max_length x strategy x overflow before a build: the reports that builds would write.

Text is tokenized once, into a folder that is deleted. Then each plan is that of a build of these
tokens, by its own functions and seeds; no token moves. A sample is planned as often as it makes the
whole, because few documents pack worse than many.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..config.grammar import flag
from ..config.options import BuildConfig, PackOptions, RowOptions, TokenOptions
from ..plan.cut import TooLongError
from ..plan.types import Window
from ..plan.window import plan_window, window_seed
from ..run.build import nothing_left, report_of, tokenize_files
from ..run.job import Job, make_job, of_pairs, packing_of, share_of_text, stored_job
from ..run.tasks import Work, counted, planned
from ..schemas.files import MANIFEST, Files
from ..schemas.manifest import open_output
from ..support.errors import ConfigError, InputError
from ..support.progress import Progress
from ..tokens.store import Entry, is_store, read_entry
from ..tokens.tokenizer import Tokenizer
from ..write.report import make_report
from .closing import tokenizer_of
from .lengths import Part, is_lengths, lengths_of_file, parts_of_output

_MOST = 2_000_000  # documents that a sample is repeated to
_PACKS = {spec.name for spec in fields(PackOptions)} | {"sources", "multiple"}
_TOKENS = [spec.name for stage in (RowOptions, TokenOptions) for spec in fields(stage)]
_DRAWN = ["weights", "max_tokens", "holdout", "after"]
_NO_ENDS = -1, -1  # the tokens at the ends of documents are not read
CHOICES = ("max_length", "strategy", "overflow")


class Planned(NamedTuple):
    """A plan of one choice, values of `CHOICES`.

    report: as of a build, {} if there is a problem. Counts of a sample are those of `copies`
    samples, see `Origin.scale`.
    """

    choice: tuple[Any, ...]
    config: BuildConfig
    report: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is planned.

    name: in words. config: the options of all plans. report: f(config) -> the report of a build.
    pairs: rows are pairs. share: of the tokens, or of the text, that is a sample; 1 for all.
    copies: times that it is planned.
    """

    name: str
    config: BuildConfig
    report: Callable[[BuildConfig], Mapping[str, Any]]
    pairs: bool
    share: float = 1.0
    copies: int = 1

    @property
    def scale(self) -> float:
        """What counts of a report are multiplied with to be those of the whole."""
        return 1 / (self.share * self.copies)


@contextmanager
def origin_of(
    config: BuildConfig, sample: int | None, batch: int, progress: Progress
) -> Iterator[Origin]:
    """What the sources of a config are, while the context lasts.

    sample: rows to plan, about. batch: documents of a padded batch. Raises ConfigError for an
    option that can do nothing.
    """
    if not config.sources:
        raise InputError("nothing is given to plan; name text, a store, an output or lengths")
    places = [str(source) for source in config.sources]
    outputs = [each for each in places if "://" in each or Path(each, MANIFEST).is_file()]
    known = [*outputs, *(each for each in places if is_lengths(Path(each)))]
    if known and len(places) > 1:
        raise ConfigError(f"{known[0]} is an output, or lengths; plan it by itself")
    if known and sample is not None:
        raise ConfigError("--sample is for text and stores: lengths are planned in seconds")
    if outputs:
        yield _of_output(outputs[0], config, batch)
    elif known:
        _refuse(config, [*_TOKENS, *_DRAWN], f"{known[0]} is read as lengths of documents")
        part = Part("train", 0, lengths_of_file(Path(known[0])))
        yield _of_lengths(known[0], [part], config, Tokenizer(vocab_size=1), batch)
    elif all(map(is_store, places)):
        _refuse(config, _TOKENS, "the tokens are there already")
        yield _of_store(", ".join(places), config, sample, batch)
    else:
        with TemporaryDirectory(prefix="packprep-", ignore_cleanup_errors=True) as folder:
            yield _of_text(config, Path(folder), sample, batch, progress)


def sweep(
    origin: Origin, choices: Mapping[str, Sequence[str]], progress: Progress
) -> list[Planned]:
    """A plan for each combination of the choices, lengths first.

    choices: values by option of `CHOICES`; for one that is not given, that of the config. Raises
    the reason if nothing can be planned.
    """
    values = [choices.get(name) or [getattr(origin.config, name)] for name in CHOICES]
    combinations, made = [*itertools.product(*values)], list[Planned]()
    for number, choice in enumerate(combinations, 1):
        changed: dict[str, Any] = dict(zip(CHOICES, choice, strict=True))
        try:
            config = replace(origin.config, **changed)
            if origin.pairs:
                config = of_pairs(config)
            named = (config.max_length, config.strategy, config.overflow or config.too_long.name)
            report = origin.report(config)
            if not report["splits"].get("train", {}).get("packs"):
                raise InputError(nothing_left("train", report, config))
            made.append(Planned(named, config, report))
        except (ConfigError, InputError) as error:
            if number == len(combinations) and not any(each.report for each in made):
                raise
            reason = error.flags if isinstance(error, ConfigError) else str(error)
            made.append(Planned(choice, origin.config, {}, reason))
        progress.advance("plan", number, len(combinations), "plans")
    return made


def _refuse(config: BuildConfig, options: Sequence[str], why: str) -> None:
    """Raise ConfigError for one of these options that is set."""
    for name in options:
        if config.is_set(name):
            raise ConfigError(f"{flag(name)} can do nothing here: {why}; leave it out")


def _of_text(
    config: BuildConfig, folder: Path, sample: int | None, batch: int, progress: Progress
) -> Origin:
    """Text, tokenized into a folder."""
    stored = replace(config, output="", store=str(folder / "tokens"), after=None)
    job = make_job(stored, progress, packs=False, sample=True)
    names = [each if isinstance(each, str) else each["path"] for each in config.sources]
    name = ", ".join(names) if len(names) < 4 else f"{len(names):,} sources"
    if sample is None:
        work = Work(replace(job, sample=False))
        tokenize_files(work, progress)
        return _of_tokens(name, config, work.job, work.entries, 1.0, batch)
    if job.limits:
        raise ConfigError("--sample and --limit both choose rows; leave out one of them")
    splits, count = job.splits[:0], 1
    while len(splits) < count:  # one split says how many have so many rows
        step = len(job.splits) // count
        splits = job.splits[step // 2 :: step]
        work = Work(replace(job, splits=splits, entries=(Files(folder / f"sample-{count}"),)))
        tokenize_files(work, progress)
        rows = sum(source.rows for source in work.sources)
        count = min(-(-sample * len(splits) // rows), len(job.splits))
    share = min(share_of_text(work.job, job), 1.0)
    return _of_tokens(name, config, work.job, work.entries, share, batch)


def _of_store(name: str, config: BuildConfig, sample: int | None, batch: int) -> Origin:
    """Token stores; a sample is some of their files."""
    job = stored_job(replace(config, output="plan"), digests=False)
    entries = [read_entry(folder) for folder in job.entries]
    files = [file for entry in entries for file in entry.files]
    rows = sum(sum(file.rows.values()) for file in files)
    step = max(1, rows // (sample or rows))
    few = [replace(entry, files=entry.files[::step]) for entry in entries]
    tokens = sum(file.tokens for entry in few for file in entry.files)
    share = tokens / max(sum(file.tokens for file in files), 1)
    return _of_tokens(name, config, job, few, share, batch)


def _of_tokens(
    name: str, config: BuildConfig, job: Job, entries: Sequence[Entry], share: float, batch: int
) -> Origin:
    """Token files of a job; a sample of them, as often as it makes the whole."""
    documents = sum(file.documents for entry in entries for file in entry.files)
    copies = max(1, min(round(1 / share), _MOST // max(documents, 1)))
    several = [replace(entry, files=entry.files * copies) for entry in entries]

    def report(config: BuildConfig) -> Mapping[str, Any]:
        work = Work(replace(job, config=config))
        work.entries = several
        work.packing = replace(work.packing, batch=batch)
        made = [counted(planned(work, each), each, config, _NO_ENDS)[1] for each in work.windows]
        return report_of(work, made)

    pairs = bool(entries[0].facts["pairs"])
    return Origin(name=name, config=config, report=report, pairs=pairs, share=share, copies=copies)


def _of_output(place: str, config: BuildConfig, batch: int) -> Origin:
    """The documents of an output, with its options where no others are given."""
    output = open_output(place)
    _refuse(config, [*_TOKENS, *_DRAWN], f"{place} has its documents already")
    inputs, ledger = output.manifest.data["inputs"], output.manifest.data["ledger"]
    if inputs["tokens"].get("options", {}).get("group"):
        raise ConfigError(
            f"{place} was built with --group, and its packs do not say the groups; plan its "
            "sources or its store"
        )
    options = {name: value for name, value in inputs["options"].items() if name in _PACKS}
    if options.get("overflow") == "truncate:balanced":
        options["overflow"] = "truncate"  # what it cut is not there any more
    if "pair_sides" in output.manifest.columns:
        options["pairs"] = "0,1"
    options |= {name: getattr(config, name) for name in _PACKS if config.is_set(name)}
    lost = sum(ledger["dropped"].values()) + ledger["truncated"]
    name = f"{place}, without the {lost:,} tokens it lost" if lost else place
    tokenizer = Tokenizer.from_facts(tokenizer_of(output.manifest))
    return _of_lengths(name, parts_of_output(output), BuildConfig(**options), tokenizer, batch)


def _of_lengths(
    name: str, parts: Sequence[Part], config: BuildConfig, tokenizer: Tokenizer, batch: int
) -> Origin:
    """Documents of known lengths, in their windows. tokenizer: its BOS and EOS are in them."""
    pairs, windows = config.pairs is not None, max(part.window for part in parts) + 1

    def report(config: BuildConfig) -> Mapping[str, Any]:
        packing = replace(packing_of(config, tokenizer, pairs=pairs), batch=batch)
        made = []
        for part in parts:
            seed = window_seed(config.seed, part.window + config.epoch * windows, part.split)
            window = Window(number=part.window, split=part.split, seed=seed, ranges=())
            try:
                packs = plan_window(part.documents, packing, seed)
            except TooLongError as error:
                raise InputError(f"{name} has a document of {error}") from None
            made.append(counted(packs, window, config, _NO_ENDS)[1])
        return make_report([name], [], made, config.max_length, config.pack_order.ranks, {})

    return Origin(name=name, config=config, report=report, pairs=pairs)
