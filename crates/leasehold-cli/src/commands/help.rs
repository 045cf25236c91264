//! `leasehold help SUBCOMMAND|TOPIC`, and what the topics say.

use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};
use leasehold::stores::SCHEMES;

use crate::args::{Cli, HelpArgs};
use crate::exit::Failure;
use crate::output::print;

/// A page of help that belongs to no subcommand.
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: fn() -> String,
}

/// All of them.
pub(super) const TOPICS: [Topic; 3] = [
    Topic { name: "exit-codes", title: "EXIT CODES", text: || EXIT_CODES.to_owned() },
    Topic { name: "environment", title: "ENVIRONMENT", text: || ENVIRONMENT.to_owned() },
    Topic { name: "stores", title: "STORES", text: stores },
];

pub(super) fn help(args: &HelpArgs) -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    let Some(wanted) = &args.topic else {
        print(&command.render_help().to_string())?;
        return Ok(0);
    };
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == wanted) {
        print(&(topic.text)())?;
        return Ok(0);
    }
    if let Some(subcommand) = command.find_subcommand_mut(wanted) {
        print(&subcommand.render_help().to_string())?;
        return Ok(0);
    }
    let topics: Vec<&str> = TOPICS.iter().map(|topic| topic.name).collect();
    let failure = suggested(wanted, Failure::usage(format!("there is no subcommand or topic {wanted:?}")));
    Err(failure
        .with_help(format!("the topics are: {}; the subcommands: leasehold --help", topics.join(", "))))
}

/// With the subcommand that is most like `wanted`, as the parser of the command line says.
pub(super) fn suggested(wanted: &str, failure: Failure) -> Failure {
    let error = Cli::try_parse_from(["leasehold", wanted]).err();
    match error.as_ref().and_then(|error| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::Strings(subcommands)) if !subcommands.is_empty() => {
            failure.with_help(format!("a similar subcommand: {}", subcommands.join(", ")))
        }
        _ => failure,
    }
}

const EXIT_CODES: &str = "\
Of run, once and elect:
  the command's, or 128 + signal   the command ended while the lock was held
  122   the lock was lost while the command ran, or was about to be: the command was stopped. Overrides the
        command's own status, since work done after the loss must not look successful. With --ticket also when it was
        lost before: nothing was run. elect goes on after a loss, and campaigns again
  123   held by another (--try); -E replaces it
  124   waited in vain (--wait); -E replaces it
  125   leasehold failed: the store, its URL, its permissions, config.toml; also when --wait ended before the store had
        said that another has the lock, and when a command of once succeeded but the store could not be told: it may
        run again within its period
  126   the command is not executable
  127   the command was not found
  128 + signal   a signal ended leasehold while it waited for the lock
  2     the command line is wrong
Of once:
  0     also when it already ran in this period: a line on stderr says so

Of update:
  0     written, or there was nothing to write
  the command's, or 128 + signal   the command failed; nothing was written
  122   a higher token than that of --fence wrote the object; nothing was written
  124   others changed the object each time, until --attempts or --within were used up; nothing was written
  125   leasehold failed; when the message says that the object may have been written, look at it before trying again
  126, 127   as above
  2     the command line is wrong

Of the other subcommands:
  0     done
  1     the answer is no: the ticket's lock is lost (renew, release), the token is not the current one (break), a higher
        token wrote the object (put), the store is not safe for locks (doctor)
  2     the command line is wrong
  123, 124, 125   as above

A command may use any of these numbers itself: `--report FILE` writes what happened as JSON, whose `outcome` is one
of exited, signaled, lost, held, timed_out, interrupted, not_found, not_executable, failed; that of `once --report FILE`
also already_ran, and not_told: it succeeded, and the store does not know.
";

const ENVIRONMENT: &str = "\
A setting is taken from the flag, else from the environment, else from config.toml, else it has its default.

  flag                   variable                       key in config.toml
  --store                LEASEHOLD_STORE                store
  --ttl                  LEASEHOLD_TTL                  ttl
  --wait                 LEASEHOLD_WAIT                 wait
  --try                  LEASEHOLD_TRY                  -
  --store-timeout        LEASEHOLD_STORE_TIMEOUT        store_timeout
  --conflict-exit-code   LEASEHOLD_CONFLICT_EXIT_CODE   conflict_exit_code
  --owner                LEASEHOLD_OWNER                owner
  --note                 LEASEHOLD_NOTE                 note
  --on-lost              LEASEHOLD_ON_LOST              on_lost
  --grace                LEASEHOLD_GRACE                grace
  --cgroup               LEASEHOLD_CGROUP               -
  --report               LEASEHOLD_REPORT               -
  --value, --on-exit     LEASEHOLD_VALUE, _ON_EXIT      -
  --per                  LEASEHOLD_PER                  -
  --count-failures       LEASEHOLD_COUNT_FAILURES       -
  --color                LEASEHOLD_COLOR                color
  --json, --quiet        LEASEHOLD_JSON, _QUIET         -
  TICKET, --ticket       LEASEHOLD_TICKET               -

Switches are 1 or 0. NO_COLOR is honoured. With -v, RUST_LOG chooses what is logged.

The file is $XDG_CONFIG_HOME/leasehold/config.toml (~/.config/leasehold/config.toml):

  store = \"prod\"
  ttl = \"1m\"

  note = \"command-line\"      # show others the whole command line, which may hold secrets, and not the command's name alone

  [stores.prod]
  url = \"s3://my-bucket/locks?region=eu-west-1\"

The command that `run`, `once` or `elect` runs finds:
  LEASEHOLD_LOCK    the lock's name
  LEASEHOLD_TOKEN   the fencing token (elect: the term): give it along with every write, let the resource refuse lower ones;
                    absent where the store's protocol has none
  LEASEHOLD_PERMIT  with --permits: the number of the permit; LEASEHOLD_LOCK and the token are that permit's
  LEASEHOLD_STORE   the store's URL, without passwords
  LEASEHOLD_RUN     a random name of this run

The command that `update` runs finds:
  LEASEHOLD_OBJECT_EXISTS   1, or 0 when there is no object yet
";

fn stores() -> String {
    let mut text = String::from(
        "A store is given as a URL, or as an alias from config.toml (see `leasehold help environment`).\n\n",
    );
    for scheme in SCHEMES {
        let _ = writeln!(text, "  {:<40} {}", scheme.example, scheme.store);
        let _ = writeln!(text, "  {:<40} {}", "", scheme.can);
        if let Some(feature) = scheme.feature.filter(|_| !scheme.built_in) {
            let _ = writeln!(
                text,
                "  {:<40} not in this build: cargo install leasehold-cli --features {feature}",
                ""
            );
        }
    }
    text.push_str(
        "
The default is sqlite: without a path, a file in the user's state directory
($XDG_STATE_HOME/leasehold/locks.db): for the processes of one machine.

Every store understands these options after `?`:
  store_clock=off   let only observation end a dead holder's lease, not the store's own clock
  margin=5s         how much the store's clock may be off
On s3 and gs, protocol=existence shares locks with clients that create an object and delete it, without history and rests,
and on s3 without fencing tokens.

`update` and `put` take objects of s3 and gs, like s3://bucket/path/counter.json?region=eu-west-1; the other stores keep none.
Whether a store is safe, and what is missing: leasehold doctor -s URL.
An option that a store does not know is an error. The clouds' own credentials, profiles and variables are used as they are.
",
    );
    text
}
