//! `leasehold man`: the manual pages, from the definition of the command line and the help topics.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::help::{TOPICS, suggested};
use crate::args::{ManArgs, command};
use crate::exit::{FAILED, Failure};
use crate::output::print;

pub(super) fn man(args: &ManArgs) -> Result<u8, Failure> {
    let mut command = command();
    command.build();
    if let Some(folder) = &args.dir {
        return write_all(&command, folder);
    }
    let page = match &args.subcommand {
        None => page(&command, true),
        Some(subcommand) => match command.find_subcommand(subcommand) {
            Some(command) => page(command, false),
            None => {
                let failure = Failure::usage(format!("unknown subcommand {subcommand:?}"));
                return Err(suggested(subcommand, failure));
            }
        },
    };
    print(&String::from_utf8_lossy(&page.map_err(failed)?))?;
    Ok(0)
}

fn write_all(command: &Command, folder: &Path) -> Result<u8, Failure> {
    let write = |name: String, page: std::io::Result<Vec<u8>>| std::fs::write(folder.join(name), page?);
    let failed = |error| {
        Failure::new(
            FAILED,
            "failed",
            format!("cannot write the manual pages to {}: {error}", folder.display()),
        )
    };
    write("leasehold.1".to_owned(), page(command, true)).map_err(failed)?;
    for subcommand in command.get_subcommands() {
        write(format!("leasehold-{}.1", subcommand.get_name()), page(subcommand, false)).map_err(failed)?;
    }
    Ok(0)
}

fn page(command: &Command, with_topics: bool) -> std::io::Result<Vec<u8>> {
    let title = command.get_display_name().unwrap_or("leasehold");
    let man = Man::new(command.clone()).title(title.to_uppercase()).manual("leasehold");
    let mut page = Vec::new();
    man.render(&mut page)?;
    if with_topics {
        for topic in TOPICS {
            let mut roff = Roff::new();
            roff.control("SH", [topic.title]);
            roff.control("nf", []);
            for line in (topic.text)().lines() {
                roff.text([roman(line)]);
            }
            roff.control("fi", []);
            roff.to_writer(&mut page)?;
        }
    }
    Ok(page)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("cannot write the manual: {error}"))
}
