"""Real servers in the place of a model of this process."""

from __future__ import annotations

from pipeline import Job, run
from tests.operators.endpoint.asking import texts
from tests.operators.endpoint.fault_server import FaultServer
from tests.operators.endpoint.real_server import TINY, llama_cpp_server


def test_a_graph_may_have_a_server_and_a_model_of_this_process(tmp_path):
    job = Job("both", model="endpoint", sampling={"max_tokens": 4})
    job.step("answer", prompt="{{ question }}")
    job.step("verdict", prompt="Right? {{ answer }}", choices=["yes", "no"], model={"path": str(TINY)})
    with FaultServer() as server:
        settings = {"model.url": server.url}
        result = run(job, settings, rows=[{"question": "2 + 3?"}], directory=tmp_path / "out", progress="none")
        assert server.requests == 1
    (row,) = result.rows().collect().to_dicts()
    assert row["answer"].startswith("answer ")
    assert row["verdict"] in ("yes", "no")


def test_two_hundred_greedy_texts_of_a_real_server_are_those_of_the_local_job(tmp_path):
    """llama-cpp-python's server has one slot and no flash attention."""
    settings = {"sampling": "greedy", "progress": "none"}
    with llama_cpp_server(tmp_path / "log") as url:
        there = {"model": "endpoint", "model.url": url}
        theirs = texts(run("quickstart", settings | there, directory=tmp_path / "theirs"))
    ours = texts(run("quickstart", settings | {"runtime.flash_attention": False}, directory=tmp_path / "ours"))
    assert len(ours) == 200
    assert theirs == ours
