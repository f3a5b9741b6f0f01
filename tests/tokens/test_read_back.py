"""An output that cannot be read is not signed."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.output.sign_off import name_shards
from packprep.schemas import FormatError
from tests.helpers.corpus import build_options, texts


@pytest.mark.parametrize("materialize", ["shards", "index"])
def test_a_build_does_not_sign_what_it_cannot_read(
    materialize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = build_options(tmp_path, {"a.jsonl": texts(9)}, engine="hf", materialize=materialize)

    def spoiled(staging: Path, *arguments: Any, **settings: Any) -> Any:
        entries = name_shards(staging, *arguments, **settings)
        pattern = "tokens/*/*.arrow" if materialize == "index" else "data-*.arrow"
        for file in staging.glob(pattern):  # 0xFFFF or more is no id of a vocabulary of 320
            file.write_bytes(file.read_bytes().replace(b"\1\0\0\0", b"\xff\xff\xff\x7f"))
        return entries

    with monkeypatch.context() as patched:
        patched.setattr("packprep.execute.stages.name_shards", spoiled)
        # Digests would show it first; a writer that writes wrong tokens has the right digests.
        patched.setattr("packprep.output.sign_off._check_written", lambda *_: None)
        with pytest.raises(FormatError, match="the output is not signed, because it cannot be"):
            build(BuildConfig(**options))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.incomplete" / "manifest.json").exists()
    shutil.rmtree(tmp_path / "out.incomplete")
    build(BuildConfig(**options))
