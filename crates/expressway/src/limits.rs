//! Limits of the process.

/// Open files and connections count against RLIMIT_NOFILE: takes what the hard limit allows.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "RLIMIT_NOFILE stays as it is");
    }
}
