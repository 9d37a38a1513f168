"""Models in several files: llama.cpp splits NAME.gguf into NAME-00001-of-00003.gguf and so on, and loads them by the
first."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.api.errors import InputError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def part_names(name: str) -> list[str]:
    """List the names of all parts of the model whose first part is `name`; of a model in one file just `name`.

    Raises:
        InputError: it is a part, and not the first.
    """
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    names = [f"{found[1]}-{number:05}-of-{found[3]}.gguf" for number in range(1, int(found[3]) + 1)]
    if name not in names[:1]:
        raise InputError(f"{name} is a part of a split model; give the first: {found[1]}-00001-of-{found[3]}.gguf")
    return names


def parts_of(path: Path) -> list[Path]:
    """List all files of the model whose first part is `path`.

    Raises:
        InputError: `path` is a part and not the first, or another part is missing.
    """
    parts = [path.with_name(name) for name in part_names(path.name)]
    for part in parts[1:]:
        if not part.is_file():
            raise InputError(f"{part} is missing: {path.name} needs all {len(parts)} parts of its model beside it")
    return parts
