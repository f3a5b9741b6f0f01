"""A finished output to a dataset repository of the Hugging Face hub, in one commit.

Shards are uploaded first, by content: they belong to no revision until the commit, so a reader sees
the output whole or not at all, and a push that was stopped sends only the shards that are missing.
The token is that of the hub's client (`hf auth login`, or HF_TOKEN); packprep never reads it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from packprep.output.staging import SUFFIX
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import FileEntry, Manifest, parse_manifest, read_manifest
from packprep.schemas.storage.reader import Reader
from packprep.support.errors import ConfigError
from packprep.support.hub import hub_client, hub_errors
from packprep.support.progress import Progress
from packprep.tokens.reading import reader, refuse_index, say_left_out

CARD = "README.md"
_TOGETHER = 4_000_000_000  # bytes of shards that are uploaded between two steps of the progress
_NAME = re.compile(r"([\w.-]{1,96}/)?[\w.-]{1,96}", re.ASCII)


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    commit: its number, or the one that has the same output already. card: the card was written, and
    not kept as somebody had changed it.
    """

    repository: str
    commit: str
    url: str
    files: int
    bytes: int
    already_there: bool
    card: bool


def push(
    directory: Path,
    name: str,
    *,
    card: Callable[[str], str],
    mark: str,
    progress: Progress,
    revision: str | None = None,
    public: bool = False,
    overwrite: bool = False,
) -> Pushed:
    """Push the output in `directory` to the dataset repository `name`, which is made if missing.

    card: the text of README.md for the full name of the repository. It replaces one that has the
    line `mark` or no text, and no other. revision: a branch, made if missing; default: main.
    public: of a new repository. overwrite: replace another output. Raises FormatError for an output
    that is not finished or whose files differ from its manifest, ConfigError for a name or a
    repository that cannot be used, StoppedError if the same command can resume.
    """
    manifest = _finished(directory, name)
    source = reader(directory, manifest, "digests")
    say_left_out(source, progress)
    with hub_errors(name), hub_client() as api:
        repository = api.create_repo(
            name, repo_type="dataset", private=not public, exist_ok=True
        ).repo_id
        if revision is not None:
            api.create_branch(repository, branch=revision, repo_type="dataset", exist_ok=True)
        target = _Target(api, repository, revision)
        old = target.manifest()
        if old is not None and old.sha256 == manifest.sha256 and target.holds(manifest):
            return target.pushed(target.commit, manifest, already_there=True, card=False)
        if old is not None and old.identity != manifest.identity and not overwrite:
            raise ConfigError(
                f"{repository} has another output, of identity {old.identity[:12]}; choose another "
                "name or a revision, or replace it with --overwrite"
            )
        text = target.read(CARD)
        with_card = text is None or not _body(text) or mark in text.decode(errors="replace")
        additions = target.upload(source, progress)
        if with_card:
            additions.append(target.addition(CARD, card(repository).encode()))
        gone = _only_in(old, manifest) if old is not None else []
        commit = target.send(additions, gone, f"Add packed shards {manifest.identity[:12]}")
        return target.pushed(commit, manifest, already_there=False, card=with_card)


def check_ready(directory: Path, name: str) -> tuple[int, int]:
    """Files and bytes that a push would send. Raises as `push` does, without asking the hub."""
    manifest = _finished(directory, name)
    source = reader(directory, manifest, "digests")
    for entry in manifest.all_files:
        source.file(entry)
    return _size(manifest)


def _finished(directory: Path, name: str) -> Manifest:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"NAME is {name!r}, expected USER/NAME such as someone/packed-prose")
    if not (directory / MANIFEST).exists() and Path(f"{directory}{SUFFIX}").exists():
        raise FormatError(
            f"{directory} is not finished; run the same packprep build command to resume, then push"
        )
    manifest = read_manifest(directory)
    refuse_index(directory, manifest, "the hub shows and loads shards with tokens")
    return manifest


def _size(manifest: Manifest) -> tuple[int, int]:
    """Files and bytes of an output, with its manifest and without a card."""
    files = manifest.all_files
    return len(files) + 1, sum(entry.bytes for entry in files)


def _body(card: bytes) -> bytes:
    """Text of a card behind its metadata."""
    return re.sub(rb"\A---\n.*?\n---\n", b"", card, flags=re.DOTALL).strip()


def _only_in(old: Manifest, new: Manifest) -> list[str]:
    kept = {entry.path for entry in new.all_files}
    return sorted(entry.path for entry in old.all_files if entry.path not in kept)


@dataclass
class _Target:
    """A branch of a repository as it was when the push began."""

    api: Any
    repository: str
    revision: str | None

    def __post_init__(self) -> None:
        facts = self.api.repo_info(self.repository, revision=self.revision, repo_type="dataset")
        self.commit = str(facts.sha)
        self.names = {file.rfilename for file in facts.siblings or ()}

    def read(self, path: str) -> bytes | None:
        """A small file of the branch; None if there is none."""
        if path not in self.names:
            return None
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        url = hf_hub_url(self.repository, path, repo_type="dataset", revision=self.commit)
        answer = get_session().get(url, headers=build_hf_headers())
        hf_raise_for_status(answer)
        return bytes(answer.content)

    def manifest(self) -> Manifest | None:
        content = self.read(MANIFEST)
        return None if content is None else parse_manifest(content, f"{self.repository}/{MANIFEST}")

    def holds(self, manifest: Manifest) -> bool:
        return {MANIFEST, CARD, *(entry.path for entry in manifest.all_files)} <= self.names

    def addition(self, path: str, content: bytes | str) -> Any:
        from huggingface_hub import CommitOperationAdd

        return CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)

    def upload(self, source: Reader, progress: Progress) -> list[Any]:
        """Check the files of an output and upload its large ones; the additions of the commit."""
        files = source.manifest.all_files
        total, done = sum(entry.bytes for entry in files), 0
        additions = [self.addition(MANIFEST, Path(f"{source}", MANIFEST).read_bytes())]
        for group in _groups(files):
            added = []
            for entry in group:
                addition = self.addition(entry.path, str(source.file(entry)))
                addition.upload_info.sha256 = bytes.fromhex(entry.sha256)  # not computed again
                added.append(addition)
            self.api.preupload_lfs_files(
                self.repository,
                added,
                repo_type="dataset",
                revision=self.revision,
                free_memory=False,
            )
            additions += added
            done += sum(entry.bytes for entry in group)
            progress.advance("upload", done / 1e6, total / 1e6, "MB")
        return additions

    def send(self, additions: Sequence[Any], gone: Sequence[str], message: str) -> str:
        """Commit, unless the branch has changed meanwhile."""
        from huggingface_hub import CommitOperationDelete

        deletions = [CommitOperationDelete(path) for path in gone if path in self.names]
        done = self.api.create_commit(
            self.repository,
            [*additions, *deletions],
            commit_message=message,
            repo_type="dataset",
            revision=self.revision,
            parent_commit=self.commit,
        )
        return str(done.oid)

    def pushed(self, commit: str, manifest: Manifest, *, already_there: bool, card: bool) -> Pushed:
        from huggingface_hub import constants

        url = f"{constants.ENDPOINT}/datasets/{self.repository}"
        if self.revision is not None:
            url += f"/tree/{self.revision}"
        return Pushed(self.repository, commit, url, *_size(manifest), already_there, card)


def _groups(entries: Sequence[FileEntry]) -> Iterator[list[FileEntry]]:
    """The files in groups of a few gigabytes, in their order."""
    end = 0

    def number(entry: FileEntry) -> int:
        nonlocal end
        end += entry.bytes
        return (end - 1) // _TOGETHER

    for _, group in groupby(entries, key=number):
        yield list(group)
