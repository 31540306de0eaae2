# Sourced by the scripts beside it. Makes .venv hold exactly what one lock in requirements/ names, once.

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# prepare_environment base|serve|test: returns with .venv ready, and touches no network where it was ready already.
prepare_environment() {
    local lock=$1
    is_prepared "$lock" && return
    mkdir -p .cache
    # Two starts at once: the second waits, then finds everything done.
    exec 9>.cache/setup.lock
    flock 9
    is_prepared "$lock" || install_lock "$lock"
    exec 9>&-
}

# A stamp is only written after a whole installation, and names everything that the installation depends on.
stamp_text() {
    printf '%s python%s %s\n' "$(lock_text "$1" | sha256sum | cut -d' ' -f1)" "$(venv_version)" "$PWD"
}

lock_text() {
    cat "requirements/$1.txt"
    [ "$1" != test ] || cat requirements/torch.txt
}

venv_version() {
    .venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

is_prepared() {
    [ ! -e .venv/.installing ] && [ "$(cat ".venv/.installed-$1" 2>/dev/null)" = "$(stamp_text "$1")" ]
}

install_lock() {
    local lock=$1 quiet=--quiet
    make_venv
    touch .venv/.installing
    rm -f .venv/.installed-*
    [ -t 2 ] && quiet=
    echo "Installing $(grep -c '==' "requirements/$lock.txt") packages into .venv (about 1 GB the first time)" >&2
    # shellcheck disable=SC2086
    .venv/bin/python -m pip install $quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        --require-hashes --requirement "requirements/$lock.txt" >&2 ||
        fail "The packages of requirements/$lock.txt could not be installed (see above). They come from PyPI or the mirror that PIP_INDEX_URL names, and take about 1 GB of disk. Start again to go on."
    [ "$lock" != test ] || install_torch $quiet
    # Our own package runs from this folder.
    echo "$PWD" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/oasr_backend.pth"
    mark_prepared "$lock"
    rm .venv/.installing
}

# The tests of the export need it. Where neither PyTorch's index nor pip's configuration has the CPU's build, the
# registry's does as well: it is the same version with CUDA, 3 GB more.
install_torch() {
    local pip=(.venv/bin/python -m pip install "$@" --disable-pip-version-check --no-input --only-binary :all:)
    "${pip[@]}" --retries 1 --no-deps --requirement requirements/torch.txt >&2 ||
        "${pip[@]}" "$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' requirements/torch.txt)" >&2 ||
        fail "torch could not be installed (see above). It comes from https://download.pytorch.org/whl/cpu, or with 3 GB of CUDA from PyPI or the mirror that PIP_INDEX_URL names. Start again to go on."
}

# What test.txt holds, serve.txt and base.txt hold in part.
mark_prepared() {
    case $1 in
        test) stamp_text test >.venv/.installed-test && mark_prepared serve ;;
        serve) stamp_text serve >.venv/.installed-serve && mark_prepared base ;;
        base) stamp_text base >.venv/.installed-base ;;
    esac
}

make_venv() {
    local python
    if [ -e .venv/.installing ]; then
        echo "The last installation was interrupted: .venv is made anew" >&2
        rm -rf .venv
    elif [ -e .venv ] && ! is_supported .venv/bin/python; then
        echo "The Python of .venv is gone or not supported: .venv is made anew" >&2
        rm -rf .venv
    fi
    [ -e .venv ] && return
    python=$(find_python) || exit 1
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module. Run: sudo apt-get install $(basename "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')")-venv"
    mkdir .venv
    touch .venv/.installing
    "$python" -m venv .venv || fail "$python could not make .venv (see above)."
}

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null
}

# PYTHON where it is set, else the first python3 that the pinned packages support.
find_python() {
    local name
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON names $PYTHON, which is not on PATH."
        is_supported "$PYTHON" || fail "$PYTHON is $("$PYTHON" --version 2>&1): Python 3.11 or 3.12 is needed, for which all pinned packages have wheels."
        echo "$PYTHON" && return
    fi
    for name in python3 python3.12 python3.11; do
        if command -v "$name" >/dev/null && is_supported "$name"; then
            echo "$name" && return
        fi
    done
    command -v python3 >/dev/null || fail "python3 is not on PATH. Run: sudo apt-get install python3 python3-venv"
    fail "python3 is $(python3 --version 2>&1): Python 3.11 or 3.12 is needed, for which all pinned packages have wheels. Install one and name it: PYTHON=python3.12 $0"
}
