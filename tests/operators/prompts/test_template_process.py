"""The process of a model's chat template: what a stranger's template costs is a row, and never this process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import psutil
import pytest

from operators.prompts.template import Template
from operators.prompts.template_process import TemplateProcess
from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from tests.sets import often

Made = Callable[..., TemplateProcess]
PROOF = {"x": "a"}


@pytest.fixture
def made() -> Iterator[Made]:
    """Make processes that end with the test."""
    processes: list[TemplateProcess] = []

    def make(source: str, proof: dict[str, Any] = PROOF) -> TemplateProcess:
        processes.append(TemplateProcess(source, "t", None, proof, cpu_s=0.5, memory_mib=128))
        return processes[-1]

    yield make
    for process in processes:
        process.close()


def pid_of(process: TemplateProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_texts_and_errors_are_those_of_the_template(made: Made) -> None:
    source = (
        "{{ x }}{% if x is none %}{{ x + 1 }}{% endif %}{% if x == 'no' %}{{ raise_exception('not x') }}{% endif %}"
    )
    rows = [{"x": x} for x in ("a\n\u2028\u00e9", "no", None, ["b", {"c": 1.5}], "", "\ud800", "x" * 300_000)]
    template, process = Template(source, "t", strict=False), made(source)
    for expected, found in zip(template.render_all(rows), process.render_all(rows), strict=True):
        if isinstance(expected, str):
            assert found == expected
        else:
            assert isinstance(found, TypeError) == isinstance(expected, TypeError)
            assert str(found) == str(expected)
    assert process.render_all([]) == []
    assert (process.named, process.unknown) == (template.named, template.unknown)


GROWN = "{% set ns = namespace(y=START) %}{% for i in range(60) %}{% set ns.y = REPLACED %}{% endfor %}"
MEMORY = {
    "times": "{{ 'y' * (x | length) * 10000000000 }}",
    "times a list": "{{ [x] * 10000000000 }}",
    "plus": GROWN.replace("REPLACED", "ns.y + ns.y"),
    "tilde": GROWN.replace("REPLACED", "ns.y ~ ns.y"),
    "a list that grows": GROWN.replace("START", "[x]").replace("REPLACED", "ns.y + ns.y"),
    "a number's width": "{{ ('%' ~ 9999999999 ~ 'd') % (x | length) }}",
    "center": "{{ x | center(9999999999) }}",
    "replace": GROWN.replace("REPLACED", "ns.y | replace('a', 'aaaaaaaaaaaaaaaa')"),
}
TIME = {
    "loops in loops": "{% for a in range(100000) %}" * 3 + "{% endfor %}" * 3,
    "a power": "{{ (x | length) ** (9 ** 9) }}",
}


def of_row(source: str) -> str:
    """A template that attacks for the row `aBOMB` only."""
    return "{% if 'BOMB' in x %}" + source.replace("START", "x * 9") + "{% endif %}{{ x }}"


@pytest.mark.parametrize("name", often(MEMORY, *[*MEMORY][:3]))
def test_memory_is_bounded_and_its_row_has_no_text(made: Made, name: str) -> None:
    process = made(of_row(MEMORY[name]))
    before = psutil.Process().memory_info().rss
    first, bomb, last = process.render_all([{"x": x} for x in ("a", "aBOMB", "b")])
    assert (first, last) == ("a", "b")
    assert isinstance(bomb, jinja2.TemplateError)
    assert "memory" in str(bomb)
    assert psutil.Process().memory_info().rss - before < 64 << 20


@pytest.mark.parametrize("name", TIME)
def test_time_is_bounded_and_its_row_has_no_text(made: Made, name: str) -> None:
    process = made(of_row(TIME[name]))
    first, bomb, last = process.render_all([{"x": x} for x in ("a", "aBOMB", "b")])
    assert (first, last) == ("a", "b")
    assert str(bomb) == "it takes more than 0.5 s"


CONSTANTS = ("'y' * 10000000000", "'%9999999999d' % 1", "'y' | center(9999999999)")


@pytest.mark.parametrize("source", often(CONSTANTS, CONSTANTS[0]))
def test_constants_are_computed_in_the_process_too(made: Made, source: str) -> None:
    with pytest.raises(ConfigError, match=r"^t cannot be used, not even for a conversation of one word: .* memory"):
        made("{{ " + source + " }}")


def test_one_that_takes_too_long_for_every_row_is_a_config_error(made: Made) -> None:
    with pytest.raises(ConfigError, match=r"^t cannot be used: it takes more than 0\.5 s"):
        made("{{ 9 ** (9 ** 9) }}")
    with pytest.raises(ConfigError, match=r"^t, line 1: "):
        made("{% for %}")


def test_a_process_that_is_killed_costs_no_row(made: Made) -> None:
    process = made("{{ x }}")
    before = pid_of(process)
    os.kill(before, signal.SIGKILL)
    assert process.render_all([{"x": "a"}, {"x": "b"}]) == ["a", "b"]
    assert pid_of(process) != before


def test_values_that_cannot_be_sent_cost_their_row(made: Made) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    first, nested, last = made("{{ x }}").render_all([{"x": "a"}, {"x": deep}, {"x": "b"}])
    assert (first, last) == ("a", "b")
    assert str(nested) == "its values are nested too deeply"
    while deep:  # or the interpreter's stack is not enough to free it
        deep = deep[0]


def test_it_ends_with_its_object_and_serves_all_threads(made: Made) -> None:
    process = made("{{ x }}")
    found: dict[int, list[str | Exception]] = {}

    def render(number: int) -> None:
        found[number] = [text for _ in range(20) for text in process.render_all([{"x": number}] * 3)]

    threads = [threading.Thread(target=render, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [str(number)] * 60 for number in range(4)}
    pid = pid_of(process)
    process.close()
    assert not psutil.pid_exists(pid)


def test_it_needs_neither_arrow_nor_numpy() -> None:
    loaded = "import sys, operators.prompts.template_process; print(sorted({'pyarrow', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=PACKAGES, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_it_ends_without_a_word_where_whoever_asked_has_ended() -> None:
    first, rows = ("{{ x }}", "t", None, PROOF, 10.0, 1 << 14), [{"x": "long " * 50_000}] * 20
    command = [sys.executable, "-m", "operators.prompts.template_process"]
    with subprocess.Popen(
        command, cwd=PACKAGES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate(pickle.dumps(first) + pickle.dumps(rows))
    assert (process.returncode, said) == (0, b"")
