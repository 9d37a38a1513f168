"""What a failpoint is asked to do, and that every one is somewhere in the code."""

from __future__ import annotations

import re
import signal

import pytest

from pipeline import PROJECT
from pipeline.system.failpoints import Failpoint, Trigger
from pipeline.system.signals import signals_received, stopped_by_signals


def test_a_trigger_acts_the_nth_time_and_no_other():
    trigger = Trigger.parse("here:2=TERM")
    with stopped_by_signals(lambda: None):
        counts = []
        for point in ("here", "there", "here", "here"):
            trigger.reached(point)
            counts.append(signals_received())
    assert counts == [0, 0, 1, 1]


def test_it_sends_its_signals_one_after_the_other():
    with stopped_by_signals(lambda: None):
        Trigger("here", 1, (signal.SIGTERM, signal.SIGTERM)).reached("here")
        assert signals_received() == 2


@pytest.mark.parametrize("text", ["", "here:0", "here:x", "here=", "here=term", "a b"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="names no failpoint; write name"):
        Trigger.parse(text)


def test_every_point_is_in_the_code_once():
    sources = [p for folder in ("pipeline", "operators") for p in (PROJECT / folder).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    found = re.findall(r"\bFailpoint\.([A-Z_]+)", text)
    assert sorted(found) == sorted(point.name for point in Failpoint)
