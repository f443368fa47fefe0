//! `[learn]`: sources that were learned before an attack, whether there is an attack, and the file of these sources.

use std::fmt::Write as _;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use expressway_settings::{ConfigError, SourceFile, Span, named};
use expressway_xbpf::{
    Error as XdpError, Guard, GuardLearned, GuardLearner, GuardLearning, GuardRate, GuardReason,
};
use serde::Deserialize;
use toml::Spanned;

use super::lines::{Lines, unreadable};
use super::list;
use super::lists::replace;
use super::rule::Rate;
use super::status::LearnStatus;

/// Sources at most: 100 MB of a table that is looked up.
const ENTRIES: u32 = 1 << 20;

/// Octets of a line of the file.
const LINE: u64 = 256;

/// Between two walks of a large table, which count it and remove what is too old; a small one is walked each second.
const WALK: Duration = Duration::from_secs(10);
const SMALL: u32 = 65_536;

const SECOND: i64 = 1_000_000_000;

/// What a line of the file begins with whose source is not preferred yet.
const CANDIDATE: &str = "# candidate ";

/// When there is an attack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attack {
    /// While limits are exceeded by more than `above`.
    #[default]
    Auto,
    /// Now.
    On,
    /// Not now.
    Off,
}

impl Attack {
    const NAMES: [(&'static str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

named!(Attack);

/// The section, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    file: Spanned<PathBuf>,
    prefix4: Option<Spanned<u8>>,
    prefix6: Option<Spanned<u8>>,
    entries: Option<Spanned<u32>>,
    after: Option<Spanned<Span>>,
    expiry: Option<Spanned<Span>>,
    limit: Option<Spanned<String>>,
    #[serde(default)]
    attack: Attack,
    above: Option<Spanned<String>>,
    calm: Option<Spanned<Span>>,
    save: Option<Spanned<Span>>,
}

/// How sources are learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learn {
    /// Where they are kept.
    pub file: PathBuf,
    /// Which, how many, for how long.
    pub learning: GuardLearning,
    /// When there is an attack.
    pub attack: Attack,
    /// Packets a second beyond limits, from which on there is one.
    pub above: u64,
    /// How long it has to be below that before the attack is over.
    pub calm: Duration,
    /// Between two writes of the file.
    pub save: Duration,
}

impl Section {
    /// Checked, with the defaults of what is not there, and paths relative to `folder`.
    pub(super) fn learn(&self, source: &SourceFile, folder: &Path) -> Result<Learn, ConfigError> {
        if self.file.get_ref().file_name().is_none() {
            return Err(source.at(self.file.span(), "is not the name of a file"));
        }
        let bits = |given: &Option<Spanned<u8>>, default: u8, from: u8, to: u8| match given {
            None => Ok(default),
            Some(bits) if (from..=to).contains(bits.get_ref()) => Ok(*bits.get_ref()),
            Some(bits) => Err(source.at(bits.span(), format!("is {}: {from} to {to} bits", bits.get_ref()))),
        };
        let span = |given: &Option<Spanned<Span>>, default: u64, least: Span| match given {
            None => Ok(Duration::from_secs(default)),
            Some(span) if *span.get_ref() >= least => Ok(span.get_ref().0),
            Some(span) => Err(source.at(span.span(), format!("is {}: at least {least}", span.get_ref()))),
        };
        let rate = |given: &Option<Spanned<String>>, default: u64| {
            let Some(text) = given else { return Ok(default) };
            match text.get_ref().parse::<Rate>() {
                Ok(Rate { number, bytes: false }) => Ok(number),
                Ok(_) => Err(source.at(text.span(), "counts bytes: give packets, such as \"10k/s\"")),
                Err(problem) => Err(source.at(text.span(), problem)),
            }
        };
        let entries = match &self.entries {
            None => 65_536,
            Some(entries) if (1..=ENTRIES).contains(entries.get_ref()) => *entries.get_ref(),
            Some(entries) => return Err(source.at(entries.span(), format!("must be 1 to {ENTRIES}"))),
        };
        let nothing = Span(Duration::ZERO);
        let after = span(&self.after, 600, nothing)?;
        let expiry = span(&self.expiry, 30 * 86_400, Span(Duration::from_secs(1)))?;
        if expiry <= after {
            let place = self.expiry.as_ref().or(self.after.as_ref()).map_or(0..0, Spanned::span);
            return Err(
                source.at(place, "no source would ever be preferred: `expiry` must be longer than `after`")
            );
        }
        let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).min(1 << 62);
        let limit = rate(&self.limit, 10_000)?;
        Ok(Learn {
            file: folder.join(self.file.get_ref()),
            learning: GuardLearning {
                entries,
                prefix4: bits(&self.prefix4, 32, 8, 32)?,
                prefix6: bits(&self.prefix6, 64, 16, 128)?,
                after: nanoseconds(after),
                expiry: nanoseconds(expiry),
                rate: Some(GuardRate { rate: limit, burst: (limit / 10).max(1) }),
            },
            attack: self.attack,
            above: rate(&self.above, 1000)?,
            calm: span(&self.calm, 300, Span(Duration::from_secs(1)))?,
            save: span(&self.save, 60, Span(Duration::from_secs(1)))?,
        })
    }
}

/// Learning as it runs.
#[derive(Debug)]
pub(super) struct Learner {
    /// Its hold on the kernel, of the filter in force.
    _hook: GuardLearner,
    settings: Learn,
    /// What an order says in place of the configuration.
    ordered: Option<Attack>,
    attack: bool,
    /// When the attack is over if it does not go on.
    until: Option<Instant>,
    /// Packets beyond limits, and when they were counted.
    beyond: Option<(u64, Instant)>,
    walked: Option<Instant>,
    saved: Instant,
    /// Sources that are preferred in an attack, and those that are not yet.
    known: (usize, usize),
    error: Option<String>,
}

impl Learner {
    /// Learns for this filter, from what `earlier` or else the file knows on.
    pub(super) fn start(
        guard: &Guard,
        settings: &Learn,
        earlier: Option<(&Self, &Guard)>,
    ) -> Result<Self, XdpError> {
        let kept = match earlier {
            Some((_, earlier)) => earlier.learned()?,
            None => Vec::new(),
        };
        guard.remember(&kept)?;
        let hook = guard.learner()?;
        let before = earlier.map(|(learner, _)| learner);
        let mut learner = Self {
            _hook: hook,
            settings: settings.clone(),
            ordered: before.and_then(|before| before.ordered),
            attack: before.is_some_and(|before| before.attack),
            until: before.and_then(|before| before.until),
            beyond: None,
            walked: None,
            saved: before.map_or_else(Instant::now, |before| before.saved),
            known: before.map_or((0, 0), |before| before.known),
            error: before.and_then(|before| before.error.clone()),
        };
        learner.set(guard);
        Ok(learner)
    }

    /// Decides whether there is an attack, and counts. To be called about once a second.
    pub(super) fn upkeep(&mut self, guard: &Guard) {
        let now = Instant::now();
        match guard.counts() {
            Ok(counts) => {
                let beyond = counts.iter().filter(|(reason, _)| {
                    matches!(reason, GuardReason::DropLimit | GuardReason::PassLearned)
                });
                let beyond = beyond.map(|(_, count)| count.packets).sum();
                self.look(beyond, now);
            }
            Err(error) => tracing::warn!(%error, "cannot determine whether there is an attack"),
        }
        self.set(guard);
        let pause = if self.settings.learning.entries > SMALL { WALK } else { Duration::ZERO };
        if self.walked.is_none_or(|walked| now.duration_since(walked) >= pause) {
            self.walked = Some(now);
            if let Err(error) = self.walk(guard) {
                tracing::warn!(%error, "learned sources cannot be counted");
            }
        }
    }

    /// Whether packets beyond limits are more than `above` a second.
    fn look(&mut self, beyond: u64, now: Instant) {
        let Some((before, then)) = self.beyond.replace((beyond, now)) else { return };
        let seconds = now.duration_since(then).as_secs_f64();
        if seconds > 0.0 && beyond.saturating_sub(before) as f64 / seconds >= self.settings.above as f64 {
            self.until = now.checked_add(self.settings.calm);
        } else if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
    }

    /// Tells the program.
    fn set(&mut self, guard: &Guard) {
        let attack = match self.ordered.unwrap_or(self.settings.attack) {
            Attack::Auto => self.until.is_some(),
            Attack::On => true,
            Attack::Off => false,
        };
        if let Err(error) = guard.set_attack(attack) {
            tracing::error!(%error, "cannot give preference to learned sources");
            return;
        }
        if attack != self.attack {
            self.attack = attack;
            if attack {
                tracing::warn!("attack: preferring learned sources; learning is paused");
            } else {
                tracing::info!("attack is over: learning resumes");
            }
        }
    }

    /// Has an order take the place of the configuration. Whether there is an attack now.
    pub(super) fn order(&mut self, attack: Attack, guard: &Guard) -> bool {
        self.ordered = Some(attack);
        if attack == Attack::Auto {
            self.until = None;
        }
        self.set(guard);
        self.attack
    }

    /// Counts the sources, and removes those that are too old.
    fn walk(&mut self, guard: &Guard) -> Result<(), XdpError> {
        let (now, learning) = (guard.now(), self.settings.learning);
        let old = |one: &GuardLearned| now.wrapping_sub(one.last) > learning.expiry.cast_signed();
        let (gone, left): (Vec<_>, Vec<_>) = guard.learned()?.into_iter().partition(old);
        guard.forget(&gone);
        let preferred = left.iter().filter(|one| is_preferred(one, &learning)).count();
        self.known = (preferred, left.len() - preferred);
        Ok(())
    }

    /// The file's content, when it is time to write it, or `now`.
    pub(super) fn due(&mut self, guard: &Guard, now: bool) -> Option<Unsaved> {
        if !now && self.saved.elapsed() < self.settings.save {
            return None;
        }
        self.saved = Instant::now();
        match guard.learned() {
            Ok(mut sources) => {
                sources.sort_unstable();
                let text = text(&sources, &self.settings.learning, epoch(guard));
                Some(Unsaved { file: self.settings.file.clone(), text })
            }
            Err(error) => {
                tracing::warn!(%error, "learned sources cannot be read");
                None
            }
        }
    }

    /// One warning for a trouble, however often it is met.
    pub(super) fn saved(&mut self, result: std::io::Result<()>) {
        let error = result.err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|error| self.error.as_ref() != Some(error)) {
            tracing::warn!("{}: learned sources not kept: {error}", self.settings.file.display());
        }
        self.error = error;
    }

    /// What it did.
    pub(super) fn status(&self, guard: &Guard) -> Result<LearnStatus, XdpError> {
        let count = guard.learning_count()?;
        Ok(LearnStatus {
            attack: self.attack,
            learned: self.known.0,
            candidates: self.known.1,
            proofs: count.proofs,
            added: count.added,
            late: count.late,
            full: count.full,
            error: self.error.clone(),
        })
    }
}

/// The file's next content.
#[derive(Debug)]
pub struct Unsaved {
    file: PathBuf,
    text: String,
}

impl Unsaved {
    /// Writes it whole in the place of the earlier one.
    ///
    /// # Errors
    /// What the system said; then the earlier one stays.
    pub fn write(&self) -> std::io::Result<()> {
        replace(&self.file, &[self.text.as_bytes()])
    }
}

fn is_preferred(one: &GuardLearned, learning: &GuardLearning) -> bool {
    one.last.wrapping_sub(one.first) >= learning.after.cast_signed()
}

/// What to add to the filter's clock for nanoseconds since the epoch.
fn epoch(guard: &Guard) -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX).wrapping_sub(guard.now())
}

/// Lines of those that are preferred, which are an allow list, and behind them comments of those that are not yet.
fn text(sources: &[GuardLearned], learning: &GuardLearning, epoch: i64) -> String {
    let mut text = String::from(
        "# Sources that expressway guard has learned, with the times of their first and last proof in seconds since 1970.\n",
    );
    let (mut preferred, mut candidates) = (String::new(), String::new());
    for one in sources {
        let seconds = |time: i64| time.saturating_add(epoch).div_euclid(SECOND);
        let (first, last) = (seconds(one.first), seconds(one.last));
        let (address, length) = (one.source.address, one.source.length);
        let _ = match is_preferred(one, learning) {
            true => writeln!(preferred, "{address}/{length} # {first} {last}"),
            false => writeln!(candidates, "{CANDIDATE}{address}/{length} {first} {last}"),
        };
    }
    text += &preferred;
    text += &candidates;
    text
}

/// Reads the file, for a filter whose clock is `epoch` behind; nothing if there is none. What has no times was known for
/// ever and has just proved itself: somebody has written it by hand.
///
/// # Errors
/// With file and line.
pub(super) fn read(settings: &Learn, guard: &Guard) -> Result<Vec<GuardLearned>, ConfigError> {
    parse(&settings.file, &settings.learning, epoch(guard), guard.now())
}

/// Whether the file is what it should be.
pub(super) fn check(settings: &Learn) -> Result<(), ConfigError> {
    parse(&settings.file, &settings.learning, 0, 0).map(|_| ())
}

fn parse(
    file: &Path,
    learning: &GuardLearning,
    epoch: i64,
    now: i64,
) -> Result<Vec<GuardLearned>, ConfigError> {
    let mut reader = match std::fs::File::open(file) {
        Ok(open) => BufReader::new(open),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(file, &error)),
    };
    let (mut found, mut lines) = (Vec::new(), Lines::new(&mut reader, file, LINE));
    while let Some(line) = lines.next()? {
        let text = line.text.trim();
        let (entry, times) = match text.strip_prefix(CANDIDATE) {
            Some(candidate) => candidate.split_once(' ').unwrap_or((candidate, "")),
            None => text.split_once('#').unwrap_or((text, "")),
        };
        if entry.trim().is_empty() {
            continue;
        }
        if found.len() as u32 == ENTRIES {
            return Err(line.error(format!("more than {ENTRIES} sources")));
        }
        let mut source = list::prefix(entry.trim()).map_err(|problem| line.error(problem))?;
        // Learned with longer prefixes, perhaps.
        let most = if source.address.is_ipv4() { learning.prefix4 } else { learning.prefix6 };
        source.length = most;
        source.address = list::masked(source.address, most);
        let mut times = times.split_whitespace().map(str::parse::<i64>);
        let (first, last) = match (times.next(), times.next()) {
            (Some(Ok(first)), Some(Ok(last))) => {
                let local = |seconds: i64| seconds.saturating_mul(SECOND).saturating_sub(epoch);
                // A clock that was wrong does not keep it for ever.
                (local(first).min(now), local(last).min(now))
            }
            (None, None) => (now.saturating_sub(learning.after.cast_signed()), now),
            _ => return Err(line.error("expected two times in seconds, or none, after the source")),
        };
        found.push(GuardLearned { source, first, last });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEARNING: GuardLearning = GuardLearning {
        entries: 16,
        prefix4: 32,
        prefix6: 64,
        after: 600 * SECOND.unsigned_abs(),
        expiry: 86_400 * SECOND.unsigned_abs(),
        rate: None,
    };

    fn written(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("expressway-learned-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    fn source(text: &str, first: i64, last: i64) -> GuardLearned {
        GuardLearned { source: list::prefix(text).unwrap(), first: first * SECOND, last: last * SECOND }
    }

    #[test]
    fn what_is_kept_is_known_again_after_a_reboot() {
        let known = [
            source("192.0.2.1/32", 100, 800),
            source("198.51.100.1/32", 700, 800),
            source("2001:db8::/64", -5000, 900),
        ];
        let kept = text(&known, &LEARNING, 1_000_000 * SECOND);
        assert!(kept.contains("192.0.2.1/32 # 1000100 1000800\n"), "{kept}");
        assert!(kept.ends_with("# candidate 198.51.100.1/32 1000700 1000800\n"), "{kept}");
        let file = written("again", &kept);
        // The machine has been up for 50 s.
        let mut again = parse(&file, &LEARNING, 1_001_000 * SECOND, 50 * SECOND).unwrap();
        again.sort_unstable();
        let shifted = known.map(|one| GuardLearned {
            first: one.first - 1000 * SECOND,
            last: one.last - 1000 * SECOND,
            ..one
        });
        assert_eq!(again, shifted);
        // It is an allow list too, of those that are preferred.
        assert_eq!(list::read(&file).unwrap().0.len(), 2);
        std::fs::remove_file(&file).unwrap();
        assert!(parse(&file, &LEARNING, 0, 0).unwrap().is_empty());
    }

    #[test]
    fn what_somebody_writes_is_preferred_at_once() {
        let file = written("hand", "# mine\n192.0.2.7\n\n2001:db8:0:1:2::3 # 90000000 99000000\n");
        let found = parse(&file, &LEARNING, 0, 50 * SECOND).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found[0], source("192.0.2.7/32", -550, 50));
        assert!(is_preferred(&found[0], &LEARNING));
        assert_eq!(found[1], source("2001:db8:0:1::/64", 50, 50), "not of the future");
    }

    #[test]
    fn wrong_lines_are_named() {
        for (name, text) in
            [("word", "\nhere\n"), ("times", "\n192.0.2.1 # 7\n"), ("text", "\n192.0.2.1 # a b\n")]
        {
            let file = written(name, text);
            let error = parse(&file, &LEARNING, 0, 0).unwrap_err();
            std::fs::remove_file(&file).unwrap();
            assert_eq!(error.line, 2, "{error}");
        }
    }
}
