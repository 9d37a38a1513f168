"""examples/quickstart.ipynb: it shows what is kept, with the bytes of every other way; its kernel can be stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client import BlockingKernelClient, KernelManager

from pipeline import PROJECT, load, run
from pipeline.cli.main import main
from tests.test_docs import HERE
from tools.notebook import MOST_CHARACTERS, NOTEBOOK, executed

pytestmark = [pytest.mark.laws, pytest.mark.slow("starts a notebook's kernel")]

LONG = {"data.limit": 64, "sampling.max_tokens": 32, "chunk_rows": 4, "runtime.threads": 1, "report": False}
CELL = f"from pipeline import run\nrun('quickstart', {LONG}, directory='stopped')"
WAIT_S = 120


def parts(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "data").iterdir())}


def improper(notebook: nbformat.NotebookNode) -> list[str]:
    """The outputs that warn, name a folder of this machine or are long."""
    texts = [str(out.get("data") or out.get("text")) for cell in notebook.cells for out in cell.get("outputs", ())]
    assert len(texts) >= 9
    return [text for text in texts if HERE.search(text) or len(text) > 2 * MOST_CHARACTERS or "Warning" in text]


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """The values of its cells but for that of the run that was stopped, which has the rows of that time."""
    results = {cell.id: out for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out}
    return [out.data["text/plain"] for name, out in results.items() if name != "stop"]


def test_it_shows_what_is_kept_and_has_the_bytes_of_every_other_way(tmp_path):
    made, kept = executed(tmp_path), nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.source for cell in made.cells] == [cell.source for cell in kept.cells]
    assert shown(made) == shown(kept)
    assert improper(made) == improper(kept) == []
    few = {"data.limit": 24, "sampling.max_tokens": 32}
    typed = [f"{key}={value}" for key, value in few.items()]
    assert main(["job=quickstart", *typed, f"output_dir={tmp_path / 'typed'}", "progress=none"]) == 0
    called = run("quickstart", few, directory=tmp_path / "called", progress="none")
    assert parts(tmp_path / "outputs/quickstart") == parts(tmp_path / "typed") == parts(called.directory)
    whole = run("quickstart", LONG, directory=tmp_path / "whole", progress="none")
    assert parts(tmp_path / "outputs/long") == parts(whole.directory)


@pytest.fixture
def kernel(tmp_path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name="python3")
    env = os.environ | {"PYTHONPATH": str(PROJECT), "IPYTHONDIR": str(tmp_path / ".ipython")}
    manager.start_kernel(cwd=str(tmp_path), env=env)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=WAIT_S)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernel_that_is_interrupted_leaves_a_run_that_the_same_cell_finishes(kernel, tmp_path):
    manager, client = kernel
    client.execute(CELL)
    until = time.monotonic() + WAIT_S
    while len(list((tmp_path / "stopped").glob("data/part-*"))) < 2:  # a file is there before it is committed
        assert time.monotonic() < until
        time.sleep(0.01)
    manager.interrupt_kernel()
    stopped = client.get_shell_msg(timeout=WAIT_S)["content"]
    assert (stopped["status"], stopped["ename"]) == ("error", "Interrupted")
    assert 0 < load(tmp_path / "stopped").counts["data_rows"] < 64
    ended = client.execute_interactive(CELL, timeout=WAIT_S, output_hook=lambda message: None)["content"]
    assert ended["status"] == "ok"
    whole = run("quickstart", LONG, directory=tmp_path / "whole", progress="none")
    assert parts(tmp_path / "stopped") == parts(whole.directory)
