"""The sandbox: what Hugging Face templates need works, what a hostile one tries does not."""

from __future__ import annotations

import json
import keyword
import tracemalloc

import jinja2
import pyarrow as pa
import pytest
from jinja2.exceptions import SecurityError

from operators.prompts.columns import used_columns
from operators.prompts.template import Template
from pipeline.api.errors import ConfigError


def rendered(source: str, **values: object) -> str:
    return Template(source, "t", strict=False).render(values)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ messages.append(1) }}",
    ],
)
def test_hostile_expressions_fail(source: str) -> None:
    with pytest.raises((SecurityError, OverflowError, jinja2.UndefinedError)):
        rendered(source, messages=[])


HUGE = "it makes a text of more than 16777216 characters"
GROWN = "{% set ns = namespace(x=x) %}{% for i in range(40) %}{% set ns.x REPLACED %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(2000) %}{% for j in range(100) %}{{ x }}{% endfor %}{% endfor %}",
        "{% set y %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endset %}",
        "{% set y %}{% for i in range(99999) %}" + "literal text " * 1000 + "{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endfilter %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + GROWN.replace("REPLACED", "= m(ns.x)"),
        GROWN.replace("REPLACED", "%}{{ ns.x }}{{ ns.x }}{% endset"),
    ],
)
def test_no_huge_text_is_made_before_it_is_refused(source: str) -> None:
    template = Template(source, "t", strict=False)
    tracemalloc.start()
    with pytest.raises(SecurityError, match=HUGE):
        template.render({"x": "x" * 1000})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20


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


@pytest.mark.parametrize("name", ["User Question", "Was? (€)", "a-b", "2nd", "if", "items", "row", 'say "it"', "", "q"])
def test_a_column_of_any_name_is_read_by_its_name_and_known_while_planning(name: str) -> None:
    schema = pa.schema([(column, pa.string()) for column in dict.fromkeys(["row", "q", name])])
    values = {"row": "3", "q": name} | {name: "here"}
    template = Template(f"{{{{ row[{json.dumps(name)}] }}}}", "template", strict=True)
    assert used_columns(template, schema) == [name]
    assert template.render({name: "here"}) == "here"
    assert used_columns(Template("{{ row[q ~ ''] }}", "template", strict=True), schema) == schema.names
    by_another = Template("{{ row[key] }}, {{ row }}", "template", strict=True)
    assert by_another.render(values | {"key": name}) == f"here, {values['row']}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ User Question }}", r"got 'Question'; .* is written {{ row\['its name'\] }}, or renamed with data.rename"),
        ("{% if User Question %}{% endif %}", r"row\['its name'\]"),
        ("{{ Preis (€) }}", r"row\['its name'\]"),
        ("{{ a-b }}", r"uses 'a'; the columns are a-b; a column of any name is written {{ row\['its name'\] }}"),
        ("{{ row['c'] }}", "uses 'c'; the columns are a-b"),
        ("{{ row[0] }}", "uses '0'; the columns are a-b"),
    ],
)
def test_what_names_no_column_is_told_how_one_of_any_name_is_written(source: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        used_columns(Template(source, "template", strict=True), pa.schema([("a-b", pa.string())]))


def test_a_row_of_the_template_itself_stays_what_it_is() -> None:
    macro = "{% macro m(row) %}{{ row[0] }}{% endmacro %}"
    source = f"{macro}{{% for row in [{{'a': 1}}] %}}{{{{ row['a'] }}}}{{% endfor %}}{{{{ m([2]) }}}}"
    assert Template(source, "template", strict=True).render({}) == "12"
    assert Template("{{ row['a'] }}", "chat template", strict=False).render({"row": {"a": 1}}) == "1"
    with pytest.raises(jinja2.UndefinedError, match="has no attribute 'a'"):
        Template("{{ row.a }}", "template", strict=True).render({"row": 3})


def test_it_says_the_same_again() -> None:
    for source in ("{{ [1, 2] | random }}", "{{ lipsum() }}"):
        with pytest.raises((ConfigError, jinja2.UndefinedError)):
            rendered(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ {'b': 'é<', 'a': 1} | tojson }}", '{"b": "é<", "a": 1}'),
        ("{% generation %}{{ x[0] }}{% endgeneration %}", "a"),
        ("{{ '-' * 3 }}{{ 2 ** 3 }}{{ '%02d' % 7 }}{{ '{}!'.format('a') }}{{ 7 % 4 }}", "---807a!3"),
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
def test_what_templates_do(source: str, text: str) -> None:
    tree = [{"n": 1, "c": [{"n": 2}, {"n": 3}]}, {"n": 4}]
    assert rendered(source, x=["a", "b", "c"], tree=tree) == text


OF_JINJA = (
    "self",
    "super",
    "loop",
    "caller",
    "varargs",
    "kwargs",
    "true",
    "false",
    "none",
    "range",
    "dict",
    "namespace",
)


@pytest.mark.parametrize(
    "name", sorted({*OF_JINJA, *keyword.kwlist, "environment", "context", "missing", "items", "_"})
)
def test_a_column_of_any_name_is_printed_or_refused_before_the_run(name):
    try:
        template = Template(f"{{{{ {name} }}}}", "t", strict=True)
        columns = used_columns(template, pa.schema([(name, pa.string())]))
    except ConfigError:
        return
    assert (columns, template.render({name: "the value"})) == ([name], "the value")
