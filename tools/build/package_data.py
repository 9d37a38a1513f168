"""Puts what lies beside the packages of the checkout into the wheel, below one package: `pipeline/_project`.

`conf`, `jobs` and `models` as packages of their own would hide, or be hidden by, the folders of others of those names.
pyproject.toml names the class, and setuptools calls it; an editable install needs none of it.
"""

from pathlib import Path

from setuptools.command.build_py import build_py

BESIDE = (
    "conf/**/*.yaml",
    "jobs/**/*.yaml",
    "jobs/**/*.py",
    "jobs/data/*",
    "jobs/data/pictures/*.png",
    "models/**/*.py",
    "models/tiny/*-q8_0.gguf",
    "models/tiny/vision/*.gguf",
    "models/tiny/MODEL_CARD.md",
    "tests/families/encoders/*.gguf",  # model=tiny_classifier and model=tiny_reranker
    "requirements.lock",  # names the llama-cpp-python that `python -m pipeline build` builds
)
"""What is read at run time, from the top of the checkout."""
INSIDE = "pipeline/_project"


class BuildWithData(build_py):
    """setuptools' build_py, with the files of BESIDE below INSIDE."""

    def run(self) -> None:
        """Copy the packages, then what lies beside them."""
        super().run()
        for name in () if self.editable_mode else beside():
            target = Path(self.build_lib, INSIDE, name)
            self.mkpath(str(target.parent))
            self.copy_file(name, str(target))

    def get_source_files(self) -> list[str]:
        """Return what a source distribution takes: the packages' files and those of BESIDE."""
        return [*super().get_source_files(), *beside()]


def beside() -> list[str]:
    """Return the names of the files of BESIDE in the current directory, sorted."""
    return sorted({path.as_posix() for pattern in BESIDE for path in Path().glob(pattern) if path.is_file()})
