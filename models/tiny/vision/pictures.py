"""Write the pictures that ship with the jobs: `python -m models.tiny.vision.pictures` from the repository's root.

pictures/ has a PNG of each of 30 scenes, pictures.jsonl names those that say something: id, image (the path) and
answer. They have no noise and few colours, so that a file has some hundred bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from PIL import Image

from models.tiny.vision.draw import drawn
from models.tiny.vision.scenes import Scene, drawn_scene

SEED = 5
SHIPPED = 30
ORDER = ("word", "number", "word", "number", "shape")
COLOURS_OF_FILE = 32


def shown(seed: int, number: int) -> list[Scene]:
    """`number` different scenes in ORDER: words and numbers are held out, shapes are any."""
    rng, chosen = Random(f"shown/{seed}"), dict[Scene, None]()
    while len(chosen) < number:
        kind = ORDER[len(chosen) % len(ORDER)]
        chosen[drawn_scene(rng, kind, "train" if kind == "shape" else "heldout")] = None
    return list(chosen)


def write_picture(scene: Scene, seed: int, path: Path, noise: float = 0.0) -> None:
    """Write the picture of a scene as PNG."""
    pixels, _ = drawn(scene, Random(seed), noise)
    image = Image.fromarray(pixels)
    (image if noise else image.quantize(COLOURS_OF_FILE)).save(path, optimize=True)


def write_all(directory: Path) -> None:
    """Write pictures/ and pictures.jsonl."""
    folder = directory / "pictures"
    folder.mkdir(exist_ok=True)
    rows = []
    for number, scene in enumerate(shown(SEED, SHIPPED)):
        path = folder / f"{number:02d}.png"
        write_picture(scene, SEED + number, path)
        if scene.kind != "shape":
            rows.append({"id": f"picture-{number:02d}", "image": f"pictures/{path.name}", "answer": scene.content})
    (directory / "pictures.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.vision.pictures", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("jobs/data"), help="directory (default %(default)s)")
    options = parser.parse_args()
    write_all(options.out)


if __name__ == "__main__":
    main()
