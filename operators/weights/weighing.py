"""Measure the types of weights of a job's model in turn, and choose one for `model.weights=auto`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from operators.engine.backend.interface import Model, TokenIds
from operators.engine.backend.loading import close_model, inspect_model, loader
from operators.generation.wiring import model_memory
from operators.settings import ModelSettings
from operators.settings.checks import check_one_of
from operators.settings.model import AS_IS, WEIGHTS
from operators.settings.runtime import EngineSettings
from operators.tuning.machine_load import NOISY, OtherWork
from operators.weights.candidates import candidates
from operators.weights.divergence import Divergence, Predictions, sample_of
from operators.weights.remembered import Remembered
from operators.weights.speed import Lengths, Speed, SpeedTest
from pipeline.api.errors import PipelineError
from pipeline.api.meter import Clock
from pipeline.api.weights import WeightsFigures
from pipeline.system.file_cache import cache_folder

EXACT = "f16"
"""The type by which the predictions of all are judged: what the weights of the file say, but for 11 bits a number.

The file as it is cannot be that: with quantised weights llama.cpp rounds what they are multiplied with to 8 bits, too,
so that a Q8_0 file itself lies further from its weights (mean KL 2.2e-4 for models/tiny, computed in f32) than its
copy in bf16 does (3.2e-5); that in f16 lies nearest (8e-7). A file in a type as wide as this is exact itself."""
LEAST_GAIN = 1.05
"""Times as fast as the file as it is a type must be for `auto` to take it."""
HOPELESS = 0.8
"""Times as fast as the file as it is a type is at most that is not measured a second time: no machine drifts so far."""
MOST_KL = 1e-4
"""The divergence up to which a type loses nothing to speak of; nor does one with no more than the file as it is."""
ENOUGH_S = 20.0
"""Seconds within which `auto` has to be done, or it begins to measure no other type but the likeliest."""
SAMPLE_TOKENS, FEW_TOKENS = 1024, 128
"""Tokens on which predictions are compared: for a user, and for `auto`."""
log = logging.getLogger(__name__)


@dataclass
class Weighing:
    """Measures what other types of weights would do for a job.

    Args:
        model: its model; of `weights` only those as they are in the file are looked at.
        settings: its engine.
        new_tokens: of a completion at most.
        on: runs work that computes, on another thread where the job goes on in this process: llama.cpp keeps a team of
            threads for each thread that calls it, and one team too many makes all others wait for each other longer.
    """

    model: ModelSettings
    settings: EngineSettings
    new_tokens: int
    clock: Clock = time.perf_counter
    on: Callable[[Callable[[], Any]], Any] = lambda work: work()

    def __post_init__(self) -> None:
        self.model = replace(self.model, weights=AS_IS, weights_chosen=None)
        self.settings = self.settings.with_defaults()
        self.remembered = Remembered(self.model, self.settings, self.new_tokens)
        self._together: int | None = None

    def each(
        self, types: Sequence[str], model: Model, prompts: Sequence[TokenIds], new: Sequence[int], rows: float
    ) -> Iterator[WeightsFigures]:
        """Measure the file as it is, and then each of `types`; each of WEIGHTS if there are none.

        Args:
            model: the file as it is, loaded.
            prompts, new: token ids of prompts of the job, and tokens that each may get.
            rows: of the whole job.
        """
        for name in types:
            check_one_of("--types", name, tuple(WEIGHTS))
        lengths, self._together = Lengths.of([len(prompt) for prompt in prompts], new), None
        with ExitStack() as stack:
            exact = stack.enter_context(self.exact(sample_of(prompts, SAMPLE_TOKENS), model))
            yield self._figures(AS_IS, model, exact.compare(model), lengths, rows)
            for name in types or WEIGHTS:
                if name == inspect_model(self.model).weights:
                    continue
                try:
                    settings = replace(self.model, weights=name)
                    with closing(loader(settings)(settings)) as other:  # type: ignore[type-var]
                        yield self._figures(name, other, exact.compare(other), lengths, rows)
                except PipelineError as error:
                    yield WeightsFigures(name, refused=str(error))

    def _figures(self, name: str, model: Model, found: Divergence, lengths: Lengths, rows: float) -> WeightsFigures:
        with closing(SpeedTest(model, self.settings, lengths, self.clock, self._together)) as test:
            self._together = test.together
            speed = test.measure().best(test.measure())
        settings = replace(self.model, weights=name)
        size, needs = inspect_model(settings).sizes, model_memory(settings, self.settings, "weighing")
        job_s = speed.of_rows(rows, lengths)
        self.remembered.keep_speed(name, speed)
        return WeightsFigures(
            name,
            size.weights_bytes if size else None,
            sum(need.size_bytes for need in needs),
            1 / speed.prompt_token_s,
            1 / speed.token_s,
            job_s,
            **asdict(found),
            doubt=model.doubt,
        )

    def choose(self, model: Model, prompts: Sequence[TokenIds], new: Sequence[int], rows: float) -> tuple[str, str]:
        """Measure the file as it is and the types of WIDE, and return the best one and why it is. See `each`."""
        began, others = self.clock(), OtherWork()
        trial = _Trial(self, Lengths.of([len(prompt) for prompt in prompts], new), {AS_IS: model})
        with closing(trial):
            trial.speeds[AS_IS] = trial.measure(AS_IS)
            left = candidates(self.model, self.settings)
            while left:
                start = self.clock()
                trial.against_as_is(left.pop(0))
                now = self.clock()
                if now - began + 2 * (now - start) > ENOUGH_S:  # one more, and as long to compare predictions
                    break
            if left:
                trial.notes.append(f"no time was left to measure {', '.join(left)}")
            best, said = trial.best(sample_of(prompts, FEW_TOKENS))
        took = self.clock() - began
        seconds = {name: speed.of_rows(rows, trial.lengths) for name, speed in trial.speeds.items()}
        each = ", ".join(f"{_time(value)} as {name}" for name, value in seconds.items())
        why = "; ".join([*([f"{rows:,.0f} rows take {each}"] if len(seconds) > 1 else []), *said])
        if (share := others.share()) > NOISY:
            why += f"; other processes took {share:.0%} of the cores meanwhile, so it is measured anew for the next run"
        else:
            self.remembered.keep_choice(best, why)
            for name, speed in trial.speeds.items():
                self.remembered.keep_speed(name, speed)
        return best, f"{why}; measured in {took:.0f} s"

    def exact(self, texts: Sequence[TokenIds], plain: Model, copy: Model | None = None) -> closing[Predictions]:
        """Return the predictions by which others are judged.

        Args:
            plain: the file as it is, loaded; it is exact itself if its type is wide, and has to serve where a copy
                cannot be made.
            copy: in the type EXACT, if it is loaded.
        """
        if copy is not None:
            return closing(self.on(lambda: self._predictions(copy, texts)))
        settings, model = replace(self.model, weights=EXACT), None
        if WEIGHTS.get(inspect_model(self.model).weights or "", 0.0) < WEIGHTS[EXACT]:
            try:
                model = self.on(lambda: loader(settings)(settings))
            except PipelineError as error:
                log.warning("the file as it is serves to judge all others, since %s", error)
        if model is None:
            return closing(self.on(lambda: self._predictions(plain, texts)))
        try:
            return closing(self.on(lambda: self._predictions(model, texts)))
        finally:
            close_model(model)

    def _predictions(self, model: Model, texts: Sequence[TokenIds]) -> Predictions:
        return Predictions(model, texts, self.settings, cache_folder())


@dataclass
class _Trial:
    """Loaded models of some types, their speed tests, and what was found. `close` frees all but the one as is."""

    weighing: Weighing
    lengths: Lengths
    models: dict[str, Model]
    speeds: dict[str, Speed] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tests: dict[str, SpeedTest] = {}

    def measure(self, name: str) -> Speed:
        """Measure a type, which is loaded first if it is not yet."""
        speed: Speed = self.weighing.on(lambda: self._test(name).measure())
        return speed

    def _test(self, name: str) -> SpeedTest:
        if name not in self._tests:
            if name not in self.models:
                settings = replace(self.weighing.model, weights=name)
                self.models[name] = loader(settings)(settings)
            weighing, first = self.weighing, self._tests.get(AS_IS)
            together = None if first is None else first.together
            self._tests[name] = SpeedTest(self.models[name], weighing.settings, self.lengths, weighing.clock, together)
        return self._tests[name]

    def against_as_is(self, name: str) -> None:
        """Measure `name` and the file as it is in turn, A B A B."""
        try:
            found = self.measure(name)
        except PipelineError as error:
            self.notes.append(str(error))
            return
        doubt = self.models[name].doubt
        if self.weighing.settings.deterministic and doubt and not self.models[AS_IS].doubt:
            self.notes.append(f"{name}: that a row does not depend on its neighbours is not tested for it ({doubt})")
            self._free(name)
            return
        self.speeds[name] = found
        if self._gain(name) > HOPELESS:
            self.speeds[AS_IS] = self.speeds[AS_IS].best(self.measure(AS_IS))
            self.speeds[name] = found.best(self.measure(name))
        if self._gain(name) < LEAST_GAIN:
            self._free(name)

    def best(self, texts: Sequence[TokenIds]) -> tuple[str, list[str]]:
        """Return the fastest type that loses nothing to speak of on `texts`, and what to say of it."""
        fast = sorted((name for name in self.speeds if self._gain(name) >= LEAST_GAIN), key=self._gain, reverse=True)
        if not fast:
            return AS_IS, [*self.notes, f"no type that loses nothing is {LEAST_GAIN - 1:.0%} faster"]
        try:
            with self.weighing.exact(texts, self.models[AS_IS], self.models.get(EXACT)) as exact:
                own = self._kl(exact, AS_IS)
                for name in fast:
                    # A copy whose numbers overflow has no divergence from anything.
                    kl = (0.0 if math.isfinite(own) else own) if name == EXACT else self._kl(exact, name)
                    self.notes.append(f"mean KL from what its weights say: {kl:.1e} as {name}, {own:.1e} as_is")
                    if kl < max(MOST_KL, own):
                        return name, self.notes
        except PipelineError as error:  # no room for what they are judged by
            self.notes.append(str(error))
        return AS_IS, self.notes

    def close(self) -> None:
        for name in list(self.models):
            self._free(name)

    def _kl(self, exact: Predictions, name: str) -> float:
        found: Divergence = self.weighing.on(lambda: exact.compare(self.models[name]))
        return found.mean_kl

    def _gain(self, name: str) -> float:
        own = self.speeds[AS_IS].of_rows(1, self.lengths)
        return own / self.speeds[name].of_rows(1, self.lengths)

    def _free(self, name: str) -> None:
        if (test := self._tests.pop(name, None)) is not None:
            test.close()
        model = self.models.pop(name)
        if name != AS_IS:  # which was lent
            close_model(model)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
