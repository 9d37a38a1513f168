#!/bin/sh
# Make an environment with the pipeline, all its extras of the lock file, and a llama.cpp that takes the best kernels of
# the CPU it runs on: `sh tools/build/image.sh CHECKOUT NEW_FOLDER`. The Dockerfile runs it, and a test does in an empty
# folder. Needs no root; Python 3.11 or later with venv (PYTHON names it), and a compiler that backend=any_cpu takes;
# BACKEND names another one.
set -eu
checkout=$(cd "$1" && pwd)
"${PYTHON:-python3}" -m venv "$2"
folder=$(cd "$2" && pwd)
python=$folder/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

LLAMA_WHEEL_CACHE=${LLAMA_WHEEL_CACHE:-$work/wheels} "$python" "$checkout/tools/build/build.py" --backend "${BACKEND:-any_cpu}"

cd "$checkout"
mkdir -p "$work/source/tests/families"
cp -R LICENSE README.md pyproject.toml requirements.lock pipeline operators tools conf jobs models "$work/source"
cp -R tests/families/encoders "$work/source/tests/families"
cd "$work/source"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" .
# Of the lock file, which has the tools of developers too, what the wheel and its extras need.
extras=structured,json,dedup,datasets,endpoint,hub,ray,remote,s3
sed -n 's/^\([a-z0-9.-]*==[^\\]*\).*/\1/p' requirements.lock >versions
wheel=$(echo "$work"/*.whl)
"$python" -m pip install --quiet --dry-run --report report --constraint versions "$wheel[$extras]"
"$python" - >chosen <<'END'
import json, re
names = {found["metadata"]["name"].lower().replace("_", "-") for found in json.load(open("report"))["install"]}
entries = re.finditer(r"^([a-z0-9.-]+)==.*(?:\n +.*)*\n", open("requirements.lock").read(), re.MULTILINE)
print("".join(entry[0] for entry in entries if entry[1] in names))
END
"$python" -m pip install --quiet --no-deps --require-hashes --requirement chosen
"$python" -m pip install --quiet --no-deps "$wheel"
"$python" -m pip check
cd "$folder" # not where the sources are
"$python" -m pipeline doctor
