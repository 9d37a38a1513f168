"""The config group `bench`: the measurements, their number, and the paths of models and programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.api.keys import above_0, at_least, check, check_values, in_data, not_in_data, when_given

_ONE = at_least(1, "it is 1 or more")


@dataclass
class BenchSettings:
    """Settings of a benchmark (`bench`).

    Args:
        scenarios: names of `tools.bench.scenarios.SCENARIOS`.
        toggle: optimisations (`runtime.optimise.NAME`) that are measured on and off, each as a scenario of its own.
        contenders: measure only these; empty: all of each scenario.
        slots: rows that decode at the same time; scenarios that say their own number of slots ignore it.
        repeats: times that each contender runs, in turn with the others of its scenario.
        rows_per_slot: rows of a scenario for each slot; more rows, less weight of the tail.
        max_rows: rows of a scenario at most.
        shots: worked examples before each question of the scenario few_shot.
        stop: strings that end the completions of the scenario stops; empty: one is taken from the vocabulary, so that
            a model with random weights ends its rows after some 50 tokens.
        answer_column: reference answers, whose token counts are the output lengths; null or missing: lengths are drawn.
        shape, file_type, vocab: the model that is made when model.path is null (`tools.models.make_model`); vocab is
            a GGUF file whose tokenizer it gets, null for the small built-in one.
        image_size: pixels of a side of the images that the made model reads (`tools.models.make_encoder`).
        mask_token_id: the mask of block diffusion, for a model whose vocabulary names none; with random weights any
            token will do.
        draft_model: the small GGUF model that drafts for the scenario speculative; null: there is none.
        cache: where the made model is kept.
        peers: the folder with llama-server, llama-batched-bench and llama-bench (`make peers` makes it).
        server_arguments: further arguments of llama-server, such as [--kv-unified].
        timeout_s: a case that takes longer is ended, and its row rejected.
    """

    scenarios: list[str] = field(default_factory=lambda: ["ladder", "peers"])
    toggle: list[str] = field(default_factory=list)
    contenders: list[str] = field(default_factory=list)
    slots: list[int] = in_data([16, 32], "each 1 to 255", lambda v: bool(v) and all(1 <= n <= 255 for n in v))
    repeats: int = in_data(3, *_ONE)
    rows_per_slot: int = in_data(4, *_ONE)
    max_rows: int = in_data(1024, *_ONE)
    shots: int = in_data(8, *_ONE)
    stop: list[str] = field(default_factory=list)
    answer_column: str | None = "answer"
    shape: str = "qwen3-0.6b"
    file_type: str = "q8_0"
    vocab: str | None = None
    image_size: int = when_given(512, "it is a multiple of 64", lambda v: v > 0 and v % 64 == 0)
    mask_token_id: int | None = in_data(None, *at_least(0, "a token id, 0 or more, or null for the model's"))
    draft_model: str | None = None
    cache: str = not_in_data(".cache/bench")
    peers: str = not_in_data(".cache/peers/bin")
    server_arguments: list[str] = field(default_factory=list)
    timeout_s: float = not_in_data(3600.0, *above_0("it is above 0 seconds"))

    def __post_init__(self) -> None:
        check(bool(self.scenarios or self.toggle), "bench.scenarios", [], "name a scenario, or one in bench.toggle")
        check_values(self, "bench")
