# shellcheck shell=bash
# The npm packages: `leasehold`, the client, and `@leasehold/PLATFORM` with the command, which npm installs as an optional
# dependency of the client where it fits. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

npm_packages() {
    local client=$scratch/npm/client tools
    tools=$(clients/typescript/tools.sh)
    mkdir -p "$client"
    cp -R clients/typescript/{src,package.json,tsconfig.json,README.md} LICENSE-MIT LICENSE-APACHE "$client"
    ln -s "$tools" "$client/node_modules"
    (
        cd "$client"
        npm run --silent build
        node --input-type=module - "$version" <<'NODE'
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const { PLATFORMS } = await import(pathToFileURL("dist/command.js").href);
const version = process.argv[2];
const description = JSON.parse(readFileSync("package.json", "utf8"));
if (description.version !== version) throw new Error(`clients/typescript/package.json has version ${description.version}, not ${version}`);
description.optionalDependencies = Object.fromEntries(PLATFORMS.map((name) => [`@leasehold/${name}`, version]));
delete description.scripts;
delete description.devDependencies;
writeFileSync("package.json", JSON.stringify(description, null, 2) + "\n");
NODE
        npm_pack
    )
    platform_package
}

# Builds the package with the command. It runs no scripts when it is installed.
platform_package() {
    local stage=$scratch/npm/platform platform
    platform=$(npm_platform)
    mkdir -p "$stage/bin"
    cp "$scratch/leasehold" "$stage/bin"
    cp LICENSE-MIT LICENSE-APACHE "$scratch/share/THIRD-PARTY.txt" "$stage"
    printf '# @leasehold/%s\n\nThe leasehold command for %s%s. Install the package `leasehold`, which depends on this one.\n' \
        "$platform" "$platform" "$(with_glibc)" >"$stage/README.md"
    jq --null-input --arg platform "$platform" --arg with "$(with_glibc)" --arg version "$version" '($platform | split("-")) as [$os, $cpu] | {
        name: "@leasehold/\($platform)",
        version: $version,
        description: "The leasehold command for \($platform)\($with)",
        license: "MIT OR Apache-2.0",
        repository: "github:leasehold/leasehold",
        os: [$os],
        cpu: [$cpu],
        bin: { leasehold: "bin/leasehold" },
        preferUnplugged: true
    } + if $os == "linux" then { libc: ["glibc"] } else {} end' >"$stage/package.json"
    (cd "$stage" && npm_pack)
}

# Prints which glibc the command needs: the field `libc` of a package has no version.
with_glibc() { [[ $triple != *-linux-gnu ]] || printf ' with glibc %s or newer' "$(newest_glibc "$scratch/leasehold")"; }

# npm_pack: packs the current folder.
npm_pack() { npm pack --silent --ignore-scripts --pack-destination "$out" >/dev/null; }

npm_platform() {
    case $triple in
        x86_64-unknown-linux-gnu) echo linux-x64 ;;
        aarch64-unknown-linux-gnu) echo linux-arm64 ;;
        x86_64-apple-darwin) echo darwin-x64 ;;
        aarch64-apple-darwin) echo darwin-arm64 ;;
        *) fail "there is no npm package for $triple: see PLATFORMS in clients/typescript/src/command.ts" ;;
    esac
}

# Installs the packages as users do, from a registry. This registry is on this machine and has only these packages.
try_npm() {
    local registry
    touch "$scratch/registry" # The loop may read the file before the server has opened it.
    packaging/npm-registry.py "$out" >"$scratch/registry" 2>"$scratch/registry.log" &
    server=$!
    while registry=$(cat "$scratch/registry") && [[ -z $registry ]]; do
        kill -0 "$server" || fail "npm-registry.py: $(cat "$scratch/registry.log")"
        sleep 0.1
    done
    try_npm_from "$registry"
    kill "$server"
    server=
}

try_npm_from() {
    local place=$scratch/npm/user
    npm_install "$1" "$place"
    [[ $(ls "$place/node_modules/@leasehold" 2>/dev/null) == "$(npm_platform)" ]] || fail "npm did not install @leasehold/$(npm_platform) alone"
    cp packaging/npm-program.ts "$place/program.ts"
    node "$(clients/typescript/tools.sh)/typescript/bin/tsc" --strict --module nodenext --target es2022 --lib es2022,dom \
        --types '' "$place/program.ts"
    in_fresh_folder "$(command -v node)" "$place/program.js"
    hold_with "$place/node_modules/.bin/leasehold"

    # Without the platform's package, the error names it.
    place=$scratch/npm/without
    npm_install "$1" "$place" --omit=optional
    cp "$scratch/npm/user/program.js" "$place"
    local said
    ! said=$(in_fresh_folder /usr/bin/env PATH=/nonexistent "$(command -v node)" "$place/program.js" 2>&1) ||
        fail "the program ran without the command"
    [[ $said == *"The package @leasehold/$(npm_platform), which contains the command, is not installed."* ]] ||
        fail "the error does not name the missing package:" "$said"
}

# npm_install REGISTRY FOLDER OPTION...
npm_install() {
    mkdir -p "$2"
    printf '{"private":true,"type":"module"}' >"$2/package.json"
    npm install --silent --no-audit --no-fund --prefix "$2" --registry "$1" --cache "$scratch/npm/cache" \
        --userconfig /dev/null "${@:3}" leasehold
}
