"""The dataset card, read by the hub's own classes."""

from pathlib import Path

from huggingface_hub import DatasetCard

from packprep.reports.card import MARK, dataset_card
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.tiny_shards import GOLDEN


def test_the_header_names_the_shards_of_each_split() -> None:
    one = DatasetCard(dataset_card(GOLDEN / "v1-example", "someone/example"))
    two = DatasetCard(dataset_card(GOLDEN / "v1-rich", "someone/rich"))
    assert one.data.to_dict() == {
        "tags": ["packprep"],
        "size_categories": ["n<1K"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": "data-*.arrow"}],
            }
        ],
    }
    assert two.data.to_dict()["configs"][0]["data_files"] == [
        {"split": "train", "path": "train/data-*.arrow"},
        {"split": "validation", "path": "validation/data-*.arrow"},
    ]


def test_the_text_of_a_card() -> None:
    text = DatasetCard(dataset_card(GOLDEN / "v1-rich", "someone/rich")).text
    sections = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:])
    assert text.lstrip().startswith(f"{MARK}\n\n# rich\n")
    assert 'PackedShards("hf://datasets/someone/rich", split="train")' in sections["Load it"]
    assert sections["Splits"].strip().splitlines() == [
        "| split | packs | segments | tokens |",
        "|---|---|---|---|",
        "| train | 4 | 10 | 40 |",
        "| validation | 1 | 2 | 12 |",
    ]
    assert "| `labels` | int32 | per token, unshifted target" in sections["Columns"]
    assert "| of these padding | " in sections["Account"]


def test_a_real_build_is_accounted_for_and_names_its_source_without_folders(tmp_path: Path) -> None:
    folder = tmp_path / "se|cret"
    folder.mkdir()
    source = write_jsonl(folder / "a|<b>.jsonl", ["one two three " * 40, "four", ""])
    run(
        *("build", source, "-o", tmp_path / "out", "--tokenizer", save_tokenizer(tmp_path / "tok")),
        *("--max-length", 16, "--overflow", "drop", "-q"),
    )
    card = dataset_card(tmp_path / "out", "someone/out")
    assert "| a\\|&lt;b>.jsonl | 3 | " in card
    assert "cret" not in card
    account = card.split("## Account\n")[1].split("## Splits")[0]
    assert "| documents | 3 |\n| of these empty or left out | 2 |\n" in account
    assert "| of these dropped: longer than a pack | " in account
