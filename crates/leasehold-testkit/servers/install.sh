# shellcheck shell=bash
# Installs the servers that the tests run against, and the programs that take locks with other clients. ./test sources
# this file.

readonly CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/leasehold-test"
readonly SERVER_FILES=crates/leasehold-testkit/servers
readonly PEER_SOURCES=crates/leasehold-testkit/peers
readonly API_CLIENT=crates/leasehold-serve/tests/api/client

readonly MOTO=moto-5.2.5
readonly GCP_STORAGE_EMULATOR=gcp-storage-emulator-2026.7.19
readonly AWS_CLI=awscli-1.46.2                # Debian's version has no conditional writes to S3
readonly REDIS_PY=redis-8.1.0                 # the client, not the server
readonly STORAGE_BLOB_PY=azure-storage-blob-12.31.1
readonly S3S_FS=s3s-fs-0.14.1                 # does not check preconditions atomically
readonly MAVEN_DEPENDENCY_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

# Go programs that are built from source: the name, the package, and its version.
readonly GO_PROGRAMS=(
    "minio github.com/minio/minio v0.0.0-20260212201848-7aac2a2c5b7c"
    "fake-gcs-server github.com/fsouza/fake-gcs-server v1.56.1"
    "etcd go.etcd.io/etcd/server/v3 v3.7.3"
    "etcdctl go.etcd.io/etcd/etcdctl/v3 v3.7.3"
    "nats-server github.com/nats-io/nats-server/v2 v2.15.3"
    "helm helm.sh/helm/v3/cmd/helm v3.22.0"
    "gofakes3 github.com/johannesboyne/gofakes3/cmd/gofakes3 v0.0.0-20240701191259-edd0227ffc37" # ignores preconditions
    "actionlint github.com/rhysd/actionlint/cmd/actionlint v1.7.12" # no server: checks the workflows in .github
)
readonly OPENTOFU=v1.9.0
readonly GO_VERSION=1.26.8                    # downloaded if go is too old to download a toolchain itself

install_servers() { one_at_a_time install_all; }

# Installs the programs that only the benchmark needs. The tests do not wait for them.
install_benchmark_peers() { one_at_a_time install_all_benchmark_peers; }

# one_at_a_time COMMAND: runs COMMAND under a lock, because an installation in progress looks like an interrupted one.
one_at_a_time() {
    mkdir -p "$CACHE"
    local lock status=0
    exec {lock}>"$CACHE/lock"
    flock "$lock" && "$1" || status=1
    exec {lock}>&-
    return "$status"
}

install_all() {
    need_packages && new_enough_go || return 1
    printf 'servers are kept in %s; the first installation takes some minutes\n' "$CACHE"
    together "install_python $MOTO moto[server]" "install_python $GCP_STORAGE_EMULATOR" "install_python $AWS_CLI" \
        install_java install_all_go install_s3s_fs "install_python_peer redis $REDIS_PY" \
        "install_python_peer azure $STORAGE_BLOB_PY" install_node_peer install_azurite \
        "install_unpacked nginx prometheus" install_guide_python install_guide_node \
        install_api_client
}

# Builds one program after another, because each build uses all processors and the packages that earlier ones have built.
install_all_go() {
    local program failed=0
    for program in kube_apiserver kubectl client_go_peer opentofu go_peers "${GO_PROGRAMS[@]/#/go_program }"; do
        # shellcheck disable=SC2086 # as in `together`
        install_$program || failed=1
    done
    return "$failed"
}

install_all_benchmark_peers() {
    need_packages && new_enough_go && need_protobuf || return 1
    printf 'other clients are kept in %s: to build them takes some minutes, the first time\n' "$CACHE"
    together install_go_peers install_client_go_peer install_java_peers install_rust_peers
}

# together COMMAND...: runs the commands at the same time, and shows the output of those that failed.
together() {
    local command logs pids=() index=0 failed=0
    logs=$(mktemp -d) || return 1
    for command in "$@"; do
        # shellcheck disable=SC2086 # a command and its arguments, none of which has spaces
        $command >"$logs/$index" 2>&1 &
        pids+=($!)
        index=$((index + 1))
    done
    for index in "${!pids[@]}"; do
        wait "${pids[index]}" && continue
        failed=1
        printf '%s failed:\n' "${*:index+1:1}"
        tail -n 30 "$logs/$index"
    done
    rm -rf "$logs"
    return "$failed"
}

# --- Debian packages -------------------------------------------------------------------------------------------------

need_packages() {
    need curl curl ca-certificates && need openssl openssl && need python3 python3 && need go golang-go ca-certificates &&
        need javac default-jdk-headless && need mvn maven && need jq jq && need sqlite3 sqlite3 &&
        need faketime faketime && need node nodejs && need npm npm && need ruby ruby && need_mariadb &&
        need_postgresql && need_pgbouncer && need_redis || return 1
    ruby -e 'require "minitest"' 2>/dev/null || install_packages ruby-minitest || return 1
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
}

# Installs the compiler of protobuf, and the definitions that come with it.
need_protobuf() {
    need protoc protobuf-compiler libprotobuf-dev &&
        { protoc -o /dev/null google/protobuf/struct.proto 2>/dev/null || install_packages libprotobuf-dev; }
}

# need COMMAND PACKAGE...: installs the Debian packages if COMMAND is not installed.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null || install_packages "$@"
}

install_packages() {
    command -v apt-get >/dev/null || die "these are missing, and there is no apt-get to install them with: $*"
    printf 'installing %s\n' "$*"
    as_root apt-get update -qq || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# install_unpacked PACKAGE...: unpacks Debian packages into the cache. Installing them would start their services.
install_unpacked() {
    local package target
    for package in "$@"; do
        target=$(unpacked "$package")
        [[ -e $target/complete ]] && continue
        command -v apt-get >/dev/null || die "there is no apt-get to download the package $package with"
        rm -rf "$target" && mkdir -p "$target" || return 1
        (cd "$target" && { apt-get download -qq "$package" || { as_root apt-get update -qq && apt-get download -qq "$package"; }; } &&
            dpkg -x ./*.deb . && rm ./*.deb) && touch "$target/complete" || return 1
    done
}

# unpacked PACKAGE: prints the folder that it is unpacked into.
unpacked() { printf '%s/debian-%s' "$CACHE" "$1"; }

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        command -v sudo >/dev/null || die "only root can: $*"
        sudo "$@"
    fi
}

# Does not install the package mariadb-server, which creates a database and starts a service. mariadbd is in /usr/sbin,
# which a user's PATH may lack.
need_mariadb() {
    [[ -x $(mariadbd) ]] && need mariadb-install-db mariadb-server-core && need mariadb mariadb-client-core ||
        install_packages mariadb-server-core mariadb-client-core
}

# Prints the path of mariadbd. `command -v` would find this function.
mariadbd() { PATH=$PATH:/usr/sbin type -P mariadbd; }

# Prevents PostgreSQL's package from creating and starting a cluster, because the tests start a separate one.
need_postgresql() {
    local settings=/etc/postgresql-common/createcluster.conf
    postgresql_programs >/dev/null && command -v psql >/dev/null && return 0
    need pg_lsclusters postgresql-common || return 1
    as_root sed -i 's/^#* *create_main_cluster *=.*/create_main_cluster = false/' "$settings" || return 1
    install_packages postgresql && postgresql_programs >/dev/null
}

# Prevents pgbouncer's package from starting a service. pgbouncer is in /usr/sbin, which a user's PATH may lack.
need_pgbouncer() {
    [[ -x $(pgbouncer) ]] && return 0
    local service=/etc/systemd/system/pgbouncer.service
    [[ -e $service ]] || { as_root mkdir -p "${service%/*}" && as_root ln -s /dev/null "$service"; } || return 1
    install_packages pgbouncer
}

# Prints the path of pgbouncer. `command -v` would find this function.
pgbouncer() { PATH=$PATH:/usr/sbin type -P pgbouncer; }

# Prints the folder with the server programs of the newest installed version of PostgreSQL.
postgresql_programs() {
    local folder
    folder=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    [[ -x $folder/initdb && -x $folder/postgres ]] && printf '%s' "$folder"
}

# Does not install the packages redis-server and valkey-server, which start a service. Their programs are only links to
# the database checker in the tools packages. The checker is also the server, and decides by the name that it is started
# with.
need_redis() {
    need redis-check-rdb redis-tools && need_valkey && mkdir -p "$CACHE/redis" || return 1
    local name
    for name in redis-server redis-sentinel valkey-server; do
        ln -sf "$(command -v "${name%-*}-check-rdb")" "$(redis_program "$name")" || return 1
    done
}

# redis_program NAME: prints its path.
redis_program() { printf '%s/redis/%s' "$CACHE" "$1"; }

need_valkey() {
    command -v valkey-check-rdb >/dev/null && return 0
    as_root apt-get update -qq || return 1
    apt-cache show valkey-tools >/dev/null 2>&1 || add_backports || return 1
    install_packages valkey-tools
}

# Debian 12 has Valkey only in its backports. From them, apt installs only what is requested.
add_backports() {
    local mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    # shellcheck disable=SC2016 # apt-get replaces it
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: bookworm" "Origin: Debian" | sed -n 1p)
    [[ -n $mirror ]] || return 0
    printf 'deb [signed-by=%s] %s bookworm-backports main\n' "$keys" "$mirror" |
        as_root tee /etc/apt/sources.list.d/bookworm-backports.list >/dev/null
}

# --- Python ----------------------------------------------------------------------------------------------------------

# install_python NAME-VERSION [PACKAGE]: installs the package into a separate virtual environment.
install_python() {
    install_venv "$CACHE/$1" "${2:-${1%-*}}==${1##*-}"
}

# install_venv FOLDER ARGUMENT...: creates a virtual environment and runs `pip install ARGUMENT...` in it.
install_venv() {
    local venv=$1
    shift
    [[ -e $venv/complete ]] && return 0
    rm -rf "$venv"
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" && touch "$venv/complete"
}

# install_python_peer NAME PACKAGE-VERSION: installs a program that imports the package from its virtual environment.
install_python_peer() {
    local target
    target=$(python_peer "$@")
    [[ -x $target ]] && return 0
    install_python "$2" && mkdir -p "${target%/*}" && cp "$PEER_SOURCES"/python/*.py "${target%/*}" || return 1
    launcher "$target" "'$CACHE/$2/bin/python' '${target%/*}/$1_peer.py'"
}

# python_peer NAME PACKAGE-VERSION: prints its path.
python_peer() { printf '%s/peers-python-%s-%s/%s' "$CACHE" "$2" "$(digest "$PEER_SOURCES"/python/*.py)" "$1"; }

# launcher TARGET COMMAND: creates the program TARGET, which runs COMMAND and passes its own arguments on.
launcher() {
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$1" && chmod +x "$1"
}

# --- JavaScript ------------------------------------------------------------------------------------------------------

install_node_peer() {
    local target
    target=$(node_peer)
    [[ -x $target ]] && return 0
    mkdir -p "${target%/*}" && cp "$PEER_SOURCES"/node/*.* "${target%/*}" &&
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "${target%/*}" &&
        launcher "$target" "node '${target%/*}/redlock.mjs'"
}

node_peer() { printf '%s/peers-node-%s/redlock' "$CACHE" "$(digest "$PEER_SOURCES"/node/*.*)"; }

# Prints the path of a Python with the packages that the guides import. The guides use leasehold's client from its
# source.
guide_python() { printf '%s/guides-python-%s/bin/python' "$CACHE" "$(digest "$PEER_SOURCES"/guides/requirements.txt)"; }

install_guide_python() {
    local venv
    venv=$(guide_python) && install_venv "${venv%/bin/python}" -r "$PEER_SOURCES/guides/requirements.txt"
}

# Prints the path of `node_modules` with the packages that the guides for Node import, including leasehold's client.
guide_node() {
    local sources=("$PEER_SOURCES"/guides/*.json clients/typescript/*.json clients/typescript/src/*)
    printf '%s/guides-node-%s/node_modules' "$CACHE" "$(digest "${sources[@]}")"
}

install_guide_node() {
    local target building status=0
    target=$(guide_node)
    [[ -e $target/leasehold/package.json ]] && return 0
    building=$(mktemp -d) || return 1
    mkdir -p "${target%/*}" && cp "$PEER_SOURCES"/guides/*.json "${target%/*}" &&
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "${target%/*}" &&
        cp -R clients/typescript/*.json clients/typescript/src "$building" &&
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$building" &&
        "$building/node_modules/.bin/tsc" -p "$building" --outDir "$target/leasehold/dist" &&
        cp "$building/package.json" "$target/leasehold" || status=1
    rm -rf "$building"
    return "$status"
}

# Prints the path of `node_modules` with the generator of clients of the HTTP API, and with what a client imports.
api_client() { printf '%s/api-client-%s/node_modules' "$CACHE" "$(digest "$API_CLIENT"/*.json)"; }

install_api_client() {
    local target
    target=$(api_client)
    [[ -x $target/.bin/tsc ]] && return 0
    mkdir -p "${target%/*}" && cp "$API_CLIENT"/*.json "${target%/*}" &&
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "${target%/*}"
}

# azurite: prints its path.
azurite() { printf '%s/azurite-%s/azurite' "$CACHE" "$(digest "$SERVER_FILES"/azurite/*.json)"; }

install_azurite() {
    local target
    target=$(azurite)
    [[ -x $target ]] && return 0
    mkdir -p "${target%/*}" && cp "$SERVER_FILES"/azurite/*.json "${target%/*}" &&
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "${target%/*}" &&
        launcher "$target" "node '${target%/*}/node_modules/azurite/dist/src/blob/main.js'"
}

# --- Rust ------------------------------------------------------------------------------------------------------------

# Builds without optimization, because the server gets few requests and the build takes less than half the time.
install_s3s_fs() {
    local target building status=0
    target=$(s3s_fs)
    [[ -x $target ]] && return 0
    building=$(mktemp -d) || return 1
    CARGO_TARGET_DIR=$building CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --no-default-features \
        --features binary --version "${S3S_FS##*-}" --root "$CACHE/$S3S_FS" "${S3S_FS%-*}" || status=1
    rm -rf "$building"
    return "$status"
}

# rust_peer NAME: prints its path.
rust_peer() {
    local sources=("$PEER_SOURCES"/rust/Cargo.* "$PEER_SOURCES"/rust/src/*.rs "$PEER_SOURCES"/rust/src/bin/*.rs)
    printf '%s/peers-rust-%s/bin/%s' "$CACHE" "$(digest "${sources[@]}")" "$1"
}

install_rust_peers() {
    local target building status=0
    target=$(dirname "$(rust_peer etcd)")
    [[ -x $target/dlock && -x $target/dynamodb-lease && -x $target/etcd && -x $target/etcd-calls ]] && return 0
    building=$(mktemp -d) || return 1
    CARGO_TARGET_DIR=$building cargo install --quiet --locked --path "$PEER_SOURCES/rust" --root "${target%/bin}" || status=1
    rm -rf "$building"
    return "$status"
}

s3s_fs() { printf '%s/%s/bin/s3s-fs' "$CACHE" "$S3S_FS"; }

# --- Java ------------------------------------------------------------------------------------------------------------

# Installs one after the other, because Maven's cache does not support two builds at the same time.
install_java() { install_jars "$SERVER_FILES/dynamodb-local.xml" && install_java_peers && install_shedlock_peer; }

# jars PROJECT.xml: prints the folder of the jars that PROJECT.xml names.
jars() { printf '%s/%s-%s' "$CACHE" "$(basename "$1" .xml)" "$(digest "$1")"; }

# install_jars PROJECT.xml: installs all dependencies of the project.
install_jars() {
    local target
    target=$(jars "$1")
    [[ -e $target/complete ]] && return 0
    rm -rf "$target"
    mvn --quiet --batch-mode --file "$1" "$MAVEN_DEPENDENCY_PLUGIN:copy-dependencies" \
        "-DoutputDirectory=$target" -DincludeScope=runtime &&
        touch "$target/complete"
}

# Installs the Java peers that are also contenders in the benchmark.
install_java_peers() {
    install_java_program "$(java_peer)" java/dynamodb-lock-client Peer &&
        install_java_program "$(redisson_peer)" redisson/redisson RedissonPeer
}

install_shedlock_peer() { install_java_program "$(shedlock_peer)" shedlock/shedlock ShedLockPeer; }

# install_java_program TARGET FOLDER/PROJECT CLASS: compiles the sources in FOLDER with those that all Java peers share.
# The program TARGET runs CLASS. In tests it runs only briefly, so a fast start matters more than optimized code;
# benchmarks set JAVA_OPTIONS. Warnings of the JVM go to stderr, because the tests read stdout.
install_java_program() {
    local target=$1 project=$PEER_SOURCES/$2.xml class=$3 folder jars
    [[ -x $target ]] && return 0
    install_jars "$project" || return 1
    folder=$(dirname "$target")
    jars=$(jars "$project")
    javac -cp "$jars/*" -d "$folder" "$PEER_SOURCES"/java-common/*.java "$(dirname "$project")"/*.java || return 1
    # shellcheck disable=SC2016 # the program reads the variable
    launcher "$target" 'java -XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr '\
'${JAVA_OPTIONS--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}'" -cp '$folder:$jars/*' $class"
}

java_peer() { printf '%s/peers-java-%s/dynamodb' "$CACHE" "$(java_digest java)"; }
redisson_peer() { printf '%s/peers-redisson-%s/redisson' "$CACHE" "$(java_digest redisson)"; }
shedlock_peer() { printf '%s/peers-shedlock-%s/shedlock' "$CACHE" "$(java_digest shedlock)"; }

# java_digest FOLDER: prints a hash of the sources of a Java program.
java_digest() { digest "$PEER_SOURCES"/java-common/* "$PEER_SOURCES/$1"/*; }

# digest FILE...: prints a hash of the contents. The path of a program that is built from the files contains it.
digest() { cat "$@" | sha256sum | head -c 16; }

# --- Go --------------------------------------------------------------------------------------------------------------

# go_program NAME: prints its path.
go_program() {
    local program name package version
    for program in "${GO_PROGRAMS[@]}"; do
        read -r name package version <<<"$program"
        [[ $name != "$1" ]] || printf '%s/%s-%s/%s' "$CACHE" "$name" "$version" "$name"
    done
}

# install_go_program NAME PACKAGE VERSION: builds in a new module, because `go install` refuses modules with `replace`
# directives, such as etcd's.
install_go_program() {
    local name=$1 package=$2 version=$3 target building status=0
    target=$(go_program "$name")
    [[ -x $target ]] && return 0
    building=$(mktemp -d) || return 1
    (
        cd "$building" && unset GOROOT && export GOTOOLCHAIN=auto CGO_ENABLED=0 GOFLAGS=-trimpath &&
            "$GO" mod init building && "$GO" get "$package@$version" && "$GO" build -ldflags=-s -o built "$package"
    ) && mkdir -p "$(dirname "$target")" && mv "$building/built" "$target" || status=1
    rm -rf "$building"
    return "$status"
}

# go_peer NAME: prints its path.
go_peer() {
    local sources=("$PEER_SOURCES"/go/go.* "$PEER_SOURCES"/go/*.go "$PEER_SOURCES"/go/*/*.go)
    printf '%s/peers-go-%s/%s' "$CACHE" "$(digest "${sources[@]}")" "$1"
}

install_go_peers() {
    local name
    for name in dynamodb etcd redis; do
        install_go_module "$(go_peer "$name")" "$PEER_SOURCES/go" "./$name" || return 1
    done
}

# install_go_module TARGET FOLDER PACKAGE: builds the package of the module in FOLDER.
install_go_module() {
    local target=$1 folder=$2 package=$3
    [[ -x $target ]] && return 0
    env -u GOROOT GOTOOLCHAIN=auto CGO_ENABLED=0 \
        "$GO" build -C "$folder" -trimpath -ldflags='-s -w' -o "$target" "$package"
}

# client_go_peer: prints its path.
client_go_peer() {
    local sources=("$PEER_SOURCES"/go/*.go "$PEER_SOURCES"/client-go/*)
    printf '%s/peers-client-go-%s/client-go' "$CACHE" "$(digest "${sources[@]}")"
}

install_client_go_peer() { install_go_module "$(client_go_peer)" "$PEER_SOURCES/client-go" .; }

# kube_apiserver: prints its path.
kube_apiserver() { printf '%s/kube-apiserver-%s/kube-apiserver' "$CACHE" "$(digest "$SERVER_FILES"/kube-apiserver/*)"; }

# This is the longest build: about 5 minutes on two idle processors.
install_kube_apiserver() { install_go_module "$(kube_apiserver)" "$SERVER_FILES/kube-apiserver" .; }

# kubectl: prints its path.
kubectl() { printf '%s/kubectl-%s/kubectl' "$CACHE" "$(digest "$SERVER_FILES"/kubectl/*)"; }

install_kubectl() { install_go_module "$(kubectl)" "$SERVER_FILES/kubectl" .; }

# opentofu: prints its path.
opentofu() { printf '%s/opentofu-%s/tofu' "$CACHE" "$OPENTOFU"; }

# Builds in the folder of the module, because its `replace` directives count only there.
install_opentofu() {
    local folder
    [[ -x $(opentofu) ]] && return 0
    folder=$(cd / && GOTOOLCHAIN=auto "$GO" mod download -json "github.com/opentofu/opentofu@$OPENTOFU" |
        sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
    [[ -d $folder ]] && install_go_module "$(opentofu)" "$folder" ./cmd/tofu
}

# Sets GO to a go command that can build the programs. Since 1.21, go downloads the toolchain that a module requires. An
# older go (Debian 12 has 1.19) can still download that toolchain, because it is published as a module.
new_enough_go() {
    local version platform toolchain module
    version=$(go env GOVERSION)
    GO=go
    [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21)) && return 0
    platform="$(go env GOOS)-$(go env GOARCH)"
    toolchain="$CACHE/go$GO_VERSION.$platform"
    GO="$toolchain/bin/go"
    [[ -e $toolchain/complete ]] && return 0
    module=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$GO_VERSION.$platform" |
        sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
    [[ -d $module ]] || die "go is $version and cannot fetch go $GO_VERSION: install Go 1.21 or newer"
    # Files of modules have no execute permission, and the module cache is read-only.
    rm -rf "$toolchain"
    cp -R "$module" "$toolchain" && chmod -R u+w "$toolchain" &&
        chmod +x "$toolchain"/bin/* "$toolchain"/pkg/tool/*/* && touch "$toolchain/complete"
}
