"""Cores of workers: of one NUMA node each where that is possible."""

from __future__ import annotations

import pytest

from pipeline.system.machine import numa_nodes, own_cores, split_cores

TWO = {core: core % 2 for core in range(8)}
"""Numbered in turn, as some machines do."""


@pytest.mark.parametrize(
    ("cores", "each", "workers", "nodes", "expected"),
    [
        (range(8), 2, 2, {}, [[0, 1], [2, 3]]),
        (range(8), 2, 4, TWO, [[0, 2], [4, 6], [1, 3], [5, 7]]),
        (range(8), 3, 2, TWO, [[0, 2, 4], [1, 3, 5]]),
        (range(7), 3, 2, {core: core // 4 for core in range(8)}, [[0, 1, 2], [4, 5, 6]]),
        (range(6), 3, 2, {core: core // 4 for core in range(8)}, [[0, 1, 2], [3, 4, 5]]),
        ([1, 5, 9], 1, 3, {}, [[1], [5], [9]]),
        (range(3), 2, 2, {}, []),
    ],
)
def test_each_worker_has_cores_of_its_own(cores, each, workers, nodes, expected) -> None:
    assert split_cores(cores, each, workers, nodes) == expected


def test_nodes_are_read_as_linux_writes_them(tmp_path) -> None:
    for node, text in {"node0": "0-2,8\n", "node1": "3\n", "node2": "\n"}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == {0: 0, 1: 0, 2: 0, 8: 0, 3: 1}
    assert numa_nodes(tmp_path / "none") == {}
    assert own_cores()
