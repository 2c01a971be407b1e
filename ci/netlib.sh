# Run Netlib's testers of BLAS level 3, for CBLAS and for Fortran, on libgemm. The testers come from Debian's source
# package "lapack". Every ?gemm must pass the tests of error exits, and the computational tests in both layouts, on each
# instruction set that this CPU has. Libraries with planted faults must fail.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc gfortran ccache libc6-dev libblas-dev python3
work=$CI_WORK/netlib testers=$CI_WORK/netlib/testers
copy_source "$work/source"
mkdir -p "$testers"
cd "$work"

fetch_source() { # PACKAGE: download its original archive by a private list of sources; the machine's list stays
    local mirror apt
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >sources.list
    mkdir -p lists/partial
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$PWD/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$PWD/lists"
        -o APT::Sandbox::User=root)
    retry "${apt[@]}" update
    retry "${apt[@]}" source --download-only "$1"
}

if [[ ! -e $GEMM_CI_CACHE/lapack.tar.gz ]]; then
    fetch_source lapack
    mv lapack_*.orig.tar.gz "$GEMM_CI_CACHE/lapack.tar.gz"
fi
tar -xzf "$GEMM_CI_CACHE/lapack.tar.gz" --strip-components=1 --wildcards '*/BLAS/TESTING' '*/CBLAS/testing' '*/CBLAS/include'

# To link, the testers need every routine of level 3. The reference BLAS provides the routines that libgemm lacks; their
# tests do not run. Its archive is named by its path, because -lblas may be another library where one is installed.
#
# The testers' cblas_xerbla expects, for row-major calls, the argument positions of the reference's Fortran call, and
# converts them if RowMajorStrg is set. libgemm reports the positions of the CBLAS call itself. Therefore RowMajorStrg is
# renamed to a variable that is always 0.
echo 'int never;' >never.c
gcc -w -c never.c -o "$testers/never.o"
gcc -w -O1 -DADD_ -ICBLAS/include -c CBLAS/testing/auxiliary.c -o "$testers/auxiliary.o"
gcc -w -O1 -DADD_ -ICBLAS/include -DRowMajorStrg=never -c CBLAS/testing/c_xerbla.c -o "$testers/c_xerbla.o"
for s in s d c z; do
    for part in c_${s}blas3 c_${s}3chke; do
        gcc -w -O1 -DADD_ -ICBLAS/include -c "CBLAS/testing/$part.c" -o "$testers/$part.o"
    done
    gfortran -w -O1 -c "CBLAS/testing/c_${s}blat3.f" -o "$testers/c_${s}blat3.o"
    gfortran -w -O1 -c "BLAS/TESTING/${s}blat3.f" -o "$testers/${s}blat3.o"
    # The sizes of the original inputs are small. The new sizes include edges of tiles.
    for input in "CBLAS/testing/${s}in3" "BLAS/TESTING/${s}blat3.in"; do
        sed -E '/VALUES OF N$/d; /THRESHOLD/a 9\n0 1 2 3 5 9 17 35 64
            s/ T PUT/ F PUT/; s/^(cblas_.|.)(gemm|GEMM)( +)F/\1\2\3T/' "$input" >"$testers/$(basename "$input")"
    done
done

reference=$(echo /usr/lib/*/blas/libblas.a)
[[ -e $reference ]] || die "there is no archive of the reference BLAS: $reference"

link() { # PREFIX: link the testers with its library, those for CBLAS dynamically, those for Fortran statically
    local s
    for s in s d c z; do
        gfortran "$testers"/{c_${s}blat3,c_${s}blas3,c_${s}3chke,auxiliary,c_xerbla,never}.o \
            -L"$1/lib" -Wl,-rpath,"$1/lib" -lgemm "$reference" -o "$1/c_${s}blat3"
        gfortran "$testers/${s}blat3.o" "$1/lib/libgemm.a" "$reference" -lpthread -o "$1/${s}blat3"
    done
}

passes() { # PREFIX LETTER: whether both testers of a type pass; their output is written to PREFIX/said
    local said=$1/said summary=$1/${2}blat3.out
    rm -f "$said" "$summary"
    (
        cd "$1"
        timeout 60 "./c_${2}blat3" <"$testers/${2}in3"
        timeout 60 "./${2}blat3" <"$testers/${2}blat3.in"
        cat "$summary"
    ) 2>&1 | grep -v 'WAS NOT TESTED\|^ *$' >"$said" || true
    for line in "cblas_${2}gemm  PASSED THE TESTS OF ERROR-EXITS" \
        "cblas_${2}gemm  PASSED THE COLUMN-MAJOR COMPUTATIONAL TESTS ( 59049 CALLS)" \
        "cblas_${2}gemm  PASSED THE ROW-MAJOR    COMPUTATIONAL TESTS ( 59049 CALLS)" \
        "${2^^}GEMM  PASSED THE TESTS OF ERROR-EXITS" "${2^^}GEMM  PASSED THE COMPUTATIONAL TESTS ( 59049 CALLS)"; do
        grep -qxF " $line" "$said" || return 1
    done
}

python3 source/build.py --library "$work/sound"
link "$work/sound"
for isa in scalar:fpu avx2:avx2 avx512:avx512f; do
    grep -qw "${isa#*:}" /proc/cpuinfo || continue
    for s in s d c z; do
        GEMM_CPU_ISA=${isa%:*} passes "$work/sound" $s || {
            cat "$work/sound/said"
            die "${s}gemm by ${isa%:*} does not pass"
        }
        grep PASSED "$work/sound/said" | sed "s/^/${isa%:*}:/"
    done
done

mutant() { # LETTER FILE SED: a library with a fault must not pass the testers of that type
    rm -rf mutant broken
    cp -r source broken
    sed -i "$3" "broken/csrc/cblas/$2"
    ! cmp -s "source/csrc/cblas/$2" "broken/csrc/cblas/$2" || die "nothing was planted by $3"
    python3 broken/build.py --library "$work/mutant"
    link "$work/mutant"
    ! passes "$work/mutant" "$1" || die "${1}gemm passes with a fault: $3"
    grep -q 'FAIL\|NOT DETECTED' "$work/mutant/said" || die "the testers did not come to see the fault: $3"
    say "caught in ${1}gemm: $3"
}
mutant s product.c 's/multiplies(x) ? x->k : 0/multiplies(x) ? x->k - (x->k == 64) : 0/'
mutant d product.c '/return 14;/d'
mutant z product.c 's/-number\[1\]/number[1]/'
