//! Reads the code blocks of a guide.

/// A fenced code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line number of the opening fence, from 1.
    pub(crate) line: usize,
    /// The word after the opening fence.
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// Returns the blocks of a guide. Indented code and indented fences are errors, because they would not be run.
pub(crate) fn blocks(guide: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in guide.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open) {
            (Some(_), _) if line.starts_with(' ') => {
                return Err(format!("line {}: a fence that is indented", index + 1));
            }
            (Some(kind), false) => {
                blocks.push(Block { line: index + 1, kind: kind.trim().to_owned(), text: String::new() });
                open = true;
            }
            (Some(""), true) => open = false,
            (Some(_), true) => return Err(format!("line {}: a fence within a block", index + 1)),
            (None, true) => {
                let text = &mut blocks.last_mut().unwrap().text;
                text.push_str(line);
                text.push('\n');
            }
            (None, false) if line.starts_with("    ") || line.starts_with('\t') => {
                return Err(format!("line {}: code without a fence", index + 1));
            }
            (None, false) => {}
        }
    }
    if open {
        return Err("the last block has no end".to_owned());
    }
    Ok(blocks)
}

#[test]
fn blocks_are_found() {
    let found =
        blocks("# A guide\n\n```sh\necho 1\n\necho 2\n```\n\n- a list\n  of two lines\n\n```text\n1\n```\n")
            .unwrap();
    let of = |line, kind: &str, text: &str| Block { line, kind: kind.to_owned(), text: text.to_owned() };
    assert_eq!(found, [of(3, "sh", "echo 1\n\necho 2\n"), of(12, "text", "1\n")]);
}

#[test]
fn code_that_would_not_be_run_is_an_error() {
    for (guide, error) in [
        ("    leasehold ls\n", "line 1: code without a fence"),
        ("- list\n  ```sh\n  echo\n  ```\n", "line 2: a fence that is indented"),
        ("```sh\necho\n", "the last block has no end"),
        ("```sh\necho\n```sh\n", "line 3: a fence within a block"),
    ] {
        assert_eq!(blocks(guide).unwrap_err(), error);
    }
}
