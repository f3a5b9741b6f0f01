"""Ids and loss masks of multi-turn chats, against the engine alone and transformers.

\b
    python scripts/bench/chat.py [--chats FILE] [--tokenizer DIR]... [--markdown]

Chats: JSON lines with `messages`; default: those in ../shared/data, or of `packprep sample`.
Tokenizers: directories with a chat template; default: the same. One process and one caller; all
take turns, and each row is a median. Imports, reading of files and the first rendering, after
which forms are known, are not counted.

\b
packprep       rows of JSON text in, ids and masks out
- rendering    its part before the engine
- encoding     its part with the engine
engine alone   the rendered texts through the same engine, ids thrown away
transformers   apply_chat_template(tokenize=True,
               return_assistant_tokens_mask=True), chat by chat, on --peer-rows:
               what TRL's SFTTrainer calls with assistant_only_loss

Templates: the tokenizer's own, and TRL's with {% generation %} marks, which
transformers needs.
"""

import gzip
import importlib.metadata
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import tables
from common import measure

from packprep.chat.conversations import find_conversations
from packprep.chat.masks import encode_chats, exact_encoder, render_chats
from packprep.chat.template import ChatTemplate, load_chat_template
from packprep.chat.turns import TurnFinder
from packprep.engines.backends import load_engine
from packprep.engines.tokenizer import load_tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"
# By a special token. TRL itself chooses by the text of the template, of which there are versions.
TRL_TEMPLATES = {
    "<|start_header_id|>": "llama3_training_chat_template",
    "<|im_start|>": "qwen3_training_chat_template",
}
Timed = Callable[[], object]


class Bench:
    """One tokenizer and template. rows: JSON text of the messages of each chat."""

    def __init__(self, folder: Path, template: str | None, rows: Sequence[bytes]) -> None:
        tokenizer = load_tokenizer(folder, bos="none", eos="none")
        chat_template = load_chat_template(tokenizer)
        if template is not None:
            chat_template = ChatTemplate(
                sources={"default": template}, variables=chat_template.variables
            )
        self.exact = exact_encoder(tokenizer.json)
        self.engine = load_engine("fastokens", tokenizer.json, parse_special_tokens=True)
        self.finder = TurnFinder(chat_template, self.exact.specials)
        self.columns = find_conversations(["messages"])
        self.table = pa.table({"messages": pa.array(rows, pa.large_binary())})
        self.render()  # rows of known forms are composed from here on
        self.rendered = self.render()
        self.texts = self.rendered["text"].combine_chunks()
        encode_chats(self.rendered, self.engine, self.exact)  # loads the reference, if rows need it
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def render(self) -> pa.Table:
        assert self.columns is not None
        return render_chats(self.table, self.columns, self.finder)

    def measure(self, peer: Timed | None) -> None:
        """Measure all of them once."""
        rendering = _seconds(self.render)
        encoding = _seconds(lambda: encode_chats(self.rendered, self.engine, self.exact))
        self.seconds["packprep"].append(rendering + encoding)
        self.seconds["- rendering"].append(rendering)
        self.seconds["- encoding"].append(encoding)
        self.seconds["engine alone"].append(_seconds(lambda: self.engine.encode(self.texts)))
        if peer is not None:
            self.seconds["transformers"].append(_seconds(peer))


def _seconds(work: Timed) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peer(folder: Path, chats: Sequence[Any]) -> tuple[str, Timed] | None:
    """TRL's training template for this tokenizer, and transformers with it on these chats."""
    try:
        import transformers
        from trl import chat_template_utils
    except ImportError:
        return None
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    vocabulary = tokenizer.get_vocab()
    name = next((name for token, name in TRL_TEMPLATES.items() if token in vocabulary), None)
    if name is None:
        return None
    template: str = getattr(chat_template_utils, name)

    def work() -> None:
        for messages in chats:
            tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )

    return template, work


@click.command(help=__doc__)
@click.option("--chats", type=click.Path(exists=True, path_type=Path), help="JSON lines or .gz.")
@click.option("--tokenizer", "folders", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=2000, show_default=True, help="Chats that packprep renders.")
@click.option("--peer-rows", default=200, show_default=True, help="Chats for transformers.")
@click.option("--repeat", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    chats: Path | None,
    folders: Sequence[Path],
    rows: int,
    peer_rows: int,
    repeat: int,
    markdown: bool,
) -> None:
    with tempfile.TemporaryDirectory() as sample:
        if not (SHARED / "text").is_dir() and (chats is None or not folders):
            measure(["-m", "packprep", "sample", sample])
        shared = SHARED / "text" / "sgd_chat.jsonl.gz"
        chats = chats or (shared if shared.exists() else Path(sample) / "chats.jsonl")
        folders = folders or [
            folder
            for folder in (SHARED / "tokenizers" / "llama3_2", SHARED / "tokenizers" / "qwen3")
            if folder.is_dir()
        ]
        _compare(chats, folders or [Path(sample) / "tokenizer"], rows, peer_rows, repeat, markdown)


def _compare(
    chats: Path,
    folders: Sequence[Path],
    rows: int,
    peer_rows: int,
    repeat: int,
    markdown: bool,
) -> None:
    with gzip.open(chats, "rt") if chats.suffix == ".gz" else chats.open() as file:
        messages = [
            json.loads(line)["messages"] for _, line in zip(range(rows), file, strict=False)
        ]
    as_json = [json.dumps(chat).encode() for chat in messages]
    turns = sum(map(len, messages)) / len(messages)
    click.echo(f"{len(messages):,} chats of {turns:.1f} messages")
    lines: list[list[str]] = []
    ratios: list[str] = []
    for folder in folders:
        peer = _peer(folder, messages[:peer_rows])
        benches = {"own": Bench(folder, None, as_json)}
        if peer is None:
            click.echo(f"{folder.name}: transformers is left out, no template of TRL fits")
        else:
            benches["TRL's"] = Bench(folder, peer[0], as_json)
        for _ in range(repeat):
            for name, bench in benches.items():
                bench.measure(peer[1] if peer is not None and name == "TRL's" else None)
        speeds_of: dict[str, dict[str, float]] = {}
        for name, bench in benches.items():
            size = bench.texts.nbytes / len(messages)
            speeds = {}
            for what, seconds in bench.seconds.items():
                done = min(peer_rows, len(messages)) if what == "transformers" else len(messages)
                each = statistics.median(seconds) / done
                speeds[what] = 1 / each
                figures = [f"{1e6 * each:,.1f}", f"{size / each / 1e6:.2f}"]
                lines.append([folder.name, name, what, *figures])
            speeds_of[name] = speeds
        for name, speeds in speeds_of.items():
            for other, theirs in (("engine alone", name), ("transformers", "TRL's")):
                against = speeds_of.get(theirs, {}).get(other)
                if against is not None:
                    ratio = speeds["packprep"] / against
                    ratios.append(
                        f"{folder.name}, {name} template: {ratio:.2f} x the speed of {other}"
                    )
    header = ["tokenizer", "template", "", "microseconds a chat", "MB/s of rendered text"]
    tables.show(header, lines, markdown)
    for ratio_line in ratios:
        click.echo(f"packprep, {ratio_line}")
    packages = ("fastokens", "jinja2", "tokenizers", "transformers", "trl")
    click.echo(", ".join(f"{name} {version}" for name in packages if (version := _version(name))))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
