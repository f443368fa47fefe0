//! `expressway keys`: documents of keys that several servers share.

use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use expressway_keys::{Document, Signer, Signers, files};
use serde_json::{Value, json};

use crate::args::{KeysCommand, KeysNew, KeysRotate, KeysShow, KeysVerify};
use crate::fail::Failure;

/// Does what was asked for.
pub(crate) fn run(command: &KeysCommand) -> Result<ExitCode, Failure> {
    match command {
        KeysCommand::New(arguments) => new(arguments),
        KeysCommand::Rotate(arguments) => rotate(arguments),
        KeysCommand::Show(arguments) => show(arguments),
        KeysCommand::Verify(arguments) => verify(arguments),
    }
}

fn new(arguments: &KeysNew) -> Result<ExitCode, Failure> {
    let out = &arguments.out;
    let at = |name: &str| out.join(name);
    let (document, private, public) = (at("shared.keys"), at("signer.pem"), at("signer.pub"));
    if document.exists() {
        let problem =
            "exists: use `expressway keys rotate`, which replaces it without harm to servers that use it";
        return Err(Failure::usage(format!("{}: {problem}", document.display())));
    }
    let is_new = !private.exists();
    let signer = match is_new {
        true => Signer::random().map_err(Failure::run_time)?,
        false => signer(&private)?,
    };
    let first = Document::new(now()).map_err(Failure::run_time)?;
    let text = first.signed(&signer).map_err(Failure::run_time)?;
    // Before anything is written: servers that get it would take nothing of this signer.
    let has_public = public.exists();
    if has_public && Document::parse(text.as_bytes(), &signers(&public)?).is_err() {
        let problem =
            format!("is not the public key of {}: remove it to have it written again", private.display());
        return Err(Failure::usage(format!("{}: {problem}", public.display())));
    }
    files::folder(out).map_err(Failure::run_time)?;
    if is_new {
        let pem = signer.private_pem().map_err(Failure::run_time)?;
        files::create(&private, &pem, 0o600).map_err(Failure::run_time)?;
    }
    if !has_public {
        let pem = signer.public_pem().map_err(Failure::run_time)?;
        files::create(&public, &pem, 0o644).map_err(Failure::run_time)?;
    }
    files::create(&document, text.as_bytes(), 0o640).map_err(Failure::run_time)?;
    let paths = [&document, &private, &public].map(|path| path.display().to_string());
    let text = match arguments.json {
        true => format!(
            "{}\n",
            json!({ "document": paths[0], "signer": paths[1], "public": paths[2], "version": first.version })
        ),
        false => paths.map(|path| path + "\n").concat(),
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn rotate(arguments: &KeysRotate) -> Result<ExitCode, Failure> {
    let signer = signer(&arguments.signer)?;
    let known = match &arguments.former_signer {
        Some(file) => signers(file)?,
        None => signer.public().map_err(Failure::run_time)?,
    };
    // One after another: two that began with the same document would end with two of the same version.
    let lock = files::lock(&arguments.file).map_err(Failure::run_time)?;
    let before = read(&arguments.file, &known)?;
    let after = before.rotated(now()).map_err(Failure::run_time)?;
    let text = after.signed(&signer).map_err(Failure::run_time)?;
    let warning = files::replace(&arguments.file, text.as_bytes(), &lock).map_err(Failure::run_time)?;
    drop(lock);
    if let Some(warning) = warning {
        eprintln!("expressway: {warning}");
    }
    tell(&after, false, arguments.json)
}

fn show(arguments: &KeysShow) -> Result<ExitCode, Failure> {
    let document = read(&arguments.file, &signers(&arguments.signer)?)?;
    tell(&document, arguments.secrets, arguments.json)
}

fn verify(arguments: &KeysVerify) -> Result<ExitCode, Failure> {
    let document = read(&arguments.file, &signers(&arguments.signer)?)?;
    crate::print(&format!("{}: good, version {}\n", arguments.file.display(), document.version))?;
    Ok(ExitCode::SUCCESS)
}

fn tell(document: &Document, secrets: bool, as_json: bool) -> Result<ExitCode, Failure> {
    let text = if as_json {
        let sets = document.all().map(|(name, keys)| {
            let mut set = json!({ "id": keys.id(), "config": keys.config });
            if secrets {
                for (key, value) in keys.secrets() {
                    set[key] = Value::String(value);
                }
            }
            (name.to_owned(), set)
        });
        let mut whole = json!({ "version": document.version });
        sets.for_each(|(name, set)| whole[name] = set);
        format!("{whole}\n")
    } else {
        let mut text = format!("version {}\n", document.version);
        for (name, keys) in document.all() {
            text += &format!("{name:8} {} config {}\n", keys.id(), keys.config);
            if secrets {
                keys.secrets().iter().for_each(|(key, value)| text += &format!("  {key} {value}\n"));
            }
        }
        text
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path, signers: &Signers) -> Result<Document, Failure> {
    expressway_keys::read(file, signers)
        .map_err(|refusal| Failure::run_time(format!("{}: {refusal}", file.display())))
}

fn signer(file: &Path) -> Result<Signer, Failure> {
    Signer::read(file).map_err(|problem| Failure::usage(format!("{}: {problem}", file.display())))
}

fn signers(file: &Path) -> Result<Signers, Failure> {
    Signers::read(file).map_err(|problem| Failure::usage(format!("{}: {problem}", file.display())))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
