//! H.264 in RTP (RFC 6184) to access units as a byte stream (ITU-T H.264, annex B).
//!
//! Single NAL units, aggregates without decoding order (STAP-A) and fragments (FU-A), which are what senders use; not the interleaved mode.
//! Octets are copied once, into the access unit.
//!
//! str0m has a depacketiser too, outside what its versions promise (`unversioned`). It takes fragments without their first, keeps those
//! without their last until there is one, and copies each twice.

use super::frames::Malformed;

/// In front of each NAL unit.
const START: [u8; 4] = [0, 0, 0, 1];
/// What a NAL unit's first octet says of its type.
const TYPE: u8 = 0x1f;
/// That bit is not 0 if something is wrong (`forbidden_zero_bit`).
const FORBIDDEN: u8 = 0x80;

const SLICE: u8 = 1;
const IDR: u8 = 5;
const SEI: u8 = 6;
const SPS: u8 = 7;
const PPS: u8 = 8;
const DELIMITER: u8 = 9;
/// The highest type of a single NAL unit.
const LAST_SINGLE: u8 = 23;
const STAP_A: u8 = 24;
const FU_A: u8 = 28;
/// Bits of the second octet of a fragment: it is the first, it is the last.
const FIRST: u8 = 0x80;
const LAST: u8 = 0x40;

/// Parameter sets that are kept for key frames without them, and their octets.
const PARAMETERS: usize = 16;
const PARAMETER_OCTETS: usize = 4096;

/// What there is of an access unit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AccessUnit {
    /// The first octet of the NAL unit whose fragments are coming.
    fragment: Option<u8>,
    /// Where the NAL unit begins that was begun last.
    begin: usize,
    /// Behind a delimiter at its front.
    front: Option<usize>,
    /// It has a slice.
    pub(super) has_picture: bool,
    /// It has a slice that refers to nothing before.
    pub(super) is_key: bool,
    has_sps: bool,
}

/// Parameter sets of a stream: what key frames are decoded with.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    /// Sequence and picture parameter sets since the last access unit that had the former, as a byte stream.
    kept: Vec<u8>,
    /// Where each ends in it.
    ends: Vec<usize>,
    /// Profile, constraints and level of the last sequence parameter set.
    profile: Option<[u8; 3]>,
}

/// Whether a packet is the first of an access unit, as far as pictures go: it begins with what stands in front of them
/// (ITU-T H.264, section 7.4.1.2.3). Parameter sets that may have been lost before it are those that there were.
pub(super) fn begins(payload: &[u8]) -> bool {
    let is_first = |octet: &u8| (SEI..=DELIMITER).contains(&(octet & TYPE));
    match payload {
        [first, _, _, inner, ..] if first & TYPE == STAP_A => is_first(inner),
        [first, ..] => is_first(first),
        [] => false,
    }
}

impl AccessUnit {
    /// Adds a packet's payload to `out`.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn add(
        &mut self,
        payload: &[u8],
        parameters: &mut Parameters,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let (&indicator, rest) = payload.split_first().ok_or(Malformed)?;
        if indicator & FORBIDDEN != 0 {
            return Err(Malformed);
        }
        match indicator & TYPE {
            SLICE..=LAST_SINGLE => self.add_unit(payload, parameters, out),
            STAP_A => self.add_aggregate(rest, parameters, out),
            FU_A => self.add_fragment(indicator, rest, parameters, out),
            _ => Err(Malformed),
        }
    }

    fn add_unit(
        &mut self,
        unit: &[u8],
        parameters: &mut Parameters,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        if self.fragment.is_some() {
            return Err(Malformed);
        }
        self.begin = out.len();
        out.extend_from_slice(&START);
        out.extend_from_slice(unit);
        self.end_unit(parameters, out);
        Ok(())
    }

    fn add_aggregate(
        &mut self,
        mut units: &[u8],
        parameters: &mut Parameters,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        while let Some((&[high, low], rest)) = units.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let (unit, rest) = rest.split_at_checked(length).ok_or(Malformed)?;
            match unit.first() {
                Some(first) if (SLICE..=LAST_SINGLE).contains(&(first & TYPE)) => {}
                _ => return Err(Malformed),
            }
            self.add_unit(unit, parameters, out)?;
            units = rest;
        }
        if units.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    fn add_fragment(
        &mut self,
        indicator: u8,
        fragment: &[u8],
        parameters: &mut Parameters,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let (&head, octets) = fragment.split_first().ok_or(Malformed)?;
        let first = indicator & !TYPE | head & TYPE;
        if !(SLICE..=LAST_SINGLE).contains(&(head & TYPE)) {
            return Err(Malformed);
        }
        match self.fragment {
            None if head & FIRST != 0 => {
                self.begin = out.len();
                out.extend_from_slice(&START);
                out.push(first);
            }
            Some(begun) if head & FIRST == 0 && begun & TYPE == first & TYPE => {}
            _ => return Err(Malformed),
        }
        out.extend_from_slice(octets);
        self.fragment = (head & LAST == 0).then_some(first);
        if self.fragment.is_none() {
            self.end_unit(parameters, out);
        }
        Ok(())
    }

    /// The last NAL unit is whole.
    fn end_unit(&mut self, parameters: &mut Parameters, out: &[u8]) {
        let unit = &out[self.begin..];
        match unit[START.len()] & TYPE {
            IDR => (self.has_picture, self.is_key) = (true, true),
            SLICE..IDR => self.has_picture = true,
            SPS => {
                if !std::mem::replace(&mut self.has_sps, true) {
                    parameters.kept.clear();
                    parameters.ends.clear();
                }
                parameters.keep(unit);
                if let Some(profile) = unit[START.len()..].get(1..4) {
                    parameters.profile = profile.try_into().ok();
                }
            }
            PPS => parameters.keep(unit),
            DELIMITER if !self.has_picture && !self.has_sps => self.front = Some(out.len()),
            _ => {}
        }
    }

    /// It is complete, and `out` behind `begin` what there is of it. A key frame without parameter sets gets the last ones.
    ///
    /// # Errors
    /// It ends within a fragment.
    pub(super) fn end(
        self,
        parameters: &Parameters,
        begin: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        if self.fragment.is_some() {
            return Err(Malformed);
        }
        if self.is_key && !self.has_sps {
            let at = self.front.unwrap_or(begin);
            out.splice(at..at, parameters.kept.iter().copied());
        }
        Ok(())
    }
}

impl Parameters {
    /// Keeps a parameter set once, as far as they are not too many or too long: some senders repeat them with each picture.
    fn keep(&mut self, unit: &[u8]) {
        let mut begin = 0;
        let is_kept =
            self.ends.iter().any(|end| &self.kept[std::mem::replace(&mut begin, *end)..*end] == unit);
        let has_room = self.ends.len() < PARAMETERS && self.kept.len() + unit.len() <= PARAMETER_OCTETS;
        if has_room && !is_kept {
            self.kept.extend_from_slice(unit);
            self.ends.push(self.kept.len());
        }
    }

    /// The codec as WebCodecs and the catalog name it: with its parameter sets in the stream (RFC 6381, section 3.3).
    pub(super) fn codec(&self) -> Option<String> {
        let [profile, constraints, level] = self.profile?;
        Some(format!("avc3.{profile:02x}{constraints:02x}{level:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: &[u8] = &[0x67, 0x64, 0x00, 0x1f, 0xac];
    const P: &[u8] = &[0x68, 0xee];

    fn added(payloads: &[&[u8]]) -> Result<(AccessUnit, Vec<u8>, Parameters), Malformed> {
        let (mut unit, mut out, mut parameters) = Default::default();
        for payload in payloads {
            AccessUnit::add(&mut unit, payload, &mut parameters, &mut out)?;
        }
        Ok((unit, out, parameters))
    }

    fn stream(units: &[&[u8]]) -> Vec<u8> {
        units.iter().flat_map(|unit| [&START[..], unit].concat()).collect()
    }

    #[test]
    fn each_kind_of_packet_becomes_units() {
        let aggregate = [&[0x78, 0, 5][..], S, &[0, 2], P].concat();
        let (unit, out, parameters) =
            added(&[&aggregate, &[0x7c, 0x85, 1, 2], &[0x7c, 0x05, 3], &[0x7c, 0x45, 4], &[0x06, 9]])
                .unwrap();
        assert_eq!(out, stream(&[S, P, &[0x65, 1, 2, 3, 4], &[0x06, 9]]));
        assert!(unit.is_key && unit.has_picture && unit.has_sps);
        assert_eq!(parameters.codec().as_deref(), Some("avc3.64001f"));
        let (unit, ..) = added(&[&[0x41, 1]]).unwrap();
        assert!(unit.has_picture && !unit.is_key);
        assert!(
            begins(&aggregate)
                && begins(S)
                && begins(&[0x09, 0xf0])
                && begins(&[0x06, 5])
                && !begins(&[0x65])
                && !begins(&[])
        );
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        for wrong in [
            &[&[][..]][..],
            &[&[0xe1, 1]],
            &[&[0x00, 1]],
            &[&[0x79, 0, 1, 1]],
            &[&[0x7d, 0x85, 1]],
            // An aggregate that is cut, or of nothing.
            &[&[0x78, 0, 5, 0x67]],
            &[&[0x78, 0]],
            &[&[0x78, 0, 0]],
            &[&[0x78, 0, 2, 0x78, 1]],
            // Fragments without a first, two firsts, of another type, of an aggregate, and what is no fragment between them.
            &[&[0x7c, 0x05, 1]],
            &[&[0x7c, 0x85, 1], &[0x7c, 0x85, 1]],
            &[&[0x7c, 0x85, 1], &[0x7c, 0x41, 1]],
            &[&[0x7c, 0x98, 1]],
            &[&[0x7c, 0x85, 1], &[0x41, 1]],
            &[&[0x7c]],
        ] {
            assert_eq!(added(wrong).err(), Some(Malformed), "{wrong:x?}");
        }
    }

    #[test]
    fn a_key_frame_without_parameters_gets_the_last_ones() {
        let (_, _, mut parameters) = added(&[S, P, P]).unwrap();
        let (mut unit, mut out) = (AccessUnit::default(), Vec::from(*b"head"));
        for payload in [&[0x09, 0xf0][..], &[0x65, 1]] {
            unit.add(payload, &mut parameters, &mut out).unwrap();
        }
        unit.end(&parameters, 4, &mut out).unwrap();
        assert_eq!(out[4..], stream(&[&[0x09, 0xf0], S, P, &[0x65, 1]]));
        let (unit, mut out, parameters) = added(&[S, &[0x7c, 0x85, 1]]).unwrap();
        assert_eq!(unit.end(&parameters, 0, &mut out), Err(Malformed), "the last fragment is missing");
    }

    #[test]
    fn parameters_are_bounded() {
        let (mut unit, mut out, mut parameters): (AccessUnit, Vec<u8>, Parameters) = Default::default();
        unit.add(S, &mut parameters, &mut out).unwrap();
        for number in 0..1000u16 {
            let [high, low] = number.to_be_bytes();
            unit.add(&[0x68, high, low, 7], &mut parameters, &mut out).unwrap();
        }
        unit.add(&[0x68; 5000], &mut parameters, &mut out).unwrap();
        assert_eq!((parameters.ends.len(), parameters.kept.len()), (PARAMETERS, 9 + 15 * 8));
    }
}
