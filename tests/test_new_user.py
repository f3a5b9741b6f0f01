"""First days with packprep, by its command line alone.

Outputs are compared with the ids of the `tokenizers` library and with packing of plain lists.
"""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest
import zstandard
from tokenizers import Tokenizer

from tests.helpers.corpus import ROOT, save_tokenizer, texts, write_jsonl
from tests.helpers.reference import best_fit, fill

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


def packprep(command: str, stdin: str = "", code: int = 0) -> str:
    """What a command prints; it must end with this code."""
    words = [sys.executable, "-m", "packprep", *command.split()]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def encoded(documents: Sequence[str]) -> list[list[int]]:
    """Ids of documents between <s> and </s>; none of an empty one."""
    tokenizer = Tokenizer.from_file("tokenizer/tokenizer.json")
    bos, eos = tokenizer.encode("<s></s>").ids
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents]
    return [[bos, *each, eos] for each in ids if each]


def pieces(documents: Sequence[Ids]) -> list[Ids]:
    """Documents, those that are longer than a pack in pieces."""
    return [ids[at : at + MOST] for ids in documents for at in range(0, len(ids), MOST)]


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
    lengths = [*map(len, parts)]
    expected = (fill(pack, lengths) for pack in best_fit(lengths, MOST))
    assert sorted(sizes) == sorted(expected)


def test_a_folder_of_compressed_json_lines() -> None:
    Path("docs").mkdir()
    for seed in range(3):
        lines = write_jsonl(Path("docs.jsonl"), texts(40, seed)).read_bytes()
        Path(f"docs/{seed}.jsonl.zst").write_bytes(zstandard.compress(lines))
    columns = "position_ids,document_ids,document_starts"
    command = f"build docs -o out --tokenizer tokenizer --columns {columns} --max-length {MOST}"
    printed = packprep(command)
    check_best_fit("out", [text for seed in range(3) for text in texts(40, seed)])
    assert "documents           120\n" in printed
    assert "'<s>' (0)" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert packprep("verify out") == "out: sound\n"
    refused = packprep(f"{command}0", code=2)
    changed = f"(max_length was {MOST}, now {MOST}0)"
    assert f"out is an output of other settings or sources {changed}" in refused
    assert "--overwrite" in refused
    assert {path.name for path in Path().glob("out*")} == {"out"}


def test_a_csv_with_a_template() -> None:
    rows = [(f"Title {at}", f'{text}, "quoted"\nline') for at, text in enumerate(texts(30))]
    quoted = ['"{}","{}"'.format(title, body.replace('"', '""')) for title, body in rows]
    Path("a.csv").write_text("\n".join(["title,body", *quoted]))
    options = f"-o out --tokenizer tokenizer --max-length {MOST}"
    packprep(f"build a.csv {options} --text {{title}}:{{body}}")
    check_best_fit("out", [f"{title}:{body}" for title, body in rows])


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
