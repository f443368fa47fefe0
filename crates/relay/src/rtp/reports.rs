//! Outgoing RTCP. The publisher is told which packets arrived and which are missing; receivers are told what the
//! publisher reports about its streams.

use rtcp_types::prelude::*;
use rtcp_types::{
    Compound, Nack, PayloadFeedback, Pli, ReceiverReport, ReportBlock, Sdes, SdesChunk, SdesItem,
    SenderReport as Sender, TransportFeedback,
};

use super::reception::Loss;
use super::stream::SenderReport;

/// Report blocks of one packet at most (RFC 3550, section 6.4.1: a count of five bits).
pub const BLOCKS: usize = 31;

/// Who reports.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Its SSRC.
    pub ssrc: u32,
    /// Its canonical name (RFC 7022).
    pub cname: String,
}

/// A report block of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The stream's SSRC.
    pub ssrc: u32,
    /// What was lost of it.
    pub loss: Loss,
    /// The middle of the NTP timestamp of its last report, and the time since in 1/65536 s; 0 without a report.
    pub last_report: (u32, u32),
}

impl Reporter {
    /// A receiver report with up to [`BLOCKS`] blocks.
    pub fn receiver_report(&self, blocks: &[Block]) -> Vec<u8> {
        self.compound(blocks, |compound| compound)
    }

    /// A receiver report without blocks, with a request for packets of a stream.
    pub fn nack(&self, ssrc: u32, sequences: &[u16]) -> Vec<u8> {
        let nack = sequences.iter().fold(Nack::builder(), |nack, sequence| nack.add_rtp_sequence(*sequence));
        let feedback = TransportFeedback::builder_owned(nack).sender_ssrc(self.ssrc).media_ssrc(ssrc);
        self.compound(&[], |compound| compound.add_packet(feedback))
    }

    /// A receiver report without blocks, with a request for a key frame of a stream (RFC 4585, section 6.3.1).
    pub fn keyframe_request(&self, ssrc: u32) -> Vec<u8> {
        let feedback = PayloadFeedback::builder_owned(Pli::builder()).sender_ssrc(self.ssrc).media_ssrc(ssrc);
        self.compound(&[], |compound| compound.add_packet(feedback))
    }

    /// A sender report of a stream that receivers see as `ssrc`, at the RTP timestamp that they see.
    pub fn sender_report(&self, ssrc: u32, timestamp: u32, report: &SenderReport) -> Vec<u8> {
        let sender = Sender::builder(ssrc)
            .ntp_timestamp(report.ntp)
            .rtp_timestamp(timestamp)
            .packet_count(report.packets)
            .octet_count(report.octets);
        written(Compound::builder().add_packet(sender).add_packet(self.description(ssrc)))
    }

    fn compound<'a>(
        &'a self,
        blocks: &[Block],
        more: impl FnOnce(rtcp_types::CompoundBuilder<'a>) -> rtcp_types::CompoundBuilder<'a>,
    ) -> Vec<u8> {
        let add = |report: rtcp_types::ReceiverReportBuilder, block: &Block| {
            report.add_report_block(
                ReportBlock::builder(block.ssrc)
                    .fraction_lost(block.loss.fraction)
                    .cumulative_lost(block.loss.cumulative)
                    .extended_sequence_number(block.loss.highest)
                    .interarrival_jitter(block.loss.jitter)
                    .last_sender_report_timestamp(block.last_report.0)
                    .delay_since_last_sender_report_timestamp(block.last_report.1),
            )
        };
        let report = blocks.iter().take(BLOCKS).fold(ReceiverReport::builder(self.ssrc), add);
        written(more(Compound::builder().add_packet(report).add_packet(self.description(self.ssrc))))
    }

    fn description(&self, ssrc: u32) -> rtcp_types::SdesBuilder<'_> {
        let name = SdesItem::builder(SdesItem::CNAME, &self.cname);
        Sdes::builder().add_chunk(SdesChunk::builder(ssrc).add_item(name))
    }
}

/// A compound packet as bytes; none of those above exceeds what it is made of.
fn written(compound: rtcp_types::CompoundBuilder<'_>) -> Vec<u8> {
    let mut packet = vec![0; compound.calculate_size().unwrap_or_default()];
    match compound.write_into(&mut packet) {
        Ok(length) => packet.truncate(length),
        Err(error) => {
            debug_assert!(false, "{error}");
            packet.clear();
        }
    }
    packet
}
