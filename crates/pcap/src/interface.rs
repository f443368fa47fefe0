//! The interfaces that a file describes: link type, name, units of time.

use pcap_parser::pcapng::PcapNGOption;
use pcap_parser::{Block, Linktype, PcapBlockOwned};

/// Interfaces that a section may describe; packets of any more are skipped.
const MOST: usize = 256;

/// Bytes of a name (`IFNAMSIZ` is 16; other systems have longer ones).
const NAME: usize = 64;

const SECOND: u128 = 1_000_000_000;

/// How packets of one interface are to be read.
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) link: Linktype,
    /// Units of time per second; 0 if the file's value makes no sense.
    resolution: u64,
    /// Seconds to add.
    offset: i64,
}

impl Interface {
    /// A time in its units, as nanoseconds since 1970.
    pub(crate) fn time(&self, units: u128) -> i128 {
        let nanoseconds = (units * SECOND / u128::from(self.resolution)) as i128;
        nanoseconds + i128::from(self.offset) * SECOND as i128
    }

    /// The same of a time in seconds and a fraction in its units.
    pub(crate) fn time_of(&self, seconds: u32, fraction: u32) -> i128 {
        i128::from(seconds) * SECOND as i128 + self.time(fraction.into())
    }
}

/// The interfaces of a section, or the one of a pcap file.
#[derive(Default)]
pub(crate) struct Interfaces(Vec<Interface>);

impl Interfaces {
    /// One whose times make sense.
    pub(crate) fn get(&self, number: u32) -> Option<&Interface> {
        self.0.get(number as usize).filter(|interface| interface.resolution > 0)
    }

    /// Takes note of what a block says of interfaces.
    pub(crate) fn note(&mut self, block: &PcapBlockOwned<'_>) {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                let (name, link) = (String::new(), header.network);
                self.0 = vec![Interface { name, link, resolution, offset: 0 }];
            }
            // A section has interfaces of its own.
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.0.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) if self.0.len() < MOST => {
                const IF_NAME: u16 = 2;
                let name = block.options.iter().find(|option| option.code.0 == IF_NAME);
                let name = name.and_then(PcapNGOption::as_bytes).unwrap_or_default();
                self.0.push(Interface {
                    name: String::from_utf8_lossy(&name[..name.len().min(NAME)]).into_owned(),
                    link: block.linktype,
                    resolution: resolution(block.if_tsresol),
                    offset: block.ts_offset(),
                });
            }
            _ => {}
        }
    }
}

/// Units a second by the option `if_tsresol`: a power of ten, or with the highest bit set of two; 0 for what does not
/// fit. (pcap-parser 0.16 takes every power of two for invalid.)
fn resolution(option: u8) -> u64 {
    let exponent = u32::from(option & 0x7f);
    match option & 0x80 {
        0 => 10u64.checked_pow(exponent),
        _ => 1u64.checked_shl(exponent),
    }
    .unwrap_or(0)
}
