#!/usr/bin/env bash
# make gpu-check: what works on this machine's GPU and which sizes fit, as one page to send back.
#
#   bash scripts/gpu_check.sh [arguments of bench.gpu_check]     WHEELS=FOLDER
#
# Without .venv it installs requirements-gpu.txt first, with WHEELS from that folder alone: nothing is fetched. A folder
# of wheels is made on a machine with a network and the same Python:
#   python3.11 -m pip download --no-deps -r requirements-gpu.txt -d FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python

die() {
    echo "error: $*" >&2
    exit 2
}

if [[ ! -x .venv/bin/agentgrpo ]]; then # what is installed last
    # before some gigabytes are installed
    nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || die "nvidia-smi finds no GPU here; run this on a machine with one"
    from=()
    if [[ -n ${WHEELS:-} ]]; then
        [[ -d $WHEELS ]] || die "WHEELS=$WHEELS: no such folder"
        from=(--no-index --find-links "$WHEELS")
    fi
    python3.11 -m venv .venv ||
        die "no Python 3.11 with venv; install it (Debian: apt-get install python3.11 python3.11-venv)"
    # --no-deps: agentops caps `packaging` in its metadata only (doc/start/install.md)
    "$python" -m pip install --quiet --no-deps "${from[@]}" -r requirements-gpu.txt
    "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
fi
exec "$python" -m bench.gpu_check "$@"
