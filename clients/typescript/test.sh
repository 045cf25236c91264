#!/usr/bin/env bash
# Builds the TypeScript client and runs its tests, with the leasehold command that `cargo build` or `cargo test` made.
# The compiler is kept below ${XDG_CACHE_HOME:-~/.cache}/leasehold-test. Arguments are test files: build/units.test.js
#
# In ./test:  typescript() { limited clients/typescript/test.sh; }
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

target=${CARGO_TARGET_DIR:-../../target}
command=$(realpath -m "${LEASEHOLD_COMMAND:-$target/debug/leasehold}")
[[ -x $command ]] || {
    printf 'clients/typescript/test.sh: there is no %s: cargo build -p leasehold-cli\n' "$command" >&2
    exit 1
}

# A folder that `npm ci` made by hand stays.
if [[ -L node_modules || ! -e node_modules ]]; then
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold-test
    packages=$cache/typescript-$(cat package.json package-lock.json | sha256sum | head -c 16)
    mkdir -p "$cache"
    # Under a lock, and complete only at the end: an installation in progress looks like an interrupted one.
    (
        flock 9
        [[ -e $packages/done ]] || {
            rm -rf "$packages" && mkdir "$packages" && cp package.json package-lock.json "$packages" &&
                npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$packages" && touch "$packages/done"
        }
    ) 9>"$cache/typescript.lock"
    ln -sfn "$packages/node_modules" node_modules
fi

npm run --silent clean
npm run --silent build:test
(($# > 0)) || set -- build/*.test.js
LEASEHOLD_COMMAND=$command exec node --test --test-force-exit --test-concurrency=3 --test-reporter=spec "$@"
