"""What nodes of a run share: engines, the threads that compute for them, and the completion store."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from operators.engine.backend.interface import Model
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import STEPS_SCHEMA
from operators.engine.loop.threads import EngineThreads
from operators.engine.loop.worker import Worker
from operators.engine.strategies.base import Strategy
from operators.generation.store import CompletionStore
from operators.settings import DecodeSettings, StoreSettings
from operators.settings.checks import not_in_data, usable_cores
from operators.settings.runtime import EngineSettings
from operators.tuning.machine_load import SharedCores
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime

STORE_FILE = "completions.sqlite"
"""In the output directory, unless `store.path` names another."""


def engine_threads(runtime: Runtime) -> EngineThreads:
    """The threads that compute, of all engines of the run."""
    return runtime.resource(("engine threads",), EngineThreads, EngineThreads.close)


def decode_strategy(settings: DecodeSettings) -> Strategy:
    """How completions are made: the class that `decode.strategy` names, with its settings.

    Raises:
        ConfigError: there is none, or the settings are those of another one.
    """
    module, _, name = settings.strategy.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"decode.strategy='{settings.strategy}' cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(f"decode.strategy='{settings.strategy}' is no decode strategy")
    return found(settings)


def shared_engine(runtime: Runtime, model: Model, settings: EngineSettings, decode: DecodeSettings) -> Engine:
    """The engine for `model` with these settings: made by the first node that asks, ended with the run."""

    def make() -> tuple[Engine, list[Callable[[], None]]]:
        return _make_engine(runtime, model, settings, decode)

    def close(made: tuple[Engine, list[Callable[[], None]]]) -> None:
        engine, give_back = made
        engine.close()
        for back in give_back:
            back()

    key = ("engine", model.fingerprint(), repr(settings), repr(decode))
    return runtime.resource(key, make, close)[0]


def _make_engine(
    runtime: Runtime, model: Model, settings: EngineSettings, decode: DecodeSettings
) -> tuple[Engine, list[Callable[[], None]]]:
    """An engine with its contexts, and what gives them back."""
    strategies = [decode_strategy(decode) for _ in range(settings.contexts)]
    queue = strategies[0].queue(settings)
    workers: list[Worker] = []
    give_back: list[Callable[[], None]] = []
    cores = max(1, (settings.threads or usable_cores()) // settings.contexts)
    for number, strategy in enumerate(strategies):
        decoder, back = model.lease(replace(settings, threads=cores), block=strategy.block)
        give_back.append(back)
        suffix = f".{number + 1}" if number else ""
        meters = (runtime.part(f"decode{suffix}"), runtime.part(f"sample{suffix}"))
        workers.append(Worker(strategy.bind(decoder, model), queue, settings, meters, lambda: runtime.cancelled))
    number = next(runtime.resource(("engine numbers",), itertools.count))
    engine = Engine(workers, queue, runtime.table("steps", STEPS_SCHEMA), engine_threads(runtime), number)
    runtime.when_stuck(model.abort)
    kept = warn_unless_exact(runtime, settings, model)
    runtime.totals(lambda: engine.totals() | {"engines": 1.0, "engines_deterministic": float(kept)})
    runtime.status(engine.active_slots)
    runtime.status(SharedCores(runtime.log.warning, cores * settings.contexts).look)
    return engine, give_back


def warn_unless_exact(runtime: Runtime, settings: EngineSettings, model: Model) -> bool:
    """Whether rows are kept from depending on their neighbours; warns if they should be and that is not proven."""
    if settings.deterministic and model.doubt:
        warning = (
            f"runtime.deterministic is not proven for this model ({model.doubt}): what a row gets may depend on its"
        )
        runtime.resource(("warned", warning), lambda: runtime.log.warning(warning + " neighbours; see docs/models.md"))
    return settings.deterministic and not model.doubt


def shared_store(runtime: Runtime, settings: StoreSettings) -> CompletionStore | None:
    """The store of finished completions, None where it is switched off."""
    if not settings.enabled:
        return None
    path = Path(settings.path).expanduser() if settings.path else runtime.output_dir / STORE_FILE
    key = ("store", str(path))
    return runtime.resource(key, lambda: CompletionStore(path, settings.sync), CompletionStore.close)


def arithmetic(settings: EngineSettings) -> dict[str, object]:
    """What of the engine can change a bit of a row's logits: all settings but those that only change the speed."""
    kept = {k: v for k, v in asdict(settings).items() if k not in not_in_data(EngineSettings)}
    return kept | settings.exactness()
