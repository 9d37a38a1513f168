"""Signals are answered by the innermost block, whenever they came."""

from __future__ import annotations

import signal
import threading

import pytest

from pipeline.stopping import SIGNALS, signals_received, stopped_by_signals


def refuse() -> None:
    raise AssertionError("this block was not to answer")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_innermost_block_answers_once(number, capfd):
    answers: list[str] = []
    with stopped_by_signals(refuse), stopped_by_signals(lambda: answers.append("inner"), "soon"):
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert answers == ["inner"]
    assert capfd.readouterr().err == "\nstopping: soon\n"


def test_the_outer_block_answers_again_when_the_inner_one_is_left():
    answers: list[str] = []
    with stopped_by_signals(lambda: answers.append("outer")):
        with stopped_by_signals(refuse):
            pass
        signal.raise_signal(signal.SIGTERM)
    assert answers == ["outer"]


def test_a_signal_that_came_before_a_block_is_answered_when_it_is_entered():
    answers: list[str] = []
    with stopped_by_signals(lambda: answers.append("outer")):
        signal.raise_signal(signal.SIGTERM)
        with stopped_by_signals(lambda: answers.append("inner")):
            assert answers == ["outer", "inner"]


def test_an_answer_may_raise_out_of_the_block():
    def leave() -> None:
        raise KeyboardInterrupt

    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyboardInterrupt), stopped_by_signals(leave):
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_signals_are_counted_anew_in_the_next_outermost_block():
    with stopped_by_signals(lambda: None):
        signal.raise_signal(signal.SIGTERM)
    assert signals_received() == 1
    with stopped_by_signals(refuse):
        assert signals_received() == 0


def test_outside_the_main_thread_nothing_changes():
    before = [signal.getsignal(number) for number in SIGNALS]
    seen = []

    def enter() -> None:
        with stopped_by_signals(refuse):
            seen.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
