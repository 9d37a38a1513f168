"""The sandbox: what Hugging Face templates need works, what a hostile one tries does not."""

from __future__ import annotations

import tracemalloc

import jinja2
import pytest
from jinja2.exceptions import SecurityError

from operators.template_work import TooCostly
from operators.templates import Template
from pipeline.errors import ConfigError


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


FEW_STEPS = 300_000
DOUBLED = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
LONG = "{% set x = 'x' * 100000 %}"
TREE = "{% set ns = namespace(x=[1]) %}{% for i in range(20) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in [1, 2, 3, 4, 5, 6, 7, 8, 9] recursive %}"
        "{% if loop.depth < 9 %}{{ loop([1, 2, 3, 4, 5, 6, 7, 8, 9]) }}{% endif %}{% endfor %}",
        "{% for a in [1, 2] %}" * 18 + "{% for b in range(99) %}{% endfor %}" + "{% endfor %}" * 18,
        "{% for a in [1, 2, 3, 4, 5, 6, 7, 8, 9] %}" * 7 + "{% endfor %}" * 7,
        "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set b = m(n - 1) %}{% endif %}{% endmacro %}{{ m(18) }}",
        "{% for a in range(99999) if a < 0 %}{% endfor %}" * 120,
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% for i in range(99999) %}{% set y = range(99999) | map('string') | list %}{% endfor %}",
        "{% for i in range(99999) %}{% set y = range(99999) | sum %}{% endfor %}",
        "{% for i in range(99999) %}{% if 'x' in range(99999) or range(99999).count('x') %}{% endif %}{% endfor %}",
        LONG + "{% for i in range(99999) %}{% set y = x | lower %}{% endfor %}",
        LONG + "{% for i in range(99999) %}{% set y = x.lower() %}{% endfor %}",
        LONG + "{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
        LONG + "{% for i in range(99999) %}{% if 'y' in x %}{% endif %}{% endfor %}",
        TREE + "{% for i in range(9) %}{% if ns.x == [ns.x[0], ns.x[1]] %}{% endif %}{% endfor %}" * 20,
        DOUBLED + "{{ ns.x }}",
        DOUBLED + "{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(9) %}{% set ns.x = [ns.x] * 99 %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro m(x, n) %}{% if n %}{{ m(x ~ x, n - 1) }}{% endif %}{% endmacro %}{{ m('x', 40) }}",
        LONG + "{{ x.replace('', x) }}",
        LONG + "{{ x | replace('', x) }}",
        LONG + "{{ x.join(x) }}",
        LONG + "{{ x | list | join(x) }}",
        LONG + "{{ x.translate({120: x}) }}",
        LONG + "{{ ('{0}' * 9999).format(x) }}",
        LONG + "{{ ('%(a)s' * 9999) % {'a': x} }}",
        LONG + "{{ ('%s' * 9999) | format(x) }}",
        LONG + "{% set y = x ~ x %}{{ " + "y + " * 90 + "y }}",
        LONG + "{{ " + "x ~ " * 400 + "x }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ [[1]] | tojson(indent=1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ 1 | round(1000000000, 'floor') }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'x'.encode().ljust(1000000000) }}",
        "{{ ([[1] * 99999] * 99) | sum(start=[]) }}",
        "{{ ('<' * 99999 ~ '>') | striptags }}" * 20,
        "{% filter upper %}{% for i in range(99999) %}{% for j in range(99) %}{{ 'xxxxxxxx' }}{% endfor %}{% endfor %}"
        "{% endfilter %}",
        "{% set x %}{% for i in range(99999) %}" + "literal text " * 1000 + "{% endfor %}{% endset %}",
    ],
)
def test_work_without_end_ends(source: str) -> None:
    with pytest.raises(SecurityError):
        Template(source, "t", strict=False, max_steps=FEW_STEPS).render({})


@pytest.mark.parametrize(
    "source",
    [
        "{% set y %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endset %}",
        "{% set x %}{% for i in range(99999) %}" + "literal text " * 1000 + "{% endfor %}{% endset %}",
        "{% set y = (x * 90) ~ (x * 90) ~ x * 90 %}{% set z = y ~ y ~ y ~ y %}{{ " + "z ~ " * 400 + "z }}",
        "{% set y = (x * 90) ~ (x * 90) ~ x * 90 %}{% set z = y ~ y ~ y ~ y %}{{ " + "z + " * 120 + "z }}",
    ],
)
def test_no_huge_text_is_made_before_it_is_refused(source: str) -> None:
    template = Template(source, "t", strict=False, max_steps=FEW_STEPS)
    tracemalloc.start()
    with pytest.raises(SecurityError):
        template.render({"x": "x" * 1000})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20


def test_what_a_list_would_print_is_bounded() -> None:
    with pytest.raises(TooCostly, match="a text or a list of more than 16777216"):
        rendered(DOUBLED)


def test_work_is_counted_not_timed() -> None:
    def source(turns: int) -> str:
        return "{% for i in range(" + str(turns // 100) + ") %}{% for j in range(100) %}{% endfor %}{% endfor %}"

    assert Template(source(FEW_STEPS * 9 // 10), "t", strict=True, max_steps=FEW_STEPS).render({}) == ""
    with pytest.raises(TooCostly, match=f"more than {FEW_STEPS} steps"):
        Template(source(FEW_STEPS), "t", strict=True, max_steps=FEW_STEPS).render({})


def test_every_rendering_has_the_whole_budget() -> None:
    source = "{% for i in range(99999) %}{% endfor %}{% for j in range(99999) %}{% endfor %}"
    template = Template(source, "t", strict=True, max_steps=FEW_STEPS)
    assert [template.render({}) for _ in range(3)] == [""] * 3


@pytest.mark.parametrize("source", ["{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}"])
def test_a_template_stands_alone(source: str) -> None:
    with pytest.raises(ConfigError, match=r"t, line 1: .* takes in another template"):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 9000 + " }}",
    ],
)
def test_one_that_no_compiler_takes_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^t "):
        rendered(source)


def test_it_says_the_same_again() -> None:
    for source in ("{{ [1, 2] | random }}", "{{ lipsum() }}"):
        with pytest.raises((ConfigError, jinja2.UndefinedError)):
            rendered(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for i in x %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}{% endfor %}",
            "1/3,2/3,3/3.",
        ),
        ("{% for i in x %}{{ loop.revindex }}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}", "3b2ca1b"),
        ("{% for i in range(70) %}{% if loop.last %}{{ loop.length }}{{ loop.index0 }}{% endif %}{% endfor %}", "7069"),
        ("{% for i in x if i != 'b' %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}", "a2c2"),
        ("{% for i in [] %}{% else %}none{% endfor %}{% for i in nothing %}{% else %}none{% endfor %}", "nonenone"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2"),
        ("{% for i in tree recursive %}{{ i.n }}{% if i.c %}({{ loop(i.c) }}){% endif %}{% endfor %}", "1(23)4"),
        ("{% for i in x %}{{ loop.cycle('-', '+') }}{% if loop.changed(i) %}!{% endif %}{% endfor %}", "-!+!-!"),
        ("{% for i in 'ab' * 40 %}{% if loop.index == 71 %}{% break %}{% endif %}{{ i }}{% endfor %}", "ab" * 35),
        (
            "{% macro m(a, b='y') %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}"
            "{{ m('x') }}{% call m('z') %}!{% endcall %}",
            "xyzy!",
        ),
        ("{% set t | upper | trim %} {{ x[0] }}b {% endset %}{{ t }}{% filter upper %}c{% endfilter %}", "ABC"),
        (
            "{{ x | map('upper') | join(', ') }}{{ ', '.join(x | map('upper')) }}{{ x | reverse | list }}",
            "A, B, CA, B, C['c', 'b', 'a']",
        ),
        (
            "{{ x[1:] }}{{ x[::-1] | first }}{{ 'abc'[1:] }}{{ (x + ['d']) | length }}{{ x == ['a', 'b', 'c'] }}",
            "['b', 'c']cbc4True",
        ),
        (
            "{{ 'a' ~ 1 ~ none }}{{ 'a' + 'b' }}{{ 1 + 2 + 3 }}{{ [1] + [2] }}{{ 'a' in x }}{{ 'z' not in x }}",
            "a1Noneab6[1, 2]TrueTrue",
        ),
        (
            "{% set ns = namespace(n=0, l=[]) %}{% for i in x %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + [i] %}"
            "{% endfor %}{{ ns.n }}{{ ns.l }}",
            "3['a', 'b', 'c']",
        ),
        ("{{ 'a|b'.split('|')[-1].strip() }}{{ ' a '.strip().startswith('a') }}{{ 'a'.replace('a', 'b') }}", "bTrueb"),
        (
            "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}"
            "{% set j = joiner() %}{{ j() }}{{ j() }}",
            "121, ",
        ),
        ("{{ tree | selectattr('c') | map(attribute='n') | list }}{{ tree | groupby('n') | length }}", "[1]2"),
        (
            "{{ x | batch(2) | list }}{{ [3, 1] | sort }}{{ [1, 2] | sum }}{{ 1.256 | round(2) }}"
            "{{ '<a>b' | striptags }}",
            "[['a', 'b'], ['c']][1, 3]31.26b",
        ),
        (
            "{% autoescape true %}{{ '<' ~ x[0] }}{{ '<' | safe + '<' }}{% endautoescape %}{{ '<' ~ 'b' }}",
            "&lt;a<&lt;<b",
        ),
    ],
)
def test_what_is_metered_works_as_before(source: str, text: str) -> None:
    tree = [{"n": 1, "c": [{"n": 2}, {"n": 3}]}, {"n": 4}]
    assert rendered(source, x=["a", "b", "c"], tree=tree) == text
