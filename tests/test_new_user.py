"""First days with the second edition, by its command line alone.

Outputs are compared with the ids of the `tokenizers` library and with packing of plain lists.
"""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer

from tests.helpers.corpus import ROOT, save_tokenizer, texts, write_jsonl

pytestmark = pytest.mark.long
MOST = 64  # tokens of a pack
Ids = list[int]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a tokenizer, and lines of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "80")
    save_tokenizer(Path("tokenizer"))


def start(command: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "packprep.next", *command.split()]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def packprep(command: str, stdin: str = "", code: int = 0) -> str:
    """What a command prints; it must end with this code."""
    process = start(command)
    out, err = process.communicate(stdin)
    assert process.returncode == code, err
    return out + err


def encoded(documents: Sequence[str]) -> list[list[int]]:
    """Ids of documents between <s> and </s>; none of an empty one."""
    tokenizer = Tokenizer.from_file("tokenizer/tokenizer.json")
    bos, eos = tokenizer.encode("<s></s>").ids
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents]
    return [[bos, *each, eos] for each in ids if each]


def pieces(documents: Sequence[Ids]) -> list[Ids]:
    """Documents, those that are longer than a pack in pieces."""
    return [ids[at : at + MOST] for ids in documents for at in range(0, len(ids), MOST)]


def best_fit(lengths: Sequence[int]) -> list[int]:
    """Tokens of the packs: longest first, each into the fullest pack that has room."""
    packs: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [size for size in packs if size + length <= MOST]
        if fits:
            packs.remove(max(fits))
        packs.append(max(fits, default=0) + length)
    return packs


def greedy(parts: Sequence[Ids]) -> list[list[int]]:
    """Packs that are filled in the order of the input."""
    packs: list[list[int]] = [[]]
    for part in parts:
        if len(packs[-1]) + len(part) > MOST:
            packs.append([])
        packs[-1] += part
    return packs


def segments(output: str) -> list[Ids]:
    """The segments of all packs, after the checks that a trainer relies on."""
    found = []
    for pack in datasets.load_from_disk(output):
        ends = pack["cu_seqlens"]
        parts = [pack["tokens"][a:b] for a, b in itertools.pairwise(ends)]
        assert pack["position_ids"] == [at for part in parts for at in range(len(part))]
        assert ends[0] == 0
        assert ends[-1] == len(pack["tokens"])
        found += parts
    return found


def check_best_fit(output: str, documents: Sequence[str]) -> None:
    """All documents are there once, in as few packs as plain best fit makes."""
    parts = pieces(encoded(documents))
    assert sorted(segments(output)) == sorted(parts)
    sizes = [len(pack["tokens"]) for pack in datasets.load_from_disk(output)]
    assert sorted(sizes) == sorted(best_fit([*map(len, parts)]))


def test_a_folder_of_compressed_json_lines() -> None:
    Path("docs").mkdir()
    for seed in range(3):
        lines = write_jsonl(Path("docs.jsonl"), texts(40, seed)).read_bytes()
        Path(f"docs/{seed}.jsonl.zst").write_bytes(zstandard.compress(lines))
    command = f"build docs -o out --tokenizer tokenizer --max-length {MOST}"
    printed = packprep(command)
    check_best_fit("out", [text for seed in range(3) for text in texts(40, seed)])
    assert "documents           120\n" in printed
    assert "'<s>' (0)" in printed
    assert max(map(len, printed.splitlines())) <= 80
    before = {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()}
    assert "out is finished already: nothing to do" in packprep(command)
    assert {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()} == before
    assert packprep("verify out") == "out: sound\n"
    refused = packprep(f"{command}0", code=2)
    assert "out is an output of other settings" in refused
    assert "--overwrite" in refused
    assert {path.name for path in Path().glob("out*")} == {"out"}


def test_a_csv_with_a_template() -> None:
    rows = [(f"Title {at}", f'{text}, "quoted"\nline') for at, text in enumerate(texts(30))]
    quoted = ['"{}","{}"'.format(title, body.replace('"', '""')) for title, body in rows]
    Path("a.csv").write_text("\n".join(["title,body", *quoted]))
    options = f"-o out --tokenizer tokenizer --max-length {MOST}"
    refused = packprep(f"build a.csv {options}", code=2)
    assert "a.csv has no column 'text'; it has title, body; name one with --text" in refused
    packprep(f"build a.csv {options} --text {{title}}:{{body}}")
    check_best_fit("out", [f"{title}:{body}" for title, body in rows])


def test_a_folder_of_parquet_in_the_order_of_the_input() -> None:
    Path("tables").mkdir()
    for seed in range(3):
        pq.write_table(pa.table({"text": texts(40, seed)}), f"tables/{seed}.parquet")
    options = f"-o out --tokenizer tokenizer --max-length {MOST}"
    packprep(f"build tables {options} --strategy greedy --order input")
    documents = encoded([text for seed in range(3) for text in texts(40, seed)])
    packs = [pack["tokens"] for pack in datasets.load_from_disk("out")]
    assert packs == greedy(pieces(documents))


def test_token_ids_with_labels() -> None:
    rows = [
        {"ids": [*range(at, at + 9)], "labels": [-100] * 4 + [*range(at + 4, at + 9)]}
        for at in range(20)
    ]
    write_jsonl(Path("ids.jsonl"), rows)
    packprep("build ids.jsonl -o out --ids ids,labels --tokenizer 320 --max-length 30")
    packs = list(datasets.load_from_disk("out"))
    assert sorted(len(pack["tokens"]) for pack in packs) == [18, *[27] * 6]
    assert sorted(segments("out")) == sorted(row["ids"] for row in rows)
    pairs = [pair for pack in packs for pair in zip(pack["tokens"], pack["labels"], strict=True)]
    given = [pair for row in rows for pair in zip(row["ids"], row["labels"], strict=True)]
    assert sorted(pairs) == sorted(given)


def test_standard_input_and_a_store_give_the_same_documents() -> None:
    text = write_jsonl(Path("a.jsonl"), texts(40)).read_text()
    options = f"--tokenizer tokenizer --max-length {MOST}"
    packprep(f"build - -o piped {options}", stdin=text)
    check_best_fit("piped", texts(40))
    assert "nothing to do" in packprep(f"build - -o piped {options}", stdin=text)
    assert {path.name for path in Path().glob("piped*")} == {"piped"}
    packprep("tokenize a.jsonl -o store --tokenizer tokenizer")
    packprep(f"pack store -o packed --max-length {MOST}")
    check_best_fit("packed", texts(40))


def test_a_build_that_is_stopped_twice_resumes() -> None:
    """By a kill, and by Ctrl-C, each after a receipt of tokens."""
    rows = write_jsonl(Path("few.jsonl"), texts(200)).read_bytes()
    Path("a.jsonl").write_bytes(rows * (80_000_000 // len(rows)))  # five splits
    command = "build a.jsonl -o {} --tokenizer tokenizer --max-length 1024 --num-proc 1"
    for stop, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process = start(command.format("out"))
        stop_after_a_receipt(process, stop)
        _, printed = process.communicate()
        assert process.returncode == code, printed
        assert not Path("out").exists()
    assert "run the same command again" in printed
    assert "tokens reused" in packprep(command.format("out"))
    packprep(command.format("whole"))
    assert data("out") == data("whole")
    assert packprep("verify out") == "out: sound\n"


def stop_after_a_receipt(process: "subprocess.Popen[str]", stop: int) -> None:
    """Stop a build when it has one more receipt of tokens."""

    def receipts() -> int:
        return len([*Path("out.incomplete").glob("tokens/tokens-*.json")])

    before = receipts()
    while receipts() == before and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(stop)


def data(output: str) -> Any:
    """What two outputs with the same bytes share."""
    return json.loads(Path(output, "manifest.json").read_bytes())["data"]
