"""Values and errors of YAML are those of PyYAML's own code."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.system.yaml_text import read_yaml, write_yaml, yaml_nodes
from tests.sets import often

TEXTS = st.text(st.characters() | st.sampled_from("\x00\x85\u2028\ud800\ufeff😀\n\t:-'\"#[{&*!|>~="), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3), max_leaves=8)


@given(st.dictionaries(TEXTS, VALUES, max_size=3))
@settings(max_examples=100)
def test_values_come_back_and_are_those_that_pyyaml_reads(values):
    text = write_yaml(values)
    assert read_yaml(text) == yaml.safe_load(text) == values
    other = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    assert read_yaml(other) == yaml.safe_load(other)


@pytest.mark.parametrize(
    "text", ["a: [1", "a: \ud800", "a: \x00", "a: b: c", "\tq: 1", "*x", "!!python/name:os.system"]
)
def test_errors_are_those_of_pyyaml(text):
    with pytest.raises(yaml.YAMLError) as expected:
        yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError) as found:
        read_yaml(text)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("level", often(["- ", "[", "{"], "- "))
def test_deep_texts_end_no_process(level):
    for read in (read_yaml, yaml_nodes):
        with pytest.raises((RecursionError, yaml.YAMLError)):
            read(level * 100_000)
