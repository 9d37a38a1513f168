"""A Ray cluster on this machine, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def ray_nodes() -> Iterator[Any]:
    """A cluster to which nodes can be added, and a connection to it; its processes are children of this one."""
    ray: Any = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = signal.getsignal(signal.SIGTERM)
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 8}
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    signal.signal(signal.SIGTERM, before)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
