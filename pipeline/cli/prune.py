"""`python -m pipeline prune STORE older=30d`: remove what nobody has used for that long from a completion store."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.commands import parser_of, usage_of
from pipeline.monitor.wording import bytes_text
from pipeline.run_dir.store_prune import Pruned, prune
from pipeline.system.terminal import say

SECONDS = {"h": 3600, "d": 86400}
OWN = ("older", "dry_run")


def main(arguments: Sequence[str]) -> ExitCode:
    """Remove the entries, or with dry_run=true only say how many they are."""
    if {"--help", "-h"} & set(arguments):
        parser_of("prune").parse_args(["--help"])
    words = _without_dashes(arguments)
    settings = dict(word.split("=", 1) for word in words if word.startswith(tuple(f"{key}=" for key in OWN)))
    stores = [word for word in words if word.partition("=")[0] not in settings]
    if len(stores) != 1 or stores[0].startswith("-"):
        raise ConfigError(f"prune wants one store; write {usage_of('prune')}")
    older = settings.get("older", "")
    time_of = re.fullmatch(r"([1-9][0-9]{0,5})([hd])", older)
    if time_of is None:
        raise ConfigError(f"older={older} is no time; write older=30d (days) or older=12h (hours)")
    if (dry_run := settings.get("dry_run", "false").lower()) not in ("true", "false"):
        raise ConfigError(f"dry_run={dry_run} cannot work: it is true or false")
    before = int(time.time()) - int(time_of[1]) * SECONDS[time_of[2]]
    store = Path(stores[0]).expanduser()
    say(_lines(store, older, prune(store, before, dry_run=dry_run == "true"), dry_run=dry_run == "true"))
    return ExitCode.DONE


def _without_dashes(arguments: Sequence[str]) -> list[str]:
    """Return `--older 30d`, as other programs have it, as older=30d, and so on."""
    words = [re.sub("^--older=", "older=", word) for word in arguments]
    words = ["dry_run=true" if word == "--dry-run" else word for word in words]
    if "--older" in words[:-1]:
        place = words.index("--older")
        words[place : place + 2] = [f"older={words[place + 1]}"]
    return words


def _lines(store: Path, older: str, pruned: Pruned, *, dry_run: bool) -> list[str]:
    what = f"{pruned.old:,} of {pruned.entries:,} entries ({bytes_text(pruned.old_bytes)})"
    done = "would be removed" if dry_run else "removed"
    lines = [f"{store}: {what} {done}, not used for {older}"]
    if pruned.undated:
        since = "when the next run opens the store"
        if pruned.since is not None:
            since = f"on {datetime.fromtimestamp(pruned.since).astimezone():%Y-%m-%d %H:%M}"
        lines.append(f"  {pruned.undated:,} entries of versions before have no time: they count as used {since}")
    if pruned.in_use:
        lines.append("  another process uses the store: the file keeps its size, and new entries take the room")
    elif pruned.freed_bytes:
        lines.append(f"  {bytes_text(pruned.freed_bytes)} given back")
    return lines
