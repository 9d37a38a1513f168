"""Measure: runs each case of a benchmark in a process of its own, and adds its figures."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from operators.engine.backend.loading import inspect_model
from operators.rows.content import content_id
from operators.settings import DataSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from operators.sources.files import find_files
from pipeline.api import Batch, Concludes, Forecast, Forecasts, Operator, Output, Runtime, Task, add_columns
from pipeline.api.errors import ConfigError, InputError
from tools.bench.child import ChildFailed, run_child
from tools.bench.contenders import CELLS, Spec
from tools.bench.figures import COLUMNS
from tools.bench.report import REPORT, report
from tools.bench.scenarios import ALL
from tools.bench.settings import BenchSettings
from tools.bench.workload import Recipe, Workload, make

_WATCH_S = 0.5
NOISY = 0.1
"""Share of all cores in use by others that gives a warning."""


class Measure(Operator, Forecasts, Concludes):
    """Adds the figures of each case (see Figures), and `skipped_reason`.

    A case that cannot be measured here (a program is not built) keeps its row, with the reason. One that fails is
    a reject. Where no model is given, one is made in `bench.cache` when it is first needed. At the end of a run the
    report is written (tools.bench.report).

    Args:
        data: the prompts.
        model: the model of all contenders; with path null a model with random weights is made.
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
        self._bench, self._data, self._sampling, self._runtime = bench, data, sampling, runtime
        self._is_made = not model.path and model.loader == ModelSettings().loader
        self._images = any(ALL[name].recipe.questions for name in bench.scenarios if name in ALL)
        self._model = self._made(model) if self._is_made else model
        self._workloads: dict[tuple[Recipe, int, int], Workload] = {}
        if runtime.open_keys():
            raise ConfigError(
                f"runtime leaves {', '.join(runtime.open_keys())} open, and a benchmark compares under given settings:"
                " leave out runtime=auto, and give what the run.log of a job with it says was chosen"
            )

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds the figures; checks that data, model and vocabulary are there."""
        find_files(self._data)
        if not self._is_made:
            inspect_model(self._model)
        elif self._bench.vocab and not Path(self._bench.vocab).expanduser().is_file():
            raise InputError(
                f"bench.vocab={self._bench.vocab} does not exist; give a GGUF file, or null for the built-in one"
            )
        if self._images and not self._model.mmproj:
            raise ConfigError(f"{self._model.path} reads no images; name its encoder with model.mmproj=")
        self._schema = add_columns(schema, *COLUMNS)
        return self._schema

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """Forecast no time: a case can only be measured by running it."""
        return Forecast(task.rows, seconds=None, notes=["each row is a measurement; how long they take is not known"])

    def fingerprint(self) -> dict[str, Any]:
        """Return the content of the data and of the model."""
        model = Path(self._model.path or "").name if self._is_made else inspect_model(self._model).fingerprint
        return {"data": [file.content_id(file.stamp()) for file in find_files(self._data)], "model": model}

    def open(self, runtime: Runtime) -> None:
        """Make the model if none is given and it is not there yet."""
        self._run = runtime
        (runtime.output_dir / REPORT).unlink(missing_ok=True)  # it would speak of an earlier run until this one ends
        if not self._is_made:
            return
        bench, path, encoder = self._bench, str(self._model.path), self._model.mmproj
        vocab = ["--vocab", str(Path(bench.vocab).expanduser())] if bench.vocab else []
        images = ["--images"] if self._images else []
        self._make(
            path, "make_model", "--shape", bench.shape, "--type", bench.file_type, *vocab, *images, "--out", path
        )
        if encoder:
            self._make(encoder, "make_encoder", "--image_size", str(bench.image_size), path, encoder)

    def _make(self, path: str, module: str, *arguments: str) -> None:
        """Make a file with a module of tools.models if it is not there."""
        if Path(path).exists():
            return
        self._run.log.info("making the model %s, once", path)
        try:
            run_child(
                [sys.executable, "-m", f"tools.models.{module}", *arguments], self._bench.timeout_s, self._cancelled
            )
        except ChildFailed as error:
            raise ConfigError(f"the model cannot be made: {error}") from error

    def process(self, batch: Batch) -> Iterable[Output]:
        """Measure the cases one after the other; emit each at once."""
        for i, case in enumerate(batch.data.to_pylist()):
            if self._cancelled():
                return
            try:
                figures = self._case(case)
            except (ChildFailed, ValueError) as error:
                if self._cancelled():
                    return
                self._run.log.warning("%s", error)
                yield batch.reject([i], str(error))
                continue
            columns = [pa.array([figures.get(f.name)], f.type) for f in COLUMNS]
            row = batch.data.slice(i, 1)
            yield batch.with_data(pa.record_batch([*row.columns, *columns], schema=self._schema))

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """Write report.md, and return its path in a line."""
        (directory / REPORT).write_text(report(directory), encoding="utf-8")
        return [f"report      {directory / REPORT}", ""]

    def _cancelled(self) -> bool:
        return self._run.cancelled

    def _made(self, model: ModelSettings) -> ModelSettings:
        """Return the settings with the paths of made files; their names tell their contents."""
        bench = self._bench
        vocab = Path(bench.vocab).expanduser() if bench.vocab else None
        vocab_id = content_id(vocab)[-8:] if vocab is not None and vocab.is_file() else "builtin"
        path = Path(bench.cache).expanduser() / f"{bench.shape}-{bench.file_type}-{vocab_id}.gguf"
        if not self._images:
            return replace(model, path=str(path))
        encoder = path.with_name(f"mmproj-{bench.shape}-{bench.image_size}.gguf")
        return replace(model, path=str(path.with_stem(f"{path.stem}-images")), mmproj=str(encoder))

    def _case(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return the values of COLUMNS for one case."""
        plan = ALL[case["scenario"]]
        contender = next(c for c in plan.contenders if c.name == case["contender"])
        workload = self._workload(plan.recipe, case["rows"], contender.copies)
        room = min(-(-workload.longest // CELLS) * CELLS, workload.n_ctx_train)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            spec = Spec(
                workload=workload,
                folder=Path(folder),
                model=self._model,
                runtime=replace(self._runtime, slots=case["slots"], max_sequence_tokens=room),
                sampling=replace(self._sampling, **plan.sampling, stop=workload.stop),
                bench=self._bench,
                share_prefix=plan.share_prefix,
            )
            if reason := contender.reason_to_skip(spec):
                self._run.log.info("%s of %s is skipped: %s", contender.name, case["scenario"], reason)
                return {"skipped_reason": reason}
            load, busy = os.getloadavg()[0], psutil.cpu_percent(_WATCH_S) / 100
            if busy > NOISY:
                self._run.log.warning("other processes use %.0f %% of the cores: this measurement is noisy", 100 * busy)
            child = run_child(contender.command(spec), self._bench.timeout_s, self._cancelled)
            figures = contender.figures(spec, child.output)
        return replace(
            figures,
            load_before=load,
            busy_before=busy,
            wall_s=child.wall_s,
            cpu_s=figures.cpu_s or child.cpu_s,
            peak_rss_mb=figures.peak_rss_mb or child.peak_rss_mb,
        ).row()

    def _workload(self, recipe: Recipe, rows: int, copies: int) -> Workload:
        """Return the rows of a recipe, made once per run."""
        key = recipe, rows, copies
        if key not in self._workloads:
            self._workloads[key] = make(*key, self._data, self._model, self._bench, self._sampling.max_tokens)
        return self._workloads[key]
