# A part of the conformance suite under Oclgrind: data races, uninitialised reads, accesses out of bounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc libc6-dev python3-dev python3-venv oclgrind
conformance_venv
