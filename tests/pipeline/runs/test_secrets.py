"""Secrets by every way in: they reach the operator, and stand in nothing that a run writes, publishes or prints."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline import Job, run
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tests.pipeline.command_line import OPS, here, write_job
from tests.pipeline.secret_ops import SEEN
from tests.sets import often

__all__ = ["here"]
pytestmark = pytest.mark.slow("composes and runs jobs")

CALLS = "tests.pipeline.secret_ops.Calls"
WAYS = {
    "marked": "{}",
    "api_key": "{}",
    "client": {"handle": "{}"},
    "options": {"db-password": "{}", "accessToken": "{}", "retries": 2},
    "headers": {"Authorization": "Bearer {}", "X-Other": "{}"},
    "url": "https://{}@host.example.org/a?sig={}",
}
"""Arguments of Calls that are secret by mark, by name, by place and as parts of a URL."""


class Secrets:
    """Makes random secrets, by environment variables or as they are, and looks for all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
        self.values: dict[str, str] = {}
        self._set, self._form = monkeypatch.setenv, form

    def new(self) -> str:
        """What is typed for a new secret."""
        name, value = f"SECRET_OF_TEST_{len(self.values)}", secrets.token_hex(8)
        self.values[name] = value
        if self._form == "{}":
            return value
        self._set(name, value)
        return self._form.format(name)

    def rotate(self) -> None:
        """Give each another value; the old ones are looked for too."""
        for name, value in list(self.values.items()):
            self.values[f"{name} before"], self.values[name] = value, secrets.token_hex(8)
            self._set(name, self.values[name])

    def filled(self, way: Any) -> Any:
        if isinstance(way, dict):
            return {key: self.filled(inner) for key, inner in way.items()}
        while isinstance(way, str) and "{}" in way:
            way = way.replace("{}", self.new(), 1)
        return way

    def told_in(self, text: str) -> list[str]:
        """The lines with a secret, for a message."""
        return [line for line in text.splitlines() for value in self.values.values() if value in line]

    def found_in(self, *folders: Path, but: str = ".job.yaml") -> list[str]:
        files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and not p.name.endswith(but)]
        kept = {path: _content(path) + str(path).encode() for path in files}
        return [f"{value} in {path}" for path in kept for value in self.values.values() if value.encode() in kept[path]]


def _content(path: Path) -> bytes:
    """The bytes of a file, and what is compressed in it."""
    table = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else ""
    return path.read_bytes() + str(table).encode()


def job_of(given: dict[str, Any], **settings: Any) -> str:
    call = {"_target_": CALLS, **given}
    nodes = {
        "numbers": {"op": {"_target_": f"{OPS}.Numbers", "rows": 25, "chunk_rows": 10}},
        "call": {"inputs": "numbers", "op": call},
        "write": {"inputs": "call", "op": {"_target_": f"{OPS}.Parquet"}},
    }
    write_job("calls.job", yaml.safe_dump({"name": "calls", "chunk_rows": 10, "nodes": nodes, **settings}))
    return "job=calls.job.yaml"


FORMS = {"literal": "{}", "environment": "${{oc.env:{}}}", "secret": "${{secret:{}}}"}


@pytest.fixture(params=[pytest.param(form, marks=[] if form == "secret" else pytest.mark.laws) for form in FORMS])
def typed(request, monkeypatch):
    return Secrets(monkeypatch, FORMS[request.param])


def test_a_run_uses_them_and_leaves_publishes_and_prints_none(here, typed, capfd):
    given = typed.filled(WAYS)
    if "secret:" in str(given):
        given["note"] = f"with {typed.new()} within"
    told = here / "told"
    arguments = [] if given["marked"] in typed.values.values() else [typed.new()]
    hook = {"command": ["sh", "-c", f"cat > {told}; env | grep PIPELINE >> {told}", *arguments]}
    extra = {"on_finish": hook, "prometheus_file": str(here / "run.prom"), "progress": "json"}
    job = job_of(given, **extra)
    published = [f"output.publish=file://{here}/published"]
    assert main([job, *published]) == ExitCode.REJECTS
    made = SEEN[-1]
    values = [value for name, value in typed.values.items()]
    assert [made["marked"], made["api_key"], made["client"].handle] == values[:3], "the operator has them"
    assert told.is_file()
    assert main(["verify", "outputs/calls"]) == ExitCode.DONE
    assert main(["report", "outputs/calls"]) == ExitCode.DONE
    assert main(["status", "outputs/calls"]) == ExitCode.DONE
    assert main([job, "dry_run=plan", "show=graph"]) == ExitCode.DONE
    for more in (["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--info"]):
        main([job, *more])
    printed = "".join(capfd.readouterr())
    assert typed.found_in(here) == []
    assert typed.told_in(printed) == []


@pytest.mark.laws
def test_a_run_that_fails_or_is_refused_prints_none(here, typed, capfd):
    given = typed.filled(WAYS)
    assert main([job_of(given | {"fails": True})]) == ExitCode.FAILED
    assert main([job_of(given | {"retires": 1})]) == ExitCode.CONFIG
    assert main([job_of(given | {"marked": [given["marked"]]})]) in (ExitCode.CONFIG, ExitCode.FAILED)
    printed = "".join(capfd.readouterr())
    assert typed.found_in(here) == []
    assert typed.told_in(printed) == []


@pytest.mark.parametrize("form", often(["environment", "secret"], "environment"))
def test_a_run_resumes_with_new_ones_and_a_repair_finds_them(here, monkeypatch, capfd, form):
    typed = Secrets(monkeypatch, FORMS[form])
    job = job_of(typed.filled(WAYS), max_error_rate=1.0)
    assert main([job]) == ExitCode.DONE
    before = (here / "outputs/calls/config.yaml").read_text()
    typed.rotate()
    assert main([job]) == ExitCode.DONE
    assert "is finished already" in capfd.readouterr().out
    part = next((here / "outputs/calls/data").glob("*"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-7])
    assert main(["verify", "outputs/calls", "repair=true"]) == ExitCode.DONE
    assert part.read_bytes() == whole
    assert SEEN[-1]["api_key"] == typed.values["SECRET_OF_TEST_1"]
    assert (here / "outputs/calls/config.yaml").read_text() == before
    part.write_bytes(whole[:-7])
    monkeypatch.delenv("SECRET_OF_TEST_1")
    assert main(["verify", "outputs/calls", "repair=true"]) == ExitCode.CONFIG
    said = capfd.readouterr().err
    assert "nodes.call.op.api_key is kept nowhere" in said
    assert "SECRET_OF_TEST_1" in said
    part.write_bytes(whole)  # to be read
    assert typed.found_in(here) == []


def test_a_repair_asks_for_those_that_were_typed_as_they_are(here, monkeypatch, capfd):
    typed = Secrets(monkeypatch, "{}")
    assert main([job_of({"api_key": typed.new()}, max_error_rate=1.0)]) == ExitCode.DONE
    part = next((here / "outputs/calls/data").glob("*"))
    part.write_bytes(part.read_bytes()[:-7])
    assert main(["verify", "outputs/calls", "repair=true"]) == ExitCode.CONFIG
    assert "set the environment variable CALL_API_KEY" in capfd.readouterr().err
    monkeypatch.setenv("CALL_API_KEY", typed.values["SECRET_OF_TEST_0"])
    assert main(["verify", "outputs/calls", "repair=true"]) == ExitCode.DONE


@pytest.mark.laws
def test_a_sweep_notes_none(here, typed, capfd):
    job = job_of(typed.filled(WAYS))
    assert main([job, "-m", "seed=1,2"]) == ExitCode.REJECTS
    assert main([job, "-m", "seed=1,2", f"+nodes.call.op.options.hf_token={typed.new()}"]) in (2, 3)
    printed = "".join(capfd.readouterr())
    assert typed.found_in(here) == []
    assert typed.told_in(printed) == []


@pytest.mark.laws
@pytest.mark.parametrize(
    "argument",
    [
        "model.headers={{Authorization: Basic {}==}}",
        "model.headers.Authorization=Basic {}==",
        "+model.headers.Authorization=Basic {}==",
        "data.storage_options={{key: {}",
        "output.publish=http://h/x?token={}",
        "on_finish.command=[curl, -H, {}=",
        "nodes.call.op.marked={}:=",
        "nodes.call.op.options={{api_key: {}",
        "+nodes.call.op.client={{handle: {}",
        "--model.headers={}",
        "model.query={{sig: {}",
        "+model.query.sig={}==",
        "model.query={}",
        "model.headers={}",
        "model.key_env=sk-{}",
        "model.url=https://{}@h.example.org/v1",
        "model.url=[https://h.example.org/v1?key={}]",
        "data.path=https://u:{}@h.example.org/a.jsonl",
        "data.storage_options={}",
        "model.extra_body={{api_key: {}}}",
        "model.timeout_s=${{secret:NO_SUCH}}{}",
    ],
)
def test_an_argument_that_cannot_be_is_refused_without_it(here, monkeypatch, capfd, argument):
    typed = Secrets(monkeypatch, "{}")
    (here / "a.jsonl").write_text('{"prompt": "a"}\n')
    base = ["job=generate", "model=endpoint", "model.url=http://127.0.0.1:9/v1", "data.path=a.jsonl"]
    code = main([*base, "model.patience_s=0", "model.retries=0", argument.format(typed.new())])
    assert code in (ExitCode.CONFIG, ExitCode.FAILED)
    printed = "".join(capfd.readouterr())
    assert typed.told_in(printed) == []
    assert typed.found_in(here) == []


@pytest.mark.parametrize(
    "line",
    [
        "{{api_key: *{}}}",
        "{{api_key: !{} x}}",
        "{{api_key: '{}}}",
        "{{api_key: ${{{}}}",
        '{{api_key: "\\{}"}}',
        "{{api_key: {}: b}}",
    ],
)
def test_a_job_file_that_cannot_be_read_is_refused_without_it(here, monkeypatch, capfd, line):
    typed = Secrets(monkeypatch, "{}")
    write_job("calls.job", f"nodes:\n  call:\n    op: {line.format(typed.new())}\n")
    assert main(["job=calls.job.yaml"]) == ExitCode.CONFIG
    printed = "".join(capfd.readouterr())
    assert typed.told_in(printed) == []


@pytest.mark.laws
def test_from_python_too_and_a_saved_job_names_them(here, typed):
    given = typed.filled(WAYS)
    job = Job("calls", chunk_rows=10, progress="none").node("numbers", f"{OPS}.Numbers", rows=25)
    job = job.node("call", CALLS, "numbers", **given).node("write", f"{OPS}.Parquet", "call")
    run(job, directory=here / "out")
    assert typed.found_in(here / "out") == []
    if given["marked"] == typed.values["SECRET_OF_TEST_0"]:
        with pytest.raises(ConfigError, match=r"nodes\.call\.op\.marked") as refused:
            job.save(here / "saved.yaml")
        assert not [value for value in typed.values.values() if value in str(refused.value)]
    else:
        job.save(here / "saved.yaml")
    assert typed.found_in(here) == []


def test_a_secret_comes_from_the_environment_or_a_file(here, monkeypatch, capsys):
    (here / "key").write_text("from-a-file\n")
    monkeypatch.setenv("KEY_OF_TEST_FILE", str(here / "key"))
    job = job_of({"api_key": "${secret:KEY_OF_TEST}"}, max_error_rate=1.0)
    assert main([job]) == ExitCode.DONE
    assert SEEN[-1]["api_key"] == "from-a-file"
    monkeypatch.setenv("KEY_OF_TEST", "of-the-environment")
    assert main([job, "overwrite=true"]) == ExitCode.DONE
    assert SEEN[-1]["api_key"] == "of-the-environment"
    for name in ("KEY_OF_TEST", "KEY_OF_TEST_FILE"):
        monkeypatch.delenv(name)
    assert main([job, "overwrite=true"]) == ExitCode.CONFIG
    assert "there is no secret KEY_OF_TEST: set the environment variable" in capsys.readouterr().err


@pytest.mark.laws
def test_workers_have_them(here, typed, capfd):
    job = job_of(typed.filled(WAYS))
    assert main([job, "cluster=processes"]) in (2, 3)
    printed = "".join(capfd.readouterr())
    assert typed.found_in(here) == []
    assert typed.told_in(printed) == []
