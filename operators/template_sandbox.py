"""Jinja's sandbox, in which work is paid for and nothing huge is made in one step."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from operators.template_work import MAX_ITEMS, MAX_NUMBER_BITS, METHODS, SHORT, Work, formatted

MAX_EXPONENT = 64
MAX_WIDTH_DIGITS = 3
UNSAFE_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format_map", "translate", "maketrans", "encode"}
)
"""Of a text: they pad to any width, repeat without bound, or lead to bytes, which have all of these too."""
SCOPES = ("_loop_vars", "_block_vars")
"""Keywords that Jinja adds to a call, for functions that ask for their context."""
METHOD_TYPES = (types.MethodType, types.BuiltinMethodType)
NUMBERS = (bytes, int, float)
"""Whose methods make bytes of any length."""


class Silent(Namespace):
    """A namespace that does not print what is in it, which may be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


OURS = (LoopContext, Silent)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which all work is paid for and nothing huge is made in one step.

    `work` is the budget of the rendering that is under way, `call_price` what a call of a macro costs of it.
    `keys_first`: `struct.items` is the field of that name where there is one, and not the method of a dict.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, max_steps: int, *, keys_first: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._keys_first = keys_first
        self.work = Work(max_steps)
        self.call_price = 1

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`."""
        if self._keys_first and isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call(  # the names keep a template's keywords apart from ours
        __self,  # noqa: N805
        __context: jinja2.runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a macro, a function or a method: what it looks at and what it makes is paid for."""
        work = __self.work
        owner = getattr(__obj, "__self__", None)
        if owner.__class__ is str:
            given = {k: v for k, v in kwargs.items() if k not in SCOPES} if kwargs else kwargs
            return __self._call_text(owner, __obj, args, given)
        work.pay(__self.call_price)
        for value in (owner, *args, *(v for k, v in kwargs.items() if k not in SCOPES)):
            work.made(value)
        if isinstance(__obj, LoopContext) and args:
            args = (work.counted(args[0], __self.call_price), *args[1:])
        return work.result(super().call(__context, __obj, *args, **kwargs))

    def _call_text(self, text: str, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a text; `is_safe_attribute` has left those that cost no more than the text is long, and these."""
        work, name = self.work, method.__name__
        work.pay(1 if len(text) <= SHORT else len(text) >> (1 if "split" in name else 4))
        if (rule := METHODS.get(name)) is not None:
            args = tuple(list(v) if isinstance(v, Iterator) else v for v in args)  # what is joined must have a length
            rule(work, text, *args, **kwargs)
            return work.result(method(*args, **kwargs))
        return method(*args, **kwargs)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `%` up to a size."""
        if operator == "*":
            self._check_product(left, right)
        if operator == "**" and (abs(left) > MAX_ITEMS or abs(right) > MAX_EXPONENT):
            raise SecurityError("a power of numbers this large")
        if operator == "%" and isinstance(left, str):
            return self.work.made(self.format(left, *(right if isinstance(right, tuple) else (right,))))
        return self.work.made(super().call_binop(context, operator, left, right))

    def _check_product(self, left: Any, right: Any) -> None:
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                if len(value) * count > MAX_ITEMS:
                    raise SecurityError(f"repeats to more than {MAX_ITEMS} items")
                self.work.bound(self.work.weight(value) * count)
        if isinstance(left, int) and isinstance(right, int) and _bits(left) + _bits(right) > MAX_NUMBER_BITS:
            raise SecurityError(f"a product of more than {MAX_NUMBER_BITS} bits")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and no methods that make much out of little."""
        if obj.__class__ in OURS:  # what Jinja looks for is not there
            return not attr.startswith("_")
        if attr in UNSAFE_METHODS and isinstance(obj, str):
            return False
        return super().is_safe_attribute(obj, attr, value) and (not isinstance(obj, NUMBERS) or attr == "decode")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's sandboxed `str.format`, for fields without a width."""
        if value.__class__ not in METHOD_TYPES:
            return None
        wrapped: Callable[..., str] | None = super().wrap_str_format(value)
        if wrapped is None:
            return None
        form = str(value.__self__)
        if re.search(r"\{[^{}]*:", form):
            raise SecurityError("format with a ':' in a field; use ~ to join strings")
        work = self.work

        @functools.wraps(wrapped)
        def bounded(*args: Any, **kwargs: Any) -> str:
            formatted(work, form, form.count("{"), (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return bounded

    def format(self, form: str, *values: Any) -> str:
        """`form % values` with fields of at most 999 characters."""
        if re.search(rf"%[^a-zA-Z%]*(\*|\d{{{MAX_WIDTH_DIGITS + 1}}})", form):
            raise SecurityError(f"a field wider than {MAX_WIDTH_DIGITS} digits say")
        formatted(self.work, form, form.count("%"), values)
        return form % (values[0] if len(values) == 1 and isinstance(values[0], dict) else values)


def _bits(number: int) -> int:
    return int(number).bit_length()
