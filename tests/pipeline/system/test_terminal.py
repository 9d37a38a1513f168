"""What nobody reads takes nothing from a run, and what a terminal obeys is never sent to it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.monitor.run_log import run_log
from pipeline.system.terminal import complain, say
from tests.pipeline.command_line import ended
from tests.pipeline.damage import job, run
from tests.pipeline.misbehaving import JOB, VARIABLE
from tests.sets import often

ROOT = Path(__file__).parents[3]

OBEYED = [chr(code) for code in range(0xA0) if not chr(code).isprintable() and chr(code) not in "\n\t"]
OBEYED += "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stdout whose reader has gone, as behind `... | head`. No fixture: pytest sets stdout before a test's call."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield


def test_what_nobody_reads_is_dropped_now_and_later(monkeypatch):
    with unread(monkeypatch):
        print("before", flush=False)
        with pytest.raises(BrokenPipeError):
            sys.stdout.flush()
        say(["one", "two"])
        assert os.path.samestat(os.fstat(sys.stdout.fileno()), Path(os.devnull).stat())
        say(["three"])
        print("four", flush=True)


def test_a_run_is_done_though_nobody_reads_its_summary(tmp_path, monkeypatch):
    with unread(monkeypatch):
        assert run(job(tmp_path / "out")) is ExitCode.DONE
    assert (tmp_path / "out/manifest.json").exists()
    assert "output 43 rows" in (tmp_path / "out/run.log").read_text()


def test_a_command_that_nobody_reads_leaves_without_a_traceback(monkeypatch, capsys):
    with unread(monkeypatch):
        assert main(["jobs"]) == ExitCode.DONE
    assert capsys.readouterr().err == ""


def obeyed(text: str) -> set[str]:
    return set(OBEYED) & set(text)


def test_nothing_that_a_terminal_obeys_is_printed_or_logged(tmp_path, capsys):
    text = f"a\tb\n2026-01-01 ERROR forged {''.join(OBEYED)}"
    say([text, "\ud800"])
    complain(text)
    for progress in ("auto", "json"):
        with run_log(tmp_path, progress):
            logging.getLogger("pipeline").warning("%s", text)
            try:
                raise ValueError(text)
            except ValueError:
                logging.getLogger("pipeline").exception("%s", text)
    printed = capsys.readouterr()
    logged = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert [obeyed(each) for each in (printed.out, printed.err, logged)] == [set()] * 3
    assert printed.out.endswith("\\ud800\n")
    assert printed.out.startswith("a\tb\n2026-01-01 ERROR forged \\x00\\x01")
    assert not any(line.startswith("2026-01-01") for line in logged.splitlines())
    told = [json.loads(line)["message"] for line in printed.err.splitlines() if line.startswith("{")]
    assert told == [text] * 2


def test_rows_and_templates_of_strangers_send_no_escapes_to_a_terminal(tmp_path, capsys):
    escape = "\x1b]0;forged\x07\x9b2J\u202e"
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": escape + end}) + "\n" for end in ("", " bad")))
    text = "messages[0].content"
    template = f"{{% if 'bad' in {text} %}}{{{{ raise_exception({text}) }}}}{{% endif %}}{{{{ {text} }}}}"
    (tmp_path / "template").write_text(template)
    job = f"job=generate model=tiny data.path={tmp_path}/in.jsonl model.chat_template={tmp_path}/template report=false"
    rest = f"output_dir={tmp_path}/out max_error_rate=1 output.preview=3 output.card=true sampling.max_tokens=3"
    assert main(f"{job} {rest}".split()) == ExitCode.DONE
    printed = capsys.readouterr()
    found = {name: (tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("run.log", "README.md")}
    assert [obeyed(each) for each in (printed.out, printed.err, *found.values())] == [set()] * 4
    assert r"\x1b]0;forged\x07\x9b2J\u202e bad" in printed.out


STREAMS = {
    "stdout is full": "> /dev/full",
    "stderr is full": "2> /dev/full",
    "both are full": "> /dev/full 2>&1",
    "both are closed": ">&- 2>&-",
    "all are closed": "<&- >&- 2>&-",
    "nobody reads": "2>&1 | true",
}


@pytest.mark.parametrize(
    "how", [h if h == "all are closed" else pytest.param(h, marks=pytest.mark.faults) for h in STREAMS]
)
@pytest.mark.parametrize("progress", often(["auto", "json"], "auto"))
def test_where_nothing_can_be_printed_a_run_ends_as_it_would(tmp_path, how, progress):
    (tmp_path / "job.yaml").write_text(JOB.replace("progress: none", f"progress: {progress}"), encoding="utf-8")
    told = f"on_finish.command=[/bin/sh,-c,'echo $PIPELINE_EXIT_CODE > {tmp_path}/told']"
    command = [sys.executable, "-m", "pipeline", f"job={tmp_path}/job.yaml", f"output_dir={tmp_path}/out", told]
    line = f"set -o pipefail; {shlex.join(command)} {STREAMS[how]}"
    assert ended(ROOT, "bash", "-c", line, **{VARIABLE: "status:error"}).returncode == 0
    assert (tmp_path / "told").read_text() == "0\n"
    assert main(["verify", str(tmp_path / "out")]) == ExitCode.DONE
