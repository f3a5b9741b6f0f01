"""Build mutated rows and templates with random options: `scripts/fuzz --minutes 30 --seed 1`.

A build must end with code 0; then `verify` finds nothing, every token is in the account, and a
build with three workers has the same bytes. Or it is refused in a sentence: the options, or the row
that was changed, with its file and number. Prints each kind of finding twice, and exits 1 if there
is any.
"""

import contextlib
import copy
import json
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click

from packprep.schemas.files import Files
from packprep.schemas.manifest import read_manifest
from tests.faults import builds
from tests.helpers.corpus import CHAT_TEMPLATE, chat_rows, pair_rows
from tests.record import inputs, running

Row = dict[str, Any]
CHAT = "--tokenizer in/chat --max-length 256 --messages messages"
KINDS: dict[str, tuple[Callable[[], list[Row]], str]] = {
    "text": (inputs.rows_of_text, ""),
    "template": (inputs.rows_of_text, "--text '{title}\n{body}'"),
    "ids": (inputs.rows_of_ids, "--ids ids"),
    "labels": (lambda: inputs.rows_of_ids("labels"), "--ids ids,labels:labels"),
    "mask": (lambda: inputs.rows_of_ids("mask"), "--ids ids,mask:mask"),
    "chats": (inputs.conversations, CHAT),
    "thoughts": (lambda: chat_rows(40), CHAT),
    "sharegpt": (inputs.sharegpt, CHAT.replace("messages messages", "messages auto")),
    "untrained": (inputs.untrained, CHAT),
    "parts": (inputs.with_parts, CHAT),
    "tools": (inputs.with_tools, CHAT.replace("in/chat", "in/qwen3")),
    "keeps": (inputs.conversations, f"{CHAT} --chat-template in/keeps.jinja"),
    "renderer": (inputs.conversations, f"{CHAT} --chat-template in/renderer.py:render"),
    "mutated template": (inputs.conversations, f"{CHAT} --chat-template own/t.jinja"),
    "prompts": (inputs.prompts, "--messages question,answer"),
    "pieces": (inputs.pieces, "--pieces pieces --max-length 96"),
    "pairs": (lambda: pair_rows(40), "--pairs prompt,chosen,rejected --max-length 96"),
    "pairs of chats": (
        inputs.pairs_of_chats,
        CHAT.replace("messages messages", "messages auto") + " --pairs chosen,rejected",
    ),
    "pairs of ids": (
        inputs.pairs_of_ids,
        "--pairs chosen,rejected --ids auto,chosen_mask,rejected_mask:mask",
    ),
}
OPTIONS = {
    "--strategy": (
        *("best_fit", "first_fit", "greedy", "stream", "knapsack", "balanced", "optimal"),
        *("first_fit_input", "wrapped"),
    ),
    "--overflow": ("split", "truncate", "truncate:left", "truncate:balanced", "drop", "error"),
    "--stride": ("1", "7", "30"),
    "--max-length": ("2", "16", "33", "64", "100", "512", "70000"),
    "--min-document-tokens": ("2", "20"),
    "--max-document-tokens": ("30", "100"),
    "--min-pack-tokens": ("5", "60"),
    "--max-segments": ("1", "2", "5"),
    "--pad-to-multiple": ("2", "8"),
    "--multiple": ("3", "4:fill"),
    "--order": ("input", "shuffle", "length", "balanced:2", "balanced:3:100,1"),
    "--seed": ("1", "12345"),
    "--epoch": ("1",),
    "--holdout": ("0.2", "5%"),
    "--limit": ("1", "7", "25"),
    "--on-error": ("skip",),
    "--bos": ("<s>", "none"),
    "--eos": ("</s>", "none"),
    "--columns": ("", "position_ids", "document_ids,document_starts", "hf"),
    "--group": ("group", "id", "topic"),
    "--carry": ("quality", "reward:float32", "weights", "stars:int8"),
    "--train-on": ("assistant", "last-turn", "all"),
    "--turns": ("each", "auto"),
    "continuation_bos": (True,),
    "shuffle_documents": (True,),
    "token_type": ("auto", "int32"),
    "truncate_at": ("# Notes", "the"),
    "split_at": ("eos", "bos"),
    "shard_size": (9_000,),
    "window": (3_000,),
}
"""Of the command line, and of the YAML file."""
ODD = (
    *("", " ", "\n", "\0", "\ud800", "e\u0301", "\u2028", "<s>", "</s><s>", "a" * 3000, "🙂" * 40),
    *("user", "assistant", "<think>\nx\n</think>\n\n", "{{ x }}", "{% if %}", "null", "[]", "0"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, float("nan"), 2**31, 2**63, 10**30, [], {}, [None], [[]]),
    *({"a": 1}, ["a"], [{"role": "user", "content": "x"}], {"role": "user"}, [1, 2, 3], [-100]),
)


@dataclass
class Case:
    """Rows of own/x.jsonl, of which some are changed, and the options of a build of them."""

    arguments: str
    yaml: Row
    rows: list[Row]
    changed: dict[int, Row]
    files: dict[str, bytes]

    @classmethod
    def of(cls, number: int, seed: int) -> "Case":
        """A random case, the same for the same numbers."""
        draw = Random(f"{seed} {number}")
        kind = draw.choice([*KINDS])
        make, base = KINDS[kind]
        rows = draw.sample(make(), draw.randrange(1, 16))
        places = draw.sample(range(len(rows)), min(len(rows), draw.choice((0, 0, 1, 1, 2))))
        changed = {place: mutated(rows[place], draw) for place in places}
        chosen = draw.sample([*OPTIONS], draw.choice((0, 1, 1, 2, 2, 3, 4)))
        options = {name: draw.choice(OPTIONS[name]) for name in chosen}
        flags = {name: str(value) for name, value in options.items() if name.startswith("--")}
        given = shlex.split(base)
        for name, value in flags.items():
            if name in given:
                given[given.index(name) + 1] = value
            else:
                given += [name, value]
        template = mutated(CHAT_TEMPLATE, draw) if kind == "mutated template" else ""
        files = {"t.jinja": str(template).encode("utf-8", "replace")}
        yaml = {name: value for name, value in options.items() if name not in flags}
        return cls(shlex.join(["own/x.jsonl", *given]), yaml, rows, changed, files)

    def run(self, made: Path, folder: Path, *, sound: bool = False) -> tuple[int, str]:
        """Build it, and check the output: the exit code, and what is wrong or was said.

        sound: with the rows as they were.
        """
        rows = [row if sound else self.changed.get(n, row) for n, row in enumerate(self.rows)]
        files = self.files | {"x.jsonl": lines_of(rows)}
        with contextlib.chdir(running.started(folder, made, files)):
            code, _, said = running.command(self.arguments, self.yaml)
            if code:
                return code, said.strip()
            out, other = Path("out"), Path("other")
            report = json.loads((out / "report.json").read_bytes())
            tokens = report["tokens"]
            came = sum(tokens[of] for of in ("tokens_in", "overlap", "continuation_bos", "filler"))
            lost = tokens["truncated"] + sum(tokens["dropped"].values())
            if came != tokens["tokens_packed"] + lost:
                return -1, f"the account: {tokens}"
            if (wrong := running.command("verify out", {}))[0]:
                return -1, f"verify: {wrong[2]}"
            more = running.command(f"{self.arguments} -o other --num-proc 3", self.yaml)
            if more[0] or read_manifest(Files(out)).data != read_manifest(Files(other)).data:
                return -1, f"three workers: other bytes, or {more}"
            return 0, ""


def mutated(value: Any, draw: Random) -> Any:
    """The value with one change somewhere in it; an object stays one at the top."""
    if isinstance(value, dict | list) and value:
        made: Any = copy.copy(value)
        place = draw.choice([*value]) if isinstance(value, dict) else draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                del made[place]
            case 1 if isinstance(made, dict):
                made[draw.choice((*ODD[:8], "train", "weight", "role", "tools"))] = made[place]
            case 1:
                made.insert(place, copy.deepcopy(made[place]))
            case 2:
                made[place] = draw.choice((*VALUES, *ODD))
            case _:
                made[place] = mutated(made[place], draw)
        return made
    if isinstance(value, str) and draw.random() < 0.8:
        start, end = sorted(draw.randrange(len(value) + 1) for _ in range(2))
        return value[:start] + draw.choice((*ODD, value[start:end] * 2)) + value[end:]
    return draw.choice((*VALUES, *ODD))


def lines_of(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def finding(case: Case, made: Path, folder: Path) -> tuple[str, str]:
    """How a case ended, and what is wrong with that; "" for nothing."""
    try:
        code, said = case.run(made, folder / "case")
        if code == 0:
            return "packs", ""
        if code != 2 or "Traceback" in said or len(said.splitlines()) != 1:
            return "defect", f"code {code}: {said}"
        if not case.changed or case.run(made, folder / "sound", sound=True)[0]:
            return "refused", ""  # for its options
    except Exception as error:
        return "defect", f"{type(error).__name__}: {error}"
    of_all = re.search("column|no rows in|no pack is left|own/t.jinja|beside", said)
    row = re.search(r"own/x\.jsonl row (\d+)", said)
    if of_all or (row and int(row[1]) in case.changed):
        return "refused", ""
    return "refused", f"neither the row nor the reason: {said}"


@click.command(help=__doc__)
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--only", type=int, help="Run this case alone, and print it.")
def main(minutes: float, seed: int, only: int | None) -> None:
    ends, number = time.monotonic() + 60 * minutes, only or 0
    ended, seen = Counter[str](), Counter[str]()
    builds.warm()  # splits of 4 kB
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        made = Path(name, "in")
        made.mkdir()
        inputs.make(made)
        while time.monotonic() < ends:
            case = Case.of(number, seed)
            with tempfile.TemporaryDirectory(dir=name) as folder:
                how, wrong = finding(case, made, Path(folder))
            ended[how] += 1
            kind = re.sub(r"\d+", "", wrong)[:120]
            seen[kind] += bool(wrong)
            if only is not None or (wrong and seen[kind] <= 2):
                changed = str(case.changed)[:300] if only is None else case.changed
                click.echo(f"{number}: {case.arguments} {case.yaml} {changed}\n    {wrong}")
            if only is not None:
                break
            number += 1
    findings = +seen
    click.echo(f"seed {seed}: {number:,} cases {dict(ended)}, {findings.total():,} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main(prog_name="scripts/fuzz")
