"""Execute examples/quickstart.ipynb in an empty folder, and keep what it shows: `python -m tools.notebook`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from pipeline import PACKAGES

NOTEBOOK = PACKAGES / "examples/quickstart.ipynb"
MOST_CHARACTERS = 20_000
"""Of an output that is kept; the report is longer."""


def executed(folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of its cells, executed in `folder`.

    Paths in the outputs become relative ones, and what an output shows in more than MOST_CHARACTERS is left out.

    Raises:
        CellExecutionError: a cell failed.
    """
    env = os.environ | {"PYTHONPATH": str(PACKAGES), "IPYTHONDIR": str(folder / ".ipython")}
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(folder)}}, coalesce_streams=True
    )
    client.record_timing = False
    client.execute(env=env)
    notebook.metadata.language_info = {"name": "python"}  # not the version of this Python
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            for form in [form for form, text in shown.items() if len(str(text)) > MOST_CHARACTERS]:
                del shown[form]
            for holder, form in ((output, "text"), *((shown, form) for form in shown)):
                if form in holder:
                    holder[form] = holder[form].replace(f"{folder}/", "")
    return notebook


def main() -> None:
    """Write the notebook back with its outputs."""
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        nbformat.write(executed(Path(folder)), NOTEBOOK)


if __name__ == "__main__":
    main()
