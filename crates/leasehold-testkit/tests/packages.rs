//! Checks the contents of every package of the project.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folders of all packages.
fn packages() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["fuzz", "crates/leasehold-testkit/peers/rust", "examples/own-store"]
        .map(|folder| root().join(folder));
    folders.filter(|folder| folder.join("Cargo.toml").exists()).chain(others).collect()
}

/// Returns the folders of the published packages.
fn published() -> Vec<PathBuf> {
    let published: Vec<_> =
        packages().into_iter().filter(|folder| !manifest(folder).contains("\npublish = false\n")).collect();
    assert_eq!(published.len(), 4, "{published:?}");
    published
}

fn manifest(folder: &Path) -> String {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap()
}

#[test]
fn unsafe_code_is_forbidden_everywhere() {
    assert!(manifest(&root()).contains("\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n"));
    for package in packages() {
        let manifest = manifest(&package);
        // Packages that are their own workspace set the lint themselves.
        let forbidden = match manifest.contains("\n[workspace]\n") {
            true => "\n[lints.rust]\nunsafe_code = \"forbid\"\n",
            false => "\n[lints]\nworkspace = true\n",
        };
        assert!(manifest.contains(forbidden), "{}", package.display());
    }
}

#[test]
fn every_package_has_its_licences_and_a_description() {
    for package in published() {
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
