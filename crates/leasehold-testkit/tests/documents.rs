//! Checks that every relative link in the project's documents leads somewhere, that an index has every page, that the
//! files and names exist with which CONTRIBUTING.md recommends to start reading, and that leasehold prints the errors that
//! docs/troubleshooting.md explains.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all documents below `folder`, except in build folders.
fn documents(folder: &Path) -> Vec<PathBuf> {
    files(folder, ".md")
}

/// Returns all files below `folder` whose names end with `suffix`, except in build folders.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, suffix));
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

/// Returns the lines of `text` outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence && !line.starts_with("    ")
    })
}

/// Returns the targets of the links in `text`.
fn links(text: &str) -> Vec<String> {
    let of_line = |line: &str| -> Vec<String> {
        let ends = line.match_indices("](").map(|(at, mark)| &line[at + mark.len()..]);
        ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    };
    prose(text).flat_map(of_line).collect()
}

/// Returns the anchors of the headings in `text`, as GitHub generates them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns why `link` in `document` is broken, if it is.
fn broken(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { document.to_owned() } else { document.parent().unwrap().join(path) };
    if !target.exists() {
        return Some(format!("{}: {link}: there is no such file", document.display()));
    }
    // Anchors into source files are line numbers.
    if anchor.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let known = anchors(&fs::read_to_string(&target).unwrap());
    (!known.iter().any(|known| known == anchor))
        .then(|| format!("{}: {link}: there is no such heading", document.display()))
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let documents = documents(&root());
    let (mut count, mut wrong) = (0, Vec::new());
    for document in &documents {
        for link in links(&fs::read_to_string(document).unwrap()) {
            count += 1;
            wrong.extend(broken(document, &link));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(documents.len() > 10 && count > 30, "{} documents, {count} links", documents.len());
}

/// The pages that list all others.
const INDEXES: &[&str] = &[
    "docs/README.md",
    "docs/stores/README.md",
    "docs/guides/README.md",
    "docs/serve.md",
    "docs/agent.md",
    "docs/performance.md",
    "docs/design.md",
    "docs/rfcs/README.md",
];

#[test]
fn an_index_has_every_page() {
    let mut listed = vec![root().join(INDEXES[0])];
    for index in INDEXES.iter().map(|index| root().join(index)) {
        for link in links(&fs::read_to_string(&index).unwrap()) {
            let path = link.split('#').next().unwrap();
            listed.extend(index.parent().unwrap().join(path).canonicalize());
        }
    }
    let missing: Vec<_> =
        documents(&root().join("docs")).into_iter().filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_dead_link_is_noticed() {
    let readme = root().join("README.md");
    for (link, dead) in [
        ("LICENSE-MIT", false),
        ("docs/guides/README.md", false),
        ("https://example.com/none", false),
        ("no-such-file.md", true),
        ("ARCHITECTURE.md#the-promise", false),
        ("ARCHITECTURE.md#no-such-heading", true),
        ("#no-such-heading", true),
    ] {
        assert_eq!(broken(&readme, link).is_some(), dead, "{link}");
    }
    let text = "# A `b`: c_d\n[x](y.md) and [z](#a-b-c_d)\n```\n[no](code.md)\n```\n";
    assert_eq!(links(text), ["y.md", "#a-b-c_d"]);
    assert_eq!(anchors(text), ["a-b-c_d"]);
}

/// Returns the source files in the list "Where to start reading", each with the names that it should define.
fn reading_list(text: &str) -> Vec<(String, Vec<String>)> {
    let section = text.split("## Where to start reading").nth(1).unwrap().split("\n## ").next().unwrap();
    // The parts in backquotes have odd indexes.
    let parts: Vec<&str> = section.split('`').collect();
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut in_parentheses = false;
    for pair in parts[1..].chunks_exact(2) {
        let (quoted, after) = (pair[0], pair[1]);
        if quoted.starts_with("crates/") {
            found.push((quoted.to_owned(), Vec::new()));
            in_parentheses = after.trim() == "(";
        } else if in_parentheses {
            found.last_mut().unwrap().1.push(quoted.to_owned());
            in_parentheses = after.trim() == ",";
        }
    }
    found
}

/// Returns whether a line of `code` defines `name`.
fn defines(code: &str, name: &str) -> bool {
    code.lines().any(|line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| matches!(word, "fn" | "const" | "struct" | "trait")) && words.next() == Some(name)
    })
}

#[test]
fn the_files_and_names_to_start_reading_at_exist() {
    let list = reading_list(&fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap());
    assert!(list.len() > 10, "{list:?}");
    for (file, names) in list {
        let code = fs::read_to_string(root().join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!names.is_empty(), "{file} has no name to look for");
        for name in names {
            assert!(defines(&code, &name), "{file} does not define {name}");
        }
    }
}

/// Returns the parts of the errors in the tables `text` and `reason` of the page that are the same in each error: what is
/// between the `...` of the code in the first column.
fn explained(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        let Some((first, _)) = line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) else {
            in_table &= line.starts_with('|');
            continue;
        };
        in_table |= matches!(first, "text" | "reason");
        if !in_table {
            continue;
        }
        // A span with backquotes in it is within two of them.
        let fence = if first.contains("``") { "``" } else { "`" };
        for span in first.split(fence).skip(1).step_by(2) {
            found.extend(span.split("...").map(|part| part.trim().to_owned()).filter(|part| part.len() > 1));
        }
    }
    found
}

#[test]
fn leasehold_prints_the_errors_that_are_explained() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let source: String =
        files(&root().join("crates"), ".rs").iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    // A backslash at the end of a line continues a string.
    let source: String = source.split("\\\n").map(str::trim_start).collect();
    let source = source.replace("\\\"", "\"");
    let parts = explained(&page);
    let unknown: Vec<_> = parts.iter().filter(|part| !source.contains(part.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(parts.len() > 30, "{parts:?}");
}

#[test]
fn the_constant_parts_of_an_error_are_found() {
    let page = "| text | cause |\n|---|---|\n| ``lock `...` is held by ...`` | x |\n| `a b`, other | `y` |\n\n| code | y |\n| `1` | z |\n";
    assert_eq!(explained(page), ["lock `", "` is held by", "a b"]);
}
