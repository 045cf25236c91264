//! Runs a guide in a new folder.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::document::{self, Block};
use super::environment::Environment;
use super::output;
use super::script::{self, DONE, OUTPUT, PROGRESS};

/// Time limit of a guide.
const SECONDS: &str = "300";

/// The exit code of timeout(1) after the time limit.
const TIMED_OUT: i32 = 124;

/// A guide that was run, with its folder.
pub(crate) struct GuideRun {
    folder: tempfile::TempDir,
    environment: Environment,
}

/// Runs a guide. The error names the block that failed.
pub(crate) fn follow(guide: &str) -> Result<GuideRun, String> {
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment::for_guide(guide, folder.path());
    let run = GuideRun { folder, environment };
    let blocks = document::blocks(&run.environment.adapted(guide))?;
    let script = script::of(&blocks, &run.environment.setup())?;
    fs::create_dir(run.path(".output")).unwrap();
    // A reader follows the guide on a terminal, where the default store is not announced.
    let state = run.path(".home/.local/state/leasehold");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("default-store-announced"), "").unwrap();
    let code = run.execute(&script);
    run.check(&blocks, code)?;
    Ok(run)
}

impl GuideRun {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `command` in the same environment after the guide. Returns its exit code and its output.
    pub(crate) fn command(&self, command: &str) -> (Option<i32>, String) {
        let output = self.shell().arg("-c").arg(self.environment.adapted(command)).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(printed).unwrap())
    }

    fn execute(&self, script: &str) -> Option<i32> {
        fs::write(self.path(".script"), script).unwrap();
        self.shell().arg(self.path(".script")).status().unwrap().code()
    }

    fn shell(&self) -> Command {
        // timeout(1) creates a process group and kills all of it at the end.
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", SECONDS, "bash"])
            .env_clear()
            .envs(self.environment.variables())
            .env("HOME", self.path(".home"))
            .env(OUTPUT, self.path(".output"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn check(&self, blocks: &[Block], code: Option<i32>) -> Result<(), String> {
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
