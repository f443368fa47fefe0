//! A run in a guest: what this command was asked for, as arguments of the same command inside.

use expressway_bench::Guest;

use super::failure;
use crate::args::Bench;
use crate::fail::Failure;

/// The guest of a run with `--bed guest` or `guest-icount`; `None` for one on this machine, which is where a guest's own
/// run is too.
pub(crate) fn of(arguments: &Bench, scenarios: &[String]) -> Result<Option<Guest>, Failure> {
    if !arguments.bed.is_guest() || !arguments.devices.is_empty() {
        return Ok(None);
    }
    if arguments.profile {
        return Err(Failure::usage("--profile: perf is not available in a guest; use --bed lab"));
    }
    let mut inside = Vec::new();
    let mut files = Vec::new();
    for name in scenarios {
        let path = std::path::Path::new(name);
        match path.file_name().filter(|_| name.contains('/') || name.ends_with(".toml")) {
            Some(file) => {
                // It lies beside the programs there.
                inside.push(file.to_string_lossy().into_owned());
                files.push(path.to_owned());
            }
            None => inside.push(name.clone()),
        }
    }
    if arguments.tour {
        inside.push("--tour".into());
    }
    let mut option = |name: &str, value: String| inside.extend([name.to_owned(), value]);
    if let Some(rounds) = arguments.rounds {
        option("--rounds", rounds.to_string());
    }
    if let Some(seconds) = arguments.seconds {
        option("--seconds", seconds.to_string());
    }
    for (name, values) in
        [("--server", &arguments.servers), ("--body", &arguments.bodies), ("--set", &arguments.settings)]
    {
        values.iter().for_each(|value| option(name, value.clone()));
    }
    let guest = Guest {
        runner: arguments.guest.clone(),
        deadline: arguments.guest_deadline,
        arguments: inside,
        files,
    };
    match guest.lacks() {
        Some(lacking) => Err(failure(expressway_bench::BenchError::Missing(lacking))),
        None => Ok(Some(guest)),
    }
}
