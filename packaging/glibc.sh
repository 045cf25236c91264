# shellcheck shell=bash
# The oldest glibc that the packages for Linux run on. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

# Zig contains a linker, a C compiler, and the symbols of all versions of glibc. maturin contains cargo-zigbuild, which
# makes Cargo use them.
readonly ZIGLANG=0.15.2
readonly GLIBC=2.17                           # the oldest that Rust's standard library supports
readonly MANYLINUX=manylinux_2_17             # the same as manylinux2014

# Installs zig. Fails if it cannot be downloaded.
install_zig() {
    local new=$scratch/ziglang
    [[ -x $(zig) ]] && return 0
    # The folder gets its name only when it is complete, because another ./package may run at the same time.
    "$(maturin_venv)/bin/python" "${PIP[@]}" --target "$new" "ziglang==$ZIGLANG" && mkdir -p "$cache" &&
        { mv -T "$new" "$cache/ziglang-$ZIGLANG" 2>/dev/null || [[ -x $(zig) ]]; }
}

zig() { printf '%s/ziglang-%s/ziglang/zig' "$cache" "$ZIGLANG"; }

# with_zig COMMAND...: runs COMMAND, which finds zig and keeps its compiled parts of libc in the cache.
with_zig() {
    CARGO_ZIGBUILD_ZIG_PATH=$(zig) CARGO_ZIGBUILD_CACHE_DIR=$cache ZIG_GLOBAL_CACHE_DIR=$cache/zig "$@"
}

# newest_glibc FILE: prints the newest version of glibc that FILE needs. `-T` lists its symbols, `-p` the versions that
# the loader requires, which include some that no symbol has (GLIBC_ABI_DT_RELR).
newest_glibc() {
    objdump -p -T "$1" | sed -n 's/.*GLIBC_\([0-9A-Z][0-9A-Z_.]*\).*/\1/p' | sort -Vu | tail -n 1 | grep .
}

needed_libraries() { objdump -p "$1" | sed -n 's/^ *NEEDED *//p'; }

# runs_on_glibc VERSION FILE: fails and says why if FILE needs a newer glibc.
runs_on_glibc() {
    local needs
    needs=$(newest_glibc "$2") || { echo "objdump finds no symbols of glibc in $2"; return 1; }
    [[ $(printf '%s\n' "$1" "$needs" | sort -V | tail -n 1) == "$1" ]] ||
        { echo "$2 needs glibc $needs, which is newer than $1"; return 1; }
}

# Checks what the packages need.
glibc() {
    local said floor others
    if [[ $linker == host ]]; then
        floor=$(newest_glibc "$scratch/leasehold") || fail "objdump finds no symbols of glibc in the command"
        echo "These packages need glibc $floor or newer, because they were linked without zig. With zig: $GLIBC."
        return
    fi
    said=$(runs_on_glibc "$GLIBC" "$scratch/leasehold") || fail "$said"
    others=$(needed_libraries "$scratch/leasehold" | grep -Ev '^(ld-linux.*|lib(c|m|dl|pthread|rt|util))\.so\.[0-9]$' || true)
    [[ -z $others ]] || fail "the command needs libraries that are not part of glibc:" "$others"
    [[ $(echo "$out"/*.whl) == *"${MANYLINUX}_${triple%%-*}.whl" ]] || fail "the tag of $(echo "$out"/*.whl) is not $MANYLINUX"
    echo "The packages run on glibc $GLIBC or newer."
    try_glibc
}

# Checks that the check detects a newer glibc.
try_glibc() {
    local said script system
    # In the order of text, 2.17 would come before 2.9.
    ! said=$(runs_on_glibc 2.9 "$scratch/leasehold") || fail "the check for glibc 2.9 accepts the command"
    [[ $said == *"needs glibc $GLIBC, which is newer than 2.9" ]] || fail "$said"
    ! said=$(runs_on_glibc "$GLIBC" "$scratch/share/THIRD-PARTY.txt" 2>&1) || fail "the check for glibc accepts a text"
    # Cargo links build scripts with the system's own glibc. Since 2.34, each program has a symbol of that version.
    system=$(getconf GNU_LIBC_VERSION)
    [[ $(printf '%s\n' 2.34 "${system#glibc }" | sort -V | head -n 1) == 2.34 ]] || return 0
    script=$(find "$target/$built/build" -name build-script-build -type f -print -quit)
    ! said=$(runs_on_glibc "$GLIBC" "$script") || fail "the check for glibc $GLIBC accepts $script"
    [[ $said == *"needs glibc 2."*", which is newer than $GLIBC" ]] || fail "$said"
}

# Checks that the command of --musl needs no library of the system.
try_static() {
    local libraries
    libraries=$(needed_libraries "$scratch/leasehold")
    [[ -z $libraries ]] || fail "the command of --musl is not static:" "$libraries"
}
