"""`python -m pipeline build`: build llama-cpp-python for this machine into this environment, and prove it."""

import argparse
import os
import sys
from collections.abc import Sequence

from pipeline.api.errors import ConfigError
from tools.build import doctor
from tools.build.backends import BACKENDS
from tools.build.build import exit_code, run

USAGE = f"python -m pipeline build [backend={'|'.join(BACKENDS)}] [rebuild=true] [dry_run=true]"
SWITCHES = ("rebuild", "dry_run")


def main(arguments: Sequence[str]) -> int:
    """Build, install, and let `doctor` decode with the result. Returns 0 if all went well, else 1."""
    parser = argparse.ArgumentParser("python -m pipeline build", description="build llama.cpp and prove it")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help=f"backend: {', '.join(BACKENDS)}; " + _HELP)
    settings = _read(parser.parse_args(arguments).settings)
    switches = argparse.Namespace(**{name: settings[name] == "true" for name in SWITCHES})
    code = exit_code(lambda: run(switches, os.environ, settings["backend"]))
    if code or switches.dry_run:
        return code
    sys.stdout.flush()  # what the children say comes after
    return doctor.main([])


_HELP = "rebuild=true compiles anew even if a wheel is kept; dry_run=true only says which compiler and which wheel"


def _read(words: Sequence[str]) -> dict[str, str]:
    settings = {"backend": "cpu", **dict.fromkeys(SWITCHES, "false")}
    for word in words:
        key, _, value = word.partition("=")
        if key not in settings or (key in SWITCHES and value not in ("true", "false")):
            raise ConfigError(f"'{word}' is no setting of build; write {USAGE}")
        settings[key] = value
    if settings["backend"] not in BACKENDS:
        raise ConfigError(f"backend={settings['backend']}: there is none of this name; there are {', '.join(BACKENDS)}")
    return settings
