"""`data.dataset`: a dataset on the Hugging Face Hub, or in a folder laid out like one, as the files of a split.

`datasets` lists the files of a configuration and a split, at the commit of the revision. The files are then read like
any others: in order, in ranges, and from the position of a resumed run. So nothing is downloaded as a whole or
written into a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from operators.settings import DataSettings
from operators.sources.files import EXTENSIONS
from operators.sources.input_file import InputFile
from pipeline.api.errors import ConfigError, InputError, SourceError, install

FORMATS: Mapping[str, str] = {"parquet": "parquet", "json": "jsonl", "csv": "csv", "arrow": "arrow"}
"""The name of a format in `datasets`, to its name in `data.format`."""
UNREACHABLE = ("ConnectionError", "Timeout", "OfflineModeIsEnabled", "TransportError")


def resolve(data: DataSettings) -> tuple[list[str], DataSettings]:
    """Return the paths or URLs of the files, and the settings to read them with.

    Raises:
        ConfigError: there is a path too, `datasets` is not installed, or there is no such configuration or split.
        InputError: there is no such dataset, or its files hold no rows of text.
        SourceError: the Hub cannot be reached.
    """
    if data.path is not None:
        raise ConfigError("both data.path and data.dataset are set; keep one")
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise ConfigError(f"data.dataset={data.dataset} needs datasets ({error}): {install('datasets')}") from error
    try:
        builder = load_dataset_builder(data.dataset, data.config, revision=data.revision)
    except Exception as error:  # a dozen classes of three packages
        raise _explained(data, error) from error
    files = builder.config.data_files or {}
    if data.split not in files:
        raise ConfigError(f"data.split={data.split} is no split of {data.dataset}; it has {', '.join(files) or 'none'}")
    paths = [str(path) for path in files[data.split]]
    return paths, replace(data, dataset=None, format=_format(data, paths, type(builder).__module__.rpartition(".")[2]))


def _format(data: DataSettings, paths: Sequence[str], kind: str) -> str:
    """Return auto if the files' names tell their format, else the format that `datasets` found: JSONL is often named
    .json there."""
    if data.format != "auto" or all(InputFile(path).suffix in EXTENSIONS for path in paths):
        return data.format
    if kind not in FORMATS:
        raise InputError(f"{data.dataset} is made of files of the kind '{kind}'; those read are {', '.join(FORMATS)}")
    return FORMATS[kind]


def _explained(data: DataSettings, error: Exception) -> ConfigError | SourceError:
    names = {cls.__name__ for cls in type(error).__mro__}
    what = f"data.dataset={data.dataset}"
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if names & set(UNREACHABLE):
        return SourceError(f"{what}: the Hub cannot be reached ({why}); run the same command again")
    if isinstance(error, ValueError) and data.config is not None and data.config in str(error):
        return ConfigError(f"{what}: data.config={data.config}: {why}")
    return InputError(f"{what} cannot be found: {why}")
