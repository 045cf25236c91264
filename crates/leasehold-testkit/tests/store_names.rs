//! Stores are named in few places: their folders in the library, their files in the testkit, and the lists made of
//! those. The test fails if other source code names a store.

use std::path::{Path, PathBuf};
use std::{fs, iter};

/// Folders and files that are about stores, as the beginning of a path below `crates/X/src`.
const OWN: &[&str] = &["stores/", "stores.rs", "fakes/", "fakes.rs", "simulation/"];

/// Other files that name a store, and why.
const ALLOWED: &[(&str, &str)] = &[
    ("leasehold/src/proof/doctor/cost.rs", "prices"),
    ("leasehold/src/fuzzing.rs", "the fuzz targets of what stores read"),
    ("leasehold/src/fuzzing/corpus.rs", "seeds for those"),
    ("leasehold/src/fuzzing/url.rs", "seeds for those"),
    ("leasehold/src/golden.rs", "the golden records, by the names of their files"),
    ("leasehold/src/objects/cas_loop.rs", "help: which stores have objects"),
    ("leasehold/src/proof.rs", "which stores have cells to prove"),
    ("leasehold/src/proof/cells.rs", "likewise; help: a store that honours preconditions"),
    ("leasehold/src/proof/checks.rs", "help: likewise"),
    ("leasehold/src/proof/trust.rs", "a conversion that only the tests of one store need"),
    ("leasehold/src/register.rs", "help: which stores have endpoints"),
    ("leasehold/src/url.rs", "checks of names, which the table uses"),
    ("leasehold/src/url/schemes.rs", "the table of schemes and options"),
    ("leasehold-cli/src/args.rs", "examples"),
    ("leasehold-cli/src/args/listing.rs", "help: what a sweep does not delete"),
    ("leasehold-cli/src/args/terraform.rs", "help: which stores have objects"),
    ("leasehold-cli/src/commands/terraform.rs", "an example"),
    ("leasehold-cli/src/args/objects.rs", "examples"),
    ("leasehold-cli/src/args/serving.rs", "examples"),
    ("leasehold-cli/src/args/running.rs", "help: whose lock ends with its process"),
    ("leasehold-cli/src/config.rs", "the store that is used without a configuration"),
    ("leasehold-cli/src/default_store.rs", "likewise"),
    ("leasehold-cli/src/object.rs", "examples"),
    ("leasehold-cli/src/commands/help.rs", "help pages"),
    ("leasehold-testkit/src/chaos/naive.rs", "locks that are none, in a bucket and in a file"),
    ("leasehold-testkit/src/chaos/registers.rs", "whose deletes have to be examined first"),
    ("leasehold-testkit/src/launch.rs", "the protocols by which requests are counted"),
    ("leasehold-testkit/src/launch/unprivileged.rs", "the user that servers run as"),
    ("leasehold-testkit/src/simulation/plan.rs", "the simulated stores"),
    ("leasehold-testkit/src/simulation/items.rs", "a simulated store"),
    ("leasehold-testkit/src/simulation/world.rs", "the simulated stores"),
    ("leasehold-bench/src/contender.rs", "the rivals that this program itself is"),
    ("leasehold-bench/src/contender/dynamodb.rs", "a rival"),
    ("leasehold-bench/src/contender/gcs.rs", "a rival"),
    ("leasehold-bench/src/contender/mysql.rs", "a rival"),
    ("leasehold-bench/src/contender/nats.rs", "a rival"),
    ("leasehold-bench/src/contender/redis.rs", "a rival"),
    ("leasehold-bench/src/contender/s3.rs", "a rival"),
    ("leasehold-bench/src/measure/command.rs", "the commands of rivals"),
    ("leasehold-bench/src/report/targets.rs", "the targets, which are set by store"),
    ("leasehold-bench/src/roster.rs", "the rivals"),
    ("leasehold-bench/src/wire.rs", "the protocols whose requests are counted"),
    ("leasehold-bench/src/wire/proxy.rs", "likewise"),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the names of the stores that have servers or files, taken from the names of the testkit's files.
fn names() -> Vec<String> {
    let files = fs::read_dir(crates().join("leasehold-testkit/src/stores")).unwrap();
    let names =
        files.filter_map(|file| Some(file.unwrap().file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    // "memory", "http" and "dir" occur everywhere, and "aws" is not a store.
    names.filter(|name| !["memory", "http", "dir", "aws"].contains(&name.as_str())).collect()
}

/// Returns the Rust files below `folder`, except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.contains("tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the lines of `code` before its tests, without comments.
fn lines(code: &str) -> impl Iterator<Item = &str> {
    let next = code.lines().skip(1).chain(iter::once(""));
    let is_test = |line: &str, next: &str| line.starts_with("#[cfg(test)]") && next.trim_end().ends_with('{');
    let before = code.lines().zip(next).take_while(move |(line, next)| !is_test(line, next));
    before.map(|(line, _)| line).filter(|line| !line.trim_start().starts_with("//"))
}

/// Returns the first line of `code` that contains one of `names`, as a word or at either end of a word.
fn naming<'a>(code: &'a str, names: &[String]) -> Option<&'a str> {
    lines(code).find(|line| {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
        words.into_iter().any(|word| names.iter().any(|name| word.starts_with(name) || word.ends_with(name)))
    })
}

#[test]
fn source_code_names_stores_in_few_places_only() {
    let (root, names) = (crates().canonicalize().unwrap(), names());
    let (mut named, mut elsewhere) = (0, Vec::new());
    for package in ["leasehold", "leasehold-cli", "leasehold-serve", "leasehold-testkit", "leasehold-bench"] {
        for source in sources(&root.join(package).join("src")) {
            let path = source.strip_prefix(&root).unwrap().to_str().unwrap();
            let code = fs::read_to_string(&source).unwrap();
            let Some(line) = naming(&code, &names) else { continue };
            named += 1;
            let own = OWN.iter().any(|own| path.contains(&format!("/src/{own}")));
            if !own && !ALLOWED.iter().any(|(allowed, _)| *allowed == path) {
                elsewhere.push(format!("{path}: {}", line.trim()));
            }
        }
    }
    assert!(elsewhere.is_empty(), "a store is named outside its own places: {elsewhere:#?}");
    assert!(named > ALLOWED.len() / 2, "{named} files name {names:?}");
}

#[test]
fn a_name_is_found_in_code_and_not_in_comments_or_tests() {
    let names = ["s3".to_owned(), "etcd".to_owned()];
    for (code, found) in [
        ("use aws_sdk_s3::Client;", true),
        ("    Etcd(usize),", true),
        ("let fake = FakeS3::start();", true),
        ("format!(\"s3://{bucket}\")", true),
        ("// as S3 does\n", false),
        ("let parts3d = 1;", false),
        ("fn f() {}\n#[cfg(test)]\nmod tests {\n    \"etcd:\";\n}\n", false),
    ] {
        assert_eq!(naming(code, &names).is_some(), found, "{code}");
    }
    assert!(self::names().contains(&"etcd".to_owned()), "{:?}", self::names());
}
