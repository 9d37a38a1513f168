"""ReadsLikelihoods: the base of Score and Choose, which ask how likely the model finds tokens after others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import TokenIds
from operators.engine.backend.shape import Wanted
from operators.engine.sampling.logprobs import score_each
from operators.engine.sampling.whole_vocabulary import Scratch
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Part
from operators.scoring.text_reader import ReadsTexts
from pipeline.api.protocols import Runtime
from pipeline.api.records import require_column


@dataclass(slots=True)
class Likelihood:
    """How likely the model finds consecutive tokens of a text.

    Args:
        logprobs: float32 [tokens], natural logarithms.
        is_greedy: whether each is the likeliest token at its place, the one with the lowest id of equal ones.
    """

    logprobs: npt.NDArray[np.float32]
    is_greedy: bool = True


class ReadsLikelihoods(ReadsTexts):
    """Base of operators that compute log-probabilities of tokens."""

    wanted = Wanted.EVERY

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        self._take_context()
        self._scratch = Scratch(self._loaded.n_vocab)

    def _likelihoods(
        self, texts: Seq[Text], targets: Seq[TokenIds], counts: Seq[int] | None = None
    ) -> Iterator[tuple[int, Likelihood]]:
        """Read `texts`; yield the number of each and how likely the tokens of its target are: the first one after the
        token `first` of the text, each of the others after the next token. `counts`: see `_read`."""
        likelihoods = [Likelihood(np.empty(len(target), np.float32)) for target in targets]

        def take(part: Part) -> None:
            for position, logits in enumerate(part.rows, part.start):
                wanted = [i for i in part.texts if 0 <= position - texts[i].first < len(targets[i])]
                if wanted:
                    tokens = [int(targets[i][position - texts[i].first]) for i in wanted]
                    likeliest = int(logits.argmax())
                    for i, token, logprob in zip(
                        wanted, tokens, score_each(logits, tokens, self._scratch), strict=True
                    ):
                        likelihoods[i].logprobs[position - texts[i].first] = logprob
                        likelihoods[i].is_greedy &= token == likeliest

        return ((i, likelihoods[i]) for i in self._read(texts, take, counts))

    def _tokenized_jointly(self, pairs: Iterable[tuple[str, str, str]]) -> Iterator[tuple[TokenIds, TokenIds]]:
        """Tokenize each text of a row together with what comes before it, given as it is and marked
        (`TextColumns.marked`); yield the ids of both.

        The ids of the whole are split by the number of ids that the first has alone; white space at its end counts as
        the beginning of the second. So does `_encode_pair` of lm-evaluation-harness.
        """
        joined, mark = self._tokens_of.joined, self._tokens_of.mark
        for prefix, marked, text in pairs:
            ids = joined(prefix.rstrip(), marked.rstrip())
            yield ids, joined(prefix + text, marked + mark(text))[len(ids) :]


def check_joint(schema: pa.Schema, joint: bool, columns: Seq[str]) -> None:
    """Raise SchemaError if `columns` are to be tokenized jointly and are no strings."""
    for name in columns if joint else ():
        require_column(schema, name, [pa.string()])


def any_nan(likelihoods: Seq[Likelihood]) -> bool:
    """Return whether a log-probability is NaN."""
    return any(bool(np.isnan(likelihood.logprobs).any()) for likelihood in likelihoods)
