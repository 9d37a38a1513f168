"""`python -m tools.bench MODULE:FUNCTION SPEC`: measures a case (a pickled Spec) in this process."""

from __future__ import annotations

import pickle
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import PipelineError
from tools.bench.child import ChildFailed


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a line of JSON; returns 0, or an exit code with the reason on stderr."""
    function, path = arguments
    try:
        print(pkgutil.resolve_name(function)(pickle.loads(Path(path).read_bytes())).to_json())
    except (PipelineError, ChildFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
