#!/usr/bin/env bash
# Prints the path of the folder node_modules with the compiler of the TypeScript client.
#
#   clients/typescript/tools.sh [--installed]
#
# Installs it below ${XDG_CACHE_HOME:-~/.cache}/leasehold-test. With --installed, prints nothing if it is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

digest=$(command -v sha256sum || echo shasum -a 256) # macOS has the latter.
packages=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold-test/typescript-client-$($digest package-lock.json | cut -c -16)
if [[ ! -d $packages ]]; then
    [[ ${1:-} != --installed ]] || exit 0
    # The folder has another name until it is complete.
    building=$packages.new.$$
    mkdir -p "$building"
    cp package.json package-lock.json "$building"
    npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$building"
    mv "$building" "$packages" 2>/dev/null || rm -rf "$building" # Another process was faster.
fi
printf '%s/node_modules\n' "$packages"
