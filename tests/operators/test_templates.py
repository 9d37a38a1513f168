"""The sandbox: what Hugging Face templates need works, what a hostile one tries does not."""

from __future__ import annotations

import jinja2
import pytest
from jinja2.exceptions import SecurityError

from operators.templates import Template


def rendered(source: str, **values: object) -> str:
    return Template(source, "t", strict=False).render(values)


def test_blocks_take_their_line_with_them() -> None:
    assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_tojson_is_plain_json() -> None:
    assert rendered("{{ x | tojson }}", x={"b": "é<", "a": 1}) == '{"b": "é<", "a": 1}'


def test_loop_controls_and_generation_tags() -> None:
    assert rendered("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert rendered("{% generation %}{{ x }}{% endgeneration %}", x="y") == "y"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 9 ** 999999 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ messages.append(1) }}",
    ],
)
def test_hostile_expressions_fail(source: str) -> None:
    with pytest.raises((SecurityError, OverflowError, jinja2.UndefinedError)):
        rendered(source, messages=[])


def test_small_ones_of_the_same_kind_work() -> None:
    assert rendered("{{ '-' * 3 }}{{ 2 ** 3 }}{{ '%02d' % 7 }}{{ '{}!'.format('a') }}{{ 7 % 4 }}") == "---807a!3"


def test_text_is_bounded() -> None:
    with pytest.raises(jinja2.TemplateRuntimeError, match="longer than 16777216"):
        rendered("{% for i in range(2000) %}{% for j in range(100) %}{{ x }}{% endfor %}{% endfor %}", x="x" * 100)
