//! Readers written in C: compiled against the headers, started, stopped and cleaned up.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// A path for a socket that no other test has.
pub fn unique_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("expressway-netio-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

/// Compiles a C program against the header, with every warning an error.
pub fn compile(source: &str) -> PathBuf {
    let binary = unique_path();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(root.join("include"))
        .arg("-o")
        .arg(&binary)
        .arg(root.join(source))
        .output()
        .expect("a C compiler is there: libbpf needs one too");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    binary
}

/// A reader in C; killed and its binary removed on drop.
pub struct CReader {
    child: Child,
    binary: PathBuf,
}

impl CReader {
    /// Compiles and starts one at the socket `path`.
    pub fn start(source: &str, path: &Path, arguments: &[&str]) -> Self {
        let binary = compile(source);
        let child = Command::new(&binary)
            .arg(path)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, binary }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it printed until its end.
    pub fn output(&mut self) -> String {
        let text = std::io::read_to_string(self.child.stdout.take().unwrap()).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for CReader {
    fn drop(&mut self) {
        // Both fail only when there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.binary);
    }
}
