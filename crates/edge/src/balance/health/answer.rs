//! Which answers are good.

use std::io;

use crate::balance::config::Check;

/// Whether an HTTP status is one that the check accepts.
pub(super) fn accept_status(check: &Check, status: &[u8]) -> io::Result<()> {
    let number = std::str::from_utf8(status).ok().and_then(|text| text.parse::<u16>().ok());
    let good = number.is_some_and(|number| match check.status.as_slice() {
        [] => (200..400).contains(&number),
        listed => listed.contains(&number),
    });
    match good {
        true => Ok(()),
        false => Err(io::Error::other(format!("answered status {}", status.escape_ascii()))),
    }
}

/// Whether a body begins as the check says. `None` while too little of it is there.
pub(super) fn accept_body(check: &Check, body: &[u8], is_whole: bool) -> Option<io::Result<()>> {
    let expected = check.body.as_bytes();
    if body.starts_with(expected) {
        return Some(Ok(()));
    }
    if !is_whole && expected.starts_with(body) {
        return None;
    }
    let begins = body[..body.len().min(expected.len()).min(40)].escape_ascii();
    Some(Err(io::Error::other(format!("sent a body that begins with `{begins}`"))))
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;
    use crate::balance::config::CheckKind;

    #[test]
    fn statuses_are_a_class_or_a_list() {
        let mut check = check(CheckKind::Http);
        assert!(accept_status(&check, b"204").is_ok() && accept_status(&check, b"302").is_ok());
        for bad in [&b"404"[..], b"199", b"400", b"OK!", b"\xff\xff\xff", b""] {
            assert!(accept_status(&check, bad).unwrap_err().to_string().starts_with("answered status"));
        }
        check.status = vec![404];
        assert!(accept_status(&check, b"404").is_ok() && accept_status(&check, b"200").is_err());
    }

    #[test]
    fn bodies_are_judged_by_how_they_begin() {
        let mut check = check(CheckKind::Http);
        assert!(matches!(accept_body(&check, b"", false), Some(Ok(()))), "nothing is expected");
        check.body = "ready".to_owned();
        assert!(accept_body(&check, b"rea", false).is_none());
        assert!(matches!(accept_body(&check, b"ready to serve", false), Some(Ok(()))));
        for (body, is_whole) in [(&b"rea"[..], true), (b"reaX", false), (b"", true), (b"starting", false)] {
            let error = accept_body(&check, body, is_whole).unwrap().unwrap_err().to_string();
            assert!(error.contains("a body that begins"), "{error}");
        }
    }
}
