#!/usr/bin/env bash
# Builds the fuzz targets and runs them, on stable Rust and without cargo-fuzz. See docs/fuzzing.md.
#
#   fuzz/run.sh                        runs each target on its corpus, and then for a fixed number of runs, without optimization
#   fuzz/run.sh TARGET [OPTION...]     runs one target with options of libFuzzer, such as -max_total_time=300, or on an input file
#
# LEASEHOLD_FUZZ_RUNS is the number of runs (default: 2000; slow targets run fewer). LEASEHOLD_FUZZ_SEED is the seed (default: 1;
# with 0, each run has a different seed).
set -euo pipefail
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}")/fuzz
readonly TARGET
cd "$(dirname "${BASH_SOURCE[0]}")"

# The flags that cargo-fuzz sets, except those of the address sanitizer. It needs a nightly toolchain, and would find little,
# because the code has no unsafe blocks.
readonly FLAGS="--cfg fuzzing -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"

host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, cargo does not apply the flags to build scripts and macros.
# A run of a few inputs takes less time than the optimizer.
if (($# > 0)); then profile=release folder=release; else profile=dev folder=debug; fi
built=$TARGET/$host/$folder
RUSTFLAGS=$(tr -s ' \n' ' ' <<<"$FLAGS") \
    cargo build --quiet --profile "$profile" --locked --target "$host" --target-dir "$TARGET"
export RUST_BACKTRACE=${RUST_BACKTRACE:-0}

if (($# > 0)); then
    target=$1
    shift
    mkdir -p "artifacts/$target"
    # New inputs are stored outside the corpus in the repository, so that it stays small.
    mkdir -p "$TARGET/corpus/$target"
    for option in "$@"; do
        [[ ! -f $option ]] || exec "$built/$target" "$@"
    done
    exec "$built/$target" -max_len=4096 -dict=dictionary.txt -artifact_prefix="artifacts/$target/" "$@" "$TARGET/corpus/$target" "corpus/$target"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "$scratch/$target" "artifacts/$target"
    runs=${LEASEHOLD_FUZZ_RUNS:-2000}
    # One input causes hundreds of requests, or dozens of URLs.
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
        printf '%s: FAILED; to repeat: fuzz/run.sh %s FILE (FILE is named above)\n' "$target" "$target"
    fi
done
exit $failed
