import hashlib
import io

import pytest

from packprep.output.hashing_file import HashingFile


@pytest.mark.parametrize(
    "blocks",
    [[], [b"a"], [b"x"] * 250, [b"head", bytes(200_000), b"tail"], [b"", bytes(70_000)] * 20],
    ids=["nothing", "a byte", "many small", "a large one", "many large"],
)
def test_the_file_gets_the_bytes_and_the_digest_is_theirs(blocks: list[bytes]) -> None:
    raw = io.BytesIO()
    file = HashingFile(raw)
    for block in blocks:
        assert file.write(block) == len(block)
    content = b"".join(blocks)
    assert raw.getvalue() == content
    assert file.bytes == len(content)
    assert file.digest() == hashlib.sha256(content).hexdigest()
