# shellcheck shell=bash
# The Python wheel. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

readonly MATURIN=1.16.0
readonly PIP=(-m pip install --quiet --disable-pip-version-check)

# Builds the wheel, which contains the module and the command for this platform.
wheel() {
    local tools=$cache/maturin-$MATURIN
    [[ -x $tools/bin/maturin ]] || { python3 -m venv "$tools" && "$tools/bin/python" "${PIP[@]}" "maturin==$MATURIN"; }
    local stage=$scratch/wheel
    mkdir "$stage"
    cp -R clients/python/src clients/python/README.md "$stage"
    sed "s|@CHECKOUT@|$PWD|" clients/python/wheel.toml >"$stage/pyproject.toml"
    (cd "$stage" && "$tools/bin/maturin" build --locked --profile "$profile" --target-dir "$target" \
        --no-default-features --features "$features" --out "$out")
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
