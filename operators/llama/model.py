"""A GGUF model: loading, vocabulary, chat template, and its pool of contexts."""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.backend.interface import TokenIds
from operators.engine.backend.limit import MachineLimit
from operators.engine.backend.loading import ModelFacts, check_options
from operators.engine.backend.placement import HOST, ON_CPU, LayerPlacement
from operators.engine.backend.shape import DecoderShape, Wanted, decoder_shape
from operators.llama.adapters.declared import prepared_for, with_adapters
from operators.llama.adapters.loaded import LoadedAdapters
from operators.llama.asked_devices import gpus as gpus
from operators.llama.contexts.context import LlamaContext
from operators.llama.contexts.context_params import for_placement
from operators.llama.contexts.context_pool import ContextPool
from operators.llama.contexts.encoder import EncoderContext
from operators.llama.contexts.recurrent import ROLLS_BACK
from operators.llama.devices import kinds_of, most_in_use
from operators.llama.devices.no_room import no_room
from operators.llama.header import TOOL_USE, content_of, facts_of, head_of, read_header, template_in
from operators.llama.kernels import K_QUANTS, doubt, is_arm, keep_rows_apart, lone_tokens, repacks, system_info
from operators.llama.layer_sizes import device_sizes
from operators.llama.library import forget_errors, initialise, last_errors
from operators.llama.limits import machine_limit
from operators.llama.model_file import gguf_path, refusal_of, weights_path
from operators.llama.packed import KV_TYPES, Packed, library, load_model
from operators.llama.pieces import Pieces, special_tokens_of, text_of
from operators.llama.placement import check_placement, load_placed, place, placement_of, unloaded
from operators.llama.probing.trial import require_sound_build
from operators.llama.vision import LlamaVision
from operators.llama.with_images import vision_of, with_images
from operators.prompts.special_tokens import SpecialTokens
from operators.settings import ModelSettings
from operators.settings.checks import usable_cores
from operators.settings.model import AUTO
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, InputError

log = logging.getLogger(__name__)


def load(settings: ModelSettings) -> LlamaModel:
    """Load the model of `model=gguf` or `model=tiny`."""
    require_sound_build()
    return LlamaModel(settings)


def inspect(settings: ModelSettings) -> ModelFacts:
    """Read the facts of the model file.

    Raises:
        InputError: it or a part of it is missing, no GGUF file or damaged, ends llama.cpp, or llama.cpp does not know
            its architecture.
        ConfigError: no path is given, there are options, or layers cannot be where `settings` have them.
    """
    check_options(settings, ())
    check_placement(settings)
    path = weights_path(settings)
    return placed(with_adapters(facts_of(path, refusal=refusal_of(settings)), settings, path), settings, path)


def placed(facts: ModelFacts, settings: ModelSettings, path: Path) -> ModelFacts:
    """Return `facts` with those of the vision encoder, and where the layers will be. Raises as `inspect` does."""
    facts = with_images(facts, settings, path)
    if facts.refusal is not None or (placement := placement_of(settings, path)).on_cpu:
        return facts
    return replace(facts, placement=placement, on_devices=device_sizes(path, settings, placement))


class LlamaModel:
    """Implements operators.engine.backend.interface.Model. `close` frees it and its contexts. Raises InputError if the
    file is missing, no GGUF, damaged, or of an architecture that llama.cpp does not know or that is refused here.

    Args:
        settings: names the file.
        vocab_only: load no weights; then it can only tokenize."""

    def __init__(self, settings: ModelSettings, *, vocab_only: bool = False) -> None:
        initialise()
        self._path = gguf_path(settings) if vocab_only else weights_path(settings)
        header = read_header(self._path)
        self._file_type, self._architecture, self._work = header.file_type, header.architecture, header.work
        self._floats = header.floats
        may_repack = repacks(self._file_type, amx=header.fits_amx)

        def load(placement: LayerPlacement) -> tuple[Any, Packed]:
            params = llama_cpp.llama_model_default_params()
            params.vocab_only, _alive = vocab_only, place(params, placement)
            ours = placement.on_cpu and settings.kernels == AUTO and not vocab_only
            forget_errors()
            return load_model(self._path, params, header.packed, ours=ours, repacks=may_repack)

        where = load_placed(settings, self._path, load) if not vocab_only else (*load(ON_CPU), ON_CPU)
        self._model, self.packed, self.placement = where
        self.is_cpu = self.placement.on_cpu
        self.device = HOST if self.is_cpu else f"{self.placement} on {kinds_of(self.placement.devices)}"
        self.device_mb: Mapping[str, float] = dict.fromkeys(self.placement.devices, 0.0)
        if header.encoder is not None and not self.packed.tensors:
            self.packed = Packed()  # attention without a KV cache is llama.cpp's
        if not self._model and (missing := no_room()) is not None:
            raise ConfigError(f"{self._path.name}, {self.placement}: {missing}")
        if not self._model:
            raise InputError(f"model.path={settings.path} could not be loaded: {last_errors()}")
        info = system_info().decode(errors="replace").strip()
        self.kernels = f"llama-cpp-python {llama_cpp.__version__}, {info}{self.packed.identity}"
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.contexts = ContextPool[LlamaContext]()
        self.encoders = ContextPool[EncoderContext]()
        self.causal = header.encoder is None
        self.pooling = header.pooling
        self._abort = ctypes.create_string_buffer(2)
        self._scratch = (ctypes.c_int * 4096)()
        self._scratch_free = threading.Lock()  # a constraint asks for tokens on the engine's thread
        files = None if vocab_only else prepared_for(settings, self._path)
        self.adapters, self.adapter_contents = (files.names, files.contents) if files else ((), ())
        self._adapters = LoadedAdapters(self._model, files) if files else None
        self._settings, self._threads = settings, usable_cores()
        self._vision: LlamaVision | None = None
        self._vision_free = threading.Lock()
        self._read_vocabulary()
        self.head = head_of(self._model, header) if header.outputs and not vocab_only else None

    def _read_vocabulary(self) -> None:
        vocab = self._vocab
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self.n_embd: int = llama_cpp.llama_model_n_embd_out(self._model)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self._pieces = Pieces(vocab, self.n_vocab)
        self.bos_id: int = llama_cpp.llama_vocab_bos(vocab)
        self.add_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab)) and self.bos_id >= 0
        self.bos_token = text_of(vocab, self.bos_id)
        eos_id: int = llama_cpp.llama_vocab_eos(vocab)
        self.eos_token = text_of(vocab, eos_id)
        self.closing_ids = self._closing(vocab, eos_id)
        self.chat_template = template_in(self._model)
        self.tool_template = template_in(self._model, TOOL_USE)
        mask_id: int = llama_cpp.llama_vocab_mask(vocab)
        self.mask_id: int | None = mask_id if mask_id >= 0 else None
        is_end = llama_cpp.llama_vocab_is_eog
        self.end_ids = frozenset(i for i in range(self.n_vocab) if is_end(vocab, i))
        count = ctypes.c_int32()
        suppressed = llama_cpp.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(count))
        self.suppressed_ids = tuple(suppressed[: count.value]) if suppressed else ()

    def doubt(self, settings: EngineSettings) -> str | None:
        if not self.is_cpu:
            return "it runs on a GPU"
        if self._file_type in K_QUANTS and not keep_rows_apart(settings.deterministic):
            return "an earlier run in this process, or the environment, chose other kernels for K-quants"
        if is_arm() and self.adapters:
            return "adapters are not tested on arm64"
        if is_arm() and settings.flash_attention is not True:
            return "on arm64 only flash attention is tested"
        return doubt(self._architecture, self._file_type, packed=self.packed.tensors > 0, kv_types=settings.kv_types)

    def limit(self, settings: EngineSettings) -> MachineLimit | None:
        return machine_limit(self._work, settings) if self.is_cpu else None

    def fingerprint(self) -> str:
        """Content id of the file."""
        return self._content

    @functools.cached_property
    def _content(self) -> str:
        return content_of(self._path)  # asked for once: a converted file may leave its cache while it is used

    def tokenize(self, texts: Sequence[bytes], *, special: bool) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """Tokenize, with a BOS at the start of each text if the model wants one. `special`: see the interface."""
        prefix = [self.bos_id] if self.add_bos else []
        parts: list[TokenIds] = []
        offsets = np.zeros(len(texts) + 1, np.int32)
        for i, text in enumerate(texts):
            with self._scratch_free:
                count = self._tokenize_one(text, special)
                parts.append(np.array([*prefix, *self._scratch[:count]], np.int32))
            offsets[i + 1] = offsets[i] + len(prefix) + count
        return (np.concatenate(parts) if parts else np.empty(0, np.int32)), offsets

    def pieces(self) -> Sequence[bytes]:
        return self._pieces

    @property
    def vision(self) -> LlamaVision | None:
        """Its vision encoder, loaded when it is first asked for, with the threads of the last lease; None if it has
        none. Raises as `inspect` does."""
        with self._vision_free:
            if self._vision is None:
                device = next(iter(self.placement.devices), None)
                self._vision = vision_of(self._settings, self._path, self._model, self._threads, device)
            return self._vision

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        return special_tokens_of(self._vocab, self.n_vocab)

    def lease(
        self, settings: EngineSettings, wanted: Wanted = Wanted.NEXT, block: int = 0, draft: int = 0
    ) -> tuple[LlamaContext, Callable[[], None]]:
        self._abort.value = b""
        self._threads = settings.threads or usable_cores()
        whole = block > 0 or self._settings.mmproj is not None
        settings = for_placement(settings, self.placement, whole=whole)
        shape = decoder_shape(settings, self.n_ctx_train, wanted, block, draft, on_device=not self.is_cpu)
        self._tell(settings, shape)
        signature = (shape, settings.threads or usable_cores(), settings.of_bits, settings.device_sampling)
        return self.contexts.lease(signature, functools.partial(self._context, settings, shape))

    def _tell(self, settings: EngineSettings, shape: DecoderShape) -> None:
        """Log what is unusual of a context."""
        if self.packed.version and not KV_TYPES.issuperset(settings.kv_types):
            log.info("%s: attention is llama.cpp's with runtime.kv_type=%s", self._path.name, settings.kv_type)
        if (line := settings.rope.describe(shape.max_sequence_tokens, self.n_ctx_train)) is not None:
            log.info("%s: %s", self._path.name, line)

    def lease_apart(self, settings: EngineSettings) -> tuple[LlamaContext, Callable[[], None]]:
        settings = for_placement(settings, self.placement)
        context = self._context(settings, decoder_shape(settings, self.n_ctx_train))
        return context, context.close

    def _context(self, settings: EngineSettings, shape: DecoderShape) -> LlamaContext:
        keep_rows_apart(settings.deterministic)
        flash = settings.flash_attention is not False
        longest = shape.max_sequence_tokens
        lone = 0
        if self.is_cpu:
            lone = lone_tokens(self._file_type, floats=self._floats, flash_attention=flash, longest=longest)
        context = LlamaContext(
            self._model,
            self.n_vocab,
            shape,
            settings,
            lone_tokens=lone,
            on_cpu=self.is_cpu,
            rolls_back=shape.draft > 0 and self._architecture in ROLLS_BACK,
            kernels=library() if self.packed.version else None,
            adapters=self._adapters,
            causal_images=self.vision is None or self.vision.causal,
            abort=self._abort,
        )
        self.device_mb = most_in_use(self.device_mb)
        return context

    def lease_encoder(
        self, settings: EngineSettings, most_tokens: int, wanted: Wanted
    ) -> tuple[EncoderContext, Callable[[], None]]:
        self._abort.value = b""
        settings = for_placement(settings, self.placement)
        keep_rows_apart(settings.deterministic)
        labels = len(self.head.labels) if self.head else 0

        def make() -> EncoderContext:
            on_cpu, abort = self.is_cpu, self._abort
            made = EncoderContext(self._model, settings, most_tokens, wanted, labels=labels, on_cpu=on_cpu, abort=abort)
            self.device_mb = most_in_use(self.device_mb)
            return made

        signature = (most_tokens, wanted, settings.threads or usable_cores(), settings.of_bits)
        return self.encoders.lease(signature, make)

    def abort(self) -> None:
        self._abort.value = b"!"

    def close(self) -> None:
        """Free the contexts and the model."""
        self.contexts.close()
        self.encoders.close()
        if self._vision is not None:
            self._vision.close()
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None
            unloaded(self._settings)

    def _closing(self, vocab: ctypes.c_void_p, eos_id: int) -> tuple[int, ...]:
        """Return the tokens that end a text; BERT's vocabularies have a separator there, whatever their flags say."""
        if llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_WPM:
            return (llama_cpp.llama_vocab_sep(vocab),)
        return (eos_id,) if llama_cpp.llama_vocab_get_add_eos(vocab) and eos_id >= 0 else ()

    def _tokenize_one(self, text: bytes, special: bool) -> int:
        """Tokenize into the scratch buffer, growing it as needed; returns the count."""
        while True:
            scratch, size = self._scratch, len(self._scratch)
            count: int = llama_cpp.llama_tokenize(self._vocab, text, len(text), scratch, size, False, special)
            if count >= 0:
                return count
            self._scratch = (ctypes.c_int * (2 * -count))()
