//! Holds the modules of `src/` to the layers that the documentation of the crate says: each imports from the layers
//! below its own, and from nothing beside or above it. What only tests import does not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SRC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Files that are compiled for tests alone, by the ends of their names.
const TEST_FILES: [&str; 5] = ["tests.rs", "_tests.rs", "fake.rs", "heap.rs", "abi_test.rs"];

/// The table in the documentation of `lib.rs`: each line of it a layer, from the top, with its modules.
fn layers(lib: &str) -> BTreeMap<String, usize> {
    let table = lib.split("# Layers").nth(1).expect("lib.rs has a section on layers");
    let table =
        table.split("```text").nth(1).and_then(|rest| rest.split("```").next()).expect("with a table");
    let mut layers = BTreeMap::new();
    for line in table.lines().map(|line| line.trim_start_matches("//!").trim()) {
        let Some((number, rest)) = line.split_once("  ") else { continue };
        let Ok(number) = number.trim().parse() else { continue };
        let modules = rest.trim().split("  ").next().unwrap_or_default();
        for module in modules.split(',') {
            layers.insert(module.trim().to_owned(), number);
        }
    }
    layers
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file without comments and without what is compiled for tests alone. By the layout of rustfmt: an item
/// ends with its line, or with the brace at its own indentation.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let is_test =
            line.trim_start().starts_with("#[cfg(") && line.contains("test") && !line.contains("not(test");
        if is_test {
            skip_item(&mut lines);
        } else if !line.trim_start().starts_with("//") {
            code.push_str(line.split(" // ").next().unwrap_or_default());
            code.push('\n');
        }
    }
    code
}

fn skip_item(lines: &mut std::str::Lines<'_>) {
    let Some(first) = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")) else { return };
    if first.ends_with(';') || first.ends_with('}') {
        return;
    }
    let indentation = first.len() - first.trim_start().len();
    for line in lines {
        let closes = line.trim_start().starts_with(['}', ')']);
        if closes && line.len() - line.trim_start().len() == indentation {
            return;
        }
    }
}

/// Where paths that begin at `crate` or `super` lead, as the first names below the root of the crate. `depth` is that
/// of the file's module below the root.
fn targets(code: &str, depth: usize) -> Vec<String> {
    let mut targets = Vec::new();
    for (keyword, levels) in [("crate::", depth), ("super::", 1)] {
        let mut rest = code;
        while let Some(at) = rest.find(keyword) {
            let is_word = rest[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            let goes_on = rest[..at].ends_with("::");
            rest = &rest[at + keyword.len()..];
            if is_word || goes_on {
                continue;
            }
            let (mut path, mut up) = (rest, levels);
            while let Some(next) = path.strip_prefix("super::") {
                (path, up) = (next, up + 1);
            }
            if up >= depth {
                targets.extend(first_names(path));
            }
        }
    }
    targets
}

/// The name at the beginning of a path, or the names at the beginnings of those in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim().chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            ',' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
            }
            '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Imports of one file that its layer does not allow.
fn wrong_imports(module: &str, depth: usize, text: &str, layers: &BTreeMap<String, usize>) -> Vec<String> {
    let own = layers[module];
    let mut wrong: Vec<String> = targets(&code(text), depth)
        .into_iter()
        .filter(|target| target != module && layers.get(target).is_none_or(|layer| *layer >= own))
        .map(|target| format!("{module} (layer {own}) imports {target}"))
        .collect();
    wrong.dedup();
    wrong
}

#[test]
fn no_module_imports_one_beside_or_above_it() {
    let lib = std::fs::read_to_string(Path::new(SRC).join("lib.rs")).unwrap();
    let layers = layers(&lib);
    let mut files = Vec::new();
    sources(Path::new(SRC), &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let relative = file.strip_prefix(SRC).unwrap();
        let is_test = TEST_FILES.iter().any(|end| name.ends_with(end));
        if is_test || relative == Path::new("lib.rs") {
            continue;
        }
        let mut path: Vec<String> = relative
            .with_extension("")
            .components()
            .map(|component| component.as_os_str().to_string_lossy().into_owned())
            .collect();
        path.retain(|name| name != "mod");
        assert!(layers.contains_key(&path[0]), "the documentation of lib.rs says no layer for `{}`", path[0]);
        let text = std::fs::read_to_string(&file).unwrap();
        let found = wrong_imports(&path[0], path.len(), &text, &layers);
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", relative.display())));
    }
    assert!(wrong.is_empty(), "imports against the layers of lib.rs:\n{}", wrong.join("\n"));
    for module in layers.keys() {
        let is_there = lib.lines().any(|line| line.trim_start_matches("pub ") == format!("mod {module};"));
        assert!(is_there, "the documentation of lib.rs has a layer for `{module}`, which is no module");
    }
}

#[test]
fn wrong_imports_are_found_and_tests_may_have_them() {
    let layers: BTreeMap<String, usize> =
        [("sys", 0), ("ring", 1), ("io", 1), ("worker", 2)].map(|(name, at)| (name.to_owned(), at)).into();
    let wrong = |text: &str| wrong_imports("ring", 1, text, &layers);
    assert_eq!(wrong("use crate::sys::option;\nuse super::sys;\n//! [`crate::worker`]\n"), [""; 0]);
    assert_eq!(wrong("use crate::io::Ecn;\n"), ["ring (layer 1) imports io"]);
    assert_eq!(wrong("use super::worker::Turn;\n"), ["ring (layer 1) imports worker"]);
    assert_eq!(wrong("use crate::{\n    sys::{a, b},\n    worker,\n};\n"), ["ring (layer 1) imports worker"]);
    assert_eq!(wrong("let x = crate::Worker::new();\n"), ["ring (layer 1) imports Worker"]);
    assert_eq!(wrong("#[cfg(test)]\nmod tests {\n    use crate::worker::Turn;\n}\n"), [""; 0]);
    assert_eq!(wrong_imports("ring", 2, "use super::mapped;\n", &layers), [""; 0], "within its own module");
    assert_eq!(wrong_imports("ring", 2, "use super::super::io;\n", &layers), ["ring (layer 1) imports io"]);
}
