"""A step that does not end is left behind; one that moves is not."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

import pytest

from pipeline.system import deadlines
from pipeline.system.deadlines import Overran, leave_after, within
from pipeline.system.signals import staying


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(deadlines, "POLL_S", 0.001)


def test_what_returns_and_what_raises_is_passed_on():
    assert within(60, "adding", lambda: 1 + 1) == 2
    with pytest.raises(SystemExit):
        within(60, "leaving", lambda: exec("raise SystemExit(7)"))


def test_what_does_not_end_is_left_behind_with_its_stack(caplog):
    end = threading.Event()
    with pytest.raises(Overran, match="waiting has not ended after"):
        within(0.01, "waiting", end.wait)
    end.set()
    assert "thread waiting" in caplog.text


@pytest.mark.parametrize("mine", [True, False])
def test_a_process_is_ended_if_it_is_this_projects_alone(monkeypatch, mine):
    left, done = list[int](), threading.Event()
    monkeypatch.setattr(os, "_exit", left.append)
    with nullcontext() if mine else staying():
        leave_after(0, 4, "leaving", done.set)
        for thread in threading.enumerate():
            if thread.name == "deadline":
                thread.join()
    assert left == ([4] if mine else [])
    assert done.is_set() == mine


def test_what_moves_is_no_hang():
    end, moved = threading.Event(), iter(range(1000))

    def count() -> int:
        if (found := next(moved)) == 300:
            end.set()
        return found

    within(0.2, "uploading", end.wait, count)
    assert end.is_set()
