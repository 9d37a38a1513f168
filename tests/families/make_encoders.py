"""Write the small encoders of tests/families/encoders, with random weights, and what their references say of TEXTS.

It needs what make.py beside it needs, and sentence-transformers==6.2.0:

    ENV/bin/python -m tests.families.make_encoders --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp [NAME ...]

`transformers` makes the model from a tiny configuration, a tokenizer is trained on TEXTS, and llama.cpp's own converter
writes NAME.gguf. NAME.json has the token ids of TEXTS, and in float32 the vectors of `SentenceTransformer.encode`, the
logits of a `CrossEncoder` for PAIRS, or those of the classification model of `transformers`.

To add one, add its configuration to `ENCODERS`, run the script with its name, and add the two files to git, its
architecture to operators/llama/kernels.py and its row to docs/models.md. The tests take every file that is there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "encoders"
LARGEST = 500_000  # bytes of a file
VOCABULARY = 320
WEIGHT_GAIN = 1.5  # so that vectors of different texts point to different sides
NORM_SPREAD = 0.1

_SENTENCES = (
    "The parcel came late and the box was torn.",
    "I paid twice, and nobody answers my letters!",
    "Great service; the new pump works like a charm.",
    "How many days does it take until the money is back?",
    "The train to the coast leaves at seven minutes past nine.",
    "A library lends books, maps and films to all who live in the town.",
    "Water boils at a lower temperature on high mountains, because the air is thinner there.",
    "Is there a way to change the address of an order that was sent yesterday?",
)
TEXTS = (
    *_SENTENCES,
    "late",
    "Late parcels: what now?",
    *(" ".join((_SENTENCES[i:] + _SENTENCES[:i])[:count]) for i, count in ((0, 2), (3, 3), (5, 5), (6, 6), (1, 4))),
)
PAIRS = tuple((query, document) for query in _SENTENCES[3:8:4] for document in TEXTS[::2])

_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
_LABELS = {"id2label": {0: "complaint", 1: "praise", 2: "question"}}
_WINDOW = {"local_attention": 32, "global_attn_every_n_layers": 2, "classifier_pooling": "mean"}
# Name: tokenizer, class of transformers, values of its configuration, pooling of sentence-transformers.
ENCODERS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "bert": ("wordpiece", "BertModel", _SMALL, "mean"),
    "modernbert": ("bytes", "ModernBertModel", _SMALL | _WINDOW, "cls"),
    "nomic-bert": ("wordpiece", "NomicBertModel", _SMALL, "mean"),
    "xlm-roberta": ("unigram", "XLMRobertaModel", _SMALL, "cls"),
    "reranker": ("unigram", "XLMRobertaForSequenceClassification", _SMALL | {"num_labels": 1}, None),
    "classifier": ("bytes", "ModernBertForSequenceClassification", _SMALL | _WINDOW | _LABELS, None),
}


def main() -> int:
    """Write the encoders that are named, or all."""
    parser = argparse.ArgumentParser(description="Write the small encoders of tests/families and their references.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="llama.cpp's source")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ENCODERS)}")
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    for name in options.names or ENCODERS:
        path = FOLDER / f"{name}.gguf"
        with tempfile.TemporaryDirectory() as folder:
            reference = _write_model(name, Path(folder))
            _convert(Path(folder), path, name)
        path.with_suffix(".json").write_text(json.dumps(reference) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path.name} is larger than {LARGEST:,} bytes; make its configuration smaller")
    return 0


def _write_model(name: str, folder: Path) -> dict[str, Any]:
    """Save a model with its tokenizer as sentence-transformers does; return what they say of TEXTS or PAIRS."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    library = importlib.import_module("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.models")
    kind, class_name, values, pooling = ENCODERS[name]
    tokenizer = _TOKENIZERS[kind](folder)
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "cls", "sep")}
    most = 258 if kind == "unigram" else 256
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(vocab_size=len(tokenizer), max_position_embeddings=most, **values, **ids)
    torch.manual_seed(len(name))
    model = model_class._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += NORM_SPREAD * torch.randn_like(weight)
            else:
                weight.normal_(0, WEIGHT_GAIN * weight.shape[1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = [list(pair) for pair in PAIRS] if name == "reranker" else list(TEXTS)
    made: dict[str, Any] = {"texts": texts, "ids": [tokenizer(text).input_ids for text in TEXTS]}
    made |= {each.__name__: each.__version__.partition("+")[0] for each in (torch, transformers, library)}
    if pooling is not None:
        words = modules.Transformer(str(folder), max_seq_length=256)
        pooled = modules.Pooling(words.get_word_embedding_dimension(), pooling_mode=pooling)
        encoder = library.SentenceTransformer(modules=[words, pooled, modules.Normalize()], device="cpu")
        encoder.save(str(folder))
        return made | {"vectors": encoder.encode(texts).tolist()}
    if name == "reranker":
        ranker = library.CrossEncoder(str(folder), device="cpu")
        raw = ranker.predict(texts, activation_fn=torch.nn.Identity())
        return made | {"logits": raw.tolist(), "scores": ranker.predict(texts).tolist()}
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return made | {"logits": [row.tolist() for row in rows], "probabilities": [row.softmax(0).tolist() for row in rows]}


def _wordpiece(folder: Path) -> Any:
    tokenizers, transformers = importlib.import_module("tokenizers"), importlib.import_module("transformers")
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(TEXTS, vocab_size=VOCABULARY, show_progress=False)
    trained.save_model(str(folder))
    return transformers.BertTokenizer(str(folder / "vocab.txt"))


def _unigram(folder: Path) -> Any:
    """A tokenizer as XLM-RoBERTa has: its model file for the converter, and the ids of that file moved up by one."""
    sentencepiece, transformers = importlib.import_module("sentencepiece"), importlib.import_module("transformers")
    path = folder / "sentencepiece.bpe.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS),
            model_writer=file,
            vocab_size=90,
            normalization_rule_name="identity",  # the usual tables take 240 KB
            minloglevel=2,
        )
    pieces = sentencepiece.SentencePieceProcessor(str(path))
    learned = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(3, pieces.vocab_size())]
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return transformers.XLMRobertaTokenizer(vocab=[*first, *learned, ("<mask>", 0.0)])


def _bytes(folder: Path) -> Any:
    tokenizers, transformers = importlib.import_module("tokenizers"), importlib.import_module("transformers")
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trained.train_from_iterator(TEXTS, vocab_size=VOCABULARY, show_progress=False, special_tokens=special)
    ends = [(token, trained.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    trained._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    named = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    ended = {"bos_token": "[CLS]", "eos_token": "[SEP]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, **named, **ended)


_TOKENIZERS = {"wordpiece": _wordpiece, "unigram": _unigram, "bytes": _bytes}


_ORIGINAL: dict[str, Any] = {
    "layer_norm_eps": 1e-5,  # ModernBERT's; transformers calls it norm_eps
    **{"n_positions": 2048, "activation_function": "swiglu", "causal": False, "prenorm": False},
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"), False),
    **{"rotary_emb_fraction": 1.0, "rotary_emb_scale_base": None},
}
"""What the configurations of real models say to the converter, and those of transformers do not."""


def _convert(folder: Path, path: Path, name: str) -> None:
    """Have llama.cpp's converter write the model in `folder`."""
    conversion, gguf = importlib.import_module("conversion"), importlib.import_module("gguf")
    hparams = _ORIGINAL | conversion.ModelBase.load_hparams(folder, False)
    kind = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    writer = conversion.get_model_class(kind)(
        folder, gguf.LlamaFileType.ALL_F32, path, model_name=name, hparams=hparams
    )
    writer.get_vocab_base_pre = lambda tokenizer: "gpt-2"  # it knows pre-tokenizers by a hash of what they make
    writer.write()


if __name__ == "__main__":
    sys.exit(main())
