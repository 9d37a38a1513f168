"""The parts that nodes of a run share: engines, their memory, the engine thread and the completion store."""

from __future__ import annotations

import importlib
import itertools
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from operators.engine.backend.interface import Model
from operators.engine.backend.loading import inspect_model, load_model
from operators.engine.backend.shape import max_sequence_tokens
from operators.engine.loop.engine import Engine
from operators.engine.loop.step_log import STEPS_SCHEMA, StepLog
from operators.engine.loop.step_loop import StepLoop
from operators.engine.loop.thread import EngineThread
from operators.engine.strategies.base import DecodeSetup, Strategy
from operators.generation.journal import Journal
from operators.generation.remote_store import RemoteStore
from operators.generation.store import CompletionStore
from operators.generation.store_lookup import CompletionKeys
from operators.settings import DecodeSettings, ModelSettings, StoreSettings
from operators.settings.checks import usable_cores
from operators.settings.long_rows import FULL
from operators.settings.model import AUTO
from operators.settings.runtime import EngineSettings
from operators.tuning.choices import Tuning
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.identity import Identity
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime


def check_room(model: ModelSettings, settings: EngineSettings, *, continues: bool = True) -> None:
    """Check the model, its row length and its KV cache before loading. Raises ConfigError if the model cannot work, or
    not with `runtime.max_sequence_tokens`, `runtime.kv_type` or `runtime.rope`.

    Args:
        continues: whether it has to be a model that continues texts."""
    facts = inspect_model(model)
    if continues and facts.encoder is not None:
        raise ConfigError(
            f"{model.path or model.file}: {facts.encoder}; take one that continues texts (docs/models.md has a list),"
            " or give it to Embed, Rerank or Classify"
        )
    if facts.refusal is not None:
        raise InputError(facts.refusal)
    if facts.attention is not None:
        facts.attention.check(str(model.path or model.file), settings)
    if facts.n_ctx_train is not None:
        max_sequence_tokens(settings, facts.n_ctx_train)


def long_rows(model: ModelSettings, settings: EngineSettings) -> str | None:
    """Return the line of `runtime.rope` for `model`, and what it replaces; None without one."""
    facts = inspect_model(model)
    n_ctx_train = facts.n_ctx_train
    line = (
        None if n_ctx_train is None else settings.rope.describe(max_sequence_tokens(settings, n_ctx_train), n_ctx_train)
    )
    scaled = None if facts.attention is None else facts.attention.scaling
    return line if line is None or scaled is None else f"{line}, in place of its file's ({scaled})"


def of_engine(model: ModelSettings, settings: EngineSettings) -> ModelSettings:
    """Return `model` as an engine with `settings` loads it: with llama.cpp's kernels if either says so, and with room
    for its contexts."""
    return replace(model, room=settings, kernels=model.kernels if settings.kernels == AUTO else settings.kernels)


def check_chosen(runtime: Runtime, settings: EngineSettings) -> None:
    """Refuse open settings in a worker of a cluster: each would choose its own, and some change the bits of a row."""
    if runtime.services is not None and settings.open_keys():
        keys = ", ".join(f"runtime.{key}" for key in settings.open_keys())
        raise ConfigError(
            f"{keys} cannot be left open with a cluster; run the job with runtime=auto and no cluster for some rows"
            " (data.limit=200), and write down the values that run.log names"
        )


def identity_of(model: Model, settings: EngineSettings) -> Identity:
    """Return what computes. Threads change no bit where none depends on the neighbours
    (tests/operators/llama/test_invariance.py), or the CPU computes nothing."""
    doubt = model.doubt(settings) if settings.deterministic else None
    any_threads = doubt is None or model.placement.computes_all(settings)
    threads = "any" if any_threads else settings.threads or usable_cores()
    own = (model.fingerprint(), model.kernels, model.device, doubt, threads, settings.of_bits)
    return Identity(*own, adapters=" ".join(model.adapter_contents) or None)


def row_identity(model: Model, settings: EngineSettings) -> dict[str, str]:
    """Return what computes any row, for its key: without adapters, of which only a row's own count."""
    return replace(identity_of(model, settings), adapters=None).in_words()


def is_exact(model: Model, settings: EngineSettings) -> bool:
    """Return True if rows are proven not to depend on their neighbours."""
    return settings.deterministic and model.doubt(settings) is None


def of_draft(settings: EngineSettings, longest: int) -> EngineSettings:
    """Return the settings of a draft model's context for rows of up to `longest` tokens. Drafts are cut back."""
    return replace(settings, max_sequence_tokens=longest, window_cache=FULL)


def engine_thread(runtime: Runtime) -> EngineThread:
    """Return the thread that computes for all engines of the run."""
    return runtime.resource(("engine thread",), EngineThread, EngineThread.close)


def decode_setup(settings: DecodeSettings) -> DecodeSetup:
    """Return the setup of the decode strategy that `decode.strategy` names, with its settings. Raises ConfigError if
    there is none, or the settings are those of another one."""
    module, _, name = settings.strategy.partition(":")
    try:
        strategy = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"decode.strategy='{settings.strategy}' cannot be imported: {error}") from error
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise ConfigError(f"decode.strategy='{settings.strategy}' is no decode strategy")
    return strategy.setup(settings, strategy)


def shared_engine(runtime: Runtime, model: Model, settings: EngineSettings, decode: DecodeSettings) -> Engine:
    """Return the engine for `model` with these settings: made for the first node that asks, closed with the run."""
    key = ("engine", identity_of(model, settings), repr(settings), repr(decode))
    engine, _ = runtime.resource(
        key, lambda: _make_engine(runtime, model, settings, decode), lambda pair: pair[1].close()
    )
    return engine


def _make_engine(
    runtime: Runtime, model: Model, settings: EngineSettings, decode: DecodeSettings
) -> tuple[Engine, ExitStack]:
    """Make an engine with its contexts, and a stack that closes it and then gives these back."""
    setup = decode_setup(decode)
    with ExitStack() as leased:  # gives back what there is if another cannot be had
        decoder, back = model.lease(settings, block=setup.block, draft=setup.draft)
        leased.callback(back)
        draft = None
        if setup.draft_model is not None:
            draft_model = load_model(runtime, of_engine(setup.draft_model, settings))
            context, back = draft_model.lease(of_draft(settings, decoder.shape.max_sequence_tokens))
            leased.callback(back)
            runtime.when_stuck(draft_model.abort)
            draft = context, draft_model
        strategy = setup.bind(decoder, model, draft)
        closing = leased.pop_all()
    number = next(runtime.resource(("engine numbers",), itertools.count))
    thread = engine_thread(runtime)
    limit = thread.call(lambda: model.limit(settings))  # may be measured, with all cores
    meters = (runtime.part("decode"), runtime.part("sample"))
    steps = runtime.table("steps", STEPS_SCHEMA)
    log = StepLog(steps, decoder.shape, meters, thread.clock, thread.began, number, limit)
    engine = Engine(StepLoop(strategy, settings, log, lambda: runtime.cancelled), thread)
    closing.callback(engine.close)
    runtime.when_stuck(model.abort)
    kept = warn_unless_exact(runtime, settings, model)
    group = "engines"
    for counts in engine.counts():
        runtime.numbers(counts, group, of_run=True)
    runtime.number("engines", Number("engines", "", group), lambda: 1, of_run=True)
    exact = Number("engines whose results are the same to the bit however rows are batched", "", group)
    runtime.number("engines_deterministic", exact, lambda: kept, of_run=True)
    runtime.status(engine.active_slots)
    return engine, closing


def warn_unless_exact(runtime: Runtime, settings: EngineSettings, model: Model) -> bool:
    """Return True if rows are proven not to depend on their neighbours; warn if they must not and may."""
    if settings.deterministic and (doubt := model.doubt(settings)):
        warning = (
            f"runtime.deterministic is not proven for this model ({doubt}): what a row gets may depend on its"
            " neighbours; see docs/models.md"
        )
        runtime.resource(("warned", warning), lambda: runtime.log.warning(warning))
    return is_exact(model, settings)


def shared_store(runtime: Runtime, settings: StoreSettings) -> Journal | None:
    """Return the store of finished completions, in a worker that of its driver; None if it is switched off."""
    if not settings.enabled:
        return None
    path = store_path(settings, runtime.output_dir)
    services = runtime.services

    def made() -> Journal:
        return CompletionStore(path, settings.sync) if services is None else RemoteStore(services, path, settings.sync)

    return runtime.resource(("store", str(path)), made, lambda store: store.close())


def store_path(settings: StoreSettings, directory: Path) -> Path:
    """Return the store's file for a run in `directory`."""
    return Path(settings.path).expanduser() if settings.path else directory / "completions.sqlite"


def completion_keys(model: Model, decode: DecodeSettings, settings: EngineSettings) -> CompletionKeys:
    """Return the maker of content keys. They cover what computes, and how."""
    strategy = decode.identity(exact=is_exact(model, settings))
    return CompletionKeys(row_identity(model, settings), strategy, adapters=model.adapter_contents)


def chosen_settings(runtime: Runtime, tuning: Tuning) -> EngineSettings:
    """Choose the open settings of `tuning`, once for all nodes that share them."""
    key = ("tuned", identity_of(tuning.model, tuning.settings), repr(tuning.settings), tuning.draft)
    return runtime.resource(key, lambda: engine_thread(runtime).call(lambda: tuning.choose(runtime.log)))
