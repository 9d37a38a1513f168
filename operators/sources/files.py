"""Find the input files of `data.path` or `data.dataset`, and their formats.

`data.dataset` is a dataset on the Hugging Face Hub, or in a folder laid out like one. `datasets` lists the files of a
configuration and a split, at the commit of the revision. They are then read like any others: in order, in ranges, and
from the position of a resumed run. So nothing is downloaded as a whole or written into a cache.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from operators.formats.images import IMAGES, InputImages
from operators.formats.input_file import DIRECTORY, FILE, PAGES, InputFile, Storage, is_hopeless, unreadable
from operators.formats.lines import LINES
from operators.formats.registry import ENDINGS, FORMATS
from operators.formats.unpack import CODECS
from operators.settings import DataSettings
from operators.settings.checks import check_one_of
from operators.sources.folders import REMEDY, is_partition, partitions_of, with_partitions
from operators.sources.remote import remote
from pipeline.api.errors import ConfigError, InputError, PipelineError, SourceError, did_you_mean, install

URL = re.compile(r"[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)
WEB = re.compile(r"https?://", re.IGNORECASE)
"""URLs in which `?` begins a query instead of matching a character."""
ESCAPED = re.compile(r"\[[*?[]\]")
ON_DISK = ("file://", "local://")
NO_ROWS = re.compile(r"(README|LICENSE|LICENCE)|.*\.md$", re.IGNORECASE)
"""Names of files that lie beside data and that nobody takes for input."""
REMEDIES = (
    "fetch what a link (of a cache, DVC, git-annex) leads to, write what a pipe gives into a file, name a folder as"
    " data.path=FOLDER, or take it away"
)
OR_EMPTY = "if a run of no rows is right then, write data.empty=ok"
TABLE = "data.format=auto reads its rows, and data.image_column= names the column that has images"
UNREACHABLE = ("ConnectionError", "Timeout", "OfflineModeIsEnabled", "TransportError")


def find_files(data: DataSettings, warn: Callable[[str], None] = lambda sentence: None) -> list[InputFile]:
    """Find the files of `data.path`, path by path in the order given and sorted in each; or those of `data.dataset`.

    A directory stands for the files in it, a glob for those that it matches; both without hidden files, names that
    begin with `_` or end in `.tmp`, and files of unknown extensions (unless `data.format` says what a glob's files
    are). As lines any file can be read.

    Args:
        warn: is called with a sentence about what is there and not read, where that may be a mistake.

    Raises:
        ConfigError: no path is set, or a dataset too; a file is meant twice; there is no such `data.format`,
            configuration or split; or a package is not installed.
        InputError: there is no such file or dataset, it may not be read, or its format is not known; says what was
            found. A folder, a link to nothing, a pipe that is named like a file of rows is an error, too.
        SourceError: a network does not answer.
    """
    check_one_of("data.format", data.format, ("auto", *FORMATS))
    if data.dataset is not None:
        paths, data = _files_of_dataset(data)
    else:
        paths = [data.path] if isinstance(data.path, str) else list(data.path or ())
    if not paths:
        raise ConfigError(
            "data.path is not set; write data.path=prompts.jsonl (a file, a directory, a glob or a URL), or data=hf"
            " data.dataset=owner/name"
        )
    files = [file for path in paths for file in _files_of(path, data, warn)]
    named = [str(each) for file in files for each in (file.files if isinstance(file, InputImages) else [file])]
    if len(set(named)) < len(named):
        twice = next(name for i, name in enumerate(named) if name in named[:i])
        raise ConfigError(f"data.path={data.path} means {twice} twice; name it once, or narrow a glob")
    return files


def _files_of(path: str, data: DataSettings, warn: Callable[[str], None]) -> list[InputFile]:
    storage = Storage()
    if URL.match(path) and not path.startswith(ON_DISK):
        storage, path = remote(path, data.storage_options or {})
    else:
        prefix = next((p for p in ON_DISK if path.startswith(p)), "")
        path = str(Path(path.removeprefix(prefix)).expanduser())
    try:
        files = _files_at(storage, path, data, warn)
    except OSError as error:
        raise unreadable(error.filename or storage.shown(path), error) from error
    for file in files:
        if file.codec and not FORMATS[file.format].packed:
            raise InputError(f"{file} is compressed as a whole, which {file.format} files do inside; unpack it")
    return files


def _files_at(storage: Storage, path: str, data: DataSettings, warn: Callable[[str], None]) -> list[InputFile]:
    shown, wanted = storage.shown(path), data.format
    kind = storage.kind(path)
    if kind == FILE:
        file = InputFile(path, storage)
        if wanted == "auto" and file.suffix not in ENDINGS:
            like = file.looks_like()
            remedy = "" if is_hopeless(like) else f": say what it is with data.format={', '.join(FORMATS)}"
            raise InputError(f"{file} has none of the extensions {', '.join(ENDINGS)}; it begins like {like}{remedy}")
        if _is_table(file, wanted):
            raise InputError(f"{file} is named like a file of rows, and no image; {TABLE}")
        file = replace(file, format=ENDINGS[file.suffix] if wanted == "auto" else wanted)
        return _images_together([file], len(PurePosixPath(path).parts) - 1)
    if kind == DIRECTORY:
        trusted = wanted == LINES.name
        paths, where = storage.listing(path), f"the directory {shown}"
        above = len(PurePosixPath(path).parts)
    elif kind is not None:
        raise InputError(f"data.path={shown} is {kind}; {REMEDIES}")
    else:
        pattern = path if WEB.match(path) else _literal(storage, path)
        if not glob.has_magic(pattern.partition("?")[0] if WEB.match(path) else ESCAPED.sub("", pattern)):
            raise InputError(f"data.path={shown} does not exist{_near(storage, path)}")
        trusted = wanted != "auto"
        paths, where = storage.matches(pattern), f"the pattern {shown}"
        parts = PurePosixPath(pattern).parts
        above = next(i for i, part in enumerate([*parts, "*"]) if glob.has_magic(ESCAPED.sub("", part)))
    if data.partitions:
        paths = with_partitions(storage, paths)
    chosen, others = _sorted_out(storage, paths, wanted, trusted=trusted)
    chosen = [replace(file, folders=tuple(partitions_of(file.path, above))) for file in chosen]
    unread = [name for name in others if name.endswith("/") and is_partition(name)]
    met = [] if data.partitions else [f"{name}/" for file in chosen for name in file.folders] or unread
    if not chosen and data.empty == "error":
        names = [PurePosixPath(path).name for path in _in_order(paths)]
        remedy = REMEDY if met else _for_others(names, wanted)
        raise InputError(f"{where} has no file ending in {_endings(wanted)}; found {some(names)}; {remedy}")
    if met:
        warn(f"{where} has folders such as {met[0]}, whose names are no columns; {REMEDY}")
    if others := [name for name in others if name not in met]:
        listed = f"{some(others)} ({len(others)} in all)"
        warn(f"{where} has what is not read: {listed}; the names of files that are read end in {_endings(wanted)}")
    for form in (form for form in FORMATS.values() if form.alone):
        beside = [file.name for file in chosen if file.format == form.name]
        if beside and len(beside) < len(chosen):
            chosen = [file for file in chosen if file.format != form.name]
            alone = f"data.format={form.name} reads {form.endings[0]} alone"
            warn(f"{where} has what is not read beside other formats: {some(beside)}; {alone}")
    if len(formats := sorted({file.format for file in chosen})) > 1:
        raise InputError(f"{where} has files of several formats ({', '.join(formats)}); choose with data.format")
    return _images_together(chosen if data.partitions else [replace(file, folders=()) for file in chosen], above)


def _images_together(files: list[InputFile], above: int) -> list[InputFile]:
    """Return `files`, which have one format; those of images as one. `above`: parts of the path that was named."""
    return InputImages.of(files, above) if files and files[0].format == IMAGES.name else files


def _literal(storage: Storage, pattern: str) -> str:
    """Escape the folders at the beginning of a glob that exist as they are written, as `b[2]` in `b[2]/*.jsonl`."""
    head, _, tail = pattern.rpartition("/")
    while glob.has_magic(head):
        if storage.kind(head) == DIRECTORY:
            return f"{glob.escape(head)}/{tail}"
        head, _, last = head.rpartition("/")
        tail = f"{last}/{tail}"
    return pattern


def _sorted_out(
    storage: Storage, paths: Mapping[str, str | None], wanted: str, *, trusted: bool
) -> tuple[list[InputFile], list[str]]:
    """Return the input files among `paths`, and the names of others that somebody may take for read.

    Args:
        trusted: all files have the format `wanted`.

    Raises:
        InputError: something is named like an input file and is none, and it would be read.
    """
    files: list[InputFile] = []
    others: list[str] = []
    odd: list[tuple[str, InputError]] = []
    suffixes = {InputFile(path, storage).suffix for path, kind in paths.items() if trusted and kind == FILE} - {""}
    parents = {str(parent) for path, kind in paths.items() if kind == FILE for parent in PurePosixPath(path).parents}
    for path in _in_order(paths):
        file, kind = InputFile(path, storage), paths[path]
        if not file.name or file.name.startswith((".", "_", "~$")) or file.name.endswith(".tmp"):
            continue
        is_told = trusted and (kind != DIRECTORY or file.suffix in suffixes) and not _is_table(file, wanted)
        form = wanted if is_told else _format(file, wanted)
        if kind == FILE and form is not None:
            files.append(replace(file, format=form))
        elif kind == DIRECTORY and str(PurePosixPath(path)) in parents:
            continue  # files in it are found, too
        elif form is not None:
            noun = "a folder" if kind == DIRECTORY else kind or "there no more"
            error = InputError(f"{file} is named like a file of rows and is {noun}; {REMEDIES}")
            if wanted == form or not FORMATS[form].alone:
                raise error
            odd.append((file.name + "/" * (kind == DIRECTORY), error))
        elif kind == DIRECTORY:
            others.append(f"{file.name}/")
        elif not NO_ROWS.match(file.name) and (trusted or wanted == "auto" or file.suffix not in ENDINGS):
            others.append(file.name)
    if odd and all(FORMATS[file.format].alone for file in files):
        raise odd[0][1]
    return files, [*others, *(name for name, _ in odd)]


def _format(file: InputFile, wanted: str) -> str | None:
    kind = ENDINGS.get(file.suffix)
    if kind is None or wanted not in ("auto", kind) or (file.codec and not FORMATS[kind].packed):
        return None
    return kind


def _is_table(file: InputFile, wanted: str) -> bool:
    """Return True if a file has the ending of rows where `wanted` are images, each of which would be one."""
    return wanted == IMAGES.name and ENDINGS.get(file.suffix, wanted) != wanted


def _for_others(names: Iterable[str], wanted: str) -> str:
    """Return what to do where no file among `names` is read as `wanted`."""
    if any(_is_table(InputFile(name), wanted) for name in names):
        return TABLE
    return PAGES if any(name.lower().endswith(".pdf") for name in names) else OR_EMPTY


def _in_order(paths: Iterable[str]) -> list[str]:
    """Sort folder by folder, so that a/b comes before a-b."""
    return sorted(paths, key=lambda path: PurePosixPath(path).parts)


def _endings(wanted: str) -> str:
    endings = [e for e, kind in ENDINGS.items() if wanted in ("auto", kind)]
    packed = f" (or {', '.join(CODECS)} behind it)" if wanted == "auto" or FORMATS[wanted].packed else ""
    return ", ".join(endings) + packed


def some(names: Sequence[str]) -> str:
    """Return the first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"


def _near(storage: Storage, path: str) -> str:
    parent = str(Path(path).parent) if storage.local(path) is not None else path.rpartition("/")[0]
    if not parent:
        return ""
    if storage.kind(parent) != DIRECTORY:
        return f"; nor does the directory {storage.shown(parent)}"
    names = [PurePosixPath(p).name for p in _in_order(storage.listing(parent))]
    names = [name for name in names if not name.startswith(".")]
    last = PurePosixPath(path).name
    hint = did_you_mean(last, names, f"data.path={storage.shown(path).removesuffix(last)}")
    return f"; the directory {storage.shown(parent)} has {some(names)}{hint}"


def _files_of_dataset(data: DataSettings) -> tuple[list[str], DataSettings]:
    """Return the paths or URLs of the files of a dataset, and the settings to read them with."""
    if data.path is not None:
        raise ConfigError("both data.path and data.dataset are set; keep one")
    setting = f"data.dataset={data.dataset}"
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise ConfigError(f"{setting} needs datasets ({error}): {install('datasets')}") from error
    try:
        builder = load_dataset_builder(data.dataset, data.config, revision=data.revision)
    except Exception as error:  # a dozen classes of three packages
        raise _not_loaded(data, setting, error) from error
    files = builder.config.data_files or {}
    if data.split not in files:
        raise ConfigError(f"data.split={data.split} is no split of {data.dataset}; it has {', '.join(files) or 'none'}")
    paths = [str(path) for path in files[data.split]]
    kind = data.format
    if kind == "auto" and any(InputFile(path).suffix not in ENDINGS for path in paths):
        builder_kind = type(builder).__module__.rpartition(".")[2]
        named = {form.hub: form.name for form in FORMATS.values() if form.hub}
        if builder_kind not in named:
            readable = ", ".join(named)
            raise InputError(f"{data.dataset} is made of files of the kind '{builder_kind}'; those read are {readable}")
        kind = named[builder_kind]
    return paths, replace(data, dataset=None, format=kind)


def _not_loaded(data: DataSettings, setting: str, error: Exception) -> PipelineError:
    why = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if {cls.__name__ for cls in type(error).__mro__} & set(UNREACHABLE):
        return SourceError(f"{setting}: the Hub cannot be reached ({why}); run the same command again")
    if isinstance(error, ValueError) and data.config is not None and data.config in str(error):
        return ConfigError(f"{setting}: data.config={data.config}: {why}")
    return InputError(f"{setting} cannot be found: {why}")
