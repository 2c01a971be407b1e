# The documentation: the site builds without a warning, its links lead somewhere, it loads nothing; what pages show runs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install git gcc ccache libc6-dev python3-dev python3-venv
copy_source "$CI_WORK/docs/source"
mapfile -t tools < <(requirements test pytest pytest-timeout hypothesis ml_dtypes matplotlib)
# The worked kernel runs on Intel's OpenCL runtime (see ci/intel.sh), since PyPI's PoCL does not build for every CPU.
venv "$CI_WORK/docs/venv" -e "$CI_WORK/docs/source[docs]" "${tools[@]}" intel-opencl-rt intel-cmplr-lib-rt

cd "$CI_WORK/docs/source"
export PATH=$CI_WORK/docs/venv/bin:$PATH
export NO_MKDOCS_2_WARNING=1 # the theme's notice of its own future is no warning of ours
mkdocs build --quiet --strict --site-dir "$CI_WORK/docs/site"
python ci/check_site.py "$CI_WORK/docs/site"
export OCL_ICD_VENDORS=$CI_WORK/docs/venv/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/docs/venv/lib
python -m pytest -q tests/test_documents.py tests/test_zero_copy.py -k document --durations=5 | tee "$CI_WORK/docs/tests.log"
! grep -q skipped "$CI_WORK/docs/tests.log" || die "all of them can run here"
