"""A run is published to S3: a real client against a server of moto's on this machine."""

from __future__ import annotations

import json

import pytest

from pipeline.api.errors import ExitCode
from tests.pipeline.damage import files, job, run
from tests.pipeline.faulty import to


@pytest.fixture
def endpoint(monkeypatch):
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_a_run_is_in_the_bucket_as_it_is_here(tmp_path, endpoint):
    import s3fs

    s3 = s3fs.S3FileSystem(endpoint_url=endpoint)
    s3.mkdir("bucket")
    options = {"endpoint_url": endpoint}
    assert run(job(tmp_path / "out", output=to("s3://bucket/some/run", storage_options=options))) is ExitCode.DONE
    s3.invalidate_cache()
    found = {name.removeprefix("bucket/some/run/"): s3.cat_file(name) for name in s3.find("bucket")}
    assert json.loads(found.pop("manifest.json"))["status"] == "done"
    assert found == files(tmp_path / "out")
