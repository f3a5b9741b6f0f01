import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep import BuildConfig, build
from packprep.execute.pipeline import of_build
from packprep.inspect.report_file import read_report
from packprep.preview import estimate
from packprep.support.errors import InputError
from tests.helpers import files
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.examples import long_but


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a size that files of a test can be larger than."""
    monkeypatch.setattr(estimate, "SAMPLE_BYTES", 60_000)
    monkeypatch.setattr(estimate, "_BEGINNING", 60_000)
    monkeypatch.setattr(estimate, "_PIECE", 4_000)


def predicted(folder: Path, *sources: Path, **options: Any) -> dict[str, Any]:
    """The prediction, with the folder as it was."""
    settings = config(folder, *sources, **options)
    before = sorted(folder.rglob("*"))
    prediction = estimate.estimate(of_build(settings))["prediction"]
    assert sorted(folder.rglob("*")) == before
    return prediction


def config(folder: Path, *sources: Path, **options: Any) -> BuildConfig:
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        save_tokenizer(tokenizer)
    return files.config(
        sources=sources, output=folder / "out", tokenizer=tokenizer, **{"max_length": 256} | options
    )


def built(folder: Path, *sources: Path, **options: Any) -> dict[str, Any]:
    build(config(folder, *sources, **options))
    report = read_report(folder / "out")
    tokens = {name: report["tokens"][name] for name in ("tokens_in", "tokens_packed")}
    return {**tokens, "packs": report["packs"], "bytes": report["bytes"]}


def mixed() -> list[str]:
    """A megabyte of documents of all lengths."""
    documents = texts(3000)
    random.Random(0).shuffle(documents)
    return documents


def written(path: Path, method: str) -> Path:
    getattr(datasets.Dataset.from_dict({"text": mixed()}), method)(path)
    return path


LARGE: dict[str, Callable[[Path], list[Path]]] = {
    # The beginning is not like the rest.
    "short first": lambda path: [write_jsonl(path / "a.jsonl", sorted(mixed(), key=len))],
    "parquet": lambda path: [written(path / "a.parquet", "to_parquet")],
    "saved": lambda path: [written(path / "a", "save_to_disk")],
    "csv": lambda path: [written(path / "a.csv", "to_csv")],
    # Equal samples of a large file of long documents and a small one would promise too few packs.
    "by size": lambda path: [
        write_jsonl(path / "long.jsonl", [" ".join(texts(300, seed)) for seed in range(12)]),
        write_jsonl(path / "short.jsonl", ["a cat"] * 900),
    ],
}


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("name", long_but(["short first", "by size"], LARGE))
def test_a_large_input_is_predicted_from_a_sample(tmp_path: Path, name: str) -> None:
    paths = LARGE[name](tmp_path)
    prediction = predicted(tmp_path, *paths)
    assert prediction["from"].startswith("a sample of ")
    for key, value in built(tmp_path, *paths).items():
        assert prediction[key] == pytest.approx(value, rel=0.15), key


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_the_text_of_a_large_compressed_file_is_told_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Reading runs ahead by 64 kB and a block of the compressed file.

    Some per cent of the part read here.
    """
    monkeypatch.setattr(estimate, "SAMPLE_BYTES", 60_000)
    monkeypatch.setattr(estimate, "_BEGINNING", 2_000_000)
    documents = [random.Random(number).randbytes(200).hex() for number in range(25_000)]
    plain = write_jsonl(tmp_path / "plain", documents).read_bytes()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(files.PACK[suffix](plain))
    assert predicted(tmp_path, path)["text_bytes"] == pytest.approx(25_000 * 400, rel=0.1)


@pytest.mark.usefixtures("small_samples")
def test_max_tokens_is_where_the_prediction_ends(tmp_path: Path) -> None:
    """A sample is of every source, and may be more than all of what the build reads."""
    path = write_jsonl(tmp_path / "a.jsonl", texts(400))
    options: dict[str, Any] = {"max_tokens": 5_000, "unit_size": 4_000}
    prediction = predicted(tmp_path, path, **options)
    expected = built(tmp_path, path, **options)["tokens_in"]
    assert prediction["tokens_in"] == pytest.approx(expected, rel=0.25)
    size = re.fullmatch(
        r"a sample of ([\d,]+) bytes, more than the text_bytes .*", prediction["from"]
    )
    assert size is not None
    assert int(size[1].replace(",", "")) > prediction["text_bytes"]


def test_a_document_too_long_is_foreseen(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["a cat", "on a mat " * 400])
    with pytest.raises(
        InputError, match=r"a\.jsonl has a document of .* tokens but a pack holds 256"
    ):
        predicted(tmp_path, path, overflow="error")
