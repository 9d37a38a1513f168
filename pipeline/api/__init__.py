"""The names that operators are written against; docs/own_operators.md says what each is for. Other contracts are in the
modules."""

from typing import TYPE_CHECKING

from pipeline import public_names

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
else:  # a type checker would take any name for one of these
    __getattr__, __dir__ = public_names(
        __name__,
        {
            "pipeline.api.by_batch": "name_row",
            "pipeline.api.errors": "ConfigError InputError SchemaError",
            "pipeline.api.forecast": "Forecast Range Task",
            "pipeline.api.identity": "Identity",
            "pipeline.api.numbers": "Number counted",
            "pipeline.api.protocols": "Concludes Forecasts Inbox ListInbox MakesPrompts MemoryNeed Operator Scope Sink"
            " Source Stateful UsesModel",
            "pipeline.api.records": "LINEAGE ROW Batch ChunkEnd Item Output Reject RejectKind Rejects Shard add_columns"
            " require_column",
            "pipeline.api.runtime": "Runtime",
            "pipeline.api.secret": "Secret",
        },
    )

__all__ = ["Concludes", "Forecasts", "MakesPrompts", "Operator", "Sink", "Source", "Stateful", "UsesModel"]
__all__ += ["Inbox", "ListInbox", "MemoryNeed", "Number", "Runtime", "Scope", "Secret", "counted", "name_row"]
__all__ += ["LINEAGE", "ROW", "Batch", "ChunkEnd", "Item", "Output", "Reject", "RejectKind", "Rejects", "Shard"]
__all__ += ["ConfigError", "InputError", "SchemaError", "add_columns", "require_column"]
__all__ += ["Forecast", "Identity", "Range", "Task"]
