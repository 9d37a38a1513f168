"""runtime.rope: rows beyond what a model was trained for. The reference is a file whose header asks for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from operators.engine.backend.shape import max_sequence_tokens
from operators.generation.wiring import check_room, long_rows
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.long_rows import RopeSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.config.fingerprint import flat
from tests.operators.llama.gguf_files import copied
from tests.operators.llama.test_decoding import compute
from tests.sets import often_cases
from tools.models.vocabularies import MetaValue

pytestmark = pytest.mark.slow("decodes with a model of several families")

FAMILIES = Path(__file__).parents[2] / "families"
TRAINED = 128
IDS = np.random.default_rng(0).integers(0, 255, 300).astype(np.int32)


def model_file(folder: Path, family: str, architecture: str, name: str = "model", **scaling: Any) -> ModelSettings:
    """A model that was trained for TRAINED tokens, with keys rope.scaling.* as given."""
    kinds = {str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32}
    keys = {"context_length": TRAINED, **{f"rope.scaling.{key}": value for key, value in scaling.items()}}
    given = [MetaValue(f"{architecture}.{key}", value, kinds[type(value)], None) for key, value in keys.items()]
    return ModelSettings(path=str(copied(FAMILIES / f"{family}.gguf", folder / f"{name}.gguf", given)))


def logits(settings: ModelSettings, rope: RopeSettings, ids: np.ndarray = IDS) -> bytes:
    model = LlamaModel(settings)
    runtime = EngineSettings(slots=2, threads=1, rope=rope, max_sequence_tokens=len(ids))
    decoder, _ = model.lease(runtime)
    found = compute(decoder, ids).tobytes()
    model.close()
    return found


@pytest.mark.parametrize(
    ("family", "architecture"),
    often_cases([("llama", "llama"), ("gemma3", "gemma3"), ("qwen3_5", "qwen35")], "llama"),
)
@pytest.mark.parametrize("scaling", ["yarn", "linear"])
def test_logits_are_to_the_bit_those_of_a_file_that_asks_for_the_same(family, architecture, scaling, tmp_path):
    plain = model_file(tmp_path, family, architecture)
    asks = {"type": scaling, "factor": 4.0, "original_context_length": TRAINED}
    asks |= {"yarn_ext_factor": 1.0} if scaling == "yarn" else {}
    asking = model_file(tmp_path, family, architecture, "asking", **asks)
    copied(Path(str(asking.path)), tmp_path / "long.gguf", [_context(architecture, 4 * TRAINED)])
    of_file = logits(ModelSettings(path=str(tmp_path / "long.gguf")), RopeSettings())
    assert logits(plain, RopeSettings(scaling, 4.0)) == of_file
    if family != "qwen3_5":  # so few of its numbers are turned that YaRN turns them alike
        assert (logits(plain, RopeSettings(scaling, 4.0, 4 * TRAINED)) == of_file) == (scaling == "linear")
    short = IDS[:TRAINED]
    assert logits(plain, RopeSettings(scaling, 4.0), short) != logits(plain, RopeSettings(), short)
    other = {"yarn": "linear", "linear": "yarn"}[scaling]
    replaced = logits(ModelSettings(path=str(tmp_path / "long.gguf")), RopeSettings(other, 3.0, TRAINED))
    assert replaced == logits(plain, RopeSettings(other, 3.0, TRAINED)) != of_file


def _context(architecture: str, length: int) -> MetaValue:
    return MetaValue(f"{architecture}.context_length", length, GGUFValueType.UINT32, None)


def test_rows_are_so_many_times_as_long_and_no_longer():
    def most(**settings: Any) -> int:
        return max_sequence_tokens(EngineSettings(**settings), TRAINED)

    rope = RopeSettings("yarn", 4)
    assert most() == TRAINED
    assert most(rope=rope) == most(rope=rope, max_sequence_tokens=512) == 4 * TRAINED
    assert most(rope=RopeSettings("yarn", 4, 64)) == 256
    with pytest.raises(ConfigError, match=r"513 is more than the 128 tokens .* trained for, 512 with runtime\.rope"):
        most(rope=rope, max_sequence_tokens=513)
    with pytest.raises(ConfigError, match=r"129 is more than the 128 tokens .* trained for; runtime\.rope allows more"):
        most(max_sequence_tokens=129)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scaling": "ntk", "factor": 2}, r"runtime\.rope\.scaling='ntk' cannot work: it is one of yarn, linear"),
        ({"scaling": "yarn"}, r"runtime\.rope\.factor=None cannot work: with scaling=yarn it is above 1"),
        ({"scaling": "yarn", "factor": 1.0}, r"runtime\.rope\.factor=1\.0 cannot work: it is a number above 1"),
        ({"factor": 4.0}, r"runtime\.rope\.scaling=None cannot work: .* it is yarn or linear"),
        ({"scaling": "linear", "factor": 2, "original_tokens": 0}, r"runtime\.rope\.original_tokens=0"),
    ],
)
def test_what_says_too_little_is_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        RopeSettings(**given)


def test_runs_of_before_have_no_such_key():
    plain, scaled = (
        dict(flat("runtime", EngineSettings(rope=each))) for each in (RopeSettings(), RopeSettings("yarn", 4))
    )
    assert {key for key in scaled if key not in plain} == {
        *("runtime.rope.scaling", "runtime.rope.factor", "runtime.rope.original_tokens")
    }
    assert EngineSettings(rope=RopeSettings("yarn", 4)).of_bits != EngineSettings(rope=RopeSettings("yarn", 2)).of_bits


@pytest.mark.parametrize("family", ["mamba", "jamba", "granite_hybrid", "nemotron_h"])
def test_a_model_without_rope_is_refused_by_name(family):
    with pytest.raises(
        ConfigError, match=rf"{family}\.gguf: the architecture \S+ has no RoPE; leave runtime\.rope out"
    ):
        check_room(ModelSettings(path=str(FAMILIES / f"{family}.gguf")), EngineSettings(rope=RopeSettings("yarn", 4)))


def test_a_scaling_that_llama_cpp_computes_otherwise_is_refused(tmp_path):
    """What it computes as transformers does is in tests/families/test_long_rows.py."""
    yarn, linear = (EngineSettings(rope=RopeSettings(each, 4)) for each in ("yarn", "linear"))
    plain = model_file(tmp_path, "deepseek2", "deepseek2")
    for settings in (yarn, linear):
        with pytest.raises(ConfigError, match=r"attention scores of deepseek2 .*; leave runtime\.rope out$"):
            check_room(plain, settings)
    says = model_file(tmp_path, "deepseek2", "deepseek2", "says", yarn_log_multiplier=0.1)
    check_room(says, yarn)
    with pytest.raises(ConfigError, match=r"leave runtime\.rope out or use scaling: yarn"):
        check_room(says, linear)


def test_what_the_file_has_of_its_own_is_refused_or_said_to_be_replaced(tmp_path):
    rope, told = RopeSettings("yarn", 4), RopeSettings("yarn", 4, 64)
    settings = model_file(tmp_path, "llama", "llama", type="yarn", factor=2.0, original_context_length=64)
    with pytest.raises(ConfigError, match=r"scales RoPE already \(yarn x2 beyond 64 tokens\).*original_tokens"):
        check_room(settings, EngineSettings(rope=rope))
    check_room(settings, EngineSettings(rope=told))
    line = long_rows(settings, EngineSettings(rope=told, max_sequence_tokens=256))
    assert line == (
        "rows up to 256 tokens: RoPE scaling yarn x4 beyond the 64 that the model was trained for,"
        " in place of its file's (yarn x2 beyond 64 tokens)"
    )
    table = copied(
        Path(str(settings.path)), tmp_path / "table.gguf", more={"rope_freqs.weight": np.ones(8, np.float32)}
    )
    with pytest.raises(ConfigError, match="a table of RoPE factors"):
        check_room(ModelSettings(path=str(table), probe=False), EngineSettings(rope=told))
    assert long_rows(settings, EngineSettings()) is None
