"""One job, run in every way that is not to matter: data/ has the same bytes."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.file_cache import PLACE
from tests.operators.engine.rules import scheduled
from tests.sets import often

pytestmark = pytest.mark.slow("runs a job in several ways with the model that ships")

SAMPLINGS = {"greedy": (), "warm": ("sampling.temperature=1.0", "sampling.n=2")}
PLAIN = tuple(
    f"runtime.optimise.{name}=false"
    for name in (
        *("grouped_prefill", "prefix_sharing", "sample_sharing", "identical_rows"),
        "longest_first",
    )
)
WAYS = {
    "one slot": ("runtime.slots=1",),
    "two slots": ("runtime.slots=2",),
    "seven slots, shuffled": ("runtime.slots=7",),
    "sixteen slots": ("runtime.slots=16",),
    "nothing shared": ("runtime.slots=5", *PLAIN),
    "holes": ("runtime.slots=5", "runtime.optimise.compaction=false"),
    "short pieces": ("runtime.slots=5", "runtime.n_ubatch=128", "runtime.n_batch=128"),
    "a calibration": ("runtime=auto", "runtime.flash_attention=true"),  # which alone would change bits
    "no journal": ("runtime.slots=5", "store.enabled=false"),
}
RULES: dict[str, dict[str, int]] = {"seven slots, shuffled": {"shuffle": 5}}
"""Rules of scheduling for some of these ways."""


OFTEN = ("seven slots, shuffled", "nothing shared", "a calibration")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """Prompts of 5 to 400 tokens: strangers, two families, and some that are there twice."""
    words = [f"{'abcdefghij'[i % 10]}{i}" for i in range(120)]
    head = " ".join(words[:25])
    long_head = " ".join(words[:70])
    texts = [" ".join(words[i : i + n]) for i, n in enumerate((1, 2, 5, 9, 14, 18, 20, 22, 26, 40, 60, 80, 100))]
    texts += [f"{head} {word}" for word in words[30:37]] + [
        f"{long_head} {' '.join(words[i : i + 30])}" for i in range(6)
    ]
    texts += texts[3:6]
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bytes_of(prompts, tmp_path_factory):
    """The digest of data/ after a run with these settings."""
    number = itertools.count()

    def run(*settings: str) -> str:
        out = tmp_path_factory.mktemp("run") / str(next(number))
        return digest_of(out, "model=tiny", f"data.path={prompts}", "chunk_rows=11", *settings)

    return run


def digest_of(out: Path, *settings: str) -> str:
    given = ("sampling.max_tokens=16", "progress=none", f"output_dir={out}")
    assert main(["job=generate", *given, *settings]) == ExitCode.DONE
    shards = sorted((out / "data").glob("*.parquet"))
    assert len(shards) > 1
    return hashlib.sha256(b"".join(path.read_bytes() for path in shards)).hexdigest()


@pytest.fixture(scope="module", params=["warm", pytest.param("greedy", marks=pytest.mark.laws)])
def expected(request, bytes_of) -> tuple[tuple[str, ...], str]:
    sampling = SAMPLINGS[request.param]
    return sampling, bytes_of("runtime.slots=4", *sampling)


@pytest.mark.parametrize("way", often(WAYS, *OFTEN))
def test_the_same_bytes(expected, bytes_of, way, tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path))
    sampling, digest = expected
    with scheduled(**RULES.get(way, {})):
        assert bytes_of(*WAYS[way], *sampling) == digest


def test_another_seed_gives_other_bytes(expected, bytes_of):
    """The comparison above can fail."""
    sampling, digest = expected
    if "sampling.temperature=1.0" in sampling:
        assert bytes_of("seed=2", *sampling) != digest


def test_the_prompts_are_of_the_lengths_that_matter(prompts, tmp_path):
    out = tmp_path / "out"
    main(["job=generate", "model=tiny", f"data.path={prompts}", "sampling.max_tokens=1", f"output_dir={out}"])
    lengths = [
        n for path in (out / "data").glob("*.parquet") for n in pq.read_table(path)["prompt_token_count"].to_pylist()
    ]
    assert min(lengths) < 20
    assert max(lengths) > 300
    assert any(56 <= n < 64 for n in lengths)
    assert any(64 <= n < 80 for n in lengths)
