//! Logs, on standard error, as text or JSON lines.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::args::{LogFormat, Logging};
use crate::fail::Failure;

/// The options that this process was started with, for one that logs beside it.
static OPTIONS: OnceLock<[String; 2]> = OnceLock::new();

/// See [`OPTIONS`]; none before [`start`].
pub(crate) fn options() -> &'static [String] {
    OPTIONS.get().map_or(&[], |options| options)
}

/// Sets the process's log up; called once, before any thread is started.
pub(crate) fn start(arguments: &Logging, default: &str) -> Result<(), Failure> {
    let level = arguments.log_level.as_deref().unwrap_or(default);
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| Failure::usage(format!("--log-level {level}: {error}")))?;
    let format = if matches!(arguments.log_format, LogFormat::Json) { "json" } else { "text" };
    OPTIONS.get_or_init(|| [format!("--log-level={level}"), format!("--log-format={format}")]);
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Json => base.json().init(),
        LogFormat::Text => base.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
    }
    Ok(())
}
