"""AbortFlag: ends calls into llama.cpp from another thread."""

from __future__ import annotations

import ctypes

import llama_cpp

# llama.cpp asks between any two operations of a call whether to go on. A Python function would be asked a thousand
# times a step and need the interpreter each time, beside threads that compute in it. The C library has a function that
# says of a byte whether it is set: strlen, of the text that begins there.
_IS_SET = llama_cpp.ggml_abort_callback(ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value)


class AbortFlag:
    """A flag that contexts watch. A call that it ends fails with code 2."""

    def __init__(self) -> None:
        self._text = (ctypes.c_char * 2)()

    def set(self) -> None:
        """End all running calls and all later ones, until `clear`."""
        self._text[0] = b"!"

    def clear(self) -> None:
        """Let calls run again."""
        self._text[0] = b"\0"

    def watch(self, context: ctypes.c_void_p) -> None:
        """Make the calls of a llama_context end when this is set. Must live as long as the context."""
        llama_cpp.llama_set_abort_callback(context, _IS_SET, ctypes.cast(self._text, ctypes.c_void_p))
