#!/usr/bin/env bash
# Builds the fuzz targets and runs them, on stable Rust and without cargo-fuzz. See docs/fuzzing.md.
#
#   fuzz/run.sh                        each target, over its corpus and for a fixed number of runs
#   fuzz/run.sh TARGET [OPTION...]     one, with options of libFuzzer, like -max_total_time=300 or the file of a finding
#
# LEASEHOLD_FUZZ_RUNS says how many runs (30000; fewer for the slow ones), LEASEHOLD_FUZZ_SEED with which seed (1; 0 for another each time).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# What cargo-fuzz sets too, but for the address sanitizer, which needs a nightly toolchain: there is no unsafe code to find
# anything in.
readonly FLAGS="--cfg fuzzing -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"

host=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, the flags are not for build scripts and macros.
RUSTFLAGS=$(tr -s ' \n' ' ' <<<"$FLAGS") cargo build --quiet --release --locked --target "$host" --target-dir target
export RUST_BACKTRACE=${RUST_BACKTRACE:-0}
readonly built=target/$host/release

if (($# > 0)); then
    target=$1
    shift
    mkdir -p "artifacts/$target"
    # What is found on the way is kept beside the corpus, not in it: the corpus stays small.
    mkdir -p "target/corpus/$target"
    for option in "$@"; do
        [[ ! -f $option ]] || exec "$built/$target" "$@"
    done
    exec "$built/$target" -max_len=4096 -dict=dictionary.txt -artifact_prefix="artifacts/$target/" "$@" "target/corpus/$target" "corpus/$target"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "$scratch/$target" "artifacts/$target"
    runs=${LEASEHOLD_FUZZ_RUNS:-30000}
    # One of their inputs is hundreds of requests, or dozens of URLs.
    case $target in
    probe_marker) runs=$((runs / 30)) ;;
    store_url) runs=$((runs / 6)) ;;
    esac
    if "$built/$target" -runs="$runs" -seed="${LEASEHOLD_FUZZ_SEED:-1}" -max_len=4096 -timeout=20 -dict=dictionary.txt \
        -artifact_prefix="artifacts/$target/" "$scratch/$target" "corpus/$target" >"$scratch/log" 2>&1; then
        printf '%s: %s\n' "$target" "$(tail -n 1 "$scratch/log")"
    else
        failed=1
        grep -A 4 -e 'panicked at' -e '^==.*ERROR' "$scratch/log" || true
        tail -n 3 "$scratch/log"
        printf '%s: FAILED; again with fuzz/run.sh %s FILE (named above)\n' "$target" "$target"
    fi
done
exit $failed
