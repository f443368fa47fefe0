//! The programs and folders that scenarios use.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scenario::Bed;
use crate::{BenchError, HOST, io_error};

/// What scenarios need to know of the machine.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `expressway` binary; helpers stand beside it.
    pub expressway: PathBuf,
    /// The `expressway-load` binary.
    pub load: PathBuf,
    /// The `expressway-io` binary.
    pub io: PathBuf,
    /// Folder of the peers' programs.
    pub peers: PathBuf,
    /// An nginx with HTTP/3, if it is not among the peers.
    pub nginx: Option<PathBuf>,
    /// Scratch folder for files, certificates and configurations.
    pub work: PathBuf,
    /// Where scenarios run.
    pub bed: Bed,
    /// The interfaces of the server and the client, wired to each other; a veth without them.
    pub devices: Option<[String; 2]>,
}

impl Tools {
    /// Where certificates are.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.work.join("certificates")
    }

    /// What servers serve.
    pub(crate) fn root(&self) -> PathBuf {
        self.work.join("root")
    }

    /// Why `expressway-io` cannot be started, if it cannot.
    pub(crate) fn lack_io(&self) -> Option<String> {
        let build = "build it with `cargo build --release -p expressway-load`";
        (!self.io.exists()).then(|| format!("{}: missing; {build}", self.io.display()))
    }

    /// Makes a CA and a leaf for [`HOST`].
    pub(crate) fn make_certificates(&self) -> Result<(), BenchError> {
        let output = Command::new(&self.expressway)
            .args(["cert", "--host", HOST, "--out"])
            .arg(self.certificates())
            .output()
            .map_err(io_error(self.expressway.display().to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(BenchError::Missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Writes the file of a body size, unless it is there.
    pub(crate) fn write_body(&self, length: u64) -> Result<(), BenchError> {
        let root = self.root();
        std::fs::create_dir_all(&root).map_err(io_error(root.display().to_string()))?;
        let file = root.join(format!("{length}.bin"));
        if std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == length) {
            return Ok(());
        }
        write_noise(&file, length)
    }
}

/// Bytes that do not compress and repeat from run to run.
fn write_noise(path: &Path, length: u64) -> Result<(), BenchError> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    std::fs::write(path, bytes).map_err(io_error(path.display().to_string()))
}
