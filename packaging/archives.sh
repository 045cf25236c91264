# shellcheck shell=bash
# The tarball and the Debian package. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

readonly MAINTAINER="The leasehold maintainers <leasehold@users.noreply.github.com>"

tarball() {
    local name=leasehold-$version-$triple
    local stage=$scratch/tarball/$name
    mkdir -p "$stage/man/man1"
    cp "$scratch/leasehold" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$scratch/share/THIRD-PARTY.txt" "$stage"
    cp "$scratch"/share/man/*.1 "$stage/man/man1"
    cp -R "$scratch/share/completions" "$stage"
    # The archive does not contain the name of the user who built it.
    (cd "$scratch/tarball" && tar -czf "$out/$name.tar.gz" $(owned_by_root) "$name")
}

# Prints the options of tar, which differ between GNU and BSD.
owned_by_root() {
    if tar --version | grep -q GNU; then echo --owner=0 --group=0 --numeric-owner; else echo --uid 0 --gid 0; fi
}

try_tarball() {
    local place=$scratch/unpacked
    mkdir "$place"
    tar -xzf "$out/leasehold-$version-$triple.tar.gz" -C "$place"
    local root=$place/leasehold-$version-$triple
    hold_with "$root/leasehold"
    complete_with "$root/completions/leasehold.bash" "$root"
    read_page "$root/man/man1/leasehold-run.1"
    # `cargo binstall` takes the name of the tarball and the place of the command from Cargo.toml.
    packaging/binstall.py "$out" "$triple"
}

# complete_with SCRIPT FOLDER: completes `leasehold hist` in bash, with the command in FOLDER.
# shellcheck disable=SC2016 # The inner shell expands it.
complete_with() {
    in_fresh_folder bash -c '
        PATH=$2:$PATH
        source "$1"
        COMP_WORDS=(leasehold hist) COMP_CWORD=1 COMP_TYPE=9
        _clap_complete_leasehold leasehold hist leasehold 2>/dev/null
        [[ ${COMPREPLY[*]} == history* ]] || { echo "bash completes \"hist\" to \"${COMPREPLY[*]}\"" >&2; exit 1; }
    ' bash "$1" "$2"
}

# complete_in_zsh SCRIPTS FOLDER: does the same in zsh, which loads the script from SCRIPTS at the first completion.
complete_in_zsh() {
    local said
    said=$(in_fresh_folder timeout 60 zsh -f "$PWD/packaging/complete.zsh" "$1" "$2" 2>&1) &&
        [[ $said == *"leasehold history"* ]] ||
        fail "zsh does not complete \"hist\": $said"
}

# read_page FILE: formats the manual page, if `man` is installed.
read_page() {
    command -v man >/dev/null || return 0
    LC_ALL=C man --warnings --local-file "$1" 2>&1 | grep -q '^ *leasehold-run' || fail "the manual page $1 cannot be read"
}

deb() {
    local root=$scratch/deb/root
    local share=$root/usr/share
    local doc=$share/doc/leasehold
    mkdir -p "$root/DEBIAN" "$root/usr/bin" "$share/man/man1" "$doc" "$share/bash-completion/completions" \
        "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    cp "$scratch/leasehold" "$root/usr/bin"
    cp "$scratch"/share/man/*.1 "$share/man/man1"
    cp "$scratch/share/completions/leasehold.bash" "$share/bash-completion/completions/leasehold"
    cp "$scratch/share/completions/_leasehold" "$share/zsh/vendor-completions"
    cp "$scratch/share/completions/leasehold.fish" "$share/fish/vendor_completions.d"
    cp CHANGELOG.md "$doc/changelog"
    cp "$scratch/share/THIRD-PARTY.txt" "$doc"
    deb_copyright >"$doc/copyright"
    deb_changelog >"$doc/changelog.Debian"
    gzip -9n "$share"/man/man1/*.1 "$doc"/changelog* "$doc/THIRD-PARTY.txt"
    chmod -R u=rwX,go=rX "$root"
    deb_control >"$scratch/deb/control"
    cp "$scratch/deb/control" "$root/DEBIAN/control"
    (cd "$root" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    # Compressing a debug build well would take half a minute.
    dpkg-deb --root-owner-group $([[ $profile != dev ]] || echo -Zgzip -z1) --build "$root" "$out/leasehold_$version-1_$(dpkg --print-architecture).deb" >/dev/null
}

deb_control() {
    cat <<CONTROL
Package: leasehold
Version: $version-1
Architecture: $(dpkg --print-architecture)
Maintainer: $MAINTAINER
Installed-Size: $(du -sk "$scratch/deb/root/usr" | cut -f 1)
Depends: $(deb_depends)
Section: utils
Priority: optional
Homepage: https://github.com/leasehold/leasehold
Description: distributed locks on the storage you already have
 leasehold runs a command under a lock in a local file, a bucket, a database,
 etcd or Kubernetes. If the holder crashes, another process takes over. Each
 grant has a fencing token, greater than all earlier ones.
CONTROL
}

# Prints the system libraries that the command is linked with, with the versions that it needs.
deb_depends() {
    # dpkg-shlibdeps reads this system's libraries and would demand 2.34, since which libc contains libpthread.
    if [[ $linker == zig ]]; then
        echo "libc6 (>= $GLIBC)"
        return
    fi
    local stage=$scratch/deb/depends
    local binaries=debian/leasehold/usr/bin
    mkdir -p "$stage/$binaries" "$stage/debian/leasehold/DEBIAN"
    cp "$scratch/leasehold" "$stage/$binaries"
    printf 'Source: leasehold\n\nPackage: leasehold\nArchitecture: any\n' >"$stage/debian/control"
    (cd "$stage" && dpkg-shlibdeps -O "$binaries/leasehold") | sed -n 's/^shlibs:Depends=//p'
}

deb_copyright() {
    printf '%s\n' "Source: https://github.com/leasehold/leasehold" "" \
        "leasehold is licensed under the MIT licence or the Apache License 2.0, at your choice." \
        "The latter is in /usr/share/common-licenses/Apache-2.0. THIRD-PARTY.txt.gz has the licences of the crates in" \
        "the command." ""
    cat LICENSE-MIT
}

# Prints a changelog in Debian's format. changelog.gz lists the changes.
deb_changelog() {
    printf 'leasehold (%s-1) unstable; urgency=medium\n\n  * Version %s.\n\n -- %s  %s\n' "$version" "$version" \
        "$MAINTAINER" "$(date -R ${SOURCE_DATE_EPOCH:+-d "@$SOURCE_DATE_EPOCH"})"
}

try_deb() {
    local package root=$scratch/root
    package=$(echo "$out"/*.deb)
    # Only root can install files that belong to root. The new root folder does not contain the system libraries, so
    # dpkg must ignore dependencies.
    if ((EUID == 0)); then
        mkdir -p "$root/var/lib/dpkg"
        touch "$root/var/lib/dpkg/status"
        dpkg --root="$root" --log=/dev/null --force-depends --force-script-chrootless --install "$package" >/dev/null 2>"$scratch/dpkg" ||
            fail "dpkg: $(cat "$scratch/dpkg")"
        dpkg --root="$root" --verify leasehold
    else
        dpkg-deb --extract "$package" "$root"
    fi
    hold_with "$root/usr/bin/leasehold"
    complete_with "$root/usr/share/bash-completion/completions/leasehold" "$root/usr/bin"
    ! command -v zsh >/dev/null || complete_in_zsh "$root/usr/share/zsh/vendor-completions" "$root/usr/bin"
    read_page "$root/usr/share/man/man1/leasehold-run.1.gz"
    [[ -s $root/usr/share/doc/leasehold/copyright && -s $root/usr/share/zsh/vendor-completions/_leasehold ]]
    # Suppresses two rules for packages in Debian itself, which must use Debian's SQLite and close a bug.
    ! command -v lintian >/dev/null || lintian --allow-root --fail-on error,warning \
        --suppress-tags embedded-library,initial-upload-closes-no-bugs "$package"
}

# Tests the GitHub Action, which downloads the tarball.
try_action() {
    checksums
    DIST=$out TMPDIR=$scratch node --test --test-reporter=spec action/action.test.mjs
}

# Writes the checksums of the files that were built here. For a release, they are computed again for the packages of all
# platforms.
checksums() { (cd "$out" && "${SHA256[@]}" -- * >"$scratch/SHA256SUMS" && mv "$scratch/SHA256SUMS" .); }

# Checks that ./package builds files with the names that a release needs, and that packaging/release detects missing
# files.
try_release() {
    local fake=$scratch/release pattern file newer refused
    for file in "$out"/*; do
        [[ $file == */SHA256SUMS ]] || is_expected "$(basename "$file")" ||
            # Linked without zig, the wheel has the tag of a newer glibc, and cannot be released.
            [[ $linker == host && $file == *-manylinux_*.whl ]] || fail "packaging/release does not know $file"
    done
    mkdir "$fake"
    while read -r pattern; do
        echo "of $pattern" >"$fake/${pattern//\*/_1_}"
    done < <(packaging/release names)
    packaging/release check "v$version" "$fake" --unreleased
    (cd "$fake" && "${SHA256[@]}" --check --quiet SHA256SUMS)
    ! refused=$(packaging/release check v9.9.9 "$fake" --unreleased 2>&1) || fail "packaging/release takes another version's tag"
    [[ $refused == *"the tag is v9.9.9"* ]] || fail "$refused"
    touch "$fake/other"
    ! refused=$(packaging/release check "v$version" "$fake" --unreleased 2>&1) || fail "packaging/release takes unknown files"
    [[ $refused == *other* ]] || fail "$refused"
    rm "$fake/other"
    file=leasehold_locks-$version-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
    newer=${file/manylinux2014*/manylinux_2_34_x86_64.whl}
    mv "$fake/$file" "$fake/$newer"
    ! refused=$(packaging/release check "v$version" "$fake" --unreleased 2>&1) || fail "packaging/release takes a wheel for a newer glibc"
    [[ $refused == *"has no $file"* ]] || fail "$refused"
    mv "$fake/$newer" "$fake/$file"
    rm "$fake"/*amd64.deb
    ! refused=$(packaging/release check "v$version" "$fake" --unreleased 2>&1) || fail "packaging/release accepts a missing package"
    [[ $refused == *"has no leasehold_$version-1_amd64.deb"* ]] || fail "$refused"
}

# is_expected NAME: fails if a release has no file called NAME.
is_expected() {
    local pattern
    while read -r pattern; do
        # shellcheck disable=SC2053 # The right side is a pattern.
        [[ $1 != $pattern ]] || return 0
    done < <(packaging/release names)
    return 1
}
