"""The lock file is complete, fits pyproject.toml, and names no place to download from."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.build.build import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = re.findall(r"^([a-z0-9.-]+)==(\S+)", LOCK, re.MULTILINE)


EXTRAS = PROJECT["optional-dependencies"]


def test_every_requirement_is_pinned_within_its_bounds():
    for wanted in map(Requirement, [*PROJECT["dependencies"], *EXTRAS["dev"]]):
        versions = [version for name, version in PINS if name == canonicalize_name(wanted.name)]
        assert versions, f"{wanted.name} is not in requirements.lock: run `make lock`"
        assert all(version in wanted.specifier for version in versions), wanted


def test_every_requirement_has_a_lower_and_an_upper_bound():
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        assert {bound.operator for bound in Requirement(line).specifier} == {">=", "<"}, line


def test_every_pin_has_a_hash():
    entries = re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)
    assert not [entry for entry in entries if "==" in entry and "--hash=sha256:" not in entry]


def test_the_lock_names_no_host_and_no_machine():
    assert not re.search(r"://|--index|--find-links|^#|file:|/", LOCK, re.MULTILINE)
