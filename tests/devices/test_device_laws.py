"""Every family, and whole jobs, compute on devices what they compute on the CPU; a run goes on where it was on the same
devices alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.devices import cases
from tests.devices.fake_gpu import FakeGpus
from tests.pipeline.cluster.cluster_runs import totals

pytestmark = [pytest.mark.laws, pytest.mark.slow("loads a model of each family, and runs jobs, with devices")]

FAMILIES = sorted((PROJECT / "tests/families").glob("*.gguf"))
JOB = ("job=quickstart", "data.limit=24", "chunk_rows=4", "sampling.max_tokens=12")
DRAFTED = ("job=quickstart", "data.limit=8", "sampling.max_tokens=24", "sampling.temperature=0", "decode=speculative")
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
OTHER_JOBS = {
    "images": ("job=caption", "data.limit=6", "sampling.max_tokens=12"),
    "drafts of what was written": DRAFTED,
    "drafts of a model": (*DRAFTED, f"decode.draft.model={TINY}"),
    "blocks": ("job=diffuse", "data.limit=8", "sampling.max_tokens=16"),
    "embeddings": ("job=embed", "data.limit=8"),
    "a head": ("job=rerank", "data.limit=8"),
    "choices": ("job=classify", "data.limit=8"),
}
NO_DRIVER = (
    "Fake finds none (fake_init: failed to initialize: there is no driver): see to its driver, and to what may hide"
    " GPUs (a container, CUDA_VISIBLE_DEVICES)"
)
ON_DEVICES = ("model.gpu_layers=all", "runtime.threads=1")


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_each_family_has_the_bits_of_the_cpu_wherever_its_layers_are(gpus, path):
    answers = gpus.call(cases.placed, str(path))
    assert len(answers) == 1 + len(cases.PLACEMENTS)
    split = answers.pop("one layer and what makes logits")
    assert len({answer["bits"] for answer in answers.values()}) == 1
    # llama.cpp gives up flash attention where a cache is not on the device of its layer, as in LFM2 and Nemotron-H so.
    assert split["bits"] in (answers[cases.HOST]["bits"], gpus.call(cases.without_flash_attention, str(path)))


def run(gpus: FakeGpus, out: Path, *words: str, job: tuple[str, ...] = JOB) -> int:
    """Run the job; return its exit code."""
    always = ("progress=none", "report=false", "runtime.kernels=llama.cpp", f"output_dir={out}")
    done = gpus.pipeline(*job, *always, *words)
    (out.parent / "said.txt").write_text(done.stdout + done.stderr)
    return done.returncode


def data(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((out / "data").glob("*.parquet"))]


@pytest.fixture(scope="module")
def of_cpu(fake_gpu_library, tmp_path_factory) -> list[bytes]:
    """The results of the CPU beside devices."""
    folder = tmp_path_factory.mktemp("cpu")
    assert run(FakeGpus(fake_gpu_library, folder), folder / "out", "model.gpu_layers=0") == ExitCode.DONE
    return data(folder / "out")


@pytest.mark.parametrize(
    "words",
    [
        ("runtime.slots=1",),
        ("runtime.slots=4",),
        ("runtime.slots=16",),
        ("model.gpu_layers=3",),
        ("cluster=processes", "cluster.workers=2"),
    ],
    ids=" ".join,
)
def test_a_job_has_the_bytes_of_the_cpu(gpus, of_cpu, tmp_path, words):
    assert run(gpus, tmp_path / "out", *ON_DEVICES, *words) == ExitCode.DONE
    assert data(tmp_path / "out") == of_cpu
    assert any(device.graphs for process in gpus.counts() for device in process)
    assert all(totals(tmp_path / "out")[f"peak_memory_mb_fake{number}"] > 0 for number in range(2))


@pytest.mark.parametrize("job", OTHER_JOBS.values(), ids=OTHER_JOBS)
def test_so_have_jobs_that_compute_otherwise(gpus, tmp_path, job):
    assert run(gpus, tmp_path / "cpu", "model.gpu_layers=0", job=job) == ExitCode.DONE
    assert not any(device.graphs for process in gpus.counts() for device in process)
    of_draft = ("decode.draft.gpu_layers=all",) if any("draft.model" in word for word in job) else ()
    assert run(gpus, tmp_path / "out", *ON_DEVICES, *of_draft, job=job) == ExitCode.DONE
    assert data(tmp_path / "out") == data(tmp_path / "cpu") != []
    assert any(device.graphs for process in gpus.counts() for device in process)


def test_a_graph_that_fails_is_computed_again_and_no_byte_changes(gpus, of_cpu, tmp_path):
    failing = gpus.having(fail_at=30)
    assert run(failing, tmp_path / "out", *ON_DEVICES) == ExitCode.DONE
    assert data(tmp_path / "out") == of_cpu
    assert "llama_decode failed with -3" in (tmp_path / "out/run.log").read_text()


def test_a_run_goes_on_on_the_same_devices_alone(gpus, of_cpu, tmp_path):
    out = tmp_path / "out"
    assert run(gpus.having(abort_at=60), out, *ON_DEVICES, "runtime.slots=4") == -signal.SIGABRT
    begun = len(data(out))
    assert 0 < begun < len(of_cpu)
    other = gpus.having(description="another GPU")
    assert run(other, out, *ON_DEVICES, "runtime.slots=4") == ExitCode.CONFIG
    assert "the device" in (tmp_path / "said.txt").read_text()
    assert len(data(out)) == begun
    assert run(gpus, out, *ON_DEVICES, "runtime.slots=4") == ExitCode.DONE
    assert data(out) == of_cpu


def test_a_job_that_no_device_has_room_for_is_refused_with_the_figures(gpus, tmp_path):
    small = gpus.having(count=1, mb=12)
    assert run(small, tmp_path / "out", *ON_DEVICES) == ExitCode.CONFIG
    said = (tmp_path / "said.txt").read_text()
    assert "of the memory of Fake0 and it has 12 MiB; use fewer model.gpu_layers" in said
    assert "the weights of" in said
    assert "KV cache of" in said
    assert not (tmp_path / "out").exists()


def test_the_doctor_lists_devices_and_decodes_on_them(gpus):
    done = gpus.having(mb=256).pipeline("doctor")
    assert done.returncode == ExitCode.DONE, done.stdout
    device = "(a GPU for tests, 0.2 of 0.2 GiB free), gpu of Fake"
    assert f"Fake0 {device}; Fake1 {device}" in done.stdout
    assert "proof q8_0 on the GPU decodes" in done.stdout
    assert any(each.graphs for process in gpus.counts() for each in process)


def test_a_backend_without_devices_is_no_gpu(gpus):
    text = f"no GPU: {NO_DRIVER}"
    assert gpus.having(count=0).call(cases.listed) == {"devices": [], "text": text}
    assert f"devices            {text}" in gpus.having(count=0).pipeline("doctor").stdout


def test_a_run_tells_why_no_device_computes(gpus, tmp_path):
    none = gpus.having(count=0)
    assert run(none, tmp_path / "out") == ExitCode.DONE
    assert (tmp_path / "out/run.log").read_text().count(
        f"the CPU computes, as {NO_DRIVER}; if that is meant, model"
    ) == 1
    for name, word in (("zero", "model.gpu_layers=0"), ("no_device", "model.device=none")):
        assert run(none, tmp_path / name, word) == ExitCode.DONE
        assert "finds none" not in (tmp_path / name / "run.log").read_text()
    assert run(gpus.having(count=1, mb=12), tmp_path / "full") == ExitCode.DONE
    assert "the CPU computes, as no layer fits beside Fake0 (" in (tmp_path / "full/run.log").read_text()
    assert run(none, tmp_path / "all", "model.gpu_layers=all") == ExitCode.CONFIG
    assert f"there is no GPU: {NO_DRIVER}; use 0 or auto\n" in (tmp_path / "said.txt").read_text()


def test_a_device_that_does_not_tell_its_memory_has_that_of_the_machine(gpus):
    silent, other = gpus.having(mb="0,512").call(cases.listed)["devices"]
    assert other["total"] == 512 << 20
    assert silent["total"] > 0
    assert silent["free"] > 0
