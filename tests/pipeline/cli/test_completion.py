"""`python -m pipeline completion`: what a Tab in bash gives."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.jobs import list_jobs

BASH = shutil.which("bash") or pytest.skip("bash is not installed", allow_module_level=True)


def tab(script: str, line: str, breaks: str = " =:") -> list[str]:
    """What the script puts forward at the end of `line`."""
    words = line.replace("=", " = ").split(" ")
    asked = f"""{script}
COMP_WORDBREAKS='{breaks}' COMP_WORDS=({" ".join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1}
COMP_LINE='{line}' COMP_POINT={len(line)}
_pipeline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([BASH, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


@pytest.fixture
def script(capsys) -> str:
    assert main(["completion"]) == ExitCode.DONE
    return capsys.readouterr().out


def test_jobs_options_keys_and_commands_are_completed(script):
    before = "python -m pipeline "
    assert tab(script, before + "job=") == [job.name for job in list_jobs()]
    assert tab(script, before + "job=quickstart model=ti") == [
        *("tiny", "tiny_classifier", "tiny_reranker", "tiny_sdar", "tiny_vision")
    ]
    assert tab(script, before + "flow=generate_") == ["generate_checked"]
    assert tab(script, before + "runtime.slo") == ["runtime.slots="]
    assert tab(script, before + "decode.denoising") == ["decode.denoising_steps="]
    assert tab(script, before + "sta") == ["status"]
    assert "store=default" in tab(script, before + "sto")
    assert tab(script, before + "dry") == ["dry_run=", "dry_run=true", "dry_run=plan"]
    assert tab(script, before + "job=qu", breaks=" ") == ["job=quickstart"]  # where bash was told to keep words whole


def test_the_rest_is_left_to_bash(script):
    assert tab(script, "python -m pipeline data.path=/tm") == []
    assert tab(script, "python -m pytest job=") == []
    assert tab(script, "python job=") == []


def test_jobs_of_ones_own_are_completed_too(tmp_path, capsys):
    for folder, name in (("job", "mine"), ("sampling", "hot")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_text("# mine\n")
    assert main(["completion", "--config-dir", str(tmp_path)]) == ExitCode.DONE
    script = capsys.readouterr().out
    assert tab(script, "python -m pipeline job=mi") == ["mine"]
    assert tab(script, "python -m pipeline sampling=ho") == ["hot"]


def test_other_arguments_are_refused(capsys):
    assert main(["completion", "zsh"]) == ExitCode.CONFIG
    assert "usage: python -m pipeline completion" in capsys.readouterr().err


def test_a_tab_in_a_terminal_completes_the_line(script, tmp_path):
    (tmp_path / "script").write_text(script)
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "HOME": str(tmp_path)}
    command = [BASH, "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=env, start_new_session=True
    ) as bash:
        os.close(theirs)
        os.write(ours, b"source ./script\npython -m pipeline job=quick\t --cfg job sampling.max_tok\t")
        seen = b""
        while b"job=quickstart --cfg job sampling.max_tokens=" not in seen.replace(b"  ", b" "):
            assert select.select([ours], [], [], 20)[0], seen
            seen += os.read(ours, 4096)
        bash.kill()
    os.close(ours)
