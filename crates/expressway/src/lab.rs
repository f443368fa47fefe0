//! `expressway lab`: the test bed from the command line.

use std::process::ExitCode;

use expressway_lab::{Addresses, Lab, LabError, Target};

use crate::args::{LabArguments, LabCommand};
use crate::fail::Failure;

/// Does it.
pub(crate) fn run(arguments: LabArguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        LabCommand::Up { config, json } => {
            let name = config.name.clone();
            Lab::up(config).map_err(failure)?;
            status(Some(&name), json)?;
        }
        LabCommand::Down { name } => {
            let removed = Lab::down(&name).map_err(failure)?;
            println!("removed namespaces={} processes={}", removed.namespaces, removed.processes);
        }
        LabCommand::Status { json } => status(None, json)?,
        LabCommand::Exec { target, command } => {
            let target: Target = target.parse().map_err(failure)?;
            return Err(failure(Lab::exec(&target, &command)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status(only: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut labs = Lab::status().map_err(failure)?;
    labs.retain(|lab| only.is_none_or(|name| lab.name == name));
    if json {
        let document = serde_json::to_string(&labs).map_err(Failure::run_time)?;
        println!("{document}");
        return Ok(());
    }
    for lab in labs {
        let state = if lab.complete { "up" } else { "unfinished" };
        println!("{} {state}", lab.name);
        for namespace in lab.namespaces {
            println!(
                "  {} namespace={} interface={}",
                namespace.role, namespace.namespace, namespace.interface
            );
            if let Some(addresses) = namespace.addresses {
                println!("    addresses {}", list(&addresses).join(" "));
            }
            if !namespace.processes.is_empty() {
                println!("    processes {:?}", namespace.processes);
            }
        }
    }
    Ok(())
}

fn list(addresses: &Addresses) -> Vec<String> {
    let (v4, v6) = (Some(addresses.ipv4), Some(addresses.ipv6));
    let v4 = [v4, addresses.vlan_ipv4, addresses.second_ipv4].into_iter().flatten().map(|a| a.to_string());
    let v6 = [v6, addresses.vlan_ipv6, addresses.second_ipv6].into_iter().flatten().map(|a| a.to_string());
    v4.chain(v6).collect()
}

fn failure(error: LabError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::run_time(error) }
}
