//! Where samples come from: an interface, which may come and go, or a recording.

use std::time::Duration;

use expressway_observe::flows::{Flows, FlowsError, Options, Paths, Recording, Sample, Totals};

use crate::args::Top as Arguments;
use crate::fail::Failure;

/// The longest pause between two samples of a recording.
const PAUSE: Duration = Duration::from_secs(60);

/// An interface or a recording.
pub(super) enum SampleSource {
    Interface(Box<Interface>),
    Recording { recording: Recording, elapsed: u64 },
}

/// An interface, and what was counted before it was gone.
pub(super) struct Interface {
    options: Options,
    flows: Option<Flows>,
    /// What earlier ones of that name had.
    before: Totals,
    last: Sample,
}

impl SampleSource {
    pub(super) fn open(arguments: &Arguments) -> Result<Self, Failure> {
        if let Some(path) = &arguments.flows.replay {
            let recording = Recording::open(path).map_err(Failure::run_time)?;
            return Ok(Self::Recording { recording, elapsed: 0 });
        }
        let interface = arguments.interface.clone().unwrap_or_default();
        let options = Options { interface, short_cid: arguments.flows.cid_length };
        let flows = Flows::open(options.clone()).map_err(Failure::run_time)?;
        Ok(Self::Interface(Box::new(Interface {
            options,
            flows: Some(flows),
            before: Totals::default(),
            last: Sample::default(),
        })))
    }

    pub(super) fn is_recording(&self) -> bool {
        matches!(self, Self::Recording { .. })
    }

    /// How long the next sample is to be waited for.
    pub(super) fn pause(&self, interval: Duration) -> Duration {
        match self {
            Self::Interface(_) => interval,
            Self::Recording { elapsed, .. } => Duration::from_nanos(*elapsed).min(PAUSE),
        }
    }

    /// Follows an interface's XDP program: to be called between samples.
    pub(super) fn look(&mut self) {
        if let Self::Interface(interface) = self
            && let Some(flows) = &mut interface.flows
        {
            flows.look();
        }
    }

    /// The next sample; `None` at the end of a recording.
    pub(super) fn next(&mut self) -> Result<Option<Sample>, Failure> {
        match self {
            Self::Interface(interface) => interface.next().map(Some),
            Self::Recording { recording, elapsed } => {
                let sample = recording.next_sample().map_err(Failure::run_time)?;
                *elapsed = sample.as_ref().map_or(0, |sample| sample.elapsed);
                Ok(sample)
            }
        }
    }
}

impl Interface {
    fn next(&mut self) -> Result<Sample, Failure> {
        if self.flows.is_none() {
            match Flows::open(self.options.clone()) {
                Ok(flows) => self.flows = Some(flows),
                // Not there yet.
                Err(FlowsError::NoInterface(_)) => {
                    return Ok(Sample { flows: Vec::new(), present: false, ..self.last.clone() });
                }
                Err(error) => return Err(Failure::run_time(error)),
            }
        }
        let Some(flows) = &mut self.flows else { return Ok(self.last.clone()) };
        let mut sample = flows.read().map_err(Failure::run_time)?;
        add(&mut sample.totals, &self.before);
        if !sample.present || flows.is_outdated() {
            self.flows = None;
            self.before = sample.totals;
        }
        self.last.clone_from(&sample);
        self.last.flows.clear();
        Ok(sample)
    }
}

fn add(totals: &mut Totals, before: &Totals) {
    let sum = |mut of: Paths, more: Paths| {
        of += more;
        of
    };
    totals.received = sum(totals.received, before.received);
    totals.sent = sum(totals.sent, before.sent);
    totals.not_held = totals.not_held.saturating_add(before.not_held);
    totals.evictions = totals.evictions.saturating_add(before.evictions);
}
