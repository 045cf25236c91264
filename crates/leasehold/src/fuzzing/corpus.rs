//! Checks the properties on the inputs in the corpus. This is a regression suite that runs on every toolchain, without
//! a fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

use super::TARGETS;
use crate::random::Random;

/// The number of mutated copies of each input that are also tested.
const CHANGED: usize = 100;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = fuzz().join("corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Returns `input` with a few bytes changed, removed, inserted or repeated.
fn changed(input: &[u8], random: &Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 + random.bits() % 4 {
        let below = |most: usize| (random.bits() % (most as u128 + 1)) as usize;
        let at = below(bytes.len());
        let end = (at + below(8)).min(bytes.len());
        match below(4) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.extend_from_within(at..end),
            3 => bytes.insert(at, below(255) as u8),
            _ if at < bytes.len() => {
                bytes[at] = *b"0129-aef{}[]\":,/%\x1b\0\xff".get(below(20)).unwrap_or(&0)
            }
            _ => {}
        }
    }
    bytes
}

#[test]
fn every_property_holds_of_the_kept_inputs_and_of_changed_ones() {
    let random = Random::seeded(1);
    for (target, property) in TARGETS {
        for (path, input) in inputs(target) {
            println!("{}", path.display());
            property(&input);
            for _ in 0..CHANGED {
                let changed = changed(&input, &random);
                println!("{target} {:?}", String::from_utf8_lossy(&changed));
                property(&changed);
            }
        }
    }
}

#[cfg(all(feature = "dynamodb", feature = "etcd", feature = "sqlite"))]
#[test]
fn every_property_has_a_fuzz_target() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    // The targets of the command.
    names.extend(["agent_requests", "config"].map(str::to_owned));
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
    }
    names.sort();
    for folder in ["fuzz_targets", "corpus"] {
        let files = fs::read_dir(fuzz().join(folder)).unwrap();
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut found: Vec<_> = files.map(|file| stem(file.unwrap().path())).collect();
        found.sort();
        assert_eq!(found, names, "{folder}");
    }
}
