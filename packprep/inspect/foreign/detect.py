"""Files of other tools at a path: find them by their names and columns, and check each."""

from collections.abc import Iterator
from pathlib import Path

from packprep.inspect.foreign.flat_tokens import check_token_file, is_token_name
from packprep.inspect.foreign.mds_shards import check_mds, is_mds
from packprep.inspect.foreign.packed_rows import check_rows, is_packed
from packprep.inspect.foreign.preset_packs import check_preset_packs, is_preset
from packprep.inspect.foreign.result import ForeignResult
from packprep.inspect.foreign.row_lists import column_names
from packprep.schemas.findings import Findings
from packprep.schemas.listed import is_cache
from packprep.sources.token_files.names import token_sources
from packprep.support.progress import Progress

_ROWS = (".parquet", ".arrow", ".jsonl")
NO_MANIFEST = "digests, documents, BOS, EOS and the ledger: there is no manifest"
_NO_VOCABULARY = "ids against the vocabulary; give --vocab-size or --tokenizer to check them"


def verify_foreign(
    path: Path, vocab_size: int | None, findings: Findings, progress: Progress
) -> ForeignResult | None:
    """Check a file, or all files in a folder; None if none of them is known.

    Token files, rows of packs, MDS shards and XTuner's preset packs. A folder that `save_to_disk`
    wrote is one of them only if positions alone separate segments.
    """
    result = ForeignResult(findings=findings, vocab_size=vocab_size, not_checked=[NO_MANIFEST])
    presets, tokens, rows, shards = _contents(path)
    if not presets and not tokens and not rows and not shards:
        return None
    top = path if path.is_dir() else path.parent
    done, total = 0, len(presets) + len(tokens) + len(rows) + len(shards)
    for check, files in (
        (_check_preset, presets),
        (check_token_file, tokens),
        (check_rows, rows),
        (check_mds, shards),
    ):
        for file in files:
            check(file, file.relative_to(top).as_posix(), result)
            done += 1
            progress.advance("verify", done, total, "files")
    if vocab_size is None and (tokens or rows or shards):
        result.say(_NO_VOCABULARY)
    return result


def _check_preset(folder: Path, name: str, result: ForeignResult) -> None:
    check_preset_packs(folder, "" if name == "." else f"{name}/", result)


def _contents(path: Path) -> tuple[list[Path], list[Path], list[Path], list[Path]]:
    """Folders of preset packs, token files, files of rows, and folders of MDS shards."""
    if not path.is_dir():
        if path.suffix in _ROWS and path.is_file():
            return [], [], [path], []
        return [], [*_token_files([path])], [], []
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return [], [], _saved_rows(path), []
    folders = [path, *(child for child in sorted(path.rglob("*")) if child.is_dir())]
    presets = [folder for folder in folders if is_preset(folder)]
    shards = [folder for folder in folders if is_mds(folder)]
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file()
        and not is_cache(file.name)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and not any(folder in file.parents for folder in presets)
    ]
    rows = [file for file in files if file.suffix in _ROWS and _has_packs(file)]
    return presets, [*_token_files(files)], rows, shards


def _token_files(files: list[Path]) -> Iterator[Path]:
    """Token files, each once, without the files beside them."""
    names = [str(file) for file in files]

    def exists(name: str) -> bool:
        return Path(name).exists()

    for file in files:
        if not file.exists() and exists(f"{file}.idx"):
            names = [f"{file}.bin"]
    # An index whose tokens are missing means the tokens, so that they are reported.
    names = [
        name.removesuffix(".idx") + ".bin" if name.endswith(".idx") else name for name in names
    ]
    for name in token_sources(names, exists, lone=len(files) == 1):
        if is_token_name(name) and (exists(name) or exists(name.removesuffix(".bin") + ".idx")):
            yield Path(name)


def _has_packs(path: Path) -> bool:
    """True if the rows of a file are packs, or if it cannot be read."""
    names = column_names(path)
    return names is None or is_packed(names)


def _saved_rows(folder: Path) -> list[Path]:
    """Files of a folder that `save_to_disk` wrote, if positions alone separate their segments."""
    files = [file for file in sorted(folder.rglob("*.arrow")) if not is_cache(file.name)]
    names = {*((column_names(files[0]) or []) if files else [])}
    only_positions = {"input_ids", "position_ids"} <= names
    return files if only_positions and names.isdisjoint({"seq_lengths", "cu_seqlens"}) else []
