#!/usr/bin/env bash
# Run a command on an emulated 64-bit Arm machine:  [QEMU_CPU=cortex-a53] ci/aarch64.sh FOLDER COMMAND...
#
# The command sees FOLDER as /src, its working directory. The machine is a Debian root with two architectures. The shell
# and the cross compiler are x86-64 and run natively. Python, its packages and the compiler's output are arm64 and run
# in QEMU. A binfmt_misc in a private user and mount namespace starts QEMU, so that nothing remains on the host.
#
# G_SLICE selects malloc because a fork of an emulated process with threads can hang. QEMU before 8.0 allocates its
# trees from glib's slices, and another thread may hold the lock of the slices during the fork
# (https://gitlab.com/qemu-project/qemu/-/issues/285). malloc survives forks. NumPy's OpenBLAS gets one thread, because
# waiting threads use a CPU, and it computes only the expected results.
#
# A CPU with SME (QEMU_CPU=max,sme512=on) runs in the QEMU 10 of Debian's backports, because 7.2 computes outer products of
# integers (smopa) wrongly. Other CPUs run in 7.2, which takes less time.
#
# ccache stands before the cross compiler, with the cache of the other jobs.
#
# The root is made once, in a minute, under $GEMM_CI_CACHE. Its name has a hash of this script and of the packages, so
# that a change of either makes a new root.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
folder=$(cd "$1" && pwd)
shift

packages=python3:arm64,libpython3.11-dev:arm64,libc6-dev:arm64,libstdc++6:arm64 # NumPy's wheel needs libstdc++6
packages+=,musl:arm64,gcc-aarch64-linux-gnu,ccache,qemu-user-static,bash,dash,coreutils
mapfile -t wheels < <({
    requirements - | grep -v '^pyopencl'
    requirements test pytest pytest-timeout hypothesis ml_dtypes
    printf '%s\n' setuptools pip
} | sort)
root=$GEMM_CI_CACHE/aarch64-$(cat "${BASH_SOURCE[0]}" - <<<"${wheels[*]}" | sha256sum | cut -c1-12)

make_root() { # FOLDER
    local site=$1/usr/local/lib/python3.11/dist-packages mirror
    apt_install mmdebstrap
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    # The variant "extract" unpacks packages without running maintainer scripts, so it needs no emulation.
    retry mmdebstrap --quiet --variant=extract --architectures=amd64,arm64 --include="$packages" \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --dpkgopt='path-exclude=/usr/share/'{doc,man,locale}'/*' bookworm "$1" ${mirror:+"$mirror"}
    mkdir -p "$1"/{proc,sys,dev,tmp,src,etc,ccache,usr/local/bin}
    ln -s /usr/bin/ccache "$1/usr/local/bin/aarch64-linux-gnu-gcc"
    echo 'root:x:0:0:root:/tmp:/bin/bash' >"$1/etc/passwd"
    retry uv pip install -q --target "$site" --only-binary :all: --python-version 3.11 --python-platform aarch64-manylinux_2_36 \
        "${wheels[@]}"
    newer_qemu "$1" "${mirror:-http://deb.debian.org/debian}"
    # Native Python of the same minor version compiles the bytecode once, instead of emulated Python at every start.
    python3 -m compileall -q -s "$1" "$1/usr/lib/python3.11" "$site" >/dev/null || true
}

newer_qemu() { # ROOT MIRROR: put the QEMU of bookworm-backports at ROOT/usr/bin/qemu-aarch64
    local apt=$1/tmp/apt
    mkdir -p "$apt"/{state/lists/partial,cache/archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $2 bookworm-backports main" >"$apt/sources"
    printf '%s;\n' "Dir::State \"$apt/state\"" "Dir::Cache \"$apt/cache\"" "Dir::Etc::SourceList \"$apt/sources\"" \
        'Dir::Etc::SourceParts "-"' 'Dir::State::Status "/dev/null"' 'APT::Sandbox::User "root"' >"$apt/conf"
    (
        cd "$apt"
        export APT_CONFIG=$apt/conf
        retry apt-get update -qq
        retry apt-get download -qq qemu-user
        dpkg-deb --fsys-tarfile qemu-user_*.deb | tar -xf - -C "$1" ./usr/bin/qemu-aarch64
    )
    rm -r "$apt"
}

if [[ ! -e $root ]]; then
    say "making $root"
    find "$GEMM_CI_CACHE" -maxdepth 1 -name 'aarch64-*' -mtime +30 -exec rm -rf {} +
    new=$(mktemp -d -p "$GEMM_CI_CACHE" new-XXXXXX)
    trap 'rm -rf "$new"' EXIT
    make_root "$new/root"
    mv -T "$new/root" "$root" 2>/dev/null || [[ -e $root ]] # another run may have made the root meanwhile
    rm -rf "$new"
    trap - EXIT
fi
touch "$root"
mkdir -p "$CCACHE_DIR"

# Kernels before 6.7 share one binfmt_misc among all namespaces. On these, the entry applies to the whole machine until
# the command ends.
namespaces=(--user --map-root-user --mount)
modprobe binfmt_misc 2>/dev/null || true
unshare "${namespaces[@]}" mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null || namespaces=(--mount)

export root folder QEMU_CPU=${QEMU_CPU:-cortex-a53} qemu=qemu-aarch64-static
[[ $QEMU_CPU != *,sme* ]] || qemu=qemu-aarch64
unshare "${namespaces[@]}" bash -euc '
    table=/proc/sys/fs/binfmt_misc entry=gemm-ci-$$
    mount -t binfmt_misc none $table
    magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    printf %s ":$entry:M::$magic:$mask:$root/usr/bin/$qemu:F" >$table/register
    trap "echo -1 >$table/$entry" EXIT
    for part in proc sys dev; do mount --rbind /$part "$root/$part"; done
    mount -t tmpfs none "$root/tmp"
    mount --bind "$folder" "$root/src"
    mount --bind "$CCACHE_DIR" "$root/ccache"
    env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 CI=true OPENBLAS_NUM_THREADS=1 G_SLICE=always-malloc \
        QEMU_CPU="$QEMU_CPU" CCACHE_DIR=/ccache CCACHE_MAXSIZE="$CCACHE_MAXSIZE" \
        /usr/sbin/chroot "$root" bash -c "cd /src && exec \"\$@\"" bash "$@"
' bash "$@"
