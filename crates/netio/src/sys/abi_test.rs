//! Holds a C header and its Rust side together: compiles a file of assertions against the header.

/// Compiles `include/expressway/HEADER` and checks that each C expression has its value.
pub(crate) fn check(header: &str, equal: &[(&str, usize)]) {
    let asserts: String =
        equal.iter().map(|(name, value)| format!("_Static_assert({name} == {value}u, \"\");\n")).collect();
    let source = std::env::temp_dir().join(format!("expressway-abi-{}-{header}.c", std::process::id()));
    std::fs::write(&source, format!("#include <expressway/{header}>\n{asserts}")).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let output = std::process::Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", include])
        .arg(&source)
        .output()
        .expect("a C compiler is there: libbpf needs one too");
    std::fs::remove_file(&source).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
