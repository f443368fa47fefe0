//! `expressway cert`: a development CA and leaf certificates signed by it, and keys for Encrypted Client Hello.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use expressway_acme::development::{self, DevelopmentError};
use expressway_tls::generate_ech;

use crate::args::Cert;
use crate::fail::Failure;

/// Makes the files.
pub(crate) fn run(arguments: &Cert) -> Result<ExitCode, Failure> {
    match &arguments.ech {
        Some(name) => ech(arguments, name),
        None => leaf(arguments),
    }
}

fn leaf(arguments: &Cert) -> Result<ExitCode, Failure> {
    let files = development::issue(&arguments.out, &arguments.hosts, arguments.days).map_err(failure)?;
    if arguments.json {
        let document = serde_json::json!({
            "ca": files.ca,
            "certificate": files.certificate,
            "private_key": files.private_key,
        });
        crate::print(&format!("{document}\n"))?;
    } else {
        let paths = [files.ca, files.certificate, files.private_key];
        crate::print(&paths.map(|path| format!("{}\n", path.display())).concat())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(error: DevelopmentError) -> Failure {
    match error {
        DevelopmentError::Name { .. } => Failure::usage(format!("--host {error}")),
        _ => Failure::run_time(error),
    }
}

/// The newest key is the one whose name sorts last.
fn ech(arguments: &Cert, name: &str) -> Result<ExitCode, Failure> {
    let out = &arguments.out;
    let (pem, value) = generate_ech(name).map_err(|error| Failure::usage(format!("--ech {error}")))?;
    std::fs::create_dir_all(out).map_err(|error| Failure::run_time(format!("{}: {error}", out.display())))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let file = out.join(format!("ech-{now:014}.pem"));
    development::write(&file, &pem, 0o600).map_err(Failure::run_time)?;
    let text = if arguments.json {
        format!("{}\n", serde_json::json!({ "file": file, "ech": value }))
    } else {
        format!("{}\nech={value}\n", file.display())
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
