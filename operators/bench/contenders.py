"""How a contender of each kind is started on a case, why it may have to be skipped, and how its figures are read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from operators.bench import llama_tools, server
from operators.bench.figures import Figures, of_job
from operators.bench.scenarios import Contender, Kind
from operators.bench.spec import Spec, missing_setting, overrides_of, written
from operators.bench.workload import Facts, Workload

_PROGRAMS = {
    Kind.SERVER: server.PROGRAM,
    Kind.BATCHED_BENCH: llama_tools.BATCHED_BENCH,
    Kind.LLAMA_BENCH: llama_tools.LLAMA_BENCH,
}


@dataclass(frozen=True)
class Entry:
    """A contender on a case.

    Args:
        contender: who.
        spec: the case, as its child sees it.
        facts: of the rows.
        folder: an empty folder for what the child writes.
    """

    contender: Contender
    spec: Spec
    facts: Facts
    folder: Path

    def reason_to_skip(self) -> str | None:
        """Why it cannot be measured here; None if it can."""
        if self.facts.longest > self.facts.n_ctx_train:
            return (
                f"the longest row has {self.facts.longest} tokens and the model was trained for"
                f" {self.facts.n_ctx_train}"
            )
        missing = next(filter(None, map(missing_setting, self.contender.overrides)), None)
        if missing:
            return f"this version has no setting {missing}"
        if self.contender.kind not in (Kind.JOB, Kind.RUNG) and not self.spec.model.path:
            return "it needs a GGUF file (model.path)"
        program = _PROGRAMS.get(self.contender.kind)
        if program and not (Path(self.spec.peers) / program).is_file():
            return (
                f"there is no {program} in {self.spec.peers}; build it with `make peers`, or name its folder with"
                " bench.peers=, and measure again with overwrite=true"
            )
        return None

    def command(self) -> list[str]:
        """The command line of its child."""
        match self.contender.kind:
            case Kind.JOB:
                return self._job()
            case Kind.RUNG:
                return _module("operators.bench.rungs", self.contender.name, self._saved())
            case Kind.CREATE_COMPLETION:
                return _module("operators.llama.create_completion", self._saved())
            case Kind.SERVER:
                return _module("operators.bench.server", self._saved())
            case Kind.BATCHED_BENCH:
                return llama_tools.batched_bench_command(self.spec, self.facts)
            case Kind.LLAMA_BENCH:
                return llama_tools.llama_bench_command(self.spec, self.facts)

    def figures(self, output: str) -> Figures:
        """What its child measured. `output`: what it printed.

        Raises:
            ValueError: it measured nothing.
        """
        match self.contender.kind:
            case Kind.JOB:
                return of_job(self.folder / "out")
            case Kind.BATCHED_BENCH:
                return llama_tools.of_batched_bench(output, self.facts)
            case Kind.LLAMA_BENCH:
                return llama_tools.of_llama_bench(output, self.facts)
            case _:
                return Figures.from_output(output)

    def _saved(self) -> str:
        path = self.folder / "spec.json"
        self.spec.save(path)
        return str(path)

    def _job(self) -> list[str]:
        workload = Workload(Path(self.spec.workload))
        return [
            *_module("pipeline", "job=generate"),
            f"output_dir={written(str(self.folder / 'out'))}",
            f"data.path={written(str(workload.prompts))}",
            f"nodes.render.op.template_file={written(str(workload.template))}",
            *overrides_of("model", self.spec.model),
            *overrides_of("sampling", self.spec.sampling),
            *overrides_of("runtime", self.spec.runtime),
            *self.contender.overrides,
            "progress=none",
            "report=false",  # drawing is no part of the work that is measured
        ]


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]
