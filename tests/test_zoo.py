"""The zoo: its members are sound and the same in every run, and a change of one is noticed."""

from pathlib import Path

from packprep.loaders import PackedShards

from .helpers.zoo import Zoo


def test_members_have_the_same_packs_in_every_run(zoo: Zoo, tmp_path: Path) -> None:
    again = Zoo(tmp_path)["split"]
    for split in ("train", "validation"):
        packs = [
            [pack.tokens.tolist() for pack in PackedShards(output, split=split)]
            for output in (zoo["split"], again)
        ]
        assert packs[0] == packs[1]


def test_a_changed_file_is_named_and_a_copy_may_change(zoo: Zoo, tmp_path: Path) -> None:
    other = Zoo(tmp_path)
    copy = other.copy("text", tmp_path / "copies")
    (copy / "manifest.json").unlink()
    assert other.changed() == []
    (other["text"] / "more.arrow").write_bytes(b"")
    assert other.changed() == ["text/out/more.arrow"]
