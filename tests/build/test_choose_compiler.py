"""Which compiler is taken on which machine, and what makes a cached wheel another wheel."""

from dataclasses import replace

import pytest

from operators.llama.build import BuildError, build_env, locked_version, progress, wheel_key
from operators.llama.compilers import AMX_OFF, Amx, Candidate, Host, NoCompilerError, choose

AMX_CPU = Host("Linux", "x86_64", frozenset({"avx512f", "amx_tile", "amx_int8"}))
OLD_CPU = Host("Linux", "x86_64", frozenset({"avx2"}))
ARM = Host("Linux", "aarch64", frozenset({"asimd"}))
MAC_ARM = Host("Darwin", "arm64", frozenset())
MAC_INTEL = Host("Darwin", "x86_64", frozenset())

CLANG = Candidate("clang-16", "clang++-16", "clang", "16.0.6", openmp=True, amx=Amx.SOUND)
CLANG_BARE = replace(CLANG, openmp=False)
GCC_OLD = Candidate("gcc-10", "g++-10", "gcc", "10.2.0", openmp=True, amx=Amx.ABSENT)
GCC_BROKEN = Candidate("gcc", "g++", "gcc", "12.2.0", openmp=True, amx=Amx.BROKEN)
GCC_SOUND = Candidate("gcc-14", "g++-14", "gcc", "14.2.0", openmp=True, amx=Amx.SOUND)


@pytest.mark.parametrize(
    ("candidates", "best", "flags"),
    [
        ([GCC_BROKEN, GCC_SOUND, CLANG], CLANG, ()),
        ([CLANG_BARE, GCC_BROKEN, GCC_SOUND], GCC_SOUND, ()),
        ([GCC_OLD, GCC_SOUND], GCC_SOUND, ()),
        ([CLANG_BARE, GCC_BROKEN], GCC_BROKEN, AMX_OFF),
        ([replace(CLANG, amx=Amx.BROKEN), GCC_SOUND], GCC_SOUND, ()),
        ([GCC_OLD], GCC_OLD, ()),
        ([CLANG_BARE], CLANG_BARE, ()),
        ([replace(GCC_BROKEN, from_user=True), CLANG], replace(GCC_BROKEN, from_user=True), AMX_OFF),
    ],
)
@pytest.mark.parametrize("host", [AMX_CPU, OLD_CPU])
def test_linux_on_x86(host, candidates, best, flags):
    choice = choose(host, candidates)
    assert (choice.candidate, choice.flags) == (best, flags)


@pytest.mark.parametrize("host", [ARM, MAC_ARM, MAC_INTEL])
@pytest.mark.parametrize("candidate", [CLANG, CLANG_BARE, GCC_BROKEN, GCC_OLD, GCC_SOUND])
def test_no_other_machine_is_given_x86_flags(host, candidate):
    env = build_env(choose(host, [candidate]), {})
    assert not any("amx" in value for value in env.values())


def test_of_equals_the_first_wins():
    newer = replace(CLANG, version="19.1.7")
    assert choose(AMX_CPU, [CLANG, newer]).candidate == CLANG


def test_the_line_says_what_would_be_faster_only_where_it_would():
    assert "libomp-16-dev" in choose(AMX_CPU, [CLANG_BARE, GCC_BROKEN]).faster
    assert "clang" in choose(AMX_CPU, [GCC_BROKEN]).faster
    assert choose(OLD_CPU, [GCC_BROKEN]).faster == ""
    assert choose(AMX_CPU, [CLANG]).faster == ""
    assert choose(MAC_ARM, [CLANG_BARE]).faster == ""
    assert "\n" not in str(choose(AMX_CPU, [GCC_BROKEN]))


@pytest.mark.parametrize(("host", "remedy"), [(AMX_CPU, "apt-get install"), (MAC_ARM, "xcode-select --install")])
def test_no_compiler_names_the_remedy(host, remedy):
    with pytest.raises(NoCompilerError, match=remedy):
        choose(host, [])


def test_the_users_flags_stay_and_ours_come_last():
    user = {"CMAKE_ARGS": "-DGGML_CUDA=on", "CFLAGS": "-O1", "SOURCE_DATE_EPOCH": "0", "HOME": "h"}
    env = build_env(choose(AMX_CPU, [GCC_BROKEN]), user)
    assert env["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF -DGGML_CUDA=on"
    assert env["CFLAGS"] == "-O1 " + " ".join(AMX_OFF)
    assert env["CXXFLAGS"] == " ".join(AMX_OFF)
    assert (env["CC"], env["CXX"], env["HOME"]) == ("gcc", "g++", "h")
    assert "SOURCE_DATE_EPOCH" not in env  # ggml would leave out the features of this CPU


def key(version="0.3.36", tag="cp311", host=AMX_CPU, candidate=CLANG, **user):
    choice = choose(host, [candidate])
    return wheel_key(version, tag, host, choice, build_env(choice, user))


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.3.37"},
        {"tag": "cp312"},
        {"host": replace(AMX_CPU, cpu_flags=AMX_CPU.cpu_flags | {"avx512_fp16"})},
        {"host": replace(AMX_CPU, machine="aarch64")},
        {"candidate": GCC_SOUND},
        {"candidate": replace(CLANG, version="16.0.7")},
        {"candidate": CLANG_BARE},
        {"CMAKE_ARGS": "-DGGML_CUDA=on"},
        {"CXXFLAGS": "-O1"},
    ],
)
def test_another_build_has_another_key(change):
    assert key(**change) != key()


def test_the_same_build_has_the_same_readable_key():
    assert key() == key()
    assert key().startswith("llama-cpp-python-0.3.36-cp311-linux-x86_64-clang16.0.6-")


def test_progress_is_the_last_step_of_ninja():
    assert progress("Collecting x\n") == "downloading and configuring"
    assert progress("  [1/140] cc a.c\n  [2/140] cc b.c\n") == "step 2 of 140"


def test_a_lock_without_llama_cpp_python_is_an_error(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==2.4.6\n")
    with pytest.raises(BuildError, match="make lock"):
        locked_version(lock)


def test_the_locked_entry_keeps_its_hashes(tmp_path):
    lock = tmp_path / "requirements.lock"
    entry = "llama-cpp-python==0.3.36 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    lock.write_text(f"jinja2==3.1.6\n{entry}    # via us\nnumpy==2.4.6\n")
    assert locked_version(lock).version == "0.3.36"
    assert locked_version(lock).requirement == entry
