"""The image: its steps make a working environment in an empty folder, and its files name what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tools.build.compilers import find_compiler, this_host

WHEELS = os.environ.get("IMAGE_WHEELS", "")
"""A folder for built wheels of llama-cpp-python, that any user may read and write; setting it lets the steps run."""
NOBODY = 65534
JOB = ("job=quickstart", "data.limit=8", "progress=none", "report=false")


@pytest.mark.laws
@pytest.mark.skipif(not WHEELS, reason="builds for some 20 minutes: IMAGE_WHEELS names a folder for what is built")
def test_the_steps_of_the_image_make_an_environment_for_an_unprivileged_user(tmp_path, monkeypatch):
    host = this_host()
    if find_compiler(host, os.environ).flags(host):
        pytest.skip("the compiler here gets AMX wrong: needs GCC 13 or later, or clang")
    place = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    user = NOBODY if os.getuid() == 0 else os.getuid()
    os.chown(place, user, -1)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")}
    env |= {"LLAMA_WHEEL_CACHE": WHEELS, "HOME": str(place), "TMPDIR": str(place)}
    try:
        steps = ["sh", str(PROJECT / "tools/build/image.sh"), str(PROJECT), str(place / "made")]
        subprocess.run(steps, cwd=place, env=env, user=user, check=True)
        run = [str(place / "made/bin/python"), "-m", "pipeline", *JOB]
        subprocess.run(run, cwd=place, env=env, user=user, check=True)
        kernels = {path.name for path in place.glob("made/lib/python3*/site-packages/llama_cpp/lib/libggml-cpu-*.so")}
        assert len(kernels) > 5
        monkeypatch.chdir(tmp_path)
        assert main(JOB) == ExitCode.DONE
        texts = [sorted(folder.glob("outputs/quickstart/data/*.parquet")) for folder in (place, tmp_path)]
        assert len(texts[0]) == len(texts[1]) > 0
    finally:
        shutil.rmtree(place)


def test_the_dockerfile_names_the_steps_and_gets_what_they_take():
    steps = (PROJECT / "tools/build/image.sh").read_text(encoding="utf-8")
    taken = re.findall(r"^cp -R (.*) \S+$", steps, re.MULTILINE)
    names = [name for line in taken for name in line.split()]
    assert {"pipeline", "requirements.lock", "tests/families/encoders"} < set(names)
    sent = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent[1] == "*"
    for name in names:
        assert (PROJECT / name).exists()
        assert f"!{name}" in sent
    image = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
    assert "RUN sh /checkout/tools/build/image.sh" in image
    assert 'ENV PATH="/opt/pipeline/bin:$PATH"' in image


def test_the_steps_are_a_shell_script():
    subprocess.run(["sh", "-n", str(PROJECT / "tools/build/image.sh")], check=True)


def test_the_compose_example_runs_a_job_with_the_results_outside():
    example = yaml.safe_load((PROJECT / "docs/examples/compose.yaml").read_text(encoding="utf-8"))
    (service,) = example["services"].values()
    assert service["command"][0] == "job=my_job.yaml"
    assert service["volumes"] == [".:/work"]
    assert "WORKDIR /work" in (PROJECT / "Dockerfile").read_text(encoding="utf-8")
