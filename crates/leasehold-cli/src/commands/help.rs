//! `leasehold help SUBCOMMAND|TOPIC`, and the text of the topics.

use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue};
use leasehold::stores::STORES;
use leasehold::url::UrlOption;

use crate::args::{Cli, HelpArgs, command};
use crate::exit::Failure;
use crate::output::print;

/// A help page that is not about one subcommand.
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: fn() -> String,
}

pub(super) const TOPICS: [Topic; 3] = [
    Topic { name: "exit-codes", title: "EXIT CODES", text: || EXIT_CODES.to_owned() },
    Topic { name: "environment", title: "ENVIRONMENT", text: || ENVIRONMENT.to_owned() },
    Topic { name: "stores", title: "STORES", text: stores },
];

pub(super) fn help(args: &HelpArgs) -> Result<u8, Failure> {
    let mut command = command();
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
        print(&subcommand.render_long_help().to_string())?;
        return Ok(0);
    }
    let topics: Vec<&str> = TOPICS.iter().map(|topic| topic.name).collect();
    let failure = suggested(wanted, Failure::usage(format!("unknown subcommand or topic {wanted:?}")));
    Err(failure.with_help(format!("topics: {}; for the subcommands: leasehold --help", topics.join(", "))))
}

/// Adds to `failure` the similar subcommands that the argument parser suggests.
pub(super) fn suggested(wanted: &str, failure: Failure) -> Failure {
    let error = Cli::parse_words(["leasehold", wanted]).err();
    match error.as_ref().and_then(|error| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::Strings(subcommands)) if !subcommands.is_empty() => {
            failure.with_help(format!("a similar subcommand exists: {}", subcommands.join(", ")))
        }
        _ => failure,
    }
}

const EXIT_CODES: &str = "\
run, once and elect:
  the command's code, or 128 + signal   the command ended under the lock
  120   deadlock: this run waited for the lock of a run around it, or in a cycle
        with other runs that hold what they wait for, and gave up
        (--on-deadlock). The command did not run
  121   the lock was held for as long as --max-hold allows: the command was
        stopped and the lock released. With --ticket, the limit is that of the
        ticket
  122   the lock was lost, or was about to be lost, and the command was stopped.
        This replaces the command's own code, so that work done after the loss
        does not look successful. With --ticket also: the lock was lost before
        the command started, and the command did not run. elect campaigns again
        after a loss, unless --once is given
  123   the lock is held (--try); change it with -E
  124   timed out waiting for the lock (--wait); change it with -E
  125   leasehold failed: the store, its URL, its permissions or config.toml.
        Also: --wait ended before the store reported a holder; or the command of
        once succeeded but the run could not be recorded, so that it may run
        again in its period
  126   the command is not executable
  127   the command was not found
  128 + signal   a signal ended leasehold while it waited for the lock
  2     the command line is wrong
If SIGINT, SIGTERM, SIGHUP or SIGQUIT ended the command or the wait, the same
signal ends leasehold, so that a shell script stops at Ctrl-C. A shell shows 128
+ signal. As process 1 of a container, leasehold exits with that code.

once:
  0     also: the command already ran in this period (see stderr)

update:
  0     the object was written, or its content did not change
  the command's code, or 128 + signal   the command failed; nothing was written
  122   a token higher than --fence wrote the object; nothing was written
  124   other clients changed the object on every attempt (--attempts,
        --within); nothing was written
  125   leasehold failed. If the message says that the object may have been
        written, check the object before you retry
  126, 127   as above
  2     the command line is wrong

All other subcommands:
  0     success
  1     negative result: the lock of the ticket is lost (renew, release); the
        lock is not held with that token (evict); a higher token wrote the
        object (put); there is no object (get); the store is not safe for locks
        (doctor)
  2     the command line is wrong
  120, 123, 124, 125, 128 + signal   as above. After SIGTERM, serve exits with 0

A command can use these codes itself. To tell the cases apart, use `--report
FILE`. The field `outcome` of the JSON report is one of exited, signaled, lost,
limit, held, deadlock, timed_out, interrupted, not_found, not_executable,
failed. For once also: already_ran, and not_recorded (the command succeeded, but
the run could not be recorded in the store). For terraform also: state_elsewhere
(the command succeeded, but its state is not the one that the lock protects).
";

const ENVIRONMENT: &str = "\
Each setting comes from the option, else from the environment, else from
config.toml, else from its default.

  option                 variable                       key in config.toml
  --store                LEASEHOLD_STORE                store
  --ttl                  LEASEHOLD_TTL                  ttl
  --max-hold             LEASEHOLD_MAX_HOLD             max_hold
  --wait                 LEASEHOLD_WAIT                 wait
  --try                  LEASEHOLD_TRY                  -
  --store-timeout        LEASEHOLD_STORE_TIMEOUT        store_timeout
  --conflict-exit-code   LEASEHOLD_CONFLICT_EXIT_CODE   conflict_exit_code
  --on-deadlock          LEASEHOLD_ON_DEADLOCK          on_deadlock
  --owner                LEASEHOLD_OWNER                owner
  --note                 LEASEHOLD_NOTE                 note
  --on-lost              LEASEHOLD_ON_LOST              on_lost
  --grace                LEASEHOLD_GRACE                grace
  --cgroup               LEASEHOLD_CGROUP               -
  --report               LEASEHOLD_REPORT               -
  --metrics-file         LEASEHOLD_METRICS_FILE         -
  --value, --on-exit     LEASEHOLD_VALUE, _ON_EXIT      -
  --per                  LEASEHOLD_PER                  -
  --count-failures       LEASEHOLD_COUNT_FAILURES       -
  --color                LEASEHOLD_COLOR                color
  --json, --quiet        LEASEHOLD_JSON, _QUIET         -
  TICKET, --ticket       LEASEHOLD_TICKET               -

The values of switches are 1 and 0. NO_COLOR is respected. With -v, RUST_LOG
selects what is logged.

The configuration file is $XDG_CONFIG_HOME/leasehold/config.toml
(~/.config/leasehold/config.toml):

  store = \"prod\"
  ttl = \"1m\"

  # Show the whole command line to other processes, with any secrets in it:
  note = \"command-line\"

  [stores.prod]
  url = \"s3://my-bucket/locks?region=eu-west-1\"

`run`, `once` and `elect` set these variables for the command:
  LEASEHOLD_LOCK    name of the lock
  LEASEHOLD_TOKEN   fencing token (elect: the term). Send it with every write,
                    and let the resource reject lower tokens. Not set if the
                    protocol of the store has no tokens
  LEASEHOLD_TOKENS  fencing token of each lock, by its name, as JSON:
                    {\"deploy/eu\":17,\"deploy/us\":4}. With several locks,
                    LEASEHOLD_LOCK and LEASEHOLD_TOKEN are not set. null for a
                    store without tokens
  LEASEHOLD_PERMIT  with --permits: number of the permit. LEASEHOLD_LOCK and
                    LEASEHOLD_TOKEN then belong to this permit
  LEASEHOLD_STORE   URL of the store. If the URL contains a password: unchanged
                    if leasehold took the store from this variable or from
                    config.toml; the alias; or the URL with *** for the
                    password. Then LEASEHOLD_STORE_SOCKET names a socket from
                    which a leasehold in the command gets the whole URL (Linux)
  LEASEHOLD_RUN     random id of this run
  LEASEHOLD_HOLDS   the locks of this run and of those around it, from which a
                    leasehold in the command tells a deadlock
They unset _REPORT, _METRICS_FILE, _VALUE, _ON_EXIT, _PER and _COUNT_FAILURES,
which belong to one run.

`serve` exports traces by OTLP over HTTP if OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and reads further variables of
OpenTelemetry: see docs/observability.md. This needs the cargo feature otlp.

`update` sets this variable for the command:
  LEASEHOLD_OBJECT_EXISTS   1, or 0 if the object does not exist yet
";

fn stores() -> String {
    let mut text =
        String::from("A store is a URL, or an alias from config.toml (`leasehold help environment`).\n\n");
    let mut previous = Vec::new();
    for store in STORES {
        let _ = writeln!(text, "  {}", store.example);
        text.push_str(&wrapped(6, &format!("{}: {}", store.name, store.can)));
        if let Some(feature) = store.feature.filter(|_| !store.is_built_in()) {
            text.push_str(&wrapped(6, &format!("not in this build: it needs the cargo feature {feature}")));
        }
        let options: Vec<_> = store.options().map(described).collect();
        let options = match options == previous {
            true => "    the same options\n".to_owned(),
            false => options.concat(),
        };
        let _ = writeln!(text, "{options}");
        previous = store.options().map(described).collect();
    }
    text.push_str(
        "The default is `sqlite:`, the file $XDG_STATE_HOME/leasehold/locks.db in the
user's state directory. Its locks work only between processes on one machine.
For machines that share a directory with hard links, such as NFS, use `dir:`,
after `leasehold init`. For a folder on SMB, use neither.

Options come after `?`, as in the examples. An unknown option is an error.

On s3 and gs, protocol=existence shares locks with clients that lock by creating
an object and unlock by deleting it. It has no history and no cooldowns, and on
s3 no fencing tokens. On azblob, protocol=lease shares locks with programs that
use Azure's leases of blobs: with a ttl of 15 s to 60 s, and without fencing
tokens, history, cooldowns or order.

`get`, `update` and `put` need an object on s3, gs, azblob or dir, for example
s3://bucket/path/counter.json?region=eu-west-1.

To check whether a store is safe, and to see how to fix problems, run `leasehold
doctor -s URL`.

The cloud stores use the credentials, profiles and variables of their cloud. For
https and http, set LEASEHOLD_HTTP_TOKEN to an access token of the server.
",
    );
    text
}

/// Returns a line of help for an option, wrapped at 80 columns.
fn described(option: &UrlOption) -> String {
    let UrlOption { name, default, help, .. } = option;
    let text = format!("{} (default: {})", help.replace('`', ""), default.replace('`', ""));
    format!("    {name}={}\n{}", option.values(), wrapped(8, &text))
}

/// Returns `text` in lines of at most 80 columns that begin with `indent` spaces.
fn wrapped(indent: usize, text: &str) -> String {
    let indent = " ".repeat(indent);
    let mut lines = vec![indent.clone()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 80 => {
                line.push_str(if line.len() > indent.len() { " " } else { "" });
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n") + "\n"
}
