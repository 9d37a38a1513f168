"""The part of a model that reads images, a GGUF file of its own (mmproj): where it is, and what its header says."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from operators.llama.gguf_check import ARCHITECTURE, FORMS, STRING, TYPE, Contents, Value, check_gguf, strings
from pipeline.api.errors import InputError

VISION, AUDIO = b"clip.has_vision_encoder", b"clip.has_audio_encoder"
PROJECTOR = (b"clip.projector_type", b"clip.vision.projector_type")
"""The second where the file reads sounds, too."""
QWEN = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")
_WIDTHS: Mapping[str, tuple[bytes, int]] = {
    **dict.fromkeys(QWEN, (b"mm.2.bias", 0)),
    "idefics3": (b"mm.model.fc.weight", 1),
    "gemma3": (b"mm.input_projection.weight", 0),
    "mlp": (b"mm.2.weight", 1),
    "adapter": (b"adapter.linear.dense_4h_to_h.weight", 1),
}
"""The projectors that tests run: a tensor, and its dimension, that has the numbers of a cell (clip_n_mmproj_embd)."""
TOKENS: Mapping[str, frozenset[bytes]] = {
    **dict.fromkeys(QWEN, frozenset((b"<|vision_start|>", b"<|vision_end|>"))),
    "idefics3": frozenset((b"<fake_token_around_image>", b"<global-img>")),
    "gemma3": frozenset((b"<start_of_image>", b"<end_of_image>")),
}
"""The tokens that stand around an image; libmtmd spells what the vocabulary lacks."""
APART = {"gemma3": "\n\n"}
"""Text that the processors of `transformers` put before and behind an image, and libmtmd does not."""
REFUSED = {
    "deepseek4v": "aligns images to their place in the prompt",
    "hunyuanvl": "counts the images of a prompt",
}
"""Projectors of which an image has other cells elsewhere in a prompt."""
_DEEPSTACK = b".fc1.weight"


@dataclass(frozen=True)
class Mmproj:
    """What a file says.

    Args:
        projector: the kind, as libmtmd names it.
        width: numbers of a cell; None: of a kind that is not tested here.
        levels: how many embeddings of the text model that is.
        values: its keys, for `resize_of`: numbers, texts, and lists of them.
    """

    path: Path
    projector: str
    width: int | None
    levels: int
    values: Mapping[str, Any]

    @property
    def is_tested(self) -> bool:
        return self.projector in _WIDTHS

    @property
    def cell(self) -> int:
        """Pixels of a side of what becomes a token, where an image has as many as its size asks for."""
        return int(self.values["clip.vision.patch_size"] * self.values.get("clip.vision.spatial_merge_size", 2))

    @property
    def has_limits(self) -> bool:
        """Whether the tokens of an image depend on its size alone, between limits (model.image_tokens)."""
        return self.projector in QWEN


def read_mmproj(path: Path, key: str = "model.mmproj") -> Mmproj:
    """Read the header of the file. `key`: where it was given, for messages.

    Raises:
        InputError: there is no such file, it is damaged, no mmproj, or reads no images.
    """
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise InputError(f"{key}={path} {what}; give the GGUF file of the model's vision encoder (mmproj)")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(f"{key}={path} is no GGUF file; convert it with llama.cpp's tools (--mmproj)")
    contents = check_gguf(path, model=False)
    kind = _text(contents, ARCHITECTURE)
    if kind != "clip":
        what = _text(contents, TYPE) or "model"
        raise InputError(
            f"{key}={path} is no mmproj, but a file of the kind {what}, {kind or 'of no architecture'}; give the file"
            " that llama.cpp's converter writes with --mmproj, whose architecture is clip"
        )
    if not _flag(contents, VISION):
        what = "sounds, and no images" if _flag(contents, AUDIO) else "no images"
        raise InputError(f"{key}={path} reads {what}; give an mmproj with a vision encoder")
    projector = _text(contents, PROJECTOR[0]) or _text(contents, PROJECTOR[1]) or ""
    if projector in REFUSED:
        raise InputError(f"{key}={path}: a vision encoder of the kind {projector} {REFUSED[projector]}; it is refused")
    levels = 1 + sum(name.startswith(b"v.deepstack.") and name.endswith(_DEEPSTACK) for name in contents.tensors)
    return Mmproj(path, projector, _width(contents, path, projector, levels), levels, _values(path, contents))


def _width(contents: Contents, path: Path, projector: str, levels: int) -> int | None:
    if projector not in _WIDTHS:
        return None
    name, dimension = _WIDTHS[projector]
    lengths = contents.tensors[name].lengths if name in contents.tensors else ()
    if len(lengths) <= dimension:
        raise InputError(f"{path} has no tensor {name.decode()}, which a {projector} needs; convert or fetch it again")
    return lengths[dimension] * levels


def _text(contents: Contents, key: bytes) -> str | None:
    scalar = contents.values[key].scalar if key in contents.values else None
    return scalar.decode("utf-8", "replace") if isinstance(scalar, bytes) else None


def _flag(contents: Contents, key: bytes) -> bool:
    return key in contents.values and contents.values[key].scalar == 1


def _values(path: Path, contents: Contents) -> dict[str, Any]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {key.decode("utf-8", "replace"): _value(data, value) for key, value in contents.values.items()}


def _value(data: mmap.mmap, value: Value) -> Any:
    if value.n_items is None:
        return value.scalar.decode("utf-8", "replace") if isinstance(value.scalar, bytes) else value.scalar
    if value.kind == STRING:
        return [item.decode("utf-8", "replace") for item in strings(data, value)]
    return [item for (item,) in FORMS[value.kind].iter_unpack(data[value.at : value.end])]
