"""`model=random` writes a model where it is not there yet."""

from __future__ import annotations

import pytest

from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError
from tools.models.random_model import inspect, load, written

pytestmark = pytest.mark.laws  # makes a model of each shape


def test_it_is_written_once_and_names_its_content(tmp_path):
    settings = ModelSettings(path=str(tmp_path / "models"), options={"seed": 3})
    path = written(settings)
    assert path.name == "random-tiny-f32-3.gguf"
    before = path.stat().st_mtime_ns
    assert written(settings).stat().st_mtime_ns == before
    again = ModelSettings(path=str(tmp_path / "elsewhere"), options={"seed": 3})
    other = ModelSettings(path=str(tmp_path / "models"), options={"seed": 4})
    assert inspect(settings) == inspect(again)
    assert inspect(settings) != inspect(other)


def test_it_is_a_model_with_a_mask(tmp_path):
    model = load(ModelSettings(path=str(tmp_path)))
    assert model.mask_id == model.n_vocab - 1
    model.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"size": 3}, "model.options has 'size'"), ({"shape": "huge"}, "no shape is called 'huge'"), (None, "model.path")],
)
def test_what_can_be_no_model_is_a_configuration_error(options, said, tmp_path):
    path = None if options is None else str(tmp_path)
    with pytest.raises(ConfigError, match=said):
        written(ModelSettings(path=path, options=options or {}))
