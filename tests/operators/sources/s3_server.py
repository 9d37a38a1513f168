"""An S3 server on this machine (moto) with prompts in it, and the command line of a job that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from moto.server import ThreadedMotoServer

SECRET = "s3cr3t-4711"


@contextmanager
def serving(rows: int) -> Iterator[dict[str, Any]]:
    """Storage options of a server with the bucket `prompts`: two Parquet files in parts/, and all.jsonl.gz."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {"key": "me", "secret": SECRET, "endpoint_url": f"http://{host}:{port}"}
    with urlopen(Request(f"{given['endpoint_url']}/moto-api/reset", method="POST")):
        pass  # the servers of a process have their buckets in common: here is none of an earlier one
    fs = fsspec.filesystem("s3", **given)
    fs.mkdir("prompts")
    prompts = [f"p{i}" for i in range(rows)]
    for part, half in enumerate((prompts[: rows // 2], prompts[rows // 2 :])):
        file = pa.BufferOutputStream()
        pq.write_table(pa.table({"prompt": half}), file, row_group_size=10)
        fs.pipe(f"prompts/parts/{part}.parquet", file.getvalue().to_pybytes())
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "gzip") as stream:
        stream.write("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts).encode())
    fs.pipe("prompts/all.jsonl.gz", packed.getvalue().to_pybytes())
    try:
        yield given
    finally:
        server.stop()


def arguments(options: dict[str, Any], path: str, out: Path, *settings: str) -> list[str]:
    fixed = ["job=generate", "model=fake", f"data.path={path}", f"output_dir={out}", "progress=none", "report=false"]
    given = ",".join(f"{key}:'{value}'" for key, value in options.items())
    return [*fixed, f"data.storage_options={{{given}}}", "chunk_rows=10", "sampling.max_tokens=2", *settings]
