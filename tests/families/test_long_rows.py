"""Rows beyond what a model was trained for (runtime.rope), and quantised keys and values (runtime.kv_type): logits and
greedy ids are those of transformers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.long_rows import RopeSettings
from operators.settings.runtime import EngineSettings
from tests.families.make_long_rows import FACTOR, FILE, IDS, ROUNDED, SCALED, SCALINGS, SCORES, TRAINED
from tests.families.test_exact import AS_TRANSFORMERS, tolerance
from tests.families.test_families import HERE
from tests.operators.llama.gguf_files import copied
from tests.operators.llama.test_decoding import compute
from tools.models.vocabularies import MetaValue

pytestmark = pytest.mark.slow("decodes long rows with a model of several families")

REFERENCES = json.loads(FILE.read_text(encoding="utf-8"))
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (name, each, AS_TRANSFORMERS | {"rope": RopeSettings(each, FACTOR, TRAINED)})
        for name in SCALED
        for each in SCALINGS
    ),
    (SCORES, "yarn", AS_TRANSFORMERS | {"rope": RopeSettings("yarn", FACTOR, TRAINED)}),
    (ROUNDED, "q8_0", {"kv_type": "q8_0"}),
]


SCORES_KEY = MetaValue(f"{SCORES}.rope.scaling.yarn_log_multiplier", 0.1, GGUFValueType.FLOAT32, None)


@pytest.mark.parametrize(
    ("family", "how", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_logits_and_ids_behind_long_rows_are_those_of_transformers(family, how, settings, tmp_path):
    reference = REFERENCES[f"{family} {how}"]
    more = [SCORES_KEY] if family == SCORES else []
    model = LlamaModel(ModelSettings(path=str(copied(HERE / f"{family}.gguf", tmp_path / "model.gguf", more))))
    decoder, _ = model.lease(EngineSettings(slots=2, threads=1, max_sequence_tokens=4 * TRAINED, **settings))
    logits, ids = compute(decoder, np.array(IDS, np.int32))[-1], [*IDS]
    wrong = np.abs(logits - np.array(reference["logits"])).max()
    for _ in reference["ids"]:
        ids.append(int(logits.argmax()))
        logits = compute(decoder, np.array(ids[-1:], np.int32), len(ids) - 1)[-1]
    model.close()
    # A number in the middle of two steps may be rounded either way. Rounding itself moves logits by 0.13.
    assert wrong < (1e-3 if how == "q8_0" else tolerance(family))
    assert ids[len(IDS) :] == reference["ids"]
