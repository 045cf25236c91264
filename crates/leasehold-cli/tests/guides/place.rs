//! A folder of its own for each guide, in which what it says is done.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::document::{self, Block};
use super::output;
use super::script::{self, DONE, OUTPUT, PROGRESS};
use super::surroundings::Surroundings;

/// No guide takes longer unless it hangs.
const SECONDS: &str = "120";

/// What timeout(1) says when the time was up.
const TIMED_OUT: i32 = 124;

/// Where a guide was followed, with the files that it has made.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    surroundings: Surroundings,
}

/// Does what the guide says. The error says which block failed, and how.
pub(crate) fn follow(guide: &str) -> Result<Place, String> {
    let folder = tempfile::tempdir().unwrap();
    let surroundings = Surroundings::of(guide, folder.path());
    let place = Place { folder, surroundings };
    let blocks = document::blocks(&place.surroundings.adapted(guide))?;
    let script = script::of(&blocks, &place.surroundings.preparation())?;
    fs::create_dir(place.path(".output")).unwrap();
    fs::create_dir(place.path(".home")).unwrap();
    let code = place.run(&script);
    place.judge(&blocks, code)?;
    Ok(place)
}

impl Place {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `command` in the same surroundings after the guide. Gives its exit code, and what it has printed.
    pub(crate) fn command(&self, command: &str) -> (Option<i32>, String) {
        let output = self.shell().arg("-c").arg(self.surroundings.adapted(command)).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(printed).unwrap())
    }

    fn run(&self, script: &str) -> Option<i32> {
        fs::write(self.path(".script"), script).unwrap();
        self.shell().arg(self.path(".script")).status().unwrap().code()
    }

    fn shell(&self) -> Command {
        // It makes a process group of its own, and kills all of it when the time is up.
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", SECONDS, "bash"])
            .env_clear()
            .envs(self.surroundings.variables())
            .env("HOME", self.path(".home"))
            .env(OUTPUT, self.path(".output"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn judge(&self, blocks: &[Block], code: Option<i32>) -> Result<(), String> {
        for (number, block) in blocks.iter().enumerate().filter(|(_, block)| block.kind == "text") {
            let printed = self.output(number - 1);
            if code == Some(0) && !output::matches(&block.text, &printed) {
                return Err(format!(
                    "line {}: other output than expected:\n{}\nand not:\n{printed}",
                    block.line, block.text
                ));
            }
        }
        let progress = fs::read_to_string(self.path(".output").join(PROGRESS)).unwrap_or_default();
        if code == Some(0) && progress.trim() == DONE {
            return Ok(());
        }
        let Ok(number) = progress.trim().parse::<usize>() else {
            return Err(format!("exit code {code:?} before its first block"));
        };
        let what = match code {
            Some(0) => "it ends the shell, or its last command has no end".to_owned(),
            Some(TIMED_OUT) => format!("still running after {SECONDS} s"),
            _ => format!("exit code {code:?}"),
        };
        Err(format!(
            "line {}: {what}:\n{}\nit printed:\n{}",
            blocks[number].line,
            blocks[number].text,
            self.output(number)
        ))
    }

    fn output(&self, number: usize) -> String {
        fs::read_to_string(self.path(".output").join(number.to_string())).unwrap_or_default()
    }
}
