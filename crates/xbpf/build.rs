//! Compiles `bpf/*.bpf.c` with clang and generates the Rust skeletons that `src/skeleton.rs` includes.
//!
//! Needs clang 14 or newer with its BPF target and the kernel's user-space headers; libbpf's own headers
//! come with libbpf-cargo. Neither bpftool nor the network is used. `CLANG` names another clang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

use libbpf_cargo::SkeletonBuilder;
use libbpf_cargo::util::CargoWarningFormatter;

/// The programs, as the stems of their files in `bpf/`.
const PROGRAMS: [&str; 16] = [
    "redirect",
    "redirect_hints",
    "redirect_stamps",
    "redirect_switch",
    "dispatcher",
    "dispatcher_v3",
    "live",
    "balance",
    "baseline",
    "fanout",
    "capture",
    "sockets",
    "flows",
    "forward",
    "guard",
    "guard_learn",
];

/// The oldest clang whose BPF output is known to load.
const CLANG_MINIMUM: u32 = 14;

fn main() {
    // clang's warnings become cargo's; what libbpf-cargo says of itself stays out.
    tracing_subscriber::fmt()
        .event_format(CargoWarningFormatter)
        .with_env_filter("compiler-stderr=info,compiler-stdout=info")
        .init();
    if let Err(message) = build() {
        eprintln!("error: {message}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    // In the repository a link, whose target's changes count; in a published crate the folder itself.
    let source = manifest.join("bpf");
    let source = source.canonicalize().map_err(|error| format!("{}: {error}", source.display()))?;
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());

    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    check_version(&clang)?;

    let mut arguments: Vec<String> = ["-Wall", "-Wextra", "-mcpu=v3"].map(str::to_owned).into();
    arguments.push(format!("-I{}", source.join("include").display()));
    for directory in system_includes(&clang)? {
        arguments.extend(["-idirafter".to_owned(), directory]);
    }

    for program in PROGRAMS {
        compile(&clang, &arguments, &source.join(format!("{program}.bpf.c")), &out)?;
    }
    Ok(())
}

fn compile(clang: &str, arguments: &[String], source: &Path, out: &Path) -> Result<(), String> {
    let stem = source.file_name().and_then(|name| name.to_str()).unwrap_or_default().replace(".bpf.c", "");
    SkeletonBuilder::new()
        .source(source)
        // Kept: `capture` is changed before it is opened, which a skeleton does not allow.
        .obj(out.join(format!("{stem}.bpf.o")))
        .clang(clang)
        .clang_args(arguments)
        .build_and_generate(out.join(format!("{stem}.skel.rs")))
        .map_err(|error| format!("{}: {error:#}", source.display()))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set; run this through cargo"))
}

fn check_version(clang: &str) -> Result<(), String> {
    let install = "on Debian: apt-get install clang linux-libc-dev; or name one in CLANG";
    let output = Command::new(clang)
        .arg("-dumpversion")
        .output()
        .map_err(|error| format!("`{clang}`: {error}; clang compiles the BPF programs; {install}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major >= CLANG_MINIMUM => Ok(()),
        Some(_) => Err(format!("`{clang}` is version {version}, {CLANG_MINIMUM} is needed; {install}")),
        None => Err(format!("`{clang} -dumpversion` printed `{version}`, no version; {install}")),
    }
}

/// Where clang finds system headers when it compiles for this machine. The BPF target leaves out the
/// multiarch directory, in which Debian keeps `asm/types.h`.
fn system_includes(clang: &str) -> Result<Vec<String>, String> {
    let output = Command::new(clang)
        .args(["-v", "-E", "-x", "c", "/dev/null", "-o", "/dev/null"])
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| format!("`{clang} -v`: {error}"))?;
    let directories: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .skip_while(|line| !line.starts_with("#include <...>"))
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .map(|line| line.trim().to_owned())
        .collect();
    if directories.is_empty() {
        return Err(format!("`{clang} -v -E` names no system include directory"));
    }
    Ok(directories)
}
