"""How a contender of each kind is started on a case, why it may have to be skipped, and how its figures are read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from operators.bench import llama_tools, server
from operators.bench.figures import Figures, of_job
from operators.bench.scenarios import BLOCK_DIFFUSION, Contender, Kind
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
        facts, room = self.facts, self.contender.row_tokens or 0
        if max(facts.longest, room) > facts.n_ctx_train:
            what = "its context" if room > facts.longest else "the longest row"
            return f"{what} has {max(facts.longest, room)} tokens and the model was trained for {facts.n_ctx_train}"
        if self._makes_blocks and facts.likely_threshold is None:
            return "the model's vocabulary names no mask token; give one with bench.mask_token_id="
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
                return _module("operators.bench.rungs", self.contender.rung or self.contender.name, self._saved())
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
                note = ", ".join(self._of_blocks()) or None
                return replace(of_job(self.folder / "out"), note=note)
            case Kind.BATCHED_BENCH:
                return llama_tools.of_batched_bench(output, self.facts)
            case Kind.LLAMA_BENCH:
                return llama_tools.of_llama_bench(output, self.facts)
            case _:
                return Figures.from_output(output)

    def _saved(self) -> str:
        path = self.folder / "spec.json"
        room = self.contender.row_tokens or self.spec.runtime.max_sequence_tokens
        replace(self.spec, runtime=replace(self.spec.runtime, max_sequence_tokens=room)).save(path)
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
            *self._of_blocks(),
            "progress=none",
            "report=false",  # drawing is no part of the work that is measured
        ]

    @property
    def _makes_blocks(self) -> bool:
        return BLOCK_DIFFUSION in self.contender.overrides

    def _of_blocks(self) -> list[str]:
        """Settings of block diffusion that are the case's and not the contender's."""
        mask, likely = self.spec.mask_token_id, self.facts.likely_threshold
        found = [f"decode.mask_token_id={mask}"] if self._makes_blocks and mask is not None else []
        return found + ([f"decode.confidence_threshold={likely:.6g}"] if self.contender.likely_threshold else [])


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]
