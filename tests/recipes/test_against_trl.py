"""TRL takes a file of pairs as it is: its DPO trainer reads, checks and tokenizes it.

Skipped without TRL, which is not among the locked dependencies. It has an environment of its own, of the same version
of Python, that takes everything else from the project's:

    python -m venv extra
    extra/bin/pip install trl # torch for the CPU is enough
    export PYTHONPATH=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    extra/bin/python -m pytest -W default tests/recipes/test_against_trl.py # its dependencies warn
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recipes.shipped import recipe, run

REASON = "needs TRL in an extra environment: the docstring of this module has the commands"
trl = pytest.importorskip("trl", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
datasets = pytest.importorskip("datasets", reason=REASON)
tokenizers = pytest.importorskip("tokenizers", reason=REASON)

END = "<end>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer() -> Any:
    """Return a tokenizer of bytes with a chat template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={c: i for i, c in enumerate([END, *alphabet])}, merges=[])
    bytewise = tokenizers.Tokenizer(model)
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytewise, eos_token=END, pad_token=END, chat_template=CHAT_TEMPLATE
    )


def dpo_texts(path: Path, work: Path) -> list[tuple[str, str, str]]:
    """Give the pairs in the Parquet file `path` to TRL's DPO trainer, of a model of random weights, and train one step.
    Return prompt, chosen and rejected of each row as the trainer tokenized them. `work`: a folder for its files."""
    words = tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(work / "model")
    arguments = trl.DPOConfig(
        output_dir=str(work), max_steps=1, per_device_train_batch_size=2, report_to="none", use_cpu=True, bf16=False
    )
    trainer = trl.DPOTrainer(
        model=str(work / "model"),
        args=arguments,
        processing_class=words,
        train_dataset=datasets.Dataset.from_parquet(str(path), cache_dir=str(work / "cache")),
    )
    trainer.train()
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return [tuple(words.decode(row[name]) for name in names) for row in trainer.train_dataset]


def test_the_pairs_of_our_ultrafeedback(tmp_path):
    """The file in data/ as it is, with all of its columns."""
    job = recipe("ultrafeedback")
    job["sampling"]["max_tokens"] = 24
    job["steps"]["ratings"]["sampling"] = {"temperature": 2.0}
    rows, _ = run(job, tmp_path, rows=10)
    (path,) = (tmp_path / "out" / "data").glob("*.parquet")
    assert len(rows) >= 4
    assert dpo_texts(path, tmp_path / "work") == [
        (
            f"<user>{row['prompt'][0]['content']}{END}<assistant>",
            f"{row['chosen'][0]['content']}{END}",
            f"{row['rejected'][0]['content']}{END}",
        )
        for row in rows
    ]
