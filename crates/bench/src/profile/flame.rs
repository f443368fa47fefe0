//! Folds the stacks of `perf script`, and draws them as a flame graph: a frame is as wide as the samples that
//! contain it, and its callees stand on top of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::escape;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
/// Frames narrower than this are left out, pixels.
const NARROWEST: f64 = 0.3;
/// Width of a letter, pixels.
const LETTER: f64 = 6.6;

/// Samples by stack, outermost frame first, the task's name before it.
pub(crate) type Stacks = BTreeMap<Vec<String>, u64>;

/// Reads the output of `perf script --fields comm,ip,sym`: blocks of a line with the task's name, then a frame a line,
/// innermost first, then an empty line.
pub(crate) fn fold(script: &str) -> Stacks {
    let mut stacks = Stacks::new();
    let mut task = None;
    let mut frames: Vec<String> = Vec::new();
    let mut end = |task: &mut Option<String>, frames: &mut Vec<String>| {
        if let Some(name) = task.take() {
            let stack = std::iter::once(name).chain(frames.drain(..).rev()).collect();
            *stacks.entry(stack).or_default() += 1;
        }
    };
    for line in script.lines() {
        if line.trim().is_empty() {
            end(&mut task, &mut frames);
        } else if line.starts_with([' ', '\t']) && task.is_some() {
            let symbol = line.trim_start().split_once(' ').map_or("[unknown]", |(_, symbol)| symbol.trim());
            frames.push(without_hash(symbol).to_owned());
        } else {
            end(&mut task, &mut frames);
            task = Some(line.trim().to_owned());
        }
    }
    end(&mut task, &mut frames);
    stacks
}

/// Rust's names end in `::h` and 16 hexadecimal digits, which differ from build to build.
fn without_hash(symbol: &str) -> &str {
    match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => symbol,
    }
}

/// A frame with what it called.
#[derive(Default)]
struct Frame {
    samples: u64,
    inner: BTreeMap<String, Frame>,
}

impl Frame {
    fn depth(&self) -> usize {
        1 + self.inner.values().map(Self::depth).max().unwrap_or(0)
    }
}

/// Draws them.
pub(crate) fn draw(stacks: &Stacks, title: &str) -> String {
    let mut root = Frame::default();
    for (stack, count) in stacks {
        root.samples += count;
        let mut frame = &mut root;
        for name in stack {
            frame = frame.inner.entry(name.clone()).or_default();
            frame.samples += count;
        }
    }
    let height = ROW * root.depth() as f64 + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"monospace\" font-size=\"11\">\
         <style>:root {{ color-scheme: light dark; }} text {{ fill: #1b1f24; }} .title {{ fill: #57606a; font-size: 14px; }}\
         @media (prefers-color-scheme: dark) {{ .title {{ fill: #9198a1; }} }}</style>\
         <text class=\"title\" x=\"4\" y=\"18\">{}: {} samples</text>\n",
        escape(title),
        root.samples
    );
    let unit = WIDTH / root.samples.max(1) as f64;
    inner(&mut svg, &root, (0.0, height - ROW - 4.0), unit, root.samples);
    svg.push_str("</svg>\n");
    svg
}

fn inner(svg: &mut String, frame: &Frame, (mut left, top): (f64, f64), unit: f64, all: u64) {
    for (name, inside) in &frame.inner {
        let width = inside.samples as f64 * unit;
        if width >= NARROWEST {
            let share = 100.0 * inside.samples as f64 / all as f64;
            let fits = ((width - 4.0) / LETTER).max(0.0) as usize;
            let shown: String = if fits >= 3 { name.chars().take(fits).collect() } else { String::new() };
            let _ = writeln!(
                svg,
                "<g><title>{} ({share:.1} %)</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{}\" stroke=\"#fff\" stroke-width=\".4\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
                escape(name),
                ROW - 1.0,
                colour(name),
                left + 2.0,
                top + 12.0,
                escape(&shown)
            );
            inner(svg, inside, (left, top - ROW), unit, all);
        }
        left += width;
    }
}

/// A warm colour that is the same for a name in all graphs.
fn colour(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hsl({}, 80%, {}%)", 20 + hash % 40, 62 + (hash >> 8) % 14)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "server \n\t    55d main::h0123456789abcdef\n\t 7f0 start\n\nserver \n  55d main\n  7f0 start\n\n\
                          server \n ffff  napi_poll\n 55d main\n 7f0 start\n\n";

    #[test]
    fn stacks_are_folded_outermost_first_without_hashes() {
        let stacks = fold(SCRIPT);
        let stack = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(stacks[&stack(&["server", "start", "main"])], 2);
        assert_eq!(stacks[&stack(&["server", "start", "main", "napi_poll"])], 1);
        assert_eq!(stacks.len(), 2);
        assert!(fold("").is_empty());
    }

    #[test]
    fn frames_are_as_wide_as_their_samples() {
        let svg = draw(&fold(SCRIPT), "a <title>");
        assert!(svg.contains("a &lt;title&gt;: 3 samples"));
        assert!(
            svg.contains("<title>main (100.0 %)</title>")
                && svg.contains("<title>napi_poll (33.3 %)</title>")
        );
        assert!(svg.contains("width=\"400.0\"") && svg.contains("width=\"1200.0\""), "{svg}");
    }
}
