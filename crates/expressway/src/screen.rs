//! The terminal: a screen of its own while it is live, plain lines elsewhere.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use rustix::termios::tcgetwinsize;

use crate::fail::Failure;

/// xterm's control sequences: the alternate screen and the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Where lines are shown. Dropped, the terminal is as it was.
pub(crate) struct Screen {
    own: bool,
}

impl Screen {
    /// A screen of its own if `live` and standard output is a terminal.
    pub(crate) fn open(live: bool) -> Result<Self, Failure> {
        let own = live && stdout().is_terminal();
        if own {
            crate::print(ENTER)?;
        }
        Ok(Self { own })
    }

    /// Shows these lines in place of those before; as many as fit, and as wide.
    pub(crate) fn show(&mut self, lines: &[String]) -> Result<(), Failure> {
        let mut out = String::new();
        if !self.own {
            for line in lines {
                let _ = writeln!(out, "{}", printable(line, usize::MAX));
            }
            return crate::print(&out);
        }
        let (rows, columns) = tcgetwinsize(stdout())
            .ok()
            .filter(|size| size.ws_row > 0 && size.ws_col > 0)
            .map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        out += "\x1b[H";
        for (row, line) in lines.iter().take(rows).enumerate() {
            let _ = write!(out, "{}{}\x1b[K", if row == 0 { "" } else { "\r\n" }, printable(line, columns));
        }
        out += "\x1b[J";
        crate::print(&out)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.own {
            let _ = crate::print(LEAVE);
        }
    }
}

/// The first `columns` characters, none of which controls the terminal: the text comes from another process.
pub(crate) fn printable(line: &str, columns: usize) -> String {
    line.chars().take(columns).map(|one| if one.is_control() { '?' } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_that_is_shown_controls_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n", usize::MAX), "a?[2Jb?");
        assert_eq!(printable("größer", 3), "grö");
    }
}
