"""What operators are written against; docs/own_operators.md says what each name is for. Other contracts are in the
modules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api.by_batch import name_row
    from pipeline.api.errors import ConfigError, InputError, SchemaError
    from pipeline.api.forecast import Forecast, Range, Task
    from pipeline.api.identity import Identity
    from pipeline.api.numbers import Number, counted
    from pipeline.api.protocols import Concludes, Forecasts, Inbox, ListInbox, MakesPrompts, MemoryNeed
    from pipeline.api.protocols import Operator, Scope, Sink, Source, Stateful, UsesModel
    from pipeline.api.records import LINEAGE, ROW, Batch, ChunkEnd, Item, Output, Reject, RejectKind, Rejects, Shard
    from pipeline.api.records import add_columns, require_column
    from pipeline.api.runtime import Runtime
    from pipeline.api.secret import Secret

__all__ = ["Concludes", "Forecasts", "MakesPrompts", "Operator", "Sink", "Source", "Stateful", "UsesModel"]
__all__ += ["Inbox", "ListInbox", "MemoryNeed", "Number", "Runtime", "Scope", "Secret", "counted", "name_row"]
__all__ += ["LINEAGE", "ROW", "Batch", "ChunkEnd", "Item", "Output", "Reject", "RejectKind", "Rejects", "Shard"]
__all__ += ["ConfigError", "InputError", "SchemaError", "add_columns", "require_column"]
__all__ += ["Forecast", "Identity", "Range", "Task"]
_MODULES = ("protocols", "records", "numbers", "by_batch", "errors", "forecast", "identity", "runtime", "secret")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing a module beside this one costs nothing more."""
    if name in __all__:
        for module in (import_module(f"{__name__}.{each}") for each in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
