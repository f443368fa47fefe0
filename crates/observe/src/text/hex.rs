//! The bytes of a packet under its line.

use std::fmt::Write;

/// Which octets are shown, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// At all.
    pub hex: bool,
    /// As characters beside it (`-X`).
    pub ascii: bool,
    /// With the link layer (`-xx`, `-XX`).
    pub link: bool,
}

impl Dump {
    /// Appends lines of sixteen octets. `link`: the length of the link layer.
    pub(super) fn print(self, data: &[u8], link: usize, out: &mut String) {
        if !self.hex {
            return;
        }
        let data = if self.link { data } else { data.get(link..).unwrap_or_default() };
        for (number, row) in data.chunks(16).enumerate() {
            let _ = write!(out, "\t0x{:04x}: ", number * 16);
            for pair in row.chunks(2) {
                let _ = match pair {
                    [first, second] => write!(out, " {first:02x}{second:02x}"),
                    _ => write!(out, " {:02x}", pair[0]),
                };
            }
            if self.ascii {
                // Each pair takes five columns, the last octet alone three.
                let width = row.len() / 2 * 5 + row.len() % 2 * 3;
                let _ = write!(out, "{:1$}", "", 42 - width);
                out.extend(
                    row.iter().map(|byte| {
                        if byte.is_ascii_graphic() || *byte == b' ' { *byte as char } else { '.' }
                    }),
                );
            }
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_shown_as_tcpdump_shows_them() {
        let data: Vec<u8> = (0x30..0x43).chain([0]).chain([0xff]).collect();
        let shown = |link, ascii| {
            let mut out = String::new();
            Dump { hex: true, ascii, link }.print(&data, 2, &mut out);
            out
        };
        assert_eq!(
            shown(true, true),
            "\t0x0000:  3031 3233 3435 3637 3839 3a3b 3c3d 3e3f  0123456789:;<=>?\n\
             \t0x0010:  4041 4200 ff                             @AB..\n"
        );
        assert_eq!(
            shown(false, false),
            "\t0x0000:  3233 3435 3637 3839 3a3b 3c3d 3e3f 4041\n\t0x0010:  4200 ff\n"
        );
        let mut out = String::new();
        Dump { hex: true, ascii: true, link: false }.print(b"a", 14, &mut out);
        Dump::default().print(&data, 0, &mut out);
        assert_eq!(out, "");
    }
}
