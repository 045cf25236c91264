//! The fields of the JSON that programs read (docs/stability.md), compared with `tests/help/json.txt`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::process::Stdio;

use serde_json::Value;

use super::help::assert_reviewed;
use crate::support::{Sandbox, line_with, wait_until};

/// The fields of documents, by the command that printed them and their `type`.
#[derive(Default)]
struct Shapes(BTreeMap<String, Shape>);

#[derive(Default)]
struct Shape {
    /// How many objects there are at each path.
    objects: BTreeMap<String, usize>,
    /// How often the field was there, and the types of its values.
    fields: BTreeMap<String, (usize, BTreeSet<&'static str>)>,
}

impl Shapes {
    /// Adds the documents in `text`, one per line.
    fn add(&mut self, command: &str, text: &str) {
        assert!(!text.is_empty(), "{command} printed nothing");
        for line in text.lines() {
            let document: Value = serde_json::from_str(line).unwrap();
            let kind = document["type"].as_str().unwrap_or("file");
            self.0.entry(format!("{command} {kind}")).or_default().add("", &document);
        }
    }

    fn text(&self) -> String {
        self.0.iter().flat_map(|(printed, shape)| shape.lines(printed)).collect()
    }
}

impl Shape {
    fn add(&mut self, path: &str, value: &Value) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let (count, kinds) = self.fields.entry(path.to_owned()).or_default();
        *count += 1;
        kinds.insert(kind);
        if let Value::Array(values) = value {
            values.iter().for_each(|value| self.add(&format!("{path}[]"), value));
        } else if let Value::Object(fields) = value {
            *self.objects.entry(path.to_owned()).or_default() += 1;
            fields.iter().for_each(|(name, value)| self.add(&format!("{path}.{name}"), value));
        }
    }

    /// Returns a line for each field. It begins with what `printed` the document, so that no two lines are equal.
    fn lines(&self, printed: &str) -> impl Iterator<Item = String> {
        self.fields.iter().filter_map(move |(path, (count, kinds))| {
            let parent = path.rfind('.').map(|dot| &path[..dot])?;
            let is_missing = !path.ends_with("[]") && *count < self.objects[parent];
            let missing = if is_missing { ", or missing" } else { "" };
            let kinds = kinds.iter().copied().collect::<Vec<_>>().join(" or ");
            Some(format!("{printed}: {}: {kinds}{missing}\n", &path[1..]))
        })
    }
}

/// A program that reads the JSON breaks if a field is gone or has another type, but not if there is a new field.
#[test]
fn the_fields_of_the_json_are_those_that_were_reviewed() {
    let sandbox = Sandbox::new();
    let shapes = RefCell::new(Shapes::default());
    let printed = |words: &str, code: i32| {
        let outcome = sandbox.run(&format!("--json {words}")).expect(code);
        let command = words.split(' ').next().unwrap();
        shapes.borrow_mut().add(command, &(outcome.stdout.clone() + &outcome.stderr));
        outcome.stdout.lines().next().map(|line| serde_json::from_str::<Value>(line).unwrap())
    };
    let report = |words: &str, code: i32| {
        sandbox.run(&format!("{words} --report out.json -- true")).expect(code);
        let report: Value = serde_json::from_str(&sandbox.read("out.json")).unwrap();
        shapes.borrow_mut().add("--report", &report.to_string());
    };
    // The store is not chosen, which the first command warns of.
    sandbox.run("run free -- true").expect(0);

    let ticket = printed("acquire a b --ttl 1h", 0).unwrap()["ticket"].as_str().unwrap().to_owned();
    printed(&format!("renew {ticket}"), 0);
    printed(&format!("release {ticket}"), 0);
    printed(&format!("release {ticket}"), 1);
    printed("acquire permits --permits 2 --ttl 1h --max-hold 2h", 0);
    let held = printed("acquire x --ttl 1h --note why", 0).unwrap();
    printed("acquire x --try", 123);
    report("run x --try", 123);
    report("run free", 0);

    let mut waiter = sandbox.scripted("--json run x", "true").stderr(Stdio::piped()).spawn().unwrap();
    let waiting = line_with(&mut BufReader::new(waiter.stderr.as_mut().unwrap()), "waiting");
    shapes.borrow_mut().add("run", &waiting);
    wait_until("a waiter", || !sandbox.run("--json show x").stdout.contains("\"waiters\":[]"));
    report("once period --per 1h", 0);
    report("once period --per 1h", 0);
    printed("once period --per 1h -- true", 0);
    printed("ls", 0);
    printed("show x", 0);
    printed("show free", 0);
    printed(&format!("evict x --reason stuck --token {}", held["token"]), 0);
    assert!(waiter.wait().unwrap().success());
    printed("history x", 0);
    printed("wait x", 0);

    printed("elect leader --observe --once", 0);
    let leader = sandbox.hold("elect leader --ttl 1h --value v", "echo leads; exec sleep 1000");
    printed("elect leader --observe --once", 0);
    drop(leader);
    sandbox.run("run sized --permits 2 -- true").expect(0);
    printed("resize sized 3", 0);
    printed("sweep --older-than 1ms --dry-run", 0);
    printed("doctor", 0);
    assert_reviewed([("json".to_owned(), shapes.take().text())]);
}
