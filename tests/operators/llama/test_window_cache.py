"""runtime.window_cache=small: layers with a sliding window keep the window alone. A row's bits are still its own, and
those of the full cache as long as no cell has been used twice; prefixes are shared up to the window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from operators.engine.backend.batch import DecodeFailed
from operators.engine.strategies.speculative.setup import check_model
from operators.generation.memory import model_memory
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.model import AUTO
from operators.settings.runtime import EngineSettings, OptimiseSettings
from pipeline.api.errors import ConfigError
from pipeline.config.fingerprint import flat
from tests.families.test_exact import padded
from tests.operators.llama.gguf_files import copied
from tests.operators.llama.test_decoding import COUNTS, WARM, complete, compute
from tests.sets import often
from tools.models.make_model import quantize_file
from tools.models.vocabularies import MetaValue

pytestmark = pytest.mark.slow("decodes with a model that has a sliding window")

FAMILIES = Path(__file__).parents[2] / "families"
WINDOW, AT_ONCE = 128, 128
GEMMA = (("gemma3", AUTO), ("gemma3", "llama.cpp"))
CELLS = 256
"""Of the small cache: WINDOW and AT_ONCE together."""
SMALL: dict[str, Any] = {"window_cache": "small", "n_ubatch": AT_ONCE, "threads": 1}
FULL = SMALL | {"window_cache": "full"}


def windowed(folder: Path, family: str) -> Path:
    """A family's model whose layers with a window see WINDOW tokens."""
    key = MetaValue(f"{family}.attention.sliding_window", WINDOW, GGUFValueType.UINT32, None)
    return copied(FAMILIES / f"{family}.gguf", folder / f"{family}.gguf", [key])


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return windowed(tmp_path_factory.mktemp("model"), "gemma3")


@pytest.fixture(
    scope="module",
    params=often([*GEMMA, ("gpt-oss", AUTO), ("q8_0", AUTO)], *GEMMA),
)
def model(request, path, tmp_path_factory) -> Iterator[LlamaModel]:
    """`q8_0`: gemma3, all of which is ours."""
    (family, kernels), folder = request.param, tmp_path_factory.mktemp("model")
    if family == "q8_0":
        padded(path, folder / "padded.gguf")
        quantize_file(folder / "padded.gguf", folder / "model.gguf", "q8_0")
        file = folder / "model.gguf"
    else:
        file = path if family == "gemma3" else windowed(folder, family)
    loaded = LlamaModel(ModelSettings(path=str(file), kernels=kernels))
    yield loaded
    loaded.close()


def prompts() -> list[np.ndarray]:
    """Strangers, some longer than the small cache; prompts with 100 and 200 tokens in common; twins."""
    random = np.random.default_rng(3)

    def draw(count: int) -> np.ndarray:
        return random.integers(0, 255, count).astype(np.int32)

    short, long = draw(100), draw(200)
    rows = [draw(n) for n in (5, 70, 236, 300, 420)]
    rows += [np.concatenate([short, draw(n)]) for n in (80, 20, 120)]
    rows += [np.concatenate([long, draw(n)]) for n in (150, 200, 30)]
    return [*rows, rows[1], rows[3]]


def test_a_row_keeps_its_bits_in_any_company_and_those_of_the_full_cache_until_cells_are_used_again(model):
    rows = prompts()
    assert model.doubt(EngineSettings(window_cache="small")) is None
    alone = OptimiseSettings(prefix_sharing=False, sample_sharing=False)
    tokens, bits = complete(model, rows, range(len(rows)), WARM, 24, slots=3, optimise=alone, **SMALL)
    _, full = complete(model, rows, range(len(rows)), WARM, 24, slots=3, optimise=alone, **FULL)
    fits = {each for each in bits if len(rows[int(str(each[0]))]) + each[1] <= CELLS}
    assert 0 < len(fits) < len(bits)
    assert all(bits[each] == full[each] for each in fits)
    furthest = max(
        float(np.abs(np.frombuffer(bits[i, 0], np.float32) - np.frombuffer(full[i, 0], np.float32)).max())
        for i in range(len(rows))
    )
    rounded = model.packed.tensors > 0  # products of rounded numbers tell another order sooner
    assert 0 < furthest < (0.2 if rounded else 0.002), "sums in another order, and no other tokens"
    for slots in (7, 1):
        assert complete(model, rows, list(reversed(range(len(rows)))), WARM, 24, slots=slots, **SMALL) == (tokens, bits)
        assert 100 < COUNTS["shared_tokens"] <= COUNTS["snapshots_used"] * WINDOW


def test_it_takes_what_is_said(path, caplog):
    """By llama.cpp's own log of the two caches that it makes; three rows of up to 1,024 tokens."""
    caplog.set_level("DEBUG", logger="llama.cpp")
    model, said = LlamaModel(ModelSettings(path=str(path))), {}
    for how in (FULL, SMALL):
        runtime = EngineSettings(slots=3, max_sequence_tokens=1024, **how)
        caplog.clear()
        model.lease_apart(runtime)[1]()
        found = re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text)
        *_, context, last = model_memory(ModelSettings(path=str(path)), runtime, "key")
        context = last if how is FULL else context
        said[how["window_cache"]] = context.size_bytes - 4 * runtime.slots * model.n_vocab
        assert sum(map(float, found)) * 2**20 == pytest.approx(said[how["window_cache"]], rel=0.01)
    model.close()
    assert said["small"] == said["full"] * (1 + 5 / 4) / 6
    assert "windows small" in context.what
    assert "snapshots" in last.what


def test_a_row_cannot_be_cut_back(model):
    decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=1024, **SMALL))
    compute(decoder, np.arange(40, dtype=np.int32))
    decoder.truncate(0, 40)
    with pytest.raises(DecodeFailed, match="cannot cut"):
        decoder.truncate(0, 39)
    decoder.truncate(0, 0)
    give_back()


def test_the_bits_depend_on_the_cells_so_a_run_does_not_go_on_with_others():
    def keys(**settings: Any) -> set[str]:
        return set(dict(flat("runtime", EngineSettings(**settings))))

    assert keys(window_cache="small") - keys() == {"runtime.window_cache", "runtime.n_ubatch"}
    assert EngineSettings(**SMALL).of_bits != EngineSettings(**SMALL | {"n_ubatch": 256}).of_bits
    assert EngineSettings(**FULL).of_bits == EngineSettings(n_ubatch=256).of_bits


def test_what_cuts_rows_back_is_refused(path):
    settings, small = ModelSettings(path=str(path)), EngineSettings(window_cache="small")
    with pytest.raises(ConfigError, match=r"decode=speculative needs runtime\.window_cache=full"):
        check_model(settings, small, 0)
    check_model(ModelSettings(path=str(FAMILIES / "llama.gguf")), small, 0)
    with pytest.raises(ConfigError, match=r"runtime\.window_cache='small' cannot work: .* runtime\.kv=unified"):
        EngineSettings(window_cache="small", kv="unified", deterministic=False)
