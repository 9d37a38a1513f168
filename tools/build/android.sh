#!/bin/sh
# Set the project up on an Android phone and prove it: `sh tools/build/android.sh` in a checkout, in Termux. No root.
#
# Python of Termux itself will not do: polars has no wheel for Android's C library, and llama-cpp-python loads no
# library there. So proot-distro makes a Debian, whose programs run as they are, and image.sh makes in it what it makes
# for an image: the locked packages for arm64, and llama.cpp compiled for this phone. Then `doctor` decodes, and a short
# job runs. Run it again after an update or a failure: the Debian and what was compiled are kept.
# From the environment: MARCH, instructions as GCC names them; DEBIAN, another Debian 13, also as a file ./NAME.tar.
set -eu
name=llama-batch-pipeline
needed_gb=5

fail() {
    echo "error: $*" >&2
    exit 1
}

case ${PREFIX:-} in
*/com.termux/*) ;;
*) fail "this is not Termux (PREFIX=${PREFIX:-}): on a computer run \`make\`" ;;
esac
[ "$(uname -m)" = aarch64 ] || fail "this is $(uname -m): only aarch64 has the packages that are needed"
checkout=$(cd "$(dirname "$0")/../.." && pwd)
command -v termux-wake-lock >/dev/null && termux-wake-lock # or Android stops the compiler when the screen is off

echo "== proot-distro"
pkg install -y proot-distro || fail "pkg cannot install proot-distro: try \`pkg update\`, then this again"
if ! proot-distro list --quiet | grep -qx "$name"; then
    free_gb=$(df -Pk "$PREFIX" | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free_gb" -ge "$needed_gb" ] || fail "$free_gb GB of storage are free, $needed_gb GB are needed"
    proot-distro install --name "$name" "${DEBIAN:-debian:trixie-slim}" ||
        fail "proot-distro (5 or later is needed) cannot install Debian: see above"
fi
# Without i8mm and SVE, which phones have too: with those the bits were not proven (docs/models.md).
features=" $(grep -m 1 '^Features' /proc/cpuinfo || true) "
march=armv8-a
case $features in *" asimdhp "*) case $features in *" asimddp "*) march=armv8.2-a+dotprod+fp16 ;; esac ;; esac

in_debian() {
    proot-distro login "$name" --bind "$checkout:/checkout" -- "$@"
}

echo "== Debian's Python and compiler"
in_debian sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes \
    --no-install-recommends g++ python3 python3-venv' || fail "apt-get in Debian failed: see above"

echo "== the environment, with llama.cpp for ${MARCH:-$march}"
in_debian rm -rf /opt/pipeline || fail "the former environment cannot be removed"
# Two compilers at a time: Android ends a program that takes the memory.
in_debian env BACKEND=cpu LLAMA_WHEEL_CACHE=/var/cache/pipeline CMAKE_BUILD_PARALLEL_LEVEL=2 \
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=${MARCH:-$march}" \
    sh /checkout/tools/build/image.sh /checkout /opt/pipeline || fail "image.sh in Debian failed: see above"

echo "== job=quickstart"
cat >"$PREFIX/bin/$name" <<END
#!/bin/sh
exec proot-distro login $name --bind "\$PWD:/work" --work-dir /work -- /opt/pipeline/bin/python -m pipeline "\$@"
END
chmod +x "$PREFIX/bin/$name"
mkdir -p "$HOME/$name"
cd "$HOME/$name"
"$PREFIX/bin/$name" job=quickstart data.limit=20 || fail "the job failed: see above"
echo "Ready. \`$name job=...\` runs in any folder, \`$name doctor\` proves llama.cpp again."
