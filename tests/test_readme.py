"""What README.md and the pages of docs/ tell people to type works, and what they say of files, keys and types is so."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import datasets
import huggingface_hub.constants
import polars as pl
import pytest
import xlsxwriter

from docs.refresh_readme import BLOCK, PAGES, output_of
from operators.formats.registry import ENDINGS
from operators.formats.unpack import CODECS
from operators.rows.arrow_types import SCALARS
from operators.settings import DataSettings
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.sets import often

pytestmark = pytest.mark.slow("runs the commands of the README")

README, OUTPUT, DATA, JOBS, STEPS, SYNTHESIS, EVALUATE, *MORE = (
    (PROJECT / name).read_text(encoding="utf-8")
    for name in (
        *("README.md", "docs/output.md", "docs/data.md", "docs/jobs.md", "docs/steps.md", "docs/synthesis.md"),
        *(
            "docs/evaluate.md",
            "docs/sampling.md",
            "docs/performance.md",
            "docs/models.md",
            "docs/install.md",
            "docs/spreadsheets.md",
        ),
    )
)
RUN_PAGES = (README, OUTPUT, DATA, JOBS, STEPS, SYNTHESIS, EVALUATE, *MORE)
"""Pages whose commands are run."""
NEEDS = {"outputs/quickstart": "job=quickstart"}
"""What a command reads that another one makes."""
PIPELINE = ".venv/bin/python -m pipeline"
MODEL = PROJECT / "models/tiny/tiny-q8_0.gguf"
FENCE = re.compile(r"(?:<!-- (?P<mark>.+?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.S)
NOT_RUN = {
    "make quickstart": "sets the project up first; the job that it then runs is run below",
    "make test": "runs this",
    "python -m pip wheel --no-deps --wheel-dir dist .": "tests/test_wheel.py does",
    "python -m venv somewhere && somewhere/bin/pip install dist/*.whl": "tests/test_wheel.py does, without an index",
    "docker build -t llama-batch-pipeline .": "tests/tools/build/test_image.py runs its steps",
    'docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" llama-batch-pipeline job=my_job.yaml': "needs it",
    "sh tools/build/android.sh": "tests/tools/build/test_android.py does, with stand-ins for a phone",
    ".venv/bin/python tools/build/arm64.py": "tests/tools/build/test_arm64.py does, where all is made",
}
ELSEWHERE = re.compile(r"printf |\.venv/bin/python -c |hf |.*s3://")
"""Lines of the block about one's own CSV, which are run together below; commands that need a network."""
SMALL = {"data.limit": "8", "sampling.max_tokens": "8", "progress": "none"}


def blocks(language: str, page: str = README) -> Iterator[re.Match[str]]:
    return (block for block in FENCE.finditer(page) if block["language"] == language)


def commands(*pages: str) -> list[str]:
    """The commands of `pages`; of none: of all."""
    found = [block for page in pages or RUN_PAGES for block in blocks("sh", page)]
    lines = [line for block in found for line in block["text"].replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def runnable() -> list[str]:
    return list(dict.fromkeys(c for c in commands() if c not in NOT_RUN and not ELSEWHERE.match(c)))


def run(command: str) -> int:
    """Run a command of the README in this process: with the model that ships, few rows and short completions."""
    assert command.startswith(PIPELINE), f"{command}: neither a run of the pipeline nor in NOT_RUN"
    arguments = shlex.split(command.replace("/models/my.gguf", str(MODEL)).removeprefix(PIPELINE), comments=True)
    if ">" in arguments:  # what the shell writes into a file is not of the command
        arguments = arguments[: arguments.index(">")]
    given = {argument.partition("=")[0] for argument in arguments}
    small = {"progress": "none"} if "target.accepted_rows" in given else SMALL  # cut short nothing would be accepted
    extra = [f"{key}={value}" for key, value in small.items() if key not in given] if "job" in given else []
    return main([*arguments, *extra])


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A directory with the files that the README's commands take for granted."""
    monkeypatch.chdir(tmp_path)
    questions = pl.DataFrame(
        {
            "id": ["a", "b", "c"],
            "question": ["What is 2 plus 3?", "Reverse this list: fox, hen", "What is 10 minus 4?"],
            "max_tokens": [4, None, 6],
            "temperature": [0.0, 0.8, None],
        }
    )
    prompts = questions.select("id", prompt="question")
    questions.write_csv("prompts.csv")
    with xlsxwriter.Workbook("survey.xlsx") as book:
        for sheet in ("January", "March"):
            questions.write_excel(book, sheet)
    prompts.write_ndjson("prompts.jsonl")
    Path("excel.csv").write_bytes("id;question\r\n1;Was heißt grün?\r\n".encode("cp1252"))
    Path("plain.csv").write_text("1,What is 2 plus 3?\n", encoding="utf-8")
    Path("parts").mkdir()
    prompts.write_parquet("parts/one.parquet")
    Path("tables/lang=en").mkdir(parents=True)
    prompts.write_parquet("tables/lang=en/one.parquet")
    prompts.write_ndjson("more.jsonl.gz", compression="gzip")
    Path("folder").mkdir()
    prompts.write_parquet("folder/train.parquet")
    plain = [[{"role": "user", "content": text}] for text in prompts["prompt"]]
    parts = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts["prompt"]]
    for name, conversations in (("chats", plain), ("mixed", plain + parts)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in conversations))
    talk = [{"from": "human", "value": "What is 2 plus 3?"}]
    Path("sharegpt.jsonl").write_text(json.dumps({"conversations": talk}) + "\n")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    Path("tools.json").write_text(json.dumps([tool]))
    Path("topics.csv").write_text("topic\nrivers\nbread\n", encoding="utf-8")
    Path("places.csv").write_text("name,place\nrivers,Basel\nrivers,Bonn\n", encoding="utf-8")
    Path("personas.csv").write_text("persona\na fisher\na baker\na child\n", encoding="utf-8")
    Path("answers.csv").write_text("answer\nI liked it.\nNever again!\n", encoding="utf-8")
    answered = {"reply": "Denver Broncos", "answers": {"text": ["the Denver Broncos", "Broncos"]}}
    Path("answered.jsonl").write_text(json.dumps(answered) + "\n", encoding="utf-8")
    pl.DataFrame({"text": ["I paid twice.", "The parcel is late."]}).write_ndjson("tickets.jsonl")
    for block in (block for page in (README, STEPS, SYNTHESIS, EVALUATE, JOBS) for block in FENCE.finditer(page)):
        if block["mark"] and block["mark"].startswith("file: "):
            path = Path(block["mark"].removeprefix("file: "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"].replace("/models/my.gguf", str(MODEL)), encoding="utf-8")
    Path("mine/job").mkdir()
    shutil.copy("tickets.yaml", "mine/job")
    return tmp_path


def test_there_is_something_to_run():
    assert len(runnable()) > 5
    assert set(NOT_RUN) <= set(commands())


@pytest.mark.parametrize("command", often(runnable(), *commands(README), *commands(DATA)[::4]))
def test_a_command_of_a_page_works(here, command):
    for path, job in NEEDS.items():
        if path in command:
            assert run(f"{PIPELINE} {job}") == ExitCode.DONE
    assert run(command) == ExitCode.DONE


def test_the_page_of_data_names_every_extension_type_and_key():
    known = [*ENDINGS, *CODECS, *SCALARS]
    assert [name for name in known if f"`{name}`" not in DATA] == []
    keys = {f"data.{f.name}" for f in fields(DataSettings)} - {"data.id_column"}  # of seeds, not of files
    assert [key for key in sorted(keys) if f"`{key}" not in DATA and f"{key}=" not in DATA] == []


def test_what_it_says_of_verify(here):
    command = re.search(r"`(\S+python -m pipeline verify [^`]+)`", README)
    assert command is not None
    assert run(f"{PIPELINE} job=quickstart") == ExitCode.DONE
    assert run(command[1]) == run(f"{command[1]} repair=true") == ExitCode.DONE


def test_the_make_targets_of_the_readme_are_there():
    there = set(re.findall(r"^(\w+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"".join(target) for target in re.findall(r"`make (\w+)`|^make (\w+)", README, re.M)} <= there


def test_what_make_installs_has_all_extras_but_those_that_few_need():
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    locked = set(re.findall(r"^([\w.-]+)==", (PROJECT / "requirements.lock").read_text(encoding="utf-8"), re.M))
    (named,) = re.findall(r"all extras but (.*) are installed", README)
    apart = {"dev", *re.findall(r"`(\w+)`", named)}
    wanted = {package for name, packages in extras.items() if name not in apart for package in packages}
    names = {re.split(r"[\[<>=]", package)[0].replace("_", "-") for package in wanted}
    assert names
    assert names <= locked


def test_the_three_commands_for_ones_own_csv_print_its_rows(tmp_path):
    (block,) = (b for b in blocks("sh") if b["text"].startswith("printf "))
    command = f"({' && '.join(block['text'].splitlines())}) 2>/dev/null | tail -n 2"
    assert command in [shown["command"] for shown in BLOCK.finditer(README)]
    rows = output_of(command, tmp_path).splitlines()
    assert [eval(row)[0] in block["text"] for row in rows] == [True, True]


def test_the_job_file_that_is_explained_is_the_one_that_ships():
    assert (PROJECT / "jobs/quickstart.yaml").read_text(encoding="utf-8") in [b["text"] for b in blocks("yaml", JOBS)]


def test_the_code_that_is_shown_reads_the_results(here, capsys):
    assert run(f"{PIPELINE} job=quickstart") == ExitCode.DONE
    exec(compile(next(blocks("python", OUTPUT))["text"], "output.md", "exec"), {})
    assert "shape: (8, 3)" in capsys.readouterr().out


def test_the_splits_of_the_example_are_loaded_by_name(here, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", here / "cache")
    assert run(f"{PIPELINE} job=balanced.yaml") == ExitCode.DONE
    assert 'beyond the first 3 rows of topic="rivers"' in capsys.readouterr().out
    exec(compile(next(blocks("python", SYNTHESIS))["text"], "synthesis.md", "exec"), {})
    assert "{'train': 3, 'test': 3}" in capsys.readouterr().out.replace(
        "{'test': 3, 'train': 3}", "{'train': 3, 'test': 3}"
    )


def test_the_page_of_results_names_every_file_and_column_of_a_run(here):
    more = "output.prompt_text=true output.completion_ids=true output.card=true"
    assert run(f"{PIPELINE} job=quickstart {more}") == ExitCode.DONE
    out = here / "outputs/quickstart"
    read = set(pl.read_ndjson(PROJECT / "jobs/data/quickstart.jsonl").columns)
    columns = set(pl.read_parquet(out / "data/part-00000.parquet").columns) - read
    metrics = {f"metrics/{path.name}" for path in (out / "metrics").glob("*.parquet")}
    files = {path.name for path in out.iterdir() if path.is_file()} - {".lock"}
    assert [name for name in sorted(columns | metrics | files) if f"`{name}" not in OUTPUT] == []


def test_it_names_every_exit_code():
    rows = re.findall(r"^\| (\d) \| ", README, re.M)
    assert rows == [str(int(code)) for code in ExitCode]


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda path: path.name)
def test_output_that_is_the_same_everywhere_is_fresh(here, capsys, page):
    shown = [block for block in BLOCK.finditer(page.read_text(encoding="utf-8")) if block["language"] == "mermaid"]
    assert shown
    for block in shown:
        assert main(shlex.split(block["command"].removeprefix(PIPELINE))) == ExitCode.DONE
        assert capsys.readouterr().out.rstrip() == block["output"].rstrip()


def test_every_output_that_it_shows_was_pasted_from_a_run():
    shown = [block for block in FENCE.finditer(README) if block["language"] in ("text", "mermaid")]
    assert shown
    assert all(block["mark"] and block["mark"].startswith("run: ") and block["text"].strip() for block in shown)
    assert os.sep + "tmp" + os.sep not in "".join(block["text"] for block in shown)
