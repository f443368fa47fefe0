//! Finds the boundaries of frames on the stream of a group.

use expressway_h3::varint;

/// Follows the frames on a stream, so that a group is known to consist of whole ones.
///
/// A frame is the difference of its time to that of the frame before, its length, and as many octets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    state: State,
    /// Frames that have ended.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Before a frame.
    #[default]
    Between,
    /// Within the integer that is a frame's time, or that is its length: octets that are missing, and its value up to them.
    Head { is_length: bool, missing: u8, value: u64 },
    /// Before the length.
    Length,
    /// Octets of the frame that are missing.
    Payload(u64),
}

impl Frames {
    /// Takes in what has come next. Frames longer than `longest` are refused.
    ///
    /// # Errors
    /// What is wrong.
    pub fn follow(&mut self, mut input: &[u8], longest: u64) -> Result<(), &'static str> {
        while let Some((&first, rest)) = input.split_first() {
            match self.state {
                State::Between | State::Length => {
                    input = rest;
                    let missing = varint::len_of(first) as u8 - 1;
                    let is_length = matches!(self.state, State::Length);
                    self.state = State::Head { is_length, missing, value: u64::from(first & 0x3f) };
                    self.settle(longest)?;
                }
                State::Head { is_length, missing, value } => {
                    input = rest;
                    let value = value << 8 | u64::from(first);
                    self.state = State::Head { is_length, missing: missing - 1, value };
                    self.settle(longest)?;
                }
                State::Payload(missing) => {
                    let taken = missing.min(input.len() as u64);
                    input = &input[taken as usize..];
                    self.state = State::Payload(missing - taken);
                    self.settle_payload();
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, longest: u64) -> Result<(), &'static str> {
        match self.state {
            State::Head { is_length: false, missing: 0, .. } => self.state = State::Length,
            State::Head { is_length: true, missing: 0, value } => {
                if value > longest {
                    return Err("a frame is too long");
                }
                self.state = State::Payload(value);
                self.settle_payload();
            }
            _ => {}
        }
        Ok(())
    }

    fn settle_payload(&mut self) {
        if let State::Payload(0) = self.state {
            self.state = State::Between;
            self.count += 1;
        }
    }

    /// The last frame is complete.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, State::Between)
    }
}
