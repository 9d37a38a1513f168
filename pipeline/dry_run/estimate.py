"""The lines of a dry run: the plan of a job (`dry_run=plan`), and, for `dry_run=true`, rows, tokens, time, memory and
disk of the run, estimated on a sample of its input."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pipeline.api.errors import ConfigError
from pipeline.api.forecast import NOTHING, Forecast, Range
from pipeline.api.groups import OutputFields
from pipeline.api.protocols import Operator
from pipeline.api.records import RejectKind
from pipeline.api.runtime import Resources
from pipeline.cluster.segments import places
from pipeline.config.build import CheckedJob, build_graph
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.new_rows import NewRows
from pipeline.dataflow.reject_writer import without_other_rows
from pipeline.dataflow.target_progress import Budget
from pipeline.dry_run.sample import InputSample, sample_of
from pipeline.dry_run.sample_run import NodeResult, SampleRun
from pipeline.monitor.recorder import check_prometheus_file
from pipeline.monitor.wording import bytes_text, quoted, time_text
from pipeline.publish.uploader import destination_of
from pipeline.run_dir.state_reading import reading
from pipeline.runs.admission import standing_lines
from pipeline.runs.memory_check import MemoryNeeds
from pipeline.settings import PLAN, JobSettings, TargetSettings
from pipeline.system.machine import peak_memory

CALIBRATION_S = 30.0
PROMPTS = 3
LONGEST_PROMPT, LONGEST_REASON = 1000, 300
"""Characters that are printed, half of them from the end."""
STAGES_BYTES = 50_000
"""Disk: metrics/, state.sqlite, config.yaml and other files of a small run."""
THREADS_BYTES = Range(0, 32e6, 96e6)
"""Memory of the threads of a run, which the sample run does not have: their heaps and files being written."""
MACHINE = Range(0.8, 1.0, 1.25)
"""Time of a run, compared with what was measured on the sample: machines drift, and a run has more threads."""
OUTSIDE_S = Range(0.05, 0.3, 1.0)
"""Seconds of a run before its first row and after its last: state, commits, metrics, manifest."""
REPORT_BYTES = Range(25e3, 60e3, 200e3)
"""Size of report.html with drawings and sample rows (measured: 43 to 67 kB)."""
TARGET_NOTE = (
    "target.accepted_rows is set: how many rows it takes until so many are accepted is not known."
    " The estimate is for one round over the whole input"
)
_COUNT = "{:,.0f}".format
_LEFT_OUT = {RejectKind.ERROR: "rejected", RejectKind.FILTERED: "left out"}


def dry_run_lines(
    settings: JobSettings, graph: Graph, process: Resources
) -> Generator[str, None, tuple[Forecast, Range] | None]:
    """Yield the lines of a dry run of either kind, each as soon as it is known; return the forecast and the peak memory
    in bytes, None for a plan and if the run is finished. Writes nothing to the output directory; takes no lock. Raises
    ConfigError if the run would be refused, or a node rejects every row of the sample; NodeFailed if an operator raised
    on the sample, as it would in the run."""
    destination_of(settings)
    check_prometheus_file(settings.prometheus_file)
    yield from plan_lines(settings, graph)
    MemoryNeeds(settings, graph).check()
    job = CheckedJob.of(settings, graph)
    begins = yield from standing_lines(job)
    if settings.dry_run == PLAN or begins is None:
        return None
    if graph.target is not None:  # one round, from its first row
        graph = build_graph(replace(settings, target=TargetSettings()))
        begins = begins if settings.append else (0, 0)
    source = graph.nodes[graph.source].op
    if isinstance(source, NewRows) and begins[0]:
        with reading(job.directory) as state:
            source.seek(begins[0])
            source.restore(state.operator_states()[graph.source])
        begins = begins[0], 0
    samples: list[InputSample] = []

    def read(source: Operator) -> InputSample:
        samples.append(sample_of(source, *begins, settings.chunk_rows))
        return samples[0]

    tried = SampleRun(graph, process, read, job.directory, CALIBRATION_S)
    for name in tried.run(graph.order):
        if name == graph.source:
            yield f"sample: {samples[0].taken:,} rows ({samples[0].how})"
    yield from _reject_lines(tried.nodes)
    yield from _prompt_lines(tried.nodes)
    rows = next(iter(tried.nodes.values())).rows
    whole = _combined(rows, tried.nodes, REPORT_BYTES if settings.report else NOTHING)
    notes = [TARGET_NOTE] if settings.target.accepted_rows else []
    yield from (f"note: {note}" for note in [*notes, *whole.notes])
    memory = _memory(min(rows.likely, settings.chunk_rows * settings.max_open_chunks), tried.nodes)
    yield from estimate_lines(whole, memory, job.directory)
    return whole, memory


def _combined(rows: Range, nodes: Mapping[str, NodeResult], report_file: Range) -> Forecast:
    """Combine the forecasts of all nodes to one of a run over `rows`. `report_file`: bytes of the report."""
    forecasts = {name: node.forecast for name, node in nodes.items() if node.forecast is not None}
    prepare_s = sum(forecast.prepare_s for forecast in forecasts.values())
    written = [*(node.sink_bytes for node in nodes.values()), *(f.disk_bytes for f in forecasts.values())]
    return Forecast(
        rows,
        tokens_in=sum((f.tokens_in for f in forecasts.values()), NOTHING),
        tokens_out=sum((f.tokens_out for f in forecasts.values()), NOTHING),
        seconds=_seconds(nodes, list(forecasts.values()), prepare_s),
        prepare_s=prepare_s,
        encode_s=sum(f.encode_s for f in forecasts.values()),
        read_s=sum((f.read_s for f in forecasts.values()), NOTHING),
        disk_bytes=sum(written, Range(STAGES_BYTES, 2 * STAGES_BYTES, 10 * STAGES_BYTES) + report_file),
        notes=[f"{name}: {note}" for name, forecast in forecasts.items() for note in forecast.notes],
    )


def estimate_lines(found: Forecast, memory: Range, directory: Path) -> Iterator[str]:
    """Yield the estimate of a run as a table, and warnings. `memory`: peak bytes."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    free_disk = shutil.disk_usage(there).free
    seconds = "unknown" if found.seconds is None else _text(found.seconds, time_text)
    parts = [f"{time_text(found.prepare_s)} to load the model"] if found.prepare_s >= 0.5 else []
    if found.encode_s:
        reading = time_text(found.read_s.likely)
        parts.append(f"{time_text(found.encode_s)} to encode images (to read them, beside the model: {reading})")
    of_which = f", of which {' and '.join(parts)}" if parts else ""
    yield "estimate: what is likely, and in brackets between what it lies nine times of ten"
    yield f"  rows         {_text(found.rows_out, _COUNT)}"
    if found.tokens_in.high:
        yield f"  tokens in    {_text(found.tokens_in, _COUNT)}"
    if found.tokens_out.high:
        yield f"  tokens out   {_text(found.tokens_out, _COUNT)}"
    yield f"  time         {seconds}{of_which}"
    yield f"  peak memory  {_text(memory, bytes_text)}"
    yield f"  disk         {_text(found.disk_bytes, bytes_text)}; {bytes_text(free_disk)} free"
    if found.disk_bytes.low > free_disk or free_disk < found.disk_bytes.high < math.inf:
        surely = "will not" if found.disk_bytes.low > free_disk else "may not"
        yield f"warning: the results {surely} fit on the disk of {directory}; make room or give another output_dir="


def _reject_lines(nodes: Mapping[str, NodeResult]) -> Iterator[str]:
    """Yield a line on the rejected rows of each node, by reason. All of a node, as errors, are a ConfigError."""
    for name, node in nodes.items():
        left = ((word, kind, [r for r in node.rejects if r.kind is kind]) for kind, word in _LEFT_OUT.items())
        for word, kind, rejects in (*left, ("kept with an error", None, node.kept)):
            reasons = Counter(without_other_rows(reject.reason) for reject in rejects)
            told = "; ".join(
                f"{count:,} x {quoted(reason, LONGEST_REASON)}" for reason, count in reasons.most_common(PROMPTS)
            )
            count = reasons.total()
            if kind is RejectKind.ERROR and node.given and count == node.given and not node.output:
                raise ConfigError(f"node '{name}' rejects every row of the sample: {told}")
            if told:
                yield f"{name}: {count:,} of {node.given:,} rows of the sample are {word}: {told}"


def _prompt_lines(nodes: Mapping[str, NodeResult]) -> Iterator[str]:
    for name, node in nodes.items():
        for number, (text, tokens) in enumerate(node.forecast.prompts[:PROMPTS] if node.forecast else ()):
            yield f"{name}, prompt {number + 1} ({tokens:,} tokens): {quoted(text, LONGEST_PROMPT)}"


def _seconds(nodes: Mapping[str, NodeResult], forecasts: Sequence[Forecast], prepare_s: float) -> Range | None:
    """Return the duration: the sum over nodes with a model, which share the device, or the slowest other node."""
    device = NOTHING
    for forecast in forecasts:
        if forecast.seconds is None:
            return None
        device += forecast.seconds
    slowest = NOTHING
    for forecast in forecasts:  # nodes that read images do so at a time
        slowest = slowest.bounded(forecast.read_s)
    for node in nodes.values():
        slowest = slowest.bounded(node.rows.times(node.row_s))
    return device.bounded(slowest).times(MACHINE) + Range(0.5 * prepare_s, prepare_s, 2 * prepare_s) + OUTSIDE_S


def _memory(open_rows: float, nodes: Mapping[str, NodeResult]) -> Range:
    """Return the peak memory: that of the sample run (this process), of threads, of `open_rows` in open chunks, and
    what nodes say beyond."""
    memory, waiting = peak_memory(), 0.0
    more = sum((node.forecast.memory for node in nodes.values() if node.forecast is not None), THREADS_BYTES)
    for node in nodes.values():
        if made := sum(batch.num_rows for batch in node.output):
            size = sum(batch.data.get_total_buffer_size() for batch in node.output)
            waiting = max(waiting, open_rows * size / made)
    return Range(0.85 * memory, memory, 1.2 * memory) + more + Range(0, waiting, 2 * waiting)


def _text(value: Range, form: Callable[[float], str]) -> str:
    if value.is_exact:
        return form(value.likely)
    if math.isinf(value.high):
        return f"{form(value.low)} or more"
    return f"{form(value.likely)} ({form(value.low)} to {form(value.high)})"


def plan_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """Return a line per node with its operator and column changes, then memory needs and the place of the results."""
    rows = settings.chunk_rows if graph.target is None else settings.target.rows_of_chunk(settings.chunk_rows)
    lines = [f"job {settings.name}: {len(graph.nodes)} nodes, chunks of {rows} rows, seed {settings.seed}"]
    width = max(len(name) for name in graph.order)
    runs = places(graph) if settings.cluster is not None else {}
    for name in graph.order:
        node, schema = graph.nodes[name], graph.schemas[name]
        source = f" <- {', '.join(node.inputs)}" if node.inputs else ""
        first = graph.schemas[node.inputs[0]] if node.inputs else None
        there = f" ({runs[name]})" if runs else ""
        lines.append(f"  {name:{width}}  {node.op.title}{source}: {_columns(first, schema)}{there}")
    lines += [] if graph.target is None else [_target_line(settings.target)]
    output: OutputFields | None = settings.output
    url = "" if output is None or output.publish is None else f" and {output.publish}"
    where = f"results would go to {settings.directory}{url}"
    return [*lines, *MemoryNeeds(settings, graph).plan_lines(), where]


def _columns(given: pa.Schema | None, gives: pa.Schema | None) -> str:
    """Describe the columns of a source, or those that another node adds, changes or drops."""
    if gives is None:
        return "writes the rows"
    before = {} if given is None else {f.name: f.type for f in given}
    new = ", ".join(f"{f.name}: {f.type}" for f in gives if before.get(f.name) != f.type)
    gone = [name for name in before if name not in gives.names]
    told = [*([f"adds {new}" if before else new] if new else []), *([f"drops {', '.join(gone)}"] if gone else [])]
    return "; ".join(told) or "the same columns"


def _target_line(target: TargetSettings) -> str:
    limits = [budget.text(target) for budget in Budget if budget.limit(target) is not None]
    until = f", or until {' or '.join(limits)} is spent" if limits else ""
    return f"rows are made until {target.accepted_rows} have passed all nodes{until}"
