//! Reads the commands of a workflow. Supports the YAML that the guides use; anything else is an error.

/// A workflow.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Workflow {
    /// `env` of GitHub Actions, `variables` of GitLab.
    pub(crate) variables: Vec<(String, String)>,
    /// `run` of GitHub Actions; `before_script` and `script`, or `after_script`, of GitLab. Each runs in a new shell.
    pub(crate) steps: Vec<String>,
}

/// Reads a workflow.
pub(crate) fn read(text: &str) -> Result<Workflow, String> {
    if text.contains("${{") {
        return Err("an expression (${{ ... }}), which this test does not evaluate".to_owned());
    }
    let mut workflow = Workflow::default();
    let mut before = String::new();
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let Entry { indent, key, value } = Entry::of(lines[at]);
        let inside = lines[at + 1..].iter().take_while(|next| is_below(next, indent)).count();
        let below = &lines[at + 1..=at + inside];
        at += 1;
        match key {
            "env" | "variables" => workflow.variables.extend(variables(below)?),
            "run" => workflow.steps.push(scalar(value, below)?),
            "before_script" => before = script(below)?,
            "script" => workflow.steps.push(std::mem::take(&mut before) + &script(below)?),
            "after_script" => workflow.steps.push(script(below)?),
            _ => continue,
        }
        at += inside;
    }
    if workflow.steps.is_empty() {
        return Err("a workflow without a command".to_owned());
    }
    Ok(workflow)
}

/// A line: `key: value`, or a value without a key. Either may be a list item.
struct Entry<'a> {
    /// The column where the entry begins, after the `- ` of a list item.
    indent: usize,
    key: &'a str,
    value: &'a str,
}

impl<'a> Entry<'a> {
    fn of(line: &'a str) -> Self {
        let bare = line.trim_start();
        let content = bare.strip_prefix("- ").unwrap_or(bare).trim_start();
        let indent = line.len() - content.len();
        let is_key = |key: &str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        match content.split_once(':') {
            Some((key, value)) if is_key(key) && (value.is_empty() || value.starts_with(' ')) => {
                Self { indent, key, value: value.trim() }
            }
            _ => Self { indent, key: "", value: content },
        }
    }
}

fn is_below(line: &str, indent: usize) -> bool {
    line.trim().is_empty() || indent_of(line) > indent
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn variables(lines: &[&str]) -> Result<Vec<(String, String)>, String> {
    let entries = lines.iter().map(|line| Entry::of(line)).filter(|entry| !entry.value.is_empty());
    entries.map(|Entry { key, value, .. }| Ok((key.to_owned(), plain(value)?.to_owned()))).collect()
}

/// Returns the commands of a list.
fn script(lines: &[&str]) -> Result<String, String> {
    let indent = lines.first().map_or(0, |line| indent_of(line));
    let mut commands = String::new();
    let mut rest = lines;
    while let Some((first, others)) = rest.split_first() {
        let value = first.trim_start().strip_prefix("- ").ok_or("a script has to be an indented list")?;
        let inside = others.iter().take_while(|next| is_below(next, indent)).count();
        commands.push_str(&scalar(value.trim(), &others[..inside])?);
        rest = &others[inside..];
    }
    match commands.is_empty() {
        true => Err("a script without a command".to_owned()),
        false => Ok(commands),
    }
}

/// Returns one command, or the commands of a `|` block.
fn scalar(value: &str, below: &[&str]) -> Result<String, String> {
    if value != "|" {
        return match below.iter().all(|line| line.trim().is_empty()) {
            true => Ok(plain(value)?.to_owned() + "\n"),
            false => Err(format!("`{value}` continues on the next line: use |")),
        };
    }
    let shift = below.first().map_or(0, |line| indent_of(line));
    Ok(below.iter().map(|line| format!("{}\n", line.get(shift..).unwrap_or_default())).collect())
}

/// Returns the value of a plain or quoted scalar.
fn plain(value: &str) -> Result<&str, String> {
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .filter(|inner| !inner.contains(['"', '\\']));
    if let Some(inner) = quoted {
        return Ok(inner);
    }
    let is_special = value.is_empty()
        || value.starts_with(|first| "\"'!&*%@`|>{}[],#?-:".contains(first))
        || value.contains(": ")
        || value.contains(" #");
    match is_special {
        true => Err(format!("`{value}` means something else in YAML: use |")),
        false => Ok(value),
    }
}

#[test]
fn steps_of_github_actions() {
    let workflow = read(
        "on: push\njobs:\n  deploy:\n    env:\n      LEASEHOLD_STORE: s3://my-bucket/locks\n      N: \"1\"\n    steps:\n      - uses: actions/checkout@v4\n      \
         - name: deploy\n        run: make deploy\n        if: always()\n      - run: |\n          if true; then\n            echo 2\n\n          fi\n",
    )
    .unwrap();
    assert_eq!(workflow.steps, ["make deploy\n", "if true; then\n  echo 2\n\nfi\n"]);
    let store = ("LEASEHOLD_STORE".to_owned(), "s3://my-bucket/locks".to_owned());
    assert_eq!(workflow.variables, [store, ("N".to_owned(), "1".to_owned())]);
}

#[test]
fn scripts_of_gitlab() {
    let workflow = read(
        "deploy:\n  variables:\n    A: b\n  before_script:\n    - echo 1\n  script:\n    - echo 2\n    - |\n      echo 3\n      echo 4\n  after_script:\n    - echo 5\n",
    )
    .unwrap();
    assert_eq!(workflow.steps, ["echo 1\necho 2\necho 3\necho 4\n", "echo 5\n"]);
}

#[test]
fn a_step_that_would_not_be_run_is_an_error() {
    for (text, error) in [
        ("on: push\n", "without a command"),
        ("steps:\n  - run: echo ${{ github.sha }}\n", "an expression"),
        ("steps:\n  - run: echo 'a: b'\n", "use |"),
        ("steps:\n  - run: echo 1 # one\n", "use |"),
        ("steps:\n  - run: echo 1\n      && echo 2\n", "use |"),
        ("steps:\n  - run: >\n      echo 2\n", "use |"),
        ("job:\n  script: make deploy\n", "without a command"),
        ("job:\n  script:\n  - make deploy\n", "without a command"),
    ] {
        let found = read(text).unwrap_err();
        assert!(found.contains(error), "{text}: {found}");
    }
}
