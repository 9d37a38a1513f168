"""`python -m pipeline verify DIR [repair=true]`: check the files of a run, and restore damaged ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.commands import parser_of, usage_of
from pipeline.run_dir.integrity import Damage, DamageKind, Findings, examine, named_store, state_damage
from pipeline.run_dir.lock import locked
from pipeline.run_dir.names import COMPLETIONS, GATHERED, MANIFEST, SET_ASIDE, is_headless, near_run, parts
from pipeline.run_dir.replacing import put_back
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus
from pipeline.runs.repair import repair
from pipeline.system.terminal import say


def main(arguments: Sequence[str]) -> ExitCode:
    """Examine a run, and repair it with repair=true. Returns DONE if no file is damaged, else FAILED."""
    parser = parser_of("verify")
    parser.add_argument("directory", type=Path, metavar="outputs/NAME", help="directory of a run")
    repairs = ("repair=true", "repair=false")
    about = "make what is damaged again"
    parser.add_argument("repair", nargs="?", type=str.lower, choices=repairs, metavar="repair=true", help=about)
    options = parser.parse_args(sorted(arguments, key=lambda word: "=" in word))  # either may come first
    directory = options.directory
    _refuse_others(directory)
    with locked(directory):
        put_back(directory)
        findings = _print_findings(directory)
        if not findings.damaged:
            return ExitCode.DONE
        if options.repair != "repair=true":
            say([f"to make what is damaged again: python -m pipeline verify {directory} repair=true"])
            return ExitCode.FAILED
        ended = repair(directory, findings)
        say(["after the repair:"])
        findings = _print_findings(directory)
        if ended in (ExitCode.FAILED, ExitCode.INTERRUPTED):
            return ended
        return ExitCode.FAILED if findings.damaged else ExitCode.DONE


def _refuse_others(directory: Path) -> None:
    try:
        names = {entry.name for entry in directory.iterdir()}
    except OSError as error:
        remedy = near_run(directory) or f"; write {usage_of('verify')}"
        raise ConfigError(f"{directory} cannot be read: {error.strerror}{remedy}") from error
    if not names & {STATE_FILE, GATHERED, SET_ASIDE} and not is_headless(names):
        raise ConfigError(f"{directory} is not a run directory (no {STATE_FILE}); write {usage_of('verify')}")


def _print_findings(directory: Path) -> Findings:
    damage = state_damage(directory)
    if damage is None:
        with closing(RunState(directory / STATE_FILE)) as state:
            if state.fingerprint is not None or not (parts(directory) or (directory / MANIFEST).exists()):
                findings = examine(directory, state)
                if not state.sealed:
                    findings.remarks.append(
                        f"the values in {STATE_FILE} have no digest yet, so only its structure is checked"
                    )
                say([f"{directory}: {_state_text(state)}", *_lines(findings)])
                return findings
            damage = "is empty, though there are results"
    findings = examine(directory, None)
    findings.damaged.insert(0, Damage(STATE_FILE, damage, DamageKind.STATE))
    findings.remarks.append(f"what is in data/ and rejects/ cannot be checked without {STATE_FILE}")
    another = named_store(directory, None)
    if not (directory / COMPLETIONS).exists() and not (another and another.is_file()):
        findings.remarks.append(f"there is no {COMPLETIONS}, so a repair generates all rows")
    say([str(directory), *_lines(findings)])
    return findings


def _state_text(state: RunState) -> str:
    status = "killed, or never begun" if state.status in (RunStatus.RUNNING, RunStatus.NEW) else state.status.value
    return f"{state.job or 'a run'}, {status}, {state.committed_chunks:,} chunks, {state.committed_rows:,} rows"


def _lines(findings: Findings) -> list[str]:
    lines = [f"  whole    {text}" for text in findings.whole]
    for damage in findings.damaged:
        lines += [f"  damaged  {damage.path} {damage.what}", f"           repair=true: {damage.kind.value}"]
    lines += [f"  remark   {text}" for text in findings.remarks]
    return [*lines, f"{len(findings.damaged)} damaged" if findings.damaged else "all is whole"]
