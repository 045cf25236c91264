# shellcheck shell=bash Starts the servers that the tests run against, and exports their addresses. ./test sources this
# file, and stops the servers when it ends.

readonly STORE=leasehold-test                 # the bucket, or the table, on each server
servers=()
declare -A stop_signals=()                    # by process id, where it is not TERM
scratch=                                      # the folder of their data and logs

make_scratch() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/leasehold-test.XXXXXX")
}

start_servers() {
    [[ -n $scratch ]] || make_scratch
    set_credentials
    # If a server does not start, it prints an error and its tests fail. The others are started anyway.
    local server failed=0
    name_programs || failed=1
    for server in moto_s3 moto_dynamodb minio dynamodb_local fake_gcs bad_gcs s3_ignoring s3_racy dynamodb_racy etcd \
        azurite kube_apiserver mariadb postgresql pgbouncer redis valkey redis_cluster nats; do
        "start_$server" || failed=1
    done
    return "$failed"
}

stop_servers() {
    local pid
    for pid in "${servers[@]}"; do
        kill -s "${stop_signals[$pid]:-TERM}" "$pid" 2>/dev/null || true
    done
    for pid in "${servers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    [[ -z $scratch ]] || rm -rf "$scratch"
}

# Sets MinIO's credentials, because the other servers accept any. Unsets all real credentials, which must not be used.
set_credentials() {
    unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_ENDPOINT_URL_DYNAMODB
    unset GOOGLE_APPLICATION_CREDENTIALS STORAGE_EMULATOR_HOST REDISCLI_AUTH "${!PG@}" "${!AZURE_@}"
    unset KUBECONFIG "${!KUBERNETES_@}"
    export AWS_ACCESS_KEY_ID=leasehold AWS_SECRET_ACCESS_KEY=leasehold-test AWS_REGION=us-east-1
    export AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
    export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost
}

# start NAME PORT READY COMMAND...: runs a server and waits until `READY PORT` succeeds.
start() {
    local name=$1 port=$2 ready=$3 pid deadline=$((SECONDS + 120))
    shift 3
    "$@" >"$scratch/$name.log" 2>&1 &
    pid=$!
    servers+=("$pid")
    until "$ready" "$port"; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > deadline)); then
            printf '%s does not start:\n' "$name"
            tail -n 20 "$scratch/$name.log"
            return 1
        fi
        sleep 0.2
    done
    printf '%s listens on 127.0.0.1:%d\n' "$name" "$port"
}

# Prints a free port. It is below the ports that Linux gives to connections, so that no connection gets it before the
# server.
free_port() {
    python3 -c '
import random, socket
while True:
    port = random.randrange(15000, 20000)
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
'
}

# Prints the `endpoint` option of a store URL.
endpoint() { printf 'endpoint=http%%3A%%2F%%2F127.0.0.1:%d' "$1"; }

# --- each server -----------------------------------------------------------------------------------------------------

# Each store has its own moto, because a moto handles one request at a time.
start_moto_s3() { start_moto s3 make_bucket && export LEASEHOLD_TEST_S3_MOTO="s3://$STORE/tests?$at"; }
start_moto_dynamodb() {
    start_moto dynamodb make_trusted_table && export LEASEHOLD_TEST_DYNAMODB_MOTO="dynamodb://$STORE?$at"
}

# start_moto STORE READY: starts a moto. Sets `at` to the options of the store URL.
start_moto() {
    local port
    port=$(free_port) || return 1
    start "moto-$1" "$port" "$2" "$CACHE/$MOTO/bin/python" "$SERVER_FILES/atomic_moto.py" -H 127.0.0.1 -p "$port" ||
        return 1
    at="$(endpoint "$port")&region=us-east-1"
}

start_minio() {
    local port
    port=$(free_port) || return 1
    start minio "$port" make_bucket env MINIO_ROOT_USER="$AWS_ACCESS_KEY_ID" \
        MINIO_ROOT_PASSWORD="$AWS_SECRET_ACCESS_KEY" MINIO_BROWSER=off MINIO_UPDATE=off \
        "$(go_program minio)" server "$scratch/minio" --address "127.0.0.1:$port" \
        --certs-dir "$scratch/minio-certs" || return 1
    export LEASEHOLD_TEST_S3_MINIO="s3://$STORE/tests?$(endpoint "$port")&region=us-east-1"
}

start_dynamodb_local() {
    local port jars
    port=$(free_port) || return 1
    jars=$(jars "$SERVER_FILES/dynamodb-local.xml")
    # A fast start and few threads matter more than optimized code.
    start dynamodb-local "$port" make_trusted_table java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
        "-Djava.library.path=$jars" -cp "$jars/*" \
        "$SERVER_FILES/LoopbackDynamoDb.java" -inMemory -sharedDb -disableTelemetry -port "$port" || return 1
    export LEASEHOLD_TEST_DYNAMODB_LOCAL="dynamodb://$STORE?$(endpoint "$port")&region=us-east-1"
}

start_fake_gcs() {
    local port
    port=$(free_port) || return 1
    start fake-gcs-server "$port" make_gcs_bucket "$(go_program fake-gcs-server)" -scheme http -backend memory \
        -host 127.0.0.1 -port "$port" -public-host "127.0.0.1:$port" -external-url "http://127.0.0.1:$port" \
        -log-level warn || return 1
    export LEASEHOLD_TEST_GCS_FAKE="gs://$STORE/tests?$(endpoint "$port")&credentials=anonymous"
}

# This server does not enforce preconditions, so leasehold must refuse it.
start_bad_gcs() {
    local port
    port=$(free_port) || return 1
    start gcp-storage-emulator "$port" make_gcs_bucket "$CACHE/$GCP_STORAGE_EMULATOR/bin/gcp-storage-emulator" start \
        --host 127.0.0.1 --port "$port" --in-memory || return 1
    export LEASEHOLD_TEST_BAD_GCS="gs://$STORE/tests?$(endpoint "$port")&credentials=anonymous"
}

# This server ignores preconditions, so leasehold must refuse it.
start_s3_ignoring() {
    local port
    port=$(free_port) || return 1
    start gofakes3 "$port" make_bucket "$(go_program gofakes3)" -host "127.0.0.1:$port" -backend memory || return 1
    export LEASEHOLD_TEST_BAD_S3_IGNORING="s3://$STORE/tests?$(endpoint "$port")&region=us-east-1"
}

# This server checks preconditions first and writes afterwards, so concurrent writers may all succeed. leasehold must
# refuse it.
start_s3_racy() {
    local port
    port=$(free_port) && mkdir -p "$scratch/s3s-fs/$STORE" || return 1
    start s3s-fs "$port" listens "$(s3s_fs)" --host 127.0.0.1 --port "$port" --access-key "$AWS_ACCESS_KEY_ID" \
        --secret-key "$AWS_SECRET_ACCESS_KEY" "$scratch/s3s-fs" || return 1
    export LEASEHOLD_TEST_BAD_S3_RACY="s3://$STORE/tests?$(endpoint "$port")&region=us-east-1"
}

# This server has the same fault with DynamoDB's conditions.
start_dynamodb_racy() {
    local port
    port=$(free_port) || return 1
    start plain-moto "$port" make_table "$CACHE/$MOTO/bin/moto_server" -H 127.0.0.1 -p "$port" || return 1
    export LEASEHOLD_TEST_BAD_DYNAMODB_RACY="dynamodb://$STORE?$(endpoint "$port")&region=us-east-1"
}

# The leases have a separate Azurite: under load, one stops responding for as long as a request may take.
start_azurite() {
    local port store
    for store in AZURE AZURE_LEASE; do
        port=$(free_port) || return 1
        start "azurite-${store,,}" "$port" make_container \
            env NODE_OPTIONS="--require \"$PWD/$SERVER_FILES/azurite/no_collection.js\"" \
            "$(azurite)" --blobHost 127.0.0.1 --blobPort "$port" --inMemoryPersistence \
            --silent --disableTelemetry || return 1
        export "LEASEHOLD_TEST_$store=azblob://devstoreaccount1/$STORE/tests?$(endpoint "$port")"
    done
}

# Does not wait for the disk: etcd gives up a request after 7 s, and a busy disk can take longer.
start_etcd() {
    local port peers
    port=$(free_port) && peers=$(free_port) || return 1
    start etcd "$port" etcd_is_healthy "$(go_program etcd)" --name test --data-dir "$scratch/etcd" --log-level warn \
        --unsafe-no-fsync \
        --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls "http://127.0.0.1:$peers" --initial-advertise-peer-urls "http://127.0.0.1:$peers" \
        --initial-cluster "test=http://127.0.0.1:$peers" || return 1
    export LEASEHOLD_TEST_ETCD="etcd://127.0.0.1:$port/tests/"
}

# This server starts its own etcd. It is stopped with KILL, because on TERM it waits for open watches.
start_kube_apiserver() {
    local port
    port=$(free_port) && mkdir "$scratch/kubernetes" || return 1
    start kube-apiserver "$port" listens "$(kube_apiserver)" "127.0.0.1:$port" "$scratch/kubernetes" \
        "$(go_program etcd)" || return 1
    stop_signals[${servers[-1]}]=KILL
    export LEASEHOLD_TEST_KUBERNETES="k8s://default?$(endpoint "$port")"
    export LEASEHOLD_TEST_KUBECONFIG="$scratch/kubernetes/kubeconfig"
}

# PostgreSQL and pgbouncer refuse to run as root, so root runs them as the user that Debian's package creates.
readonly as_postgres=(setpriv --reuid=postgres --regid=postgres --clear-groups)

# Starts a new cluster.
start_postgresql() {
    local port programs data=$scratch/postgresql as=()
    port=$(free_port) && programs=$(postgresql_programs) || return 1
    if ((EUID == 0)); then
        as=("${as_postgres[@]}")
        install -d -o postgres -g postgres "$data" && chmod o+x "$scratch" || return 1
    fi
    (cd / && "${as[@]}" "$programs/initdb" --pgdata="$data" --username=leasehold --auth=trust --encoding=UTF8 \
        --no-sync) >"$scratch/initdb.log" 2>&1 || { tail -n 20 "$scratch/initdb.log"; return 1; }
    start postgresql "$port" postgresql_is_ready "${as[@]}" "$programs/postgres" -D "$data" -h 127.0.0.1 -p "$port" \
        -c unix_socket_directories= -c fsync=off -c max_connections=400 || return 1
    # On TERM, PostgreSQL would wait until all clients have disconnected.
    stop_signals[${servers[-1]}]=INT
    export LEASEHOLD_TEST_POSTGRES="postgres://leasehold@127.0.0.1:$port/postgres"
}

# The user may do everything, and has no password.
start_mariadb() {
    local port data=$scratch/mariadb as=()
    port=$(free_port) || return 1
    if ((EUID == 0)); then
        as=("${as_postgres[@]}")
        install -d -o postgres -g postgres "$data" && chmod o+x "$scratch" || return 1
    fi
    (cd / && "${as[@]}" mariadb-install-db --no-defaults --datadir="$data" --tmpdir="$data" --skip-test-db \
        --auth-root-authentication-method=normal) >"$scratch/mariadb-install-db.log" 2>&1 ||
        { tail -n 20 "$scratch/mariadb-install-db.log"; return 1; }
    cat >"$scratch/mariadb.sql" <<'SQL' || return 1
CREATE DATABASE IF NOT EXISTS locks;
CREATE USER IF NOT EXISTS leasehold@'%';
GRANT ALL ON *.* TO leasehold@'%' WITH GRANT OPTION;
SQL
    start mariadb "$port" mariadb_is_ready "${as[@]}" "$(mariadbd)" --no-defaults --datadir="$data" \
        --bind-address=127.0.0.1 --port="$port" --socket="$data/socket" --tmpdir="$data" --skip-name-resolve --max-connections=400 \
        --innodb-flush-log-at-trx-commit=0 --init-file="$scratch/mariadb.sql" || return 1
    export LEASEHOLD_TEST_MYSQL="mysql://leasehold@127.0.0.1:$port/locks"
}

# Starts pgbouncer in front of PostgreSQL. Its databases `transaction` and `session` have pools of these modes, `single`
# has one connection, and `counted` is for one test.
start_pgbouncer() {
    local port settings=$scratch/pgbouncer.ini to as=()
    port=$(free_port) && ((EUID != 0)) || as=("${as_postgres[@]}")
    to="host=127.0.0.1 port=$(sed 's/.*:\([0-9]*\).*/\1/' <<<"$LEASEHOLD_TEST_POSTGRES") dbname=postgres user=leasehold"
    cat >"$settings" <<INI || return 1
[databases]
transaction = $to pool_mode=transaction
session = $to pool_mode=session
single = $to pool_mode=transaction pool_size=1
counted = $to pool_mode=transaction
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
admin_users = leasehold
default_pool_size = 100
max_client_conn = 2000
INI
    start pgbouncer "$port" listens "${as[@]}" "$(pgbouncer)" "$settings" || return 1
    stop_signals[${servers[-1]}]=INT
    export LEASEHOLD_TEST_PGBOUNCER="postgres://leasehold@127.0.0.1:$port/transaction"
}

start_redis() { start_redis_server redis && export LEASEHOLD_TEST_REDIS="$at"; }
start_valkey() { start_redis_server valkey && export LEASEHOLD_TEST_VALKEY="$at"; }

# start_redis_server NAME [PROGRAM OPTION...]: starts a server that does not wait for the disk. Sets `at` to the store
# URL.
start_redis_server() {
    local name=$1 port
    port=$(free_port) && mkdir "$scratch/$name" || return 1
    start "$name" "$port" redis_is_ready "$(redis_program "${2:-$name}-server")" --bind 127.0.0.1 \
        --port "$port" --dir "$scratch/$name" --save "" --appendonly yes --appendfsync no "${@:3}" || return 1
    at="redis://127.0.0.1:$port?failover_grace=0s"
}

# Does not wait for the disk, as by default.
start_nats() {
    local port
    port=$(free_port) || return 1
    start nats "$port" make_nats_bucket "$(go_program nats-server)" -a 127.0.0.1 -p "$port" -js -sd "$scratch/nats" ||
        return 1
    export LEASEHOLD_TEST_NATS="nats://127.0.0.1:$port/$STORE"
}

# Starts a Redis Cluster of three primaries with a replica each. Each server also listens 10,000 ports above its own.
start_redis_cluster() {
    local n at hosts=() deadline=$((SECONDS + 60))
    for n in 1 2 3 4 5 6; do
        start_redis_server "redis-cluster-$n" redis --cluster-enabled yes --cluster-node-timeout 2000 || return 1
        at=${at#redis://}
        hosts+=("${at%\?*}")
    done
    redis-cli --cluster create "${hosts[@]}" --cluster-replicas 1 --cluster-yes >"$scratch/redis-cluster.log" || return 1
    for at in "${hosts[@]}"; do
        until redis-cli -p "${at#*:}" cluster info | grep -q cluster_state:ok; do
            ((SECONDS < deadline)) || { printf 'the Redis Cluster does not start\n'; return 1; }
            sleep 0.2
        done
    done
    export LEASEHOLD_TEST_REDIS_CLUSTER="redis://${hosts[0]},${hosts[1]},${hosts[2]}/?cluster=on&failover_grace=0s"
}

# Exports the paths of programs that tests run themselves. For example, chaos kills and restarts servers.
name_programs() {
    local failed=0
    name_servers || failed=1
    export LEASEHOLD_TEST_AWS LEASEHOLD_TEST_ETCD_SERVER LEASEHOLD_TEST_ETCDCTL LEASEHOLD_TEST_PEER_DYNAMODB_JAVA
    export LEASEHOLD_TEST_PEER_DYNAMODB_GO LEASEHOLD_TEST_PEER_ETCD_GO LEASEHOLD_TEST_PEER_SHEDLOCK
    export LEASEHOLD_TEST_PEER_REDIS_PY LEASEHOLD_TEST_PEER_REDSYNC LEASEHOLD_TEST_PEER_REDLOCK_NODE
    export LEASEHOLD_TEST_PEER_REDISSON LEASEHOLD_TEST_PEER_CLIENT_GO LEASEHOLD_TEST_PEER_AZURE_PY
    LEASEHOLD_TEST_AWS=$CACHE/$AWS_CLI/bin/aws
    export LEASEHOLD_TEST_NGINX LEASEHOLD_TEST_OPENTOFU
    LEASEHOLD_TEST_OPENTOFU=$(opentofu)
    LEASEHOLD_TEST_NGINX=$(unpacked nginx)/usr/sbin/nginx
    LEASEHOLD_TEST_ETCD_SERVER=$(go_program etcd)
    LEASEHOLD_TEST_ETCDCTL=$(go_program etcdctl)
    LEASEHOLD_TEST_PEER_DYNAMODB_JAVA=$(java_peer)
    LEASEHOLD_TEST_PEER_DYNAMODB_GO=$(go_peer dynamodb)
    LEASEHOLD_TEST_PEER_ETCD_GO=$(go_peer etcd)
    LEASEHOLD_TEST_PEER_SHEDLOCK=$(shedlock_peer)
    LEASEHOLD_TEST_PEER_REDIS_PY=$(python_peer redis "$REDIS_PY")
    LEASEHOLD_TEST_PEER_AZURE_PY=$(python_peer azure "$STORAGE_BLOB_PY")
    LEASEHOLD_TEST_PEER_REDSYNC=$(go_peer redis)
    LEASEHOLD_TEST_PEER_REDLOCK_NODE=$(node_peer)
    LEASEHOLD_TEST_PEER_REDISSON=$(redisson_peer)
    LEASEHOLD_TEST_PEER_CLIENT_GO=$(client_go_peer)
    export LEASEHOLD_TEST_KUBECTL
    LEASEHOLD_TEST_KUBECTL=$(kubectl)
    export LEASEHOLD_TEST_GUIDE_PYTHON LEASEHOLD_TEST_GUIDE_NODE
    LEASEHOLD_TEST_GUIDE_PYTHON=$(guide_python)
    LEASEHOLD_TEST_GUIDE_NODE=$(guide_node)
    return "$failed"
}

# Exports the command lines of the contenders in the benchmark. peers/go/contender.go describes their protocol.
name_benchmark_peers() {
    export LEASEHOLD_BENCH_PEER_ETCD_GO LEASEHOLD_BENCH_PEER_ETCD_RUST LEASEHOLD_BENCH_CALLS_ETCD LEASEHOLD_BENCH_PEER_DYNAMODB_GO
    export LEASEHOLD_BENCH_PEER_DYNAMODB_JAVA LEASEHOLD_BENCH_PEER_DYNAMODB_RUST LEASEHOLD_BENCH_PEER_DYNAMODB_LEASE_RUST
    LEASEHOLD_BENCH_PEER_ETCD_GO="$(go_peer etcd) bench"
    LEASEHOLD_BENCH_PEER_ETCD_RUST="$(rust_peer etcd) bench"
    LEASEHOLD_BENCH_CALLS_ETCD="$(rust_peer etcd-calls) bench"
    LEASEHOLD_BENCH_PEER_DYNAMODB_GO="$(go_peer dynamodb) bench"
    LEASEHOLD_BENCH_PEER_DYNAMODB_JAVA="env JAVA_OPTIONS= $(java_peer) bench"
    LEASEHOLD_BENCH_PEER_DYNAMODB_RUST="$(rust_peer dlock) bench"
    LEASEHOLD_BENCH_PEER_DYNAMODB_LEASE_RUST="$(rust_peer dynamodb-lease) bench"
    export LEASEHOLD_BENCH_PEER_CLIENT_GO
    LEASEHOLD_BENCH_PEER_CLIENT_GO="$(client_go_peer) bench"
    export LEASEHOLD_BENCH_PEER_REDSYNC LEASEHOLD_BENCH_PEER_REDISSON LEASEHOLD_BENCH_PEER_REDISSON_FAIR
    LEASEHOLD_BENCH_PEER_REDSYNC="$(go_peer redis) bench"
    LEASEHOLD_BENCH_PEER_REDISSON="env JAVA_OPTIONS= $(redisson_peer) bench"
    LEASEHOLD_BENCH_PEER_REDISSON_FAIR="env JAVA_OPTIONS= REDISSON_FAIR=on $(redisson_peer) bench"
}

name_servers() {
    export LEASEHOLD_TEST_MINIO_SERVER LEASEHOLD_TEST_FAKE_GCS_SERVER LEASEHOLD_TEST_FAKETIME
    LEASEHOLD_TEST_MINIO_SERVER=$(go_program minio)
    LEASEHOLD_TEST_FAKE_GCS_SERVER=$(go_program fake-gcs-server)
    export LEASEHOLD_TEST_AZURITE_SERVER
    LEASEHOLD_TEST_AZURITE_SERVER=$(azurite)
    export LEASEHOLD_TEST_KUBE_APISERVER
    LEASEHOLD_TEST_KUBE_APISERVER=$(kube_apiserver)
    export LEASEHOLD_TEST_MOTO_PYTHON=$CACHE/$MOTO/bin/python
    export LEASEHOLD_TEST_MOTO_SERVER=$PWD/$SERVER_FILES/atomic_moto.py
    export LEASEHOLD_TEST_DYNAMODB_LOCAL_SERVER=$PWD/$SERVER_FILES/LoopbackDynamoDb.java
    export LEASEHOLD_TEST_DYNAMODB_LOCAL_JARS LEASEHOLD_TEST_POSTGRES_PROGRAMS
    LEASEHOLD_TEST_POSTGRES_PROGRAMS=$(postgresql_programs)
    export LEASEHOLD_TEST_MARIADB_SERVER
    LEASEHOLD_TEST_MARIADB_SERVER=$(mariadbd)
    export LEASEHOLD_TEST_NATS_SERVER
    LEASEHOLD_TEST_NATS_SERVER=$(go_program nats-server)
    export LEASEHOLD_TEST_REDIS_SERVER LEASEHOLD_TEST_REDIS_SENTINEL LEASEHOLD_TEST_VALKEY_SERVER
    LEASEHOLD_TEST_REDIS_SERVER=$(redis_program redis-server)
    LEASEHOLD_TEST_REDIS_SENTINEL=$(redis_program redis-sentinel)
    LEASEHOLD_TEST_VALKEY_SERVER=$(redis_program valkey-server)
    LEASEHOLD_TEST_DYNAMODB_LOCAL_JARS=$(jars "$SERVER_FILES/dynamodb-local.xml")
    # The library that faketime preloads. faketime itself is not used, because it would get the signals that are meant
    # for its program.
    LEASEHOLD_TEST_FAKETIME=$(dpkg -L libfaketime | grep '/libfaketime\.so\.1$') ||
        { printf 'the library of faketime is not there: apt-get install libfaketime\n'; return 1; }
}

# --- readiness of servers: each function takes the port, and creates what the tests use ------------------------------

make_bucket() { aws_request s3 "http://127.0.0.1:$1/$STORE" --request PUT; }

make_table() {
    aws_request dynamodb "http://127.0.0.1:$1/" --header 'Content-Type: application/x-amz-json-1.0' \
        --header 'X-Amz-Target: DynamoDB_20120810.CreateTable' --data "{
            \"TableName\": \"$STORE\", \"BillingMode\": \"PAY_PER_REQUEST\",
            \"AttributeDefinitions\": [{\"AttributeName\": \"key\", \"AttributeType\": \"S\"}],
            \"KeySchema\": [{\"AttributeName\": \"key\", \"KeyType\": \"HASH\"}]}"
}

# Creates the table with the record of an examination that the server passed. If every test examined moto at the same
# time, moto would be busy for minutes. refused.rs and the tests of the doctor examine servers.
make_trusted_table() {
    make_table "$1" || return 1
    local marker
    marker="{\\\"about\\\":\\\"the tests know this server\\\",\\\"examination\\\":2,\\\"outdated\\\":\\\"none\\\","
    marker+="\\\"verdicts\\\":[{\\\"place\\\":\\\"http://127.0.0.1:$1/$STORE\\\",\\\"at_us\\\":$(date +%s)000000}],"
    marker+="\\\"nonce\\\":\\\"00000000000000000000000000000001\\\"}"
    aws_request dynamodb "http://127.0.0.1:$1/" --header 'Content-Type: application/x-amz-json-1.0' \
        --header 'X-Amz-Target: DynamoDB_20120810.PutItem' --data "{
            \"TableName\": \"$STORE\", \"Item\": {\"key\": {\"S\": \".leasehold-probe\"},
            \"nonce\": {\"S\": \"known\"}, \"marker\": {\"S\": \"$marker\"}}}"
}

make_gcs_bucket() {
    request "http://127.0.0.1:$1/storage/v1/b?project=leasehold" --header 'Content-Type: application/json' \
        --data "{\"name\": \"$STORE\"}"
}

# Uses a shared access signature that is valid until 2099. It is signed with the key of the emulators' account, which is
# public.
make_container() {
    request --request PUT --header 'Content-Length: 0' \
        "http://127.0.0.1:$1/devstoreaccount1/$STORE?restype=container&sv=2023-11-03&ss=b&srt=sco&sp=rwdlc&se=2099-01-01T00%3A00%3A00Z&sig=thsOUTh%2Bdpz9aZUW1m5mG5k5vQy%2FtbbHlBFHN8kpSso%3D"
}

# Creates nothing, because buckets are folders and each test creates its namespace.
listens() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

etcd_is_healthy() { request "http://127.0.0.1:$1/health"; }

postgresql_is_ready() { psql -XAtqc 'SELECT' "postgresql://leasehold@127.0.0.1:$1/postgres" >/dev/null 2>&1; }

mariadb_is_ready() { mariadb --no-defaults -h 127.0.0.1 -P "$1" -u leasehold -e 'SELECT 1' locks >/dev/null 2>&1; }

redis_is_ready() { [[ $(redis-cli -p "$1" ping 2>/dev/null) == PONG ]]; }

# Sends one request in the protocol of NATS, and waits for the response.
make_nats_bucket() {
    local settings='{"name":"KV_'$STORE'","subjects":["$KV.'$STORE'.>"],"max_msgs_per_subject":1,"discard":"new","storage":"file",
        "republish":{"src":"$KV.'$STORE'.>","dest":"leasehold.'$STORE'.>"}}'
    {
        printf 'CONNECT {"verbose":false}\r\nSUB made 1\r\nPUB $JS.API.STREAM.CREATE.KV_%s made %d\r\n%s\r\n' \
            "$STORE" "${#settings}" "$settings" >&3 && timeout 5 grep -qm1 '"state"' <&3
    } 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$1"
}

# aws_request SERVICE URL OPTION...
aws_request() {
    local service=$1
    shift
    request "$@" --aws-sigv4 "aws:amz:us-east-1:$service" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY"
}

request() { curl --silent --fail --output /dev/null --max-time 10 "$@"; }
