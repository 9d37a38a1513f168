"""`python -m tools.bench MODULE:FUNCTION SPEC`: runs one case in a process of its own, prints its figures."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import PipelineError
from tools.bench.child import ChildFailed
from tools.bench.spec import Spec


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a line of JSON; returns 0, or an exit code with the reason on stderr."""
    function, path = arguments
    try:
        print(pkgutil.resolve_name(function)(Spec.load(Path(path))).to_json())
    except (PipelineError, ChildFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
