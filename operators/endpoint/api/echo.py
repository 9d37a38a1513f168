"""Reader of the echo of a prompt with its log-probabilities, as /v1/completions gives it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NoReturn

from operators.endpoint.api.checks import OfRow, Unusable, a_list, answer_of, first_choice, maybe_object, real, text
from operators.endpoint.api.usage import read_usage
from pipeline.api.errors import ConfigError


def read_echo(body: object, before: str, scored: str) -> tuple[list[float], bool]:
    """Read the log-probabilities of the tokens of `scored`, which came after `given` in the prompt.

    A token that has the end of `given` and the beginning of `scored` counts. The first token of a prompt has no
    log-probability, and is left out.

    Returns:
        The log-probabilities, and whether each of these tokens is the likeliest one at its place.

    Raises:
        Unusable: it is no such body, or its tokens are not those of the prompt.
        ConfigError: the server does not give what is asked for.
    """
    answer = answer_of(body)
    columns = maybe_object("logprobs", first_choice(answer).get("logprobs"))
    if columns.get("token_logprobs") is None:
        raise ConfigError("the server gives no log-probabilities of a prompt (echo, logprobs), so it cannot score")
    tokens = [text("a token", token) for token in a_list("tokens", columns.get("tokens"))]
    logprobs, tops = (a_list(name, columns.get(name)) for name in ("token_logprobs", "top_logprobs"))
    if not len(tokens) == len(logprobs) == len(tops):
        raise Unusable(
            f"logprobs has {len(tokens)} tokens, {len(logprobs)} numbers, {len(tops)} lists of likeliest ones"
        )
    usage = read_usage(answer)
    of_prompt = len(tokens) - (usage["completion_tokens"] or 0)
    # Parts of a character have no text that could be compared; then the number of tokens has to do.
    is_counted = of_prompt == usage["prompt_tokens"] and not (before + scored).isascii()
    first = _first(tokens[:of_prompt], before, scored, is_counted=is_counted)
    if first is None:
        _refuse(tokens, before + scored)
    places = [i for i in range(first, of_prompt) if logprobs[i] is not None]
    if not places:
        raise OfRow("the text is a single token with nothing before it, so there is nothing to score")
    scores = [real("a log-probability", logprobs[i]) for i in places]
    return scores, all(_is_likeliest(logprob, tops[i]) for logprob, i in zip(scores, places, strict=True))


def _first(tokens: list[str], before: str, scored: str, *, is_counted: bool) -> int | None:
    """Return the place of the first token of `scored`; None if the tokens are not those of the prompt.

    Args:
        is_counted: they are taken for those of the prompt if either of its parts is found in them.
    """
    echoed = "".join(tokens)
    special = len(tokens[0]) if tokens else 0  # a token for the beginning of a text, which the prompt does not have
    for lead in (0, special):
        if echoed[lead:] == before + scored or (is_counted and echoed.startswith(before, lead) and before):
            return _reaching(tokens, lead + len(before))
    if is_counted:
        return _reaching(tokens, len(echoed) - len(scored)) if echoed.endswith(scored) else None if before else 0
    return None


def _refuse(tokens: list[str], prompt: str) -> NoReturn:
    if "".join(tokens) == prompt:  # without the token that was generated, which shows that they are shifted
        raise ConfigError(
            "the server's log-probabilities are one token off: llama-cpp-python has them right for models with a"
            " beginning-of-text token alone. Use another server, or a model of this process"
        )
    raise OfRow("the tokens that the server echoes are not those of the text")


def _reaching(tokens: list[str], boundary: int) -> int:
    """Return the place of the first token that ends beyond `boundary`, in characters."""
    ends = accumulate(map(len, tokens))
    return next((i for i, end in enumerate(ends) if end > boundary), len(tokens))


def _is_likeliest(logprob: float, top: Any) -> bool:
    others = maybe_object("top_logprobs", top).values()
    numbers = [real("a log-probability", other) for other in others if other is not None]
    return logprob >= max(numbers, default=logprob)
