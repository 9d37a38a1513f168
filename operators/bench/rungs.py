"""The lower rungs of the ladder, and contexts: `python -m operators.bench.rungs NAME SPEC.json` prints one JSON line.

| rung | what runs |
|---|---|
| bare | the decode calls of our engine on these rows, recorded beforehand and played again |
| engine | scheduler, batch filling and decode; a sampler that takes token 0 |
| sampling | the same with the sampler |
| context-reused | a call for every slots' worth of rows, on one context that is cleared between them |
| context-fresh | the same with a new context a call |
| blocks-reused, blocks-fresh | the same two with block diffusion |
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from operators.bench.figures import Figures, of_steps
from operators.bench.loop import Loop, NoSampler, complete, complete_by, sequences
from operators.bench.recorder import Recorder, replay, tokens_of
from operators.bench.spec import Spec
from operators.bench.workload import Workload
from operators.decoding.fake import FakeDecoder
from operators.decoding.model import Decoder, Model, close_model, loader
from operators.decoding.sampler import Sampler
from operators.decoding.sequence import Sequence as Row
from operators.decoding.strategy import Method
from operators.diffusion_settings import BlockDiffusionSettings
from operators.engines import decode_method
from operators.settings import DecodeSettings
from pipeline.errors import PipelineError


class Rungs:
    """The rungs on the rows of one case.

    Args:
        spec: the case.
        model: loaded.
    """

    def __init__(self, spec: Spec, model: Model) -> None:
        self._spec = spec
        self._model = model
        self._table = Workload(Path(spec.workload)).rendered()

    def bare(self) -> Figures:
        """See the module."""
        decoder = self._decoder()
        # The trace has the tokens that the sampler of this run chose (0); which they are changes nothing in the cost.
        fake = FakeDecoder(decoder.shape)
        fake.lone_tokens, fake.partial = decoder.lone_tokens, decoder.partial  # what else the schedule depends on
        recorder = Recorder(fake)
        loop = complete(self._rows(decoder), recorder.decoder, NoSampler(), self._spec.runtime)
        began = time.perf_counter()
        replay(recorder.trace, decoder)
        took = time.perf_counter() - began
        calls, _ = tokens_of(recorder.trace)
        return Figures(took, self._prompt_tokens, loop.new_tokens, calls, decode_s=took)

    def engine(self) -> Figures:
        """See the module."""
        return self._loop(NoSampler())

    def sampling(self) -> Figures:
        """See the module."""
        return self._loop(Sampler())

    def context_reused(self) -> Figures:
        """See the module."""
        return self._calls(decode_method(DecodeSettings()), fresh=False)

    def context_fresh(self) -> Figures:
        """See the module."""
        return self._calls(decode_method(DecodeSettings()), fresh=True)

    def blocks_reused(self) -> Figures:
        """See the module."""
        return self._calls(self._blocks, fresh=False)

    def blocks_fresh(self) -> Figures:
        """See the module."""
        return self._calls(self._blocks, fresh=True)

    @property
    def _blocks(self) -> Method:
        return decode_method(BlockDiffusionSettings(mask_token_id=self._spec.mask_token_id))

    def _loop(self, sampler: Sampler) -> Figures:
        decoder = self._decoder()
        rows = self._rows(decoder)
        began = time.perf_counter()
        loop = complete(rows, decoder, sampler, self._spec.runtime)
        return self._figures(time.perf_counter() - began, [loop])

    def _calls(self, method: Method, *, fresh: bool) -> Figures:
        runtime, loops = self._spec.runtime, []
        if not fresh:
            method.context(self._model, runtime)[1]()  # made and given back: the pool has it from now on
        began = time.perf_counter()
        for start in range(0, len(self._table), runtime.slots):
            decoder, give_back = method.context(self._model, runtime)
            rows = self._rows(decoder, self._table.slice(start, runtime.slots), method.rows())
            loops.append(complete_by(method, self._model, rows, decoder, runtime))
            if fresh:
                close_model(decoder)  # type: ignore[arg-type]  # whatever has a `close`
            else:
                give_back()
        return self._figures(time.perf_counter() - began, loops)

    def _figures(self, took: float, loops: Sequence[Loop]) -> Figures:
        steps = [step for loop in loops for step in loop.steps]
        return Figures(took, self._prompt_tokens, sum(loop.new_tokens for loop in loops), **of_steps(steps))

    @property
    def _prompt_tokens(self) -> int:
        return sum(map(len, self._table["prompt_ids"].to_pylist()))

    def _decoder(self) -> Decoder:
        return self._model.lease(self._spec.runtime)[0]

    def _rows(self, decoder: Decoder, table: pa.Table | None = None, make: Callable[..., Row] = Row) -> list[Row]:
        room = decoder.shape.max_sequence_tokens
        rows = self._table if table is None else table
        return sequences(rows, self._model, self._spec.sampling, self._spec.runtime, room, make)


RUNGS: Mapping[str, Callable[[Rungs], Figures]] = {
    "bare": Rungs.bare,
    "engine": Rungs.engine,
    "sampling": Rungs.sampling,
    "context-reused": Rungs.context_reused,
    "context-fresh": Rungs.context_fresh,
    "blocks-reused": Rungs.blocks_reused,
    "blocks-fresh": Rungs.blocks_fresh,
}


def main(arguments: Sequence[str]) -> int:
    """NAME SPEC.json: run the rung and print its figures. 0, or the exit code of the error that is on stderr."""
    name, path = arguments
    try:
        spec = Spec.load(Path(path))
        model = loader(spec.model)(spec.model)
        print(RUNGS[name](Rungs(spec, model)).to_json())
    except (PipelineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
