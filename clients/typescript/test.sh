#!/usr/bin/env bash
# Builds the TypeScript client, and runs its tests on the command that is given.
#
#   clients/typescript/test.sh [--installed] COMMAND [TEST FILE...]     # such as build/units.test.js
#
# Installs the compiler below ${XDG_CACHE_HOME:-~/.cache}/leasehold-test. With --installed: does nothing if it is not
# there.
set -euo pipefail

only_installed=
if [[ ${1:-} == --installed ]]; then
    only_installed=1
    shift
fi
(($# > 0)) || { printf 'usage: clients/typescript/test.sh [--installed] COMMAND [TEST FILE...]\n' >&2; exit 2; }
command=$(realpath "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")"

# A folder that somebody made with `npm ci` stays.
if [[ -L node_modules || ! -e node_modules ]]; then
    packages=$(./tools.sh ${only_installed:+--installed})
    if [[ -z $packages ]]; then
        printf 'skipped: ./test installs what this needs\n'
        exit 0
    fi
    ln -sfn "$packages" node_modules
fi

npm run --silent clean
npm run --silent build:test
(($# > 0)) || set -- build/*.test.js
# Most tests wait.
LEASEHOLD_COMMAND=$command exec node --test --test-force-exit --test-concurrency=3 --test-reporter=spec "$@"
