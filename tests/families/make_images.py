"""Write the small vision models of tests/families/images, with random weights, and what their references say.

It needs what make.py beside it needs, with transformers==5.24.0 and pillow==13.0.0:

    ENV/bin/python -m tests.families.make_images --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp [NAME ...]

`transformers` makes the model from a tiny configuration; llama.cpp's own converter writes NAME.gguf, the text model,
and mmproj-NAME.gguf, the encoder of pictures. NAME.json has for each prompt:

- `text`: of the user, with `<image>` in place of each picture, and `pictures`: width, height and seed of `picture`;
- `cells`: of the whole prompt as the processors of `transformers` make it: token ids, and [n] for n cells of a picture;
- `ids`: what the model says greedily in float32, of pictures that the processors' PIL versions resized.

No two best logits are nearer than `LEAST_GAP`: such a seed is left out, as rounding would decide what is right. It is
above that of make.py, as llama.cpp looks the GELU of an encoder up in a table of 16-bit floats.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import tempfile
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.image_configs import (
    FAMILIES,
    MARK,
    PAD,
    PROMPTS,
    SPECIAL,
    TEXT,
    TWO_LINES,
    kind_of,
    picture,
    pictures_of,
)
from tests.families.make import ATTENTION_GAIN, NEW_TOKENS, draw

FOLDER = Path(__file__).parent / "images"
LARGEST = 500_000  # bytes of a file
LEAST_GAP = 0.02
LEAST_TOKENS = 8  # different ones in each text: a model that repeats itself tests nothing
DRAWN = {"position_embed": 0.3, "pos_embed": 0.3, "patch_embed": 0.1}
"""Standard deviations of what an encoder adds to a patch, and of the patch itself."""


def main() -> int:
    """Write the families that are named, or all."""
    parser = argparse.ArgumentParser(description="Write the small vision models of tests/families/images.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="llama.cpp's source")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    parser.add_argument("families", nargs="*", metavar="NAME", help=f"default: all of {', '.join(FAMILIES)}")
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for name in options.families or FAMILIES:
        family = Family(name)
        reference = family.talkative()
        for path in family.write(options.folder):
            print(f"{path.name}: {path.stat().st_size:,} bytes, seed {reference['seed']}")
            if path.stat().st_size > LARGEST:
                raise SystemExit(f"{path.name} is larger than {LARGEST:,} bytes; make its configuration smaller")
        (options.folder / f"{name}.json").write_text(json.dumps(reference) + "\n", encoding="utf-8")
    return 0


def vocabulary(family: str) -> Any:
    """Return the built-in vocabulary with a family's special tokens about pictures, and one for two line ends, which
    llama.cpp looks up for SmolVLM."""
    vocabularies = importlib.import_module("tools.models.vocabularies")  # imports gguf: llama.cpp's, see main
    return vocabularies.builtin_vocabulary().with_tokens(SPECIAL[kind_of(family)], lines=True)


class Family:
    """One of FAMILIES, with weights of a seed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kind = kind_of(name)
        self._vocabulary = vocabulary(name)
        tokens = next(meta.value for meta in self._vocabulary.values if meta.key.endswith(".tokens"))
        assert isinstance(tokens, list)
        self._special = {token: i for i, token in enumerate(tokens) if token[0] == "<" and len(token) > 1}
        self._special[TWO_LINES] = tokens.index("ĊĊ")
        self._image = self._special[PAD[self._kind]]
        self._ends = [self._special["<|endoftext|>"], self._special["<|im_end|>"]]
        self._processor = self._processors()
        self.model: Any = None

    def talkative(self) -> dict[str, Any]:
        """Draw weights until the texts can be compared, and return the reference."""
        asked = [self._prompt(i) for i in range(len(PROMPTS))]
        for seed in count():
            self.model = self._drawn(seed)
            texts: list[list[int]] = []
            least = inf
            for _, cells, inputs in asked:
                text, gap = self._complete(cells, inputs)
                texts.append(text)
                least = min(least, gap)
                if gap < LEAST_GAP or len(set(text)) < LEAST_TOKENS:
                    break
            different = min(len(set(text)) for text in texts)
            print(f"{self._name}, seed {seed}: {different} different tokens at least, gap {least:.1e}", file=sys.stderr)
            if least >= LEAST_GAP and different >= LEAST_TOKENS and texts[0] != texts[1]:
                versions = {
                    name: importlib.import_module(name).__version__ for name in ("transformers", "torch", "PIL")
                }
                prompts = [
                    {"text": PROMPTS[i][0], "pictures": pictures_of(self._name, i), "cells": said, "ids": text}
                    for i, ((said, _, _), text) in enumerate(zip(asked, texts, strict=True))
                ]
                return {"seed": seed, "least_gap": round(least, 5), **versions, "prompts": prompts}
        raise AssertionError

    def _drawn(self, seed: int) -> Any:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
        torch.manual_seed(seed)
        kind, text, encoder, more, _ = FAMILIES[self._name]
        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        ids = dict.fromkeys(("image_token_id", "video_token_id", "image_token_index"), self._image)
        config = getattr(transformers, f"{kind}Config")(
            text_config=TEXT | ends | {"vocab_size": self._vocabulary.n_tokens} | text,
            vision_config=encoder,
            **({"tie_word_embeddings": True} | ids | more),
        )
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).float().eval()
        draw(model, torch)
        for name, weight in model.named_parameters():
            for part, std in DRAWN.items():
                if part in name and weight.ndim > 1:
                    weight.normal_(0, std)
            if "q_norm" in name:  # as what `draw` does to a projection has no effect then
                weight += ATTENTION_GAIN - 1
        return model

    def _processors(self) -> Any:
        name, kind = {
            "qwen": ("qwen2_vl", "Qwen2VL"),
            "smolvlm": ("idefics3", "Idefics3"),
            "gemma3": ("gemma3", "Gemma3"),
        }[self._kind]
        module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
        return getattr(module, f"{kind}ImageProcessorPil")(**FAMILIES[self._name][-1])

    def _prompt(self, prompt: int) -> tuple[list[Any], list[int], dict[str, Any]]:
        """The cells as the reference has them, the ids that transformers takes, and its other inputs."""
        image = importlib.import_module("PIL.Image")
        images = [image.fromarray(picture(*each)) for each in pictures_of(self._name, prompt)]
        nested = [images] if self._kind == "smolvlm" else images
        given = self._processor(images=nested, return_tensors="pt")
        parts = PROMPTS[prompt][0].split(MARK)
        text = parts[0]
        for i, part in enumerate(parts[1:]):
            text += self._expanded(i, given) + part
        text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        special = "|".join(map(re.escape, self._special))
        ids: list[int] = []
        for piece in re.split(f"({special})", text):
            ids += [self._special[piece]] if piece in self._special else [*piece.encode()]
        cells: list[Any] = []
        for token in ids:
            if token != self._image:
                cells.append(token)
            elif cells and isinstance(cells[-1], list):
                cells[-1][0] += 1
            else:
                cells.append([1])
        wanted = ("pixel_values", "image_grid_thw", "pixel_attention_mask")
        return cells, ids, {name: given[name] for name in wanted if name in given}

    def _expanded(self, picture: int, given: Any) -> str:
        """What the processors of transformers put in place of a picture."""
        if self._kind == "qwen":
            return (
                f"<|vision_start|>{'<|image_pad|>' * (int(given['image_grid_thw'][picture].prod()) // 4)}<|vision_end|>"
            )
        if self._kind == "gemma3":
            return f"\n\n<start_of_image>{'<image_soft_token>' * 16}<end_of_image>\n\n"
        around, tile = "<fake_token_around_image>", "<image>" * 16
        rows, columns = int(given["rows"][0][picture]), int(given["cols"][0][picture])
        text = ""
        for row in range(1, rows + 1):
            text += "".join(f"{around}<row_{row}_col_{column}>{tile}" for column in range(1, columns + 1)) + "\n"
        return f"{text}\n{around}<global-img>{tile}{around}"

    def _complete(self, prompt: list[int], inputs: dict[str, Any]) -> tuple[list[int], float]:
        """The greedy continuation, never with a token that ends a text, and the least gap of two best logits."""
        torch = importlib.import_module("torch")
        tokens = torch.tensor([prompt])
        types = {"qwen": "mm_token_type_ids", "gemma3": "token_type_ids"}.get(self._kind)
        found = self.model.generate(
            **({types: (tokens == self._image).int()} if types else {}),
            **(inputs | {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}),
            **{"do_sample": False, "max_new_tokens": NEW_TOKENS, "suppress_tokens": self._ends},
            **{"eos_token_id": self._ends, "pad_token_id": 0, "output_logits": True, "return_dict_in_generate": True},
        )
        logits = np.stack([each[0].numpy() for each in found.logits])
        logits[:, self._ends] = -np.inf
        second, best = np.sort(logits)[:, -2:].T
        return found.sequences[0, len(prompt) :].tolist(), float((best - second).min())

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Have llama.cpp's converter write the two files of the model."""
        conversion, gguf = importlib.import_module("conversion"), importlib.import_module("gguf")
        kinds = {conversion.ModelType.TEXT: "", conversion.ModelType.MMPROJ: "mmproj-"}
        paths = []
        with tempfile.TemporaryDirectory() as saved:
            self.model.save_pretrained(saved)
            (Path(saved) / "preprocessor_config.json").write_text(json.dumps(FAMILIES[self._name][-1]))
            stub = json.dumps(
                {"model": {"vocab": {str(i): i for i in range(self._vocabulary.n_tokens)}}, "added_tokens": []}
            )
            (Path(saved) / "tokenizer.json").write_text(stub, encoding="utf-8")
            for kind, prefix in kinds.items():
                hparams = conversion.ModelBase.load_hparams(Path(saved), False)
                architecture = conversion.get_model_architecture(hparams, kind)
                writer_class = conversion.get_model_class(architecture, mmproj=prefix != "")
                paths.append(folder / f"{prefix}{self._name}.gguf")
                writer = writer_class(Path(saved), gguf.LlamaFileType.ALL_F32, paths[-1], model_name="tiny")
                if prefix:
                    writer.tensor_force_quant = lambda *_: False  # of Gemma it would round the projection
                    if self._kind == "gemma3":  # transformers 5 saves it under another name
                        writer.model_tensors = {
                            name.replace("vision_tower.", "vision_tower.vision_model."): tensor
                            for name, tensor in writer.model_tensors.items()
                        }
                else:
                    writer.set_vocab = lambda writer=writer: self._vocabulary.add_to(writer.gguf_writer)
                writer.write()
        return paths[0], paths[1]


if __name__ == "__main__":
    sys.exit(main())
