"""Measure: runs each case of a benchmark in a process of its own and adds what it cost."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.engine.backend.interface import inspect_model
from operators.rows.content import content_id
from operators.settings import DataSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from operators.sources.files import find_files
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column
from tools.bench.child import ChildFailed, run_child
from tools.bench.contenders import CELLS, Contender
from tools.bench.figures import COLUMNS
from tools.bench.quiet import NOISY, busy_share, load_average
from tools.bench.report import REPORT, write_report
from tools.bench.scenarios import Scenario, scenario
from tools.bench.settings import BenchSettings
from tools.bench.spec import Spec
from tools.bench.workload import Request, Workload, make


class Measure(BaseOperator):
    """Adds the figures of each case (see Figures), and `skipped_reason`.

    A case that cannot be measured here (a program is not built) keeps its row, with the reason. One that fails is
    a reject. Prompts and, where none is given, the model are made when they are first needed, and kept
    in `bench.cache`. At the end of a run the report is written (tools.bench.report).

    Args:
        bench: what is measured.
        data: the prompts.
        model: whom to ask; with path null a model with random weights is made.
        sampling: max_tokens caps the lengths of reference answers; the scenarios set the rest that they need.
        runtime: how the model is run; slots and max_sequence_tokens are the scenario's.
    """

    def __init__(
        self,
        bench: BenchSettings,
        data: DataSettings,
        model: ModelSettings,
        sampling: SamplingSettings,
        runtime: EngineSettings,
    ) -> None:
        self._bench = bench
        self._data = data
        self._made = not model.path and model.loader == ModelSettings().loader
        self._model = self._model_to_make(model) if self._made else model
        self._sampling = sampling
        self._runtime = runtime
        if runtime.open_keys():
            raise ConfigError(
                f"runtime leaves {', '.join(runtime.open_keys())} open, and a benchmark compares under given settings:"
                " leave out runtime=auto, and give what the run.log of a job with it says was chosen"
            )

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds the figures.

        Raises:
            InputError: data, model or vocabulary is not there.
        """
        for name in ("scenario", "contender", "slots", "repeat", "rows"):
            require_column(schema, name)
        find_files(self._data)
        if not self._made:
            inspect_model(self._model)
        elif self._bench.vocab and not Path(self._bench.vocab).expanduser().is_file():
            raise InputError(
                f"bench.vocab={self._bench.vocab} does not exist; give a GGUF file, or null for the built-in one"
            )
        self._schema = add_columns(schema, *COLUMNS)
        return self._schema

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """A case is measured by being run, so there is nothing to find out before."""
        return Forecast(task.rows, seconds=None, notes=["each row is a measurement; how long they take is not known"])

    def fingerprint(self) -> dict[str, Any]:
        """The content of the data and of the model."""
        model = Path(self._model.path or "").name if self._made else inspect_model(self._model).fingerprint
        return {"data": [file.content_id() for file in find_files(self._data)], "model": model}

    def open(self, runtime: Runtime) -> None:
        """Make the model if none is given and it is not there yet.

        Raises:
            ConfigError: it cannot be made.
        """
        self._run = runtime
        (runtime.output_dir / REPORT).unlink(missing_ok=True)  # it would speak of an earlier run until this one ends
        if not self._made or Path(self._model.path or "").exists():
            return
        bench = self._bench
        runtime.log.info("making the model %s, once", self._model.path)
        command = [sys.executable, "-m", "tools.models.make_model", "--out", str(self._model.path)]
        command += ["--shape", bench.shape, "--type", bench.file_type]
        command += ["--vocab", str(Path(bench.vocab).expanduser())] if bench.vocab else []
        try:
            run_child(command, bench.timeout_s, self._cancelled)
        except ChildFailed as error:
            raise ConfigError(f"the model cannot be made: {error}") from error

    def process(self, batch: Batch) -> Iterable[Output]:
        """Measure the cases one after the other; each leaves when it is measured."""
        for i in range(batch.num_rows):
            if self._cancelled():
                return
            row = batch.data.slice(i, 1)
            try:
                figures = self._case(row.to_pylist()[0])
            except (ChildFailed, ValueError) as error:
                if self._cancelled():
                    return
                self._run.log.warning("%s", error)
                yield batch.reject([i], str(error))
                continue
            columns = [pa.array([figures.get(f.name)], f.type) for f in COLUMNS]
            yield batch.with_data(pa.record_batch([*row.columns, *columns], schema=self._schema))

    def report(self, directory: Path) -> Iterable[str]:
        """Write report.md, and say where it is."""
        return [f"report      {write_report(directory)}", ""]

    def _case(self, case: dict[str, Any]) -> dict[str, Any]:
        """The values of COLUMNS for one case.

        Raises:
            ChildFailed, ValueError: it failed.
        """
        plan = scenario(case["scenario"])
        contender = next(c for c in plan.contenders if c.name == case["contender"])
        workload = self._workload(plan, contender, case["rows"])
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            spec = self._spec(plan, workload, case["slots"], folder)
            if reason := contender.reason_to_skip(spec):
                self._run.log.info("%s of %s is skipped: %s", contender.name, case["scenario"], reason)
                return {"skipped_reason": reason}
            load, busy = load_average(), self._listen()
            done = run_child(contender.command(spec), self._bench.timeout_s, self._cancelled)
            figures = contender.figures(spec, done.output)
        return replace(
            figures,
            load_before=load,
            busy_before=busy,
            wall_s=done.wall_s,
            cpu_s=figures.cpu_s or done.cpu_s,
            peak_rss_mb=figures.peak_rss_mb or done.peak_rss_mb,
        ).row()

    def _cancelled(self) -> bool:
        return self._run.cancelled

    def _listen(self) -> float | None:
        busy = busy_share()
        if busy is not None and busy > NOISY:
            self._run.log.warning("other processes use %.0f %% of the cores: what is measured now is noisy", 100 * busy)
        return busy

    def _workload(self, plan: Scenario, contender: Contender, rows: int) -> Workload:
        """The rows of a scenario, made if they are not there."""
        bench = self._bench
        request = Request(
            recipe=plan.recipe,
            rows=rows,
            copies=contender.copies,
            data=self._data,
            answer_column=bench.answer_column,
            cap=self._sampling.max_tokens,
            shots=bench.shots,
            stop=bench.stop,
            model=self._model,
        )
        folder = Path(bench.cache).expanduser() / "workloads" / request.key()
        return Workload(folder) if folder.exists() else make(request, folder)

    def _spec(self, plan: Scenario, workload: Workload, slots: int, folder: str) -> Spec:
        facts = workload.facts
        room = min(-(-facts.longest // CELLS) * CELLS, facts.n_ctx_train)
        return Spec(
            workload=str(workload.folder),
            folder=folder,
            model=self._model,
            runtime=replace(self._runtime, slots=slots, max_sequence_tokens=room),
            sampling=replace(self._sampling, **plan.sampling, stop=facts.stop),
            peers=self._bench.peers,
            share_prefix=plan.share_prefix,
            server_arguments=self._bench.server_arguments,
            mask_token_id=self._bench.mask_token_id,
        )

    def _model_to_make(self, model: ModelSettings) -> ModelSettings:
        bench = self._bench
        vocab = Path(bench.vocab).expanduser() if bench.vocab else None
        known = content_id(vocab)[-8:] if vocab is not None and vocab.is_file() else "builtin"
        return replace(
            model, path=str(Path(bench.cache).expanduser() / f"{bench.shape}-{bench.file_type}-{known}.gguf")
        )
