//! What every package of the project has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A panic is how a test fails.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folders of the packages that are published.
fn packages() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let packages: Vec<_> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    assert_eq!(packages.len(), 3, "{packages:?}");
    packages
}

fn manifest(folder: &Path) -> String {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap()
}

#[test]
fn unsafe_code_is_forbidden_everywhere() {
    assert!(manifest(&root()).contains("\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n"));
    for package in packages() {
        assert!(manifest(&package).contains("\n[lints]\nworkspace = true\n"), "{}", package.display());
    }
    // A workspace of its own.
    assert!(manifest(&root().join("fuzz")).contains("\n[lints.rust]\nunsafe_code = \"forbid\"\n"));
}

#[test]
fn every_package_brings_its_licences_and_says_what_it_is() {
    for package in packages() {
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = fs::read_to_string(package.join(licence)).unwrap();
            assert_eq!(own, fs::read_to_string(root().join(licence)).unwrap(), "{}", package.display());
        }
        for field in ["version", "edition", "rust-version", "license", "repository"] {
            let line = format!("\n{field}.workspace = true\n");
            assert!(manifest(&package).contains(&line), "{}: {field}", package.display());
        }
        for field in ["description", "readme"] {
            assert!(manifest(&package).contains(&format!("\n{field}")), "{}: {field}", package.display());
        }
    }
}
