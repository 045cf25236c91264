//! The record of events, one line of JSON for each. Each process writes its own file; the files are merged afterwards.
//!
//! | `what` | written by | further fields |
//! |---|---|---|
//! | `run` | the nemesis, first | `store`, `promises`: the rules that must hold, `failover_grace_ms` |
//! | `granted` | a worker, when it was granted the lock | `lock`, `grant`, `token` (0: none) |
//! | `checked` | a worker whose check showed that it still holds the lock | the same |
//! | `lost` | a worker that found out that it has lost the lock | the same |
//! | `over` | a worker that gave the lock up | the same, `how` |
//! | `read`, `write` | the counter that the lock protects | `lock`, `token`, `accepted`, `value`, `number` |
//! | `seen` | a worker that has read a [register](super::registers) | `register`, `state`: its value, or null |
//! | `sent` | a worker, before it sends a conditional write | `register`, `change`, `over`, `to` (null: a delete) |
//! | `answered` | the same, when a write has a known outcome | `change`, `outcome` |
//! | `failed` | a worker whose acquisition failed | `error` |
//! | `fault` | the nemesis | `kind`, `target` |
//! | `healed` | the nemesis, when the last fault is over | |
//!
//! All events have `who`, `from` and `until`. An event lies between `from` and `until`, in milliseconds of true time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::true_time::TrueTime;

/// A file of events, and the clock that dates them.
#[derive(Debug)]
pub struct History {
    file: Mutex<File>,
    who: String,
    time: TrueTime,
}

impl History {
    /// Creates the file in `folder` for the events of `who`.
    ///
    /// # Errors
    /// When the file already exists or cannot be created.
    pub fn create(folder: &Path, who: &str) -> io::Result<Self> {
        let path = folder.join(format!("{who}.jsonl"));
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file: Mutex::new(file), who: who.to_owned(), time: TrueTime::open()? })
    }

    /// Returns a lower bound of the current time. Call this before the event that is to be recorded.
    pub fn now(&self) -> u64 {
        self.time.at_least_ms()
    }

    /// Records that `what` happened between `from` and now.
    ///
    /// # Panics
    /// When the file cannot be written, because a history with holes proves nothing.
    pub fn record(&self, what: &str, from: u64, mut more: Value) {
        let until = self.time.at_most_ms();
        let fields = more.as_object_mut().expect("the further fields are an object");
        for (name, value) in
            [("what", json!(what)), ("who", json!(self.who)), ("from", json!(from)), ("until", json!(until))]
        {
            fields.insert(name.to_owned(), value);
        }
        // A single write, so that a killed process leaves whole lines, and at most one partial line at the end.
        let line = format!("{more}\n");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).expect("the history is writable");
    }
}

/// Returns the events in all files of `folder`, sorted by the latest time at which they can have ended.
///
/// Leaves out a partial last line, whose writer was killed.
///
/// # Errors
/// When the files cannot be read.
pub fn merged(folder: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = std::fs::read_to_string(path)?;
            lines.extend(text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned));
        }
    }
    // A stable sort keeps the order of events that one process recorded at the same time.
    lines.sort_by_cached_key(|line| time_of(line));
    Ok(lines.concat())
}

fn time_of(line: &str) -> u64 {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    event["until"].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_merged_by_time_and_torn_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let first = History::create(folder.path(), "first").unwrap();
        let second = History::create(folder.path(), "second").unwrap();
        first.record("healed", 5, json!({}));
        second.record("fault", second.now(), json!({ "kind": "a fault" }));
        first.record("granted", 6, json!({ "token": 1 }));
        std::fs::write(folder.path().join("torn.jsonl"), "{\"what\":\"gra").unwrap();
        let merged = merged(folder.path()).unwrap();
        let what: Vec<Value> = merged.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(what.len(), 3);
        assert!(what.windows(2).all(|pair| pair[0]["until"].as_u64() <= pair[1]["until"].as_u64()));
        assert!(what.iter().any(|event| event["who"] == "second" && event["kind"] == "a fault"));
    }
}
