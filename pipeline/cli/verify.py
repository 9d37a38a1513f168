"""`python -m pipeline verify DIR [repair=true]`: whether the results of a run are whole; mends what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.usage import senseless
from pipeline.run.repair import repair
from pipeline.run_dir.integrity import Damage, Findings, Kind, examine, state_damage
from pipeline.run_dir.lock import locked
from pipeline.run_dir.names import COMPLETIONS, is_headless, near_run, parts
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus

USAGE = "write python -m pipeline verify outputs/NAME, and repair=true behind it to mend what is damaged"


def main(arguments: Sequence[str]) -> ExitCode:
    """The command. DONE: all is whole (after a repair: all is whole again). FAILED: something is damaged.

    Raises:
        ConfigError: the directory is no run's, a run works in it, or it cannot be repaired from what is here.
    """
    directory, mend = _parsed(arguments)
    _refuse_others(directory)
    with locked(directory):
        found = _looked_at(directory)
        if not found.damaged:
            return ExitCode.DONE
        if not mend:
            print(f"to make what is damaged again: python -m pipeline verify {directory} repair=true")
            return ExitCode.FAILED
        ended = repair(directory, found)
        print("after the repair:")
        found = _looked_at(directory)
        if ended in (ExitCode.FAILED, ExitCode.INTERRUPTED):
            return ended
        return ExitCode.FAILED if found.damaged else ExitCode.DONE


def _parsed(arguments: Sequence[str]) -> tuple[Path, bool]:
    folders = [a for a in arguments if "=" not in a]
    options = dict(a.partition("=")[::2] for a in arguments if "=" in a)
    repair = options.pop("repair", "false").lower()
    if options or len(folders) != 1 or repair not in ("true", "false"):
        raise senseless("verify", arguments, USAGE)
    return Path(folders[0]), repair == "true"


def _refuse_others(directory: Path) -> None:
    try:
        names = {entry.name for entry in directory.iterdir()}
    except OSError as error:
        remedy = near_run(directory) or f"; {USAGE}"
        raise ConfigError(f"{directory} cannot be read: {error.strerror}{remedy}") from error
    if STATE_FILE not in names and not is_headless(names):
        raise ConfigError(f"{directory} is not a run directory (no {STATE_FILE}); {USAGE}")


def _looked_at(directory: Path) -> Findings:
    """What is there, printed."""
    what = state_damage(directory)
    if what is None:
        with closing(RunState(directory / STATE_FILE)) as state:
            if state.fingerprint is not None or not parts(directory):
                found = examine(directory, state)
                print("\n".join([f"{directory}: {_standing(state)}", *_lines(found)]))
                return found
            what = "is empty, though there are results"
    found = examine(directory, None)
    found.damaged.insert(0, Damage(STATE_FILE, what, Kind.STATE))
    found.remarks.append(f"what is in data/ and rejects/ cannot be checked without {STATE_FILE}")
    if not (directory / COMPLETIONS).exists():
        found.remarks.append(f"there is no {COMPLETIONS}: unless store.path names one, a repair generates all rows")
    print("\n".join([str(directory), *_lines(found)]))
    return found


def _standing(state: RunState) -> str:
    status = "killed, or never begun" if state.status in (RunStatus.RUNNING, RunStatus.NEW) else state.status.value
    return f"{state.job or 'a run'}, {status}, {state.committed_chunks:,} chunks, {state.committed_rows:,} rows"


def _lines(found: Findings) -> list[str]:
    lines = [f"  whole    {what}" for what in found.whole]
    for damage in found.damaged:
        lines += [f"  damaged  {damage.path} {damage.what}", f"           repair=true: {damage.kind.value}"]
    lines += [f"  remark   {what}" for what in found.remarks]
    return [*lines, f"{len(found.damaged)} damaged" if found.damaged else "all is whole"]
