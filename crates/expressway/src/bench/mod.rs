//! `expressway bench`: measured comparisons on this machine, and what is made of them.

mod guest;
mod hosts;
mod reports;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expressway_bench::{
    BUILT_IN, Bed, BenchError, Environment, Line, RawFile, RawRun, Scenario, Tally, Tools, expand, find,
    profile_lacks, remove_leftovers, run as measure, tables,
};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{Bench, BenchCommand};
use crate::fail::Failure;
use crate::print;

/// Runs the scenarios named, or all; or makes something of raw files.
pub(crate) fn run(arguments: &Bench) -> Result<ExitCode, Failure> {
    match (&arguments.command, arguments.compare.as_deref()) {
        (Some(BenchCommand::Report(report)), _) => return reports::report(arguments, report),
        (Some(BenchCommand::Calculate(calculate)), _) => return reports::calculated(arguments, calculate),
        (Some(BenchCommand::End(end)), _) => return hosts::serve(arguments, end),
        (None, Some([old, new])) => return reports::compared(arguments, old, new),
        (None, _) => {}
    }
    let names = names(arguments);
    let scenarios = scenarios(arguments, &names)?;
    if arguments.list {
        return list(arguments, &scenarios);
    }
    let tools = tools(arguments)?;
    let guest = guest::of(arguments, &chosen(arguments, names, &scenarios))?;
    let nics = hosts::connect(arguments)?;
    if let Some(missing) = arguments.profile.then(profile_lacks).flatten() {
        return Err(Failure::run_time(format!("bench: --profile: {missing}")));
    }
    let mut raw = match &arguments.raw {
        Some(file) => RawFile::at(file.clone()),
        None => RawFile::create(&arguments.out),
    }
    .map_err(failure)?;
    let mut lines = Vec::new();
    let mut take = |raw: &mut RawFile, line: &Line| {
        raw.write(line)?;
        lines.push(line.clone());
        Ok(())
    };
    take(&mut raw, &Line::Environment(Box::new(Environment::read(&tools, &scenarios)))).map_err(failure)?;
    let profiles = arguments.profile.then(|| arguments.out.join("profiles"));
    let stop = stop_flag()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let mut failed = 0;
    if let Some(guest) = &guest {
        let each = &mut |line: &Line| {
            tell(line);
            take(&mut raw, line)
        };
        failed += guest.run(&tools, &stopped, each).map_err(failure)?.failed;
    } else {
        remove_leftovers().map_err(failure)?;
    }
    for scenario in scenarios.iter().filter(|_| guest.is_none()) {
        let Tally { failed: more, .. } =
            measure(scenario, &tools, nics.as_ref(), profiles.as_deref(), &mut |line| {
                tell(line);
                take(&mut raw, line)?;
                // The run under way ends first: its servers and its lab go with it.
                if stopped() { Err(BenchError::Interrupted) } else { Ok(()) }
            })
            .map_err(failure)?;
        failed += more;
        if !arguments.json {
            let known = RawRun::read(&[raw.path()]).map_err(failure)?;
            print(&format!(
                "\n{}: {}\n{}",
                scenario.about.name,
                scenario.about.title,
                tables(&known, &scenario.about.name)
            ))?;
        }
    }
    if arguments.json {
        print(&format!("{}\n", document(&lines)?))?;
    } else {
        if guest.is_some() {
            let known = RawRun::read(&[raw.path()]).map_err(failure)?;
            for scenario in &known.scenarios {
                let (name, title) = (&scenario.about.name, &scenario.about.title);
                print(&format!("\n{name}: {title}\n{}", tables(&known, name)))?;
            }
        }
        reports::write(&RawRun::read(&[raw.path()]).map_err(failure)?, "Benchmarks", &arguments.out)?;
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::run_time(format!(
            "bench: {failed} runs failed; see the `failed` lines in {}",
            raw.path().display()
        ))),
    }
}

/// Where scenarios run: on given NICs where a far end is named.
fn bed(arguments: &Bench) -> Result<Bed, Failure> {
    match (arguments.bed, arguments.end) {
        (Bed::Lab | Bed::Nics, Some(_)) => Ok(Bed::Nics),
        (bed, Some(_)) => Err(Failure::usage(format!("--end is for --bed nics, not {bed}"))),
        (Bed::Nics, None) => {
            Err(Failure::usage("--bed nics: needs the far end (--end, --token, --interface)"))
        }
        (bed, None) => Ok(bed),
    }
}

/// Becomes true by SIGINT or SIGTERM.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| Failure::run_time(format!("signal handlers: {error}")))?;
    }
    Ok(flag)
}

/// The names of the scenarios that are asked for.
fn names(arguments: &Bench) -> Vec<String> {
    match arguments.scenarios.as_slice() {
        [] => BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect(),
        named => named.iter().flat_map(|name| expand(name)).collect(),
    }
}

/// What is said to a guest: the names that were given, or those of the scenarios of its bed, where none was.
fn chosen(arguments: &Bench, mut names: Vec<String>, scenarios: &[Scenario]) -> Vec<String> {
    if arguments.scenarios.is_empty() {
        // On a bed that is not its first a scenario's name ends in the bed's.
        let own = |scenario: &Scenario| scenario.about.name.split('@').next().map(str::to_owned);
        let of_bed: Vec<_> = scenarios.iter().filter_map(own).collect();
        names.retain(|name| of_bed.contains(name));
    }
    names
}

/// The scenarios of these names, on the bed and as changed by options.
fn scenarios(arguments: &Bench, names: &[String]) -> Result<Vec<Scenario>, Failure> {
    let (bed, mut scenarios) = (bed(arguments)?, Vec::new());
    for name in names {
        let found = find(name).ok_or_else(|| {
            Failure::usage(format!("bench: no scenario `{name}`; see `expressway bench --list`"))
        })?;
        let mut scenario = found.map_err(Failure::usage)?;
        // All of them are those of this bed; the list has them with their beds.
        if arguments.scenarios.is_empty() && !scenario.beds.contains(&bed) {
            if arguments.list {
                scenarios.push(scenario);
            }
            continue;
        }
        match scenario.on(bed) {
            Err(error) if !arguments.list => return Err(Failure::usage(format!("bench: {error}"))),
            _ => scenarios.push(scenario),
        }
    }
    if arguments.tour {
        scenarios.retain_mut(Scenario::shorten);
    }
    let changes = changes(arguments)?;
    for (key, values) in &changes {
        // `--body` and `--set` are for the scenarios that have the parameter; there has to be one.
        let mut known = scenarios.iter_mut().filter(|scenario| scenario.can_set(key)).peekable();
        if known.peek().is_none() {
            return Err(Failure::usage(format!(
                "bench: none of the given scenarios has a parameter `{key}`"
            )));
        }
        for scenario in known {
            scenario.set(key, values).map_err(|error| Failure::usage(format!("bench: {error}")))?;
        }
    }
    for scenario in &mut scenarios {
        scenario.effort.rounds = arguments.rounds.unwrap_or(scenario.effort.rounds);
        scenario.effort.seconds = arguments.seconds.unwrap_or(scenario.effort.seconds);
        if !arguments.servers.is_empty() {
            scenario.keep(&arguments.servers).map_err(|error| Failure::usage(format!("bench: {error}")))?;
        }
        scenario.check().map_err(|error| Failure::usage(format!("bench: {error}")))?;
    }
    Ok(scenarios)
}

/// `--set` and `--body` as keys with values.
fn changes(arguments: &Bench) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let mut changes = Vec::new();
    if !arguments.bodies.is_empty() {
        changes.push(("body".to_owned(), arguments.bodies.clone()));
    }
    for setting in &arguments.settings {
        let (key, values) = setting
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--set {setting}: expected KEY=VALUE[,VALUE]")))?;
        changes.push((key.to_owned(), values.split(',').map(str::to_owned).collect()));
    }
    Ok(changes)
}

fn list(arguments: &Bench, scenarios: &[Scenario]) -> Result<ExitCode, Failure> {
    if arguments.json {
        let all: Vec<serde_json::Value> = scenarios
            .iter()
            .map(|scenario| {
                serde_json::json!({
                    "name": scenario.about.name, "kind": scenario.kind(), "title": scenario.about.title, "beds": scenario.beds,
                    "contestants": scenario.contestants, "sweep": scenario.sweep, "runs": scenario.runs(),
                })
            })
            .collect();
        print(&format!("{}\n", serde_json::Value::Array(all)))?;
    } else {
        let width = scenarios.iter().map(|scenario| scenario.about.name.len()).max().unwrap_or(0);
        for scenario in scenarios {
            print(&format!("{:width$}  {}\n", scenario.about.name, scenario.about.title))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Progress, for the log.
fn tell(line: &Line) {
    match line {
        Line::Run(run) => tracing::info!(
            scenario = run.scenario,
            contestant = run.contestant,
            point = %serde_json::json!(run.point),
            round = run.round,
            values = %serde_json::json!(run.values),
        ),
        Line::Missing(absent) => {
            tracing::warn!(
                scenario = absent.scenario,
                contestant = absent.contestant,
                reason = absent.reason,
                "left out"
            );
        }
        Line::Failed(absent) => {
            tracing::error!(
                scenario = absent.scenario,
                contestant = absent.contestant,
                reason = absent.reason,
                "failed"
            );
        }
        Line::Scenario(scenario) => {
            tracing::info!(scenario = scenario.about.name, title = scenario.about.title)
        }
        Line::Environment(_) => {}
    }
}

fn document(lines: &[Line]) -> Result<String, Failure> {
    serde_json::to_string(lines).map_err(|error| Failure::run_time(format!("bench: {error}")))
}

fn tools(arguments: &Bench) -> Result<Tools, Failure> {
    let expressway =
        std::env::current_exe().map_err(|error| Failure::run_time(format!("own path: {error}")))?;
    let load = expressway.with_file_name("expressway-load");
    if !load.exists() {
        return Err(Failure::run_time(format!(
            "{}: missing; build it with `cargo build --release -p expressway-load`",
            load.display()
        )));
    }
    let io = expressway.with_file_name("expressway-io");
    let nginx = arguments.nginx.clone();
    if let Some(nginx) = nginx.as_ref().filter(|nginx| !nginx.exists()) {
        return Err(Failure::usage(format!("--nginx {}: no such file", nginx.display())));
    }
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| Failure::run_time(format!("{}: {error}", path.display())))
    };
    let work = absolute(&arguments.out.join("work"))?;
    let devices = match arguments.devices.as_slice() {
        [] => None,
        [server, client] => Some([server.clone(), client.clone()]),
        _ => return Err(Failure::usage("--devices: give two interfaces, the server's and the client's")),
    };
    Ok(Tools {
        expressway,
        load,
        io,
        peers: absolute(&arguments.peers)?,
        nginx,
        work,
        bed: bed(arguments)?,
        devices,
    })
}

/// A benchmark's error; what is wrong with an input file is the user's to mend.
fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Raw { .. } => Failure::usage(error),
        other => Failure::run_time(format!("bench: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn bench(options: &[&str]) -> Box<Bench> {
        let line = ["expressway", "bench"].iter().chain(options);
        match Arguments::parse_from(line).command {
            Command::Bench(bench) => bench,
            _ => unreachable!("the command line says bench"),
        }
    }

    #[test]
    fn a_guest_is_asked_for_the_scenarios_of_its_bed() {
        for bed in ["guest", "guest-icount"] {
            let all = bench(&["--bed", bed]);
            let asked = chosen(&all, names(&all), &scenarios(&all, &names(&all)).ok().unwrap());
            assert!(!asked.is_empty());
            let inside: Vec<&str> =
                ["--bed", bed].into_iter().chain(asked.iter().map(String::as_str)).collect();
            assert!(scenarios(&bench(&inside), &asked).is_ok(), "{asked:?}");
        }
    }
}
