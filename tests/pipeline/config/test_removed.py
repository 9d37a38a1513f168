"""A removed setting, option, command or variable is refused with what to write instead, wherever it stands."""

from __future__ import annotations

import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.removed import REMOVED, removed, without_removed
from pipeline.cli.main import main
from pipeline.config.keys import known_keys
from tests.sets import often

pytestmark = pytest.mark.slow("Hydra composes for each entry")

KEYS = [name for name in REMOVED if "." in name and "=" not in name]
VALUES = [name for name in REMOVED if "=" in name]
COMMANDS = [name for name in REMOVED if name.isidentifier() and name.islower()]
VARIABLES = [name for name in REMOVED if name.isupper()]
GROUP_OF_KEY = {"cluster": ["cluster=processes"]}
"""Options that a key of the group needs."""


def refused(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == ExitCode.CONFIG
    return str(capsys.readouterr().err)


def told(name: str) -> str:
    """The message for an entry."""
    return str(removed(name))


def job(*arguments: str) -> list[str]:
    return ["job=quickstart", "model=fake", "dry_run=plan", *arguments]


def test_every_entry_is_of_one_kind_and_none_is_there_any_more():
    assert sorted([*KEYS, *VALUES, *COMMANDS, *VARIABLES]) == sorted(REMOVED)
    assert not set(KEYS) & set(known_keys())


@pytest.mark.parametrize("key", often(KEYS, *KEYS[:2], *(key for key in KEYS if key.partition(".")[0] in GROUP_OF_KEY)))
def test_a_key_on_the_command_line_and_in_a_job_file(key, tmp_path, capsys):
    options = GROUP_OF_KEY.get(key.partition(".")[0], [])
    assert told(key) in refused(capsys, *job(*options, f"{key}=1"))
    *groups, last = key.split(".")
    text = "defaults:\n" + "".join(f"  - override /{option.replace('=', ': ')}\n" for option in options)
    text = (text if options else "") + "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(groups))
    (tmp_path / "own.yaml").write_text(f"{text}{'  ' * len(groups)}{last}: 1\n", encoding="utf-8")
    assert told(key) in refused(capsys, f"job={tmp_path / 'own.yaml'}")


@pytest.mark.parametrize("setting", often(VALUES, *VALUES[:2]))
def test_a_value_or_an_option(setting, capsys):
    options = GROUP_OF_KEY.get(setting.partition(".")[0], [])
    assert told(setting) in refused(capsys, *job(*options, setting))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command, capsys):
    assert told(command) in refused(capsys, command)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_that_is_set(variable, capsys, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert told(variable) in refused(capsys, *job())


def test_settings_of_an_older_run_are_read_without_them(monkeypatch):
    monkeypatch.setattr("pipeline.api.removed.REMOVED", {"runtime.old": "", "mode=old": ""})
    values = {"mode": "old", "runtime": {"old": 1, "slots": 2}, "nodes": {"a": {"op": {"runtime": {"old": 1}}}}}
    kept = {"runtime": {"slots": 2}, "nodes": {"a": {"op": {"runtime": {}}}}}
    assert without_removed(values) == kept
