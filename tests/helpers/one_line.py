"""Scripts of docs/train/ that prepare their packs by one line, run as users run them.

`tests/test_in_trainer.py` runs them where the trainer is installed, `scripts/check_trainers` in
environments of its own.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packprep.cli.sample_data import sample_files
from tests.docs.blocks import load

ROOT = Path(__file__).parents[2]
_MODEL = """
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
tokenizer = AutoTokenizer.from_pretrained("data/tokenizer")
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes)
LlamaForCausalLM(config).save_pretrained("model")
tokenizer.save_pretrained("model")
"""
# LLaMA-Factory imports torchaudio for models of speech only.
_LLAMA_FACTORY = """
import runpy, sys
from importlib.machinery import ModuleSpec
from types import ModuleType
if len(sys.argv) == 1:
    audio = ModuleType("torchaudio")
    audio.__spec__ = ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = audio
    runpy.run_path("one_line.py", run_name="__main__")
"""
_TORCHTITAN = """
from runpy import run_path
made = run_path("packed_llama3.py")
config = made["llama3_packed"]()
training = config.training
loader = made["PackedDataLoader"](
    config.dataloader, dp_world_size=1, dp_rank=0, seq_len=training.seq_len,
    local_batch_size=training.local_batch_size,
)
fields, labels = next(iter(loader))
assert fields["input"].shape == labels.shape == (1, training.seq_len)
"""
# By package: its page, and the arguments of Python.
PAGES = {
    "transformers": ("transformers.md", ["one_line.py"]),
    "trl": ("in-trainer.md", ["train.py"]),
    "axolotl": ("axolotl.md", ["-m", "axolotl.cli.train", "one_line.yaml"]),
    "llamafactory": ("llama-factory.md", ["-c", _LLAMA_FACTORY]),
    "torchtitan": ("torchtitan.md", ["-c", _TORCHTITAN]),
}


def run_one_line(package: str) -> None:
    """Run the script of a page in an empty folder. AssertionError with the end of what it says."""
    page, arguments = PAGES[package]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in sample_files().items():
            (folder / "data" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "data" / path).write_bytes(content)
        blocks = load(ROOT / "docs" / "train" / page)
        files = {block.file: block.text for block in blocks if block.file}
        if package == "torchtitan":  # as its section says
            (line,) = [
                block.text
                for block in blocks
                if block.language == "python" and "shards = packprep.shards" in block.text
            ]
            new = line.split("shards = ")[1].strip()
            module = files["packed_llama3.py"].replace("PackedShards(config.dataset_path)", new)
            assert module != files["packed_llama3.py"]
            files["packed_llama3.py"] = f"import packprep\n{module}"
        for file, text in files.items():
            (folder / file).write_text(text)
        environment = {
            **os.environ,
            "PACKPREP_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "AXOLOTL_DO_NOT_TRACK": "1",
        }
        for command in (["-c", _MODEL], arguments) if "model" in str(files) else (arguments,):
            ran = subprocess.run(
                [sys.executable, "-W", "ignore", *command],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-3000:]
        assert "packprep: built " in ran.stderr, ran.stderr[-3000:]
