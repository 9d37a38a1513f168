"""The parts that nodes of a run share: engines, engine threads and the completion store."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from operators.engine.backend.interface import Model, inspect_model, max_sequence_tokens
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import STEPS_SCHEMA
from operators.engine.loop.threads import EngineThreads
from operators.engine.loop.worker import Worker
from operators.engine.strategies.base import Strategy
from operators.generation.store import CompletionStore
from operators.generation.store_lookup import CompletionKeys, StoreLookup
from operators.settings import DecodeSettings, ModelSettings, StoreSettings
from operators.settings.checks import not_in_data, usable_cores
from operators.settings.runtime import EngineSettings
from operators.tuning.choices import Tuning
from operators.tuning.machine_load import SharedCores
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime

STORE_FILE = "completions.sqlite"
"""Name in the output directory, unless `store.path` names another file."""


def check_room(model: ModelSettings, settings: EngineSettings) -> None:
    """Check the model and its row length before loading.

    Raises:
        ConfigError: the model cannot work, or `runtime.max_sequence_tokens` is more than it was trained for.
    """
    facts = inspect_model(model)
    if facts.n_ctx_train is not None:
        max_sequence_tokens(settings, facts.n_ctx_train)


def engine_threads(runtime: Runtime) -> EngineThreads:
    """Return the threads that compute for all engines of the run."""
    return runtime.resource(("engine threads",), EngineThreads, EngineThreads.close)


def decode_strategy(settings: DecodeSettings) -> Strategy:
    """Return the decode strategy: the class that `decode.strategy` names, with its settings.

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
    """Return the engine for `model` with these settings: made for the first node that asks, closed with the run."""

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
    """Make an engine with its contexts; also return the functions that give these back."""
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
    """Return True if rows are proven not to depend on their neighbours; warn if they must not and may."""
    if settings.deterministic and model.doubt:
        warning = (
            f"runtime.deterministic is not proven for this model ({model.doubt}): what a row gets may depend on its"
        )
        runtime.resource(("warned", warning), lambda: runtime.log.warning(warning + " neighbours; see docs/models.md"))
    return settings.deterministic and not model.doubt


def shared_store(runtime: Runtime, settings: StoreSettings) -> CompletionStore | None:
    """Return the store of finished completions; None if it is switched off."""
    if not settings.enabled:
        return None
    path = store_path(settings, runtime.output_dir)
    key = ("store", str(path))
    return runtime.resource(key, lambda: CompletionStore(path, settings.sync), CompletionStore.close)


def store_lookup(
    runtime: Runtime, store: StoreSettings, model: Model, decode: DecodeSettings, settings: EngineSettings
) -> StoreLookup | None:
    """Return a node's lookup in the store of the run; None if the store is switched off."""
    shared = shared_store(runtime, store)
    if shared is None:
        return None
    keys = completion_keys(model, decode, settings)
    lookup = StoreLookup(shared, keys, model.pieces(), store.retry.finish_reason, runtime.run_id)
    runtime.totals(lambda: lookup.totals(runtime.node))
    return lookup


def store_path(settings: StoreSettings, directory: Path) -> Path:
    """Return the store's file for a run in `directory`."""
    return Path(settings.path).expanduser() if settings.path else directory / STORE_FILE


def completion_keys(model: Model, decode: DecodeSettings, settings: EngineSettings) -> CompletionKeys:
    """Return the maker of content keys. They cover all `settings` that can change a bit of a row's logits."""
    kept = {k: v for k, v in asdict(settings).items() if k not in not_in_data(EngineSettings)}
    return CompletionKeys(model.fingerprint(), asdict(decode), kept | settings.exactness())


def chosen_settings(
    runtime: Runtime, model: Model, settings: EngineSettings, lengths: Sequence[int], max_tokens: int, rows: int | None
) -> EngineSettings:
    """Choose the open `settings`, once for all nodes that share them; for the arguments see Tuning."""
    tuning = Tuning(settings, model, lengths, max_tokens, runtime.output_dir, rows)
    key = ("tuned", model.fingerprint(), repr(settings))
    return runtime.resource(key, lambda: engine_threads(runtime).call(lambda: tuning.choose(runtime.log)))
