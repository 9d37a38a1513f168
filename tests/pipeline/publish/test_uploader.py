"""What is committed is at output.publish, exactly as here; its manifest comes last and lists only what is there."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import fsspec.registry  # noqa: F401 - so that it is there to be changed
import pyarrow.parquet as pq
import pytest
import s3fs
import yaml

from pipeline.api.errors import ConfigError, ExitCode, PublishError
from pipeline.cli.main import main
from pipeline.publish.destination import Destination
from pipeline.settings import HookSettings
from tests.operators.sources.s3_server import serving
from tests.pipeline.damage import cut, files, job, run
from tests.pipeline.faulty import URL, WRONG_KEY, Faulty, fails, interrupts, register, to, waits_for
from tests.pipeline.squares import breaks
from tests.sets import often

SECRET = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def place():
    register()


def published(directory: Path, at: dict[str, bytes]) -> bool:
    """Whether `at` is the whole run in `directory`, and nothing else."""
    return at == {**files(directory), "manifest.json": (directory / "manifest.json").read_bytes()}


def on_disk(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Faulty.files()["manifest.json"])
    return found


def attempts(directory: Path) -> int:
    return len(pq.read_table(directory / "metrics/run.parquet"))


def test_a_finished_run_is_at_the_url_as_it_is_here(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(job(out, output=to(f"file://{tmp_path}/far/away"))) is ExitCode.DONE
    assert published(out, on_disk(tmp_path / "far/away"))
    assert "published   7 files at file://" in capsys.readouterr().out


def test_the_manifest_comes_last_and_lists_nothing_until_all_is_there(tmp_path):
    seen: list[tuple[str, int]] = []
    Faulty.before = staticmethod(lambda path: seen.append((path, len(manifest()["shards"]) if Faulty.files() else 0)))
    run(job(tmp_path / "out", output=to(URL)))
    assert [path for path, _ in seen if path == "manifest.json"] == [seen[0][0], seen[-1][0]]
    assert {listed for _, listed in seen} == {0}
    assert {s["path"] for s in manifest()["shards"]} == files(tmp_path / "out").keys() == {p for p, _ in seen[1:-1]}
    assert manifest()["status"] == "done"


def test_commits_do_not_wait_for_uploads(tmp_path):
    Faulty.before = staticmethod(waits_for(tmp_path / "out/manifest.json"))  # which the end of the run writes
    assert run(job(tmp_path / "out", output=to(URL), max_open_chunks=1)) is ExitCode.DONE
    assert published(tmp_path / "out", Faulty.files())


def test_a_run_that_fails_leaves_a_manifest_of_nothing_and_its_resume_uploads_each_file_once(tmp_path):
    settings = job(tmp_path / "out", breaks(tmp_path), output=to(URL), max_open_chunks=1)
    assert run(settings) is ExitCode.FAILED
    assert (manifest()["status"], manifest()["shards"]) == ("running", [])
    (tmp_path / "broken").unlink()
    assert run(settings) is ExitCode.DONE
    assert published(tmp_path / "out", Faulty.files())
    data = [path for path in Faulty.written if path != "manifest.json"]
    assert len(data) == len(set(data))


@pytest.mark.parametrize("what", often(["data/", "part-00003", "manifest.json"], "part-00003"))
def test_an_upload_that_fails_is_exit_code_1_and_the_same_command_finishes_it_without_generating(
    tmp_path, what, caplog
):
    settings = job(tmp_path / "out", output=to(URL))
    Faulty.before = staticmethod(lambda path: fails(what)(path) if Faulty.written else None)
    assert run(settings) is ExitCode.FAILED
    assert "results are whole" in caplog.text
    assert "the network is gone" in caplog.text
    assert manifest()["shards"] == []
    assert json.loads((tmp_path / "out/manifest.json").read_text())["status"] == "done"
    before = files(tmp_path / "out")
    Faulty.before = staticmethod(lambda path: None)
    assert run(settings) is ExitCode.DONE
    assert (attempts(tmp_path / "out"), files(tmp_path / "out")) == (1, before)
    assert published(tmp_path / "out", Faulty.files())


def test_who_is_told_of_the_end_is_told_what_became_of_the_uploads_too(tmp_path):
    hook = HookSettings(["/bin/sh", "-c", f"cat >> {tmp_path}/told"])
    Faulty.before = staticmethod(lambda path: fails("part-00002")(path) if Faulty.written else None)
    assert run(job(tmp_path / "out", output=to(URL), on_finish=hook)) is ExitCode.FAILED
    told = json.loads((tmp_path / "told").read_text())
    assert (told["state"], told["exit_code"]) == ("done", 1)
    assert "not at faulty://place: cannot write faulty://place/data/part-00002.parquet" in told["error"]


def test_a_run_that_was_finished_before_is_published_without_generating(tmp_path):
    run(job(tmp_path / "out"))
    assert run(job(tmp_path / "out", output=to(URL))) is ExitCode.DONE
    assert attempts(tmp_path / "out") == 1
    assert published(tmp_path / "out", Faulty.files())


def test_what_has_gone_from_the_place_is_uploaded_again_and_nothing_else(tmp_path):
    run(job(tmp_path / "out", output=to(URL)))
    del Faulty.store["/place/data/part-00002.parquet"]
    Faulty.written.clear()
    assert run(job(tmp_path / "out", output=to(URL))) is ExitCode.DONE
    assert Faulty.written == ["data/part-00002.parquet"]


def test_a_chunk_that_is_repaired_is_uploaded_again(tmp_path):
    run(job(tmp_path / "out", output=to(URL)))
    cut(tmp_path / "out/data/part-00001.parquet")
    Faulty.written.clear()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert Faulty.written == ["data/part-00001.parquet"]
    assert published(tmp_path / "out", Faulty.files())


def test_a_run_whose_state_was_lost_is_published_again(tmp_path):
    run(job(tmp_path / "out", output=to(URL)))
    (tmp_path / "out/state.sqlite").write_bytes(b"no database" * 500)
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert published(tmp_path / "out", Faulty.files())


def test_a_place_that_holds_something_else_is_left_alone(tmp_path):
    Faulty().pipe_file("/place/thesis.tex", b"years of work")
    before = Faulty.files()
    with pytest.raises(ConfigError, match=r"holds other files \(for example thesis.tex\); .*overwrite=true"):
        run(job(tmp_path / "out", output=to(URL)))
    assert Faulty.files() == before
    assert not (tmp_path / "out/data").exists()


def test_so_is_one_of_another_run_and_overwrite_leaves_none_of_its_files(tmp_path):
    run(job(tmp_path / "out", output=to(URL)))
    other = job(tmp_path / "other", output=to(URL), seed=1)
    with pytest.raises(ConfigError, match="holds other files"):
        run(other)
    other.overwrite = True
    other.nodes["numbers"].op["rows"] = 12
    assert run(other) is ExitCode.DONE
    assert published(tmp_path / "other", Faulty.files())


def test_what_cannot_be_written_is_said_before_anything_is_done(tmp_path):
    Faulty.before = staticmethod(fails(error=PermissionError("not yours")))
    with pytest.raises(ConfigError, match=r"cannot write faulty://place/manifest.json: .*not yours; nothing has been"):
        run(job(tmp_path / "out", output=to(URL)))
    assert not (tmp_path / "out/data").exists()


def test_a_place_that_cannot_be_reached_costs_no_results(tmp_path, monkeypatch):
    run(job(tmp_path / "out", output=to(URL)))
    before = files(tmp_path / "out")
    monkeypatch.setattr(Faulty, "find", lambda *_, **__: fails()(""))
    with pytest.raises(PublishError, match="cannot list"):
        run(job(tmp_path / "out", output=to(URL), overwrite=True))
    assert files(tmp_path / "out") == before


def test_a_signal_leaves_the_uploads_to_the_same_command(tmp_path):
    Faulty.before = staticmethod(interrupts)
    assert run(job(tmp_path / "out", output=to(URL, retries=5))) is ExitCode.INTERRUPTED
    Faulty.before = staticmethod(lambda path: None)
    assert run(job(tmp_path / "out", output=to(URL))) is ExitCode.DONE
    assert published(tmp_path / "out", Faulty.files())
    assert attempts(tmp_path / "out") == 1


def test_credentials_are_written_nowhere_and_a_repair_does_without(tmp_path, caplog, capsys):
    options = {"key": SECRET, "client_kwargs": {"token": SECRET}}
    settings = job(tmp_path / "out", output=to(URL, storage_options={"key": SECRET}))
    literal = {"publish": None, "storage_options": options}
    settings.nodes["write"].op |= {"_target_": "operators.sinks.write_rows.WriteRows", "output": literal}
    Faulty.before = staticmethod(lambda path: fails("part-00004", error=OSError(f"{SECRET} refused"))(path))
    with caplog.at_level(logging.DEBUG):
        assert run(settings) is ExitCode.FAILED
    assert "(left out) refused" in caplog.text
    said = capsys.readouterr()
    assert SECRET not in caplog.text + said.out + said.err
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []
    assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["output"]["publish"] == URL
    Faulty.before = staticmethod(lambda path: None)
    cut(tmp_path / "out/data/part-00001.parquet")
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert published(tmp_path / "out", Faulty.files())


def test_what_fails_now_and_then_is_tried_again(tmp_path, caplog):
    left = [3]

    def before(path: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(f"busy {SECRET}")

    Faulty.before = staticmethod(before)
    (tmp_path / "file").write_text("x")
    place = Destination(URL, {"key": SECRET}, 1, wait_s=0)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(PublishError, match=r"faulty://place/a: OSError: busy \(left out\)"),
    ):
        place.put(tmp_path / "file", "a")
    place.put(tmp_path / "file", "a")
    assert (left, Faulty.files()) == ([-1], {"a": b"x"})
    assert "next try in 0 s" in caplog.text
    assert SECRET not in caplog.text


def test_a_place_that_cannot_be_used_is_told_with_its_url_and_without_its_credentials():
    with pytest.raises(ConfigError, match=r"output.publish=nowhere://x .*Protocol not known: nowhere"):
        Destination("nowhere://x", {}, 0)
    with pytest.raises(ConfigError, match=r"output.publish=faulty://place .*ValueError: \(left out\) is no key"):
        Destination(URL, {"key": WRONG_KEY}, 0)


@pytest.mark.parametrize(
    ("url", "package", "extra"), [("file:///x", "fsspec", "remote"), ("s3://bucket/new/x", "s3fs", "s3")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(url, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # where another test has used it
    with pytest.raises(ConfigError, match=rf"output.publish={url}.*pip install -e '\.\[{extra}\]'"):
        Destination(url, {}, 0)


def test_a_place_that_another_run_has_taken_since_is_left_to_it(tmp_path):
    run(job(tmp_path / "out", output=to(URL)))
    run(job(tmp_path / "other", output=to(URL), seed=1, overwrite=True))
    before = Faulty.files()
    with pytest.raises(ConfigError, match="holds other files"):
        run(job(tmp_path / "out", output=to(URL)))
    assert Faulty.files() == before
    assert published(tmp_path / "other", before)


def test_a_run_is_in_the_bucket_as_it_is_here(tmp_path):
    with serving(2) as options:
        output = to("s3://prompts/some/run", storage_options=options)
        assert run(job(tmp_path / "out", output=output)) is ExitCode.DONE
        s3 = s3fs.S3FileSystem(**options)
        s3.invalidate_cache()
        found = {name.removeprefix("prompts/some/run/"): s3.cat_file(name) for name in s3.find("prompts/some")}
    assert json.loads(found.pop("manifest.json"))["status"] == "done"
    assert found == files(tmp_path / "out")
