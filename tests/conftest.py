"""Settings of all tests: a run writes a report only where the test asks for it, and no example of hypothesis has a
deadline: a busy machine is no defect."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import settings

from pipeline.system.file_cache import PLACE
from tests import seconds, template_processes
from tests.composing import keep
from tests.reports import write_again, write_none

# Read when llama.cpp is loaded: threads that wait for the next operation sleep, where they would spin as long as it
# takes on a machine whose cores others use, too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("no deadline", deadline=None)
    settings.load_profile("no deadline")
    config.pluginmanager.register(seconds)
    _take_own_cores()
    _take_own_cache(config)
    keep()
    template_processes.keep()
    write_none()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process write their reports."""
    write_again(monkeypatch)


def _take_own_cache(config: pytest.Config) -> None:
    """Tests find nothing in the cache that others left, such as a model's trial that passed; all processes share it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="llama-pipeline-cache-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ[PLACE] = folder.name


def _take_own_cores() -> None:
    """Of several processes that run tests beside each other each has cores of its own: the threads of llama.cpp spin
    while they wait, and would take those of another process from it."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    if worker and workers and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= int(workers):
            os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: int(workers)])
