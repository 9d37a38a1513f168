"""Signals are answered by the innermost block, whenever they came and whatever the main thread does; failpoints send
them."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from pipeline import PROJECT
from pipeline.system.failpoints import Failpoint, Trigger
from pipeline.system.signals import SIGNALS, leave, signals_received, stopped_by_signals

LIMIT_S = 60
"""A process that hangs ends by SIGALRM, and its test is red."""


def refuse() -> None:
    raise AssertionError("this block was not to answer")


def send(*numbers: signal.Signals) -> None:
    """Returns when each has been received."""
    Trigger("here", 1, numbers).reached("here")


def exit_code(do: Callable[[], None]) -> int:
    """How a forked process ends that calls `do`; 9 when it returns or raises."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(LIMIT_S)
            do()
        finally:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("number", SIGNALS)
def test_the_innermost_block_answers_once(number, capfd):
    answers: list[str] = []
    with stopped_by_signals(refuse), stopped_by_signals(lambda: answers.append("inner"), "soon"):
        send(number, signal.SIGTERM)
    assert answers == ["inner"]
    assert capfd.readouterr().err == "\nstopping: soon\n"


def test_the_outer_block_answers_again_when_the_inner_one_is_left():
    answers: list[str] = []
    with stopped_by_signals(lambda: answers.append("outer")):
        with stopped_by_signals(refuse):
            pass
        signal.raise_signal(signal.SIGTERM)
    assert answers == ["outer"]  # for all that came are answered when the last block is left


def test_a_signal_that_came_before_a_block_is_answered_when_it_is_entered():
    answers: list[str] = []
    with stopped_by_signals(lambda: answers.append("outer")):
        send(signal.SIGTERM)
        with stopped_by_signals(lambda: answers.append("inner")):
            pass
    assert answers == ["outer", "inner"]


def test_a_handler_takes_no_lock():
    lock, answered = threading.Lock(), threading.Event()

    def answer() -> None:
        with lock:
            answered.set()

    with stopped_by_signals(answer):
        with lock:
            send(signal.SIGTERM)
            assert not answered.is_set()
        assert answered.wait(LIMIT_S)


def test_an_answer_may_end_the_process():
    def enter() -> None:
        with stopped_by_signals(leave):
            send(signal.SIGTERM)

    assert exit_code(enter) == 4


def hang() -> None:
    """In a call that no signal ends."""
    lock = ctypes.CDLL(None).pthread_mutex_lock
    mutex = ctypes.create_string_buffer(256)
    lock(mutex)
    lock(mutex)


def test_a_second_ctrl_c_ends_a_process_that_hangs():
    def enter() -> None:
        with stopped_by_signals(lambda: None):
            threading.Timer(0.1, send, (signal.SIGTERM, signal.SIGINT)).start()
            hang()

    assert exit_code(enter) == 4


def test_nor_does_a_full_pipe_keep_it():
    def enter() -> None:
        writing = os.pipe()[1]
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, b"x"):
                pass
        os.set_blocking(writing, True)
        os.dup2(writing, 2)
        with stopped_by_signals(lambda: None):
            send(signal.SIGINT, signal.SIGINT)

    assert exit_code(enter) == 4


def test_a_signal_to_a_forked_process_is_not_for_its_parent():
    with stopped_by_signals(refuse):
        assert exit_code(lambda: os.kill(os.getpid(), signal.SIGTERM)) == -signal.SIGTERM
    assert signals_received() == 0


def test_signals_are_counted_anew_in_the_next_outermost_block():
    with stopped_by_signals(lambda: None):
        signal.raise_signal(signal.SIGTERM)
    assert signals_received() == 1
    with stopped_by_signals(refuse):
        assert signals_received() == 0


def test_what_was_there_before_is_there_again():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="left"), stopped_by_signals(refuse):
        raise ValueError("left")
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


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


ENDS = """
import atexit, time
from pipeline.system.deadlines import last_exit
from pipeline.system.signals import leave_on_signals

leave_on_signals()
end = last_exit()
atexit.register(lambda: (print("ends", flush=True), time.sleep(1)))
end(3)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_process_ends_changes_no_code(number):
    with subprocess.Popen([sys.executable, "-c", ENDS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ends\n"
        process.send_signal(number)
        assert process.wait() == 3


KEPT = """
import ctypes, os, signal, threading, time
from pipeline.system.signals import call_with_handlers_kept

def spoil():
    for number in (signal.SIGINT, signal.SIGTERM):
        ctypes.CDLL(None).signal(number, None)
    time.sleep(0.1)

came = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: came.append(number))
other = threading.Thread(target=call_with_handlers_kept, args=(spoil,))
other.start()
other.join()
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
print(came)
"""


def test_a_library_that_sets_handlers_by_c_keeps_none_of_ours_away():
    ended = subprocess.run([sys.executable, "-c", KEPT], stdout=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[2, 15]\n")


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
