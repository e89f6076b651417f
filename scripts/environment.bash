# Sourced by the scripts beside it: `prepare_environment EXTRAS` makes .venv in the checkout and
# installs csrun there. PYTHON chooses the interpreter.

CHECKOUT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$CHECKOUT/.venv"

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        new_enough "$PYTHON" && echo "$PYTHON" && return
        echo "error: PYTHON=$PYTHON must be Python 3.11 or newer" >&2
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        new_enough "$candidate" && echo "$candidate" && return
    done
    echo "error: csrun needs Python 3.11 or newer; name one with PYTHON=..." >&2
    return 1
}

# An environment that already holds this checkout and these requirements is left as it is, so that
# a second run needs no network.
prepare_environment() {
    local extras="$1" python stamp
    if ! new_enough "$VENV/bin/python"; then
        python="$(find_python)" || return
        "$python" -m venv --clear "$VENV"
    fi
    stamp="$VENV/.installed-$extras"
    if [[ "$stamp" -nt "$CHECKOUT/setup.cfg" ]]; then
        return
    fi
    echo "installing csrun in $VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --editable "$CHECKOUT$extras"
    touch "$stamp"
}
