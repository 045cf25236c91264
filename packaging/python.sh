# shellcheck shell=bash
# The Python wheel. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

readonly MATURIN=1.16.0
readonly PIP=(-m pip install --quiet --disable-pip-version-check)

install_maturin() {
    [[ -x $(maturin_venv)/bin/maturin ]] ||
        { python3 -m venv "$(maturin_venv)" && "$(maturin_venv)/bin/python" "${PIP[@]}" "maturin==$MATURIN"; }
}

maturin_venv() { printf '%s/maturin-%s' "$cache" "$MATURIN"; }

# wheel FOLDER OPTION...: builds the command for this platform, and a wheel with it and the module in FOLDER.
wheel() {
    local stage=$scratch/wheel
    mkdir "$stage"
    cp -R clients/python/src clients/python/README.md "$stage"
    sed "s|@CHECKOUT@|$PWD|" clients/python/wheel.toml >"$stage/pyproject.toml"
    (cd "$stage" && "$(maturin_venv)/bin/maturin" build --locked --profile "$profile" --target "$triple" \
        --target-dir "$target" --no-default-features --features "$features" --out "$@")
}

try_wheel() {
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/python" "${PIP[@]}" --no-index "$out"/*.whl
    in_fresh_folder "$scratch/venv/bin/python" - <<'PYTHON'
from leasehold_locks import Locker

with Locker("sqlite:locks.db").lock("deploy/prod", ttl=30).hold(timeout=60) as g:
    g.check()
    print("held with token", g.token)
PYTHON
    hold_with "$scratch/venv/bin/leasehold"
}
