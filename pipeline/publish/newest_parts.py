"""Makes copies to publish of files with rows of which newer ones came (`append_changed=again`), without these rows. The
committed files stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.api.errors import ConfigError
from pipeline.api.records import ROW, SUPERSEDES
from pipeline.run_dir.names import DATA
from pipeline.run_dir.state import RunState, ShardRecord
from pipeline.settings import AGAIN, JobSettings
from pipeline.system.atomic_files import sha256_of, write_parquet
from pipeline.system.disk_errors import writing
from pipeline.system.result_files import formats


def check_format(settings: JobSettings, form: str) -> None:
    """Raise ConfigError for results, in the format `form`, of which no such copies are made."""
    if settings.append_changed == AGAIN and formats()[form].parts != "parquet":
        raise ConfigError(
            f"output.publish of output={form} with append_changed=again would publish rows of which newer ones came;"
            " write output=parquet"
        )


def newest_parts(directory: Path, state: RunState) -> Iterator[tuple[ShardRecord, Path]]:
    """Yield for each file of results with superseded rows the record of its copy, and the copy, which is gone when the
    next one is asked for."""
    folders: dict[PurePosixPath, list[ShardRecord]] = {}
    for shard in state.shards():
        if shard.path.startswith(f"{DATA}/") and shard.rows:
            folders.setdefault(PurePosixPath(shard.path).parent, []).append(shard)
    for shards in folders.values():
        each = [pq.read_table(directory / shard.path, columns=[SUPERSEDES.name]).column(0) for shard in shards]
        older = pa.chunked_array([chunk for column in each for chunk in column.chunks], SUPERSEDES.type).drop_null()
        for shard in shards if len(older) else ():
            is_older = pc.is_in(pq.read_table(directory / shard.path, columns=[ROW.name]).column(0), older)
            if pc.any(is_older).as_py():
                yield from _copy(directory / shard.path, shard, pc.invert(is_older))


def _copy(path: Path, shard: ShardRecord, keeps: pa.ChunkedArray) -> Iterator[tuple[ShardRecord, Path]]:
    rows = pq.read_table(path).filter(keeps)
    with TemporaryDirectory(prefix="newest-") as folder:
        copy = Path(folder) / path.name
        with writing(copy), copy.open("wb") as file:
            write_parquet(rows, file, pq.read_metadata(path).row_group(0).column(0).compression)
        yield replace(shard, rows=rows.num_rows, size_bytes=copy.stat().st_size, sha256=sha256_of(copy)), copy


def listed(manifest: Mapping[str, Any], copies: Mapping[str, ShardRecord]) -> dict[str, Any]:
    """Return a manifest with `copies`, by path, in place of the files that they are of."""
    shards = [asdict(copies[shard["path"]]) if shard["path"] in copies else shard for shard in manifest["shards"]]
    gone = sum(shard["rows"] for shard in manifest["shards"]) - sum(shard["rows"] for shard in shards)
    counts = {**manifest["counts"], "data_rows": manifest["counts"]["data_rows"] - gone}
    return {**manifest, "shards": shards, "counts": counts}
