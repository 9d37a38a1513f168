"""Using the library leaves the program that uses it as it was."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tqdm
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.nodes import StringNode

from pipeline import Job, estimate, plan, run
from pipeline.api.errors import ConfigError, InputError
from pipeline.config import compose
from tests.pipeline.job_ops import Square

JOB: dict[str, Any] = {"rows": ["a", "b"], "model": "tiny", "sampling": {"max_tokens": 2}, "report": False}
OF_ENGINE = {"GGML_CPU_TILED_MM_FORCE"}
"""Variables of the environment that llama.cpp reads at its first multiplication."""


@dataclass
class Hosts:
    """A config of the host program."""

    name: str = "text"
    when: str = "${now:}"


def names(found: Any) -> Any:
    return {key: names(inner) for key, inner in found.items()} if isinstance(found, dict) else id(found)


def host() -> dict[str, Any]:
    root = logging.getLogger()
    mask = os.umask(0)
    os.umask(mask)
    return {
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "resolvers": dict(BaseContainer._resolvers),
        "texts of OmegaConf": str(StringNode._validate_and_convert_impl),
        "ConfigStore": names({k: v for k, v in ConfigStore.instance().repo.items() if k != "hydra"}),
        "Hydra": GlobalHydra.instance().is_initialized(),
        "switch interval": sys.getswitchinterval(),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF)},
        "wakeup": signal.set_wakeup_fd(-1),
        "logging": (root.level, list(root.handlers), logging.getLogger("pipeline").level),
        "warnings": list(warnings.filters),
        "directory": Path.cwd(),
        "environment": {name: value for name, value in os.environ.items() if name not in OF_ENGINE},
        "progress bars": tqdm.tqdm.monitor_interval,
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdout, sys.stderr),
        "umask": mask,
        "temporary files": tempfile.tempdir,
        "recursion": sys.getrecursionlimit(),
    }


def refused() -> None:
    with pytest.raises(InputError):
        run("generate", **{**JOB, "model": "no.gguf"}, progress="none")
    with pytest.raises(ConfigError):
        run("generate", {"no.such.key": 1}, **JOB, progress="none")


def built() -> None:
    Job("mine").node("square", Square).save(Path(tempfile.mkdtemp()) / "mine.yaml")


USES: dict[str, Callable[[], object]] = {
    "plan": lambda: plan("generate", **JOB),
    "run": lambda: run("generate", **JOB, progress="log"),
    "estimate": lambda: estimate("generate", **JOB),
    "Job": built,
    "what is refused": refused,
}


@pytest.mark.parametrize("use", USES)
def test_the_host_program_is_as_it_was(use):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseContainer, "_resolvers", {**BaseContainer._resolvers, "now": lambda config, *_: "the host's"})
        patch.setattr(StringNode, "_validate_and_convert_impl", compose._as_omegaconf_has_it)
        patch.setattr(ConfigStore.instance(), "repo", dict(ConfigStore.instance().repo))
        ConfigStore.instance().store(group="model", name="mine", node=Hosts)
        mine = OmegaConf.structured(Hosts)
        before = host()
        USES[use]()
        after = host()
        assert {name: found for name, found in after.items() if before[name] != found} == {}
        mine.name = 5
        assert (mine.name, mine.when) == ("5", "the host's")
