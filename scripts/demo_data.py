"""Text and a tokenizer for the demo.

The sources of the standard library, and a small byte-level BPE trained on them.

\b
$ python scripts/demo_data.py demo
demo/stdlib.jsonl: 612 documents, 10.8 MB; demo/tokenizer: 8192 tokens
"""

import json
import sysconfig
from pathlib import Path

import click
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
ENDS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(library.rglob("*.py"))
        if not {"site-packages", "test"} & set(path.parts)
    ]
    texts = {
        path.relative_to(library).as_posix(): path.read_text("utf-8", "replace") for path in files
    }
    lines = [json.dumps({"path": path, "text": text}) for path, text in texts.items()]
    (folder / "stdlib.jsonl").write_text("".join(f"{line}\n" for line in lines))

    (folder / "tokenizer").mkdir(exist_ok=True)
    train(list(texts.values())).save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(ENDS))
    size = sum(len(text.encode()) for text in texts.values()) / 1e6
    print(
        f"{folder}/stdlib.jsonl: {len(texts)} documents, {size:.1f} MB; {folder}/tokenizer: "
        f"{VOCABULARY} tokens"
    )


def train(texts: list[str]) -> Tokenizer:
    """Byte-level BPE, so that every text has tokens and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True) for token in ENDS.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


if __name__ == "__main__":
    main()
