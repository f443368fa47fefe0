//! CPU usage, from `/proc/stat`.

use std::fs;

use super::sample::Cpu;

/// Times of one CPU in ticks: user and nice, system, interrupts and softirqs, all.
type Ticks = [u64; 4];

/// Remembers the reading before.
#[derive(Debug, Default)]
pub(super) struct Cpus {
    before: Vec<Ticks>,
}

impl Cpus {
    /// What each did since the last call; nothing at the first.
    pub(super) fn read(&mut self) -> Vec<Cpu> {
        let now = fs::read_to_string("/proc/stat").map(|text| parse(&text)).unwrap_or_default();
        let shares = now.iter().zip(&self.before).map(|(now, before)| share(now, before)).collect();
        self.before = now;
        shares
    }
}

fn share(now: &Ticks, before: &Ticks) -> Cpu {
    let since = |at: usize| now[at].saturating_sub(before[at]) as f64;
    let all = since(3).max(1.0);
    Cpu { user: since(0) / all, system: since(1) / all, interrupts: since(2) / all }
}

/// The lines `cpuN user nice system idle iowait irq softirq steal …` (proc_stat(5)).
fn parse(text: &str) -> Vec<Ticks> {
    let ticks = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        words.next()?.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let times: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let of = |at: usize| times.get(at).copied().unwrap_or(0);
        Some([of(0) + of(1), of(2), of(5) + of(6), times.iter().sum()])
    };
    text.lines().filter_map(ticks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let before = parse("cpu  9 9 9 9\ncpu0 10 0 10 70 0 0 10 0 0 0\nintr 5\n");
        let now = parse("cpu  9 9 9 9\ncpu0 20 10 30 100 0 5 25 10 0 0\nintr 6\n");
        assert_eq!(before, [[10, 10, 10, 100]]);
        let cpu = share(&now[0], &before[0]);
        assert_eq!((cpu.user, cpu.system, cpu.interrupts), (0.2, 0.2, 0.2));
    }
}
