//! The command line of `./chaos`.

use std::time::Duration;

use super::scenario::Scenario;

/// The arguments: `[NAME]... [MINUTES] [--seed N] [--seconds N] [--at-once N] [--keep]`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The scenarios to run.
    pub scenarios: Vec<&'static Scenario>,
    /// Whether `scenarios` contains all scenarios.
    pub everything: bool,
    /// The seed of the plans of faults.
    pub seed: u64,
    /// For how long faults occur in each scenario.
    pub duration: Duration,
    /// How many scenarios run at once.
    pub at_once: usize,
    /// Whether histories are kept even if nothing is wrong.
    pub keep: bool,
}

impl Options {
    /// Reads the arguments. `all` contains the existing scenarios.
    ///
    /// # Errors
    /// A description of what is wrong with the arguments.
    pub fn read(arguments: &[String], all: &[&'static Scenario]) -> Result<Self, String> {
        let seed = fastrand::u64(..1_000_000);
        let mut options = Self {
            scenarios: Vec::new(),
            everything: false,
            seed,
            duration: MINUTE,
            at_once: 1,
            keep: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut number = || number(argument, arguments.next());
            match argument.as_str() {
                "--seed" => options.seed = number()?,
                "--seconds" => options.duration = Duration::from_secs(number()?),
                "--at-once" => options.at_once = usize::try_from(number()?.max(1)).unwrap_or(1),
                "--keep" => options.keep = true,
                minutes if minutes.starts_with(|first: char| first.is_ascii_digit()) => {
                    let minutes =
                        minutes.parse::<f64>().ok().filter(|minutes| (0.0..=100_000.0).contains(minutes));
                    let minutes =
                        minutes.ok_or_else(|| format!("`{argument}` is not a number of minutes"))?;
                    options.duration = MINUTE.mul_f64(minutes);
                }
                option if option.starts_with('-') => {
                    return Err(format!("there is no option `{option}`: try --help"));
                }
                name => options.scenarios.extend(called(name, all)?),
            }
        }
        options.everything = options.scenarios.is_empty();
        if options.everything {
            options.scenarios = all.to_vec();
        }
        Ok(options)
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn number(option: &str, value: Option<&String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("`{option}` needs a number"))?;
    value.parse().map_err(|_| format!("`{value}` for `{option}` is not a number"))
}

/// Returns the scenario named `name` and those whose names begin with `name` and a dash.
fn called(name: &str, all: &[&'static Scenario]) -> Result<Vec<&'static Scenario>, String> {
    let begin = format!("{name}-");
    let known: Vec<&str> = all.iter().map(|scenario| scenario.name).collect();
    let is_meant = |scenario: &&Scenario| scenario.name == name || scenario.name.starts_with(&begin);
    let found: Vec<_> = all.iter().copied().filter(is_meant).collect();
    if found.is_empty() {
        return Err(format!("there is no `{name}`; there are: {}", known.join(", ")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::scenarios;

    fn read(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Options::read(&arguments, &scenarios())
    }

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        read(arguments).unwrap().scenarios.iter().map(|scenario| scenario.name).collect()
    }

    #[test]
    fn a_name_is_a_scenario_or_a_group() {
        assert_eq!(names(&["sqlite", "etcd"]), ["sqlite", "etcd", "etcd-cluster"]);
        assert_eq!(names(&["s3-moto-existence"]), ["s3-moto-existence"]);
        assert_eq!(names(&[]).len(), scenarios().len());
        assert!(read(&["consul"]).unwrap_err().contains("sqlite, "));
    }

    #[test]
    fn minutes_and_options_are_read() {
        let options = read(&["gcs", "0.5", "--seed", "7", "--at-once", "2"]).unwrap();
        assert_eq!((options.duration, options.seed, options.at_once), (MINUTE / 2, 7, 2));
        assert_eq!(read(&["--seconds", "9"]).unwrap().duration, Duration::from_secs(9));
        for wrong in [&["--seed"][..], &["--seed", "x"], &["5x"], &["--loud"], &["99999999"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
