"""The dataset card, read by the hub's own classes."""

from pathlib import Path

from huggingface_hub import DatasetCard

from packprep.reports.card import MARK, dataset_card
from packprep.schemas import read_manifest
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
            {"config_name": "default", "data_files": [{"split": "train", "path": "data-*.arrow"}]}
        ],
    }
    assert two.data.to_dict()["configs"][0]["data_files"] == [
        {"split": "train", "path": "train/data-*.arrow"},
        {"split": "validation", "path": "validation/data-*.arrow"},
    ]


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
    assert card.split("---\n", 2)[2].lstrip().startswith(f"{MARK}\n\n# out\n")
    assert 'PackedShards("hf://datasets/someone/out")' in card
    packs = read_manifest(tmp_path / "out").splits["train"]
    row = f"| train | {packs.packs} | {packs.segments} | {packs.tokens} |\n"
    assert row in card.split("## Splits")[1]
    account = card.split("## Account\n")[1].split("## Splits")[0]
    assert "| documents | 3 (1 empty) |\n| tokens in | " in account
    assert "| dropped, overflow | " in account
