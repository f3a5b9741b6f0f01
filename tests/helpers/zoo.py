"""A dozen small finished outputs, one of each kind, which all tests of a run read in place.

A member is built when a test first asks for it, once in a run, for all workers. No test writes into
it: the run fails at its end if one did. `copy` is for tests that damage an output. A test that
replaces functions of packprep asks for its members first.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packprep import BuildConfig, build
from packprep.schemas.canonical import file_digest

from .corpus import save_tokenizer, texts, write_jsonl
from .trees import answer_rows

CHAT_TEMPLATE = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "<s>{{ m.role }}\n{% if m.role == 'assistant' and m.reasoning_content "
    "and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""Keeps only the thought of the last turn, as the templates of reasoning models do."""

_SMALL = {"max_length": 64, "unit_size": 4_000, "window": 12_000, "shard_size": 30_000}
_HERE = {"engine": "hf", "num_proc": 1}
_EPOCHS = {"epochs": 2}
_ANSWERS: dict[str, Any] = {
    "input_ids_column": "ids",
    "labels_column": "mask:mask",
    "carry": ("weights:float32", "quality"),
    "vocab_size": 400,
    "share_prefixes": 4,
    "group_prefix": "prompt",
}
_PHASES = [
    {"tokens": 3000, "weights": [3, 1], "max_length": 32},
    {"tokens": 1600, "weights": [1, 1], "max_length": 64},
    {"tokens": 1000, "weights": [1, 3], "max_length": 128},
]


def _documents(folder: Path, *names: str, **tables: Any) -> dict[str, Any]:
    files = (
        write_jsonl(folder / f"{name}.jsonl", texts(120, seed=seed))
        for seed, name in enumerate(names)
    )
    return {"sources": tuple(map(str, files)), **tables}


def _phases(folder: Path) -> dict[str, Any]:
    listed = folder / "listed.txt"
    listed.write_text("a.jsonl:3\nb.jsonl:7\nb.jsonl:119\n")
    more = {"phases": _PHASES, "holdout": 0.1, "skip_rows": str(listed)}
    return _documents(folder, "a", "b", **more)


def _mix(folder: Path) -> dict[str, Any]:
    weights = {"a": 50, "b": 30, "c": 20}
    made = _documents(folder, *weights)
    labelled = [
        {"path": path, "label": name, "weight": weight}
        for path, (name, weight) in zip(made["sources"], weights.items(), strict=True)
    ]
    return {"sources": tuple(labelled), "max_epochs": 3.0, "max_tokens": 25_000}


def _rows(
    name: str, rows: list[dict[str, Any]], **options: Any
) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {
        "sources": (str(write_jsonl(folder / f"{name}.jsonl", rows)),),
        **options,
    }


def chat_rows(count: int) -> list[dict[str, Any]]:
    """Conversations of 1 to 3 turns; each answer has a thought."""
    words, rows = texts(count * 3 + 1, seed=5), []
    for row in range(count):
        messages = [{"role": "system", "content": "Be short."}] if row % 5 == 0 else []
        for turn in range(1 + row % 3):
            answer = {"role": "assistant", "content": words[row * 3 + turn][:120] or "yes"}
            answer["reasoning_content"] = f"thought {row} {turn}"
            messages += [{"role": "user", "content": f"question {row} of {turn}"}, answer]
        rows.append({"messages": messages})
    return rows


def pair_rows(count: int) -> list[dict[str, Any]]:
    """Prompts with a better and a worse answer."""
    draw, words = random.Random(3), " ".join(texts(20)).split()

    def some(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randrange(1, most)))

    return [{"prompt": some(6), "chosen": some(8), "rejected": some(8)} for _ in range(count)]


_CHAT = {"messages_column": "messages", "max_length": 256}
_PAIR = {"prompt_column": "prompt", "pair_columns": ("chosen", "rejected"), "max_length": 128}

_MEMBERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "text": lambda folder: _documents(folder, "a"),
    "split": lambda folder: _documents(folder, "a", "b", holdout=0.1, stride=8),
    "chats": _rows("chats", chat_rows(120), **_CHAT),
    "pairs": _rows("pairs", pair_rows(150), **_PAIR),
    "turns": _rows("chats", chat_rows(60), **_CHAT, turns="each", holdout=0.2),
    "trees": _rows("answers", answer_rows(40), **_ANSWERS),
    "phases": _phases,
    "mix": _mix,
    "epochs": lambda folder: _documents(folder, "a", **_EPOCHS, materialize="shards"),
    "index": lambda folder: _documents(folder, "a", "b", materialize="index", holdout=0.1),
    "hf_names": lambda folder: _documents(folder, "a", names="hf"),
    "uint16": lambda folder: _documents(folder, "a", token_type="uint16"),
}
"""Options of each, as functions that write the sources into a folder."""

NAMES = tuple(_MEMBERS)


class Zoo:
    """The outputs of a run, in one folder for all its workers.

    tokenizer: folder of the tokenizer of all members but trees, with a chat template.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def tokenizer(self) -> Path:
        with self._lock("tokenizer"):
            folder = self._folder / "tokenizer"
            if not folder.exists():
                side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
                save_tokenizer(folder, config=side)
        return folder

    def __getitem__(self, name: str) -> Path:
        """Return the output of this name, which the caller only reads."""
        return Path(self.config(name).output)

    def config(self, name: str) -> BuildConfig:
        """Return the config that made the output."""
        kept = self._folder / f"{name}.json"
        with self._lock(name):
            if not kept.exists():
                self._make(name, kept)
        return BuildConfig(**json.loads(kept.read_text())["options"])

    def options(self, name: str, folder: Path) -> dict[str, Any]:
        """Write the sources of a member into a folder. Returns options of a build of them there."""
        options: dict[str, Any] = {"output": str(folder / "out"), **_SMALL, **_HERE}
        options |= _MEMBERS[name](folder)
        if "vocab_size" not in options:
            options["tokenizer"] = str(self.tokenizer)
        return options

    def sources(self, name: str) -> list[Path]:
        """Return the files that the output was made of."""
        return [
            Path(source["path"] if isinstance(source, Mapping) else source)
            for source in self.config(name).sources
        ]

    def source(self, name: str) -> Path:
        """Return the first of these files."""
        return self.sources(name)[0]

    def copy(self, name: str, folder: Path) -> Path:
        """Copy the output into the folder. Returns its place there."""
        return Path(shutil.copytree(self[name], folder / name))

    def changed(self) -> list[str]:
        """Return the files that are not as they were when their output was built."""
        found = []
        for kept in sorted(self._folder.glob("*.json")):
            before, now = json.loads(kept.read_text())["files"], _digests(kept.with_suffix(""))
            found += [
                f"{kept.stem}/{name}"
                for name in sorted(before.keys() | now.keys())
                if before.get(name) != now.get(name)
            ]
        return found

    def _make(self, name: str, kept: Path) -> None:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that was killed
        folder.mkdir()
        options = self.options(name, folder)
        build(BuildConfig(**options))
        kept.write_text(json.dumps({"options": options, "files": _digests(folder)}))

    def _lock(self, name: str) -> Any:
        from filelock import FileLock

        return FileLock(self._folder / f"{name}.lock")


def _digests(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): file_digest(path) for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
