# Test the documentation: the site builds without warnings, links lead somewhere, nothing is loaded, and examples
# and commands run.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
mapfile -t tools < <(requirements docs,test numpy cffi pyopencl platformdirs mkdocs-material mkdocstrings ruff nbclient ipykernel \
    pytest pytest-timeout hypothesis ml_dtypes matplotlib threadpoolctl)
# The worked kernel runs on Intel's OpenCL runtime (see ci/intel.sh), because PyPI's PoCL does not support every CPU.
venv "$CI_WORK/docs/venv" "${tools[@]}" intel-opencl-rt intel-cmplr-lib-rt

cd "$SOURCE"
export PATH=$CI_WORK/docs/venv/bin:$PATH PYTHONPATH=$SOURCE # the engine is built in $SOURCE
export NO_MKDOCS_2_WARNING=1                                # suppress the theme's notice about its own future
mkdocs build --quiet --strict --site-dir "$CI_WORK/docs/site"
python ci/check_site.py "$CI_WORK/docs/site"
export OCL_ICD_VENDORS=$CI_WORK/docs/venv/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/docs/venv/lib
python -m pytest -q tests/test_documents.py tests/test_document_commands.py tests/extras/test_zero_copy.py \
    -k "document and not block" --durations=5 | tee "$CI_WORK/docs/tests.log"
! grep -q skipped "$CI_WORK/docs/tests.log" || die "all of them can run here"
