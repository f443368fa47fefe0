//! The router's counters, as a JSON document and as text.

use std::fmt::{self, Write};
use std::net::SocketAddr;

use expressway_xbpf::forward::{EgressCounts, ForwardCounts, TrafficCounts};
use serde_json::{Map, Value, json};

/// Counters since start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// By configured interface.
    pub interfaces: Vec<InterfaceReport>,
    /// What came by devices that carry the program, but of no configured interface.
    pub others: ForwardCounts,
    /// By feed.
    pub feeds: Vec<FeedReport>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReport {
    /// Its name.
    pub name: String,
    /// The device that receives and sends its frames; `None` while there is none.
    pub device: Option<String>,
    /// Where the program runs; `None` where it does not.
    pub attach: Option<&'static str>,
    /// Packets may leave by it without the kernel's stack.
    pub sends: bool,
    /// Why packets are not forwarded by it.
    pub problem: Option<String>,
    /// What came by it.
    pub counts: ForwardCounts,
    /// What its device made of frames that XDP programs gave it; `None` where this kernel does not tell.
    pub egress: Option<EgressCounts>,
}

/// A feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedReport {
    /// Destination of its datagrams.
    pub listen: SocketAddr,
    /// Datagrams that were copied.
    pub counts: TrafficCounts,
    /// Who got copies.
    pub receivers: Vec<ReceiverReport>,
}

/// A receiver of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverReport {
    /// Its address.
    pub address: SocketAddr,
    /// Why it gets nothing now.
    pub problem: Option<String>,
    /// Its copies.
    pub counts: TrafficCounts,
}

impl Statistics {
    pub(super) fn new(
        interfaces: Vec<InterfaceReport>,
        others: ForwardCounts,
        feeds: Vec<FeedReport>,
    ) -> Self {
        Self { interfaces, others, feeds }
    }

    /// All interfaces together.
    pub fn total(&self) -> ForwardCounts {
        self.interfaces.iter().fold(self.others, |sum, interface| sum + interface.counts)
    }

    /// As a document: verdicts and reasons that counted nothing are left out.
    pub fn document(&self) -> Value {
        json!({
            "interfaces": self.interfaces.iter().map(InterfaceReport::document).collect::<Vec<_>>(),
            "others": packets(&self.others),
            "total": packets(&self.total()),
            "feeds": self.feeds.iter().map(FeedReport::document).collect::<Vec<_>>(),
        })
    }
}

/// By verdict and reason.
fn packets(counts: &ForwardCounts) -> Value {
    let mut verdicts = Map::new();
    for (counter, packets) in counts.iter().filter(|(_, packets)| *packets > 0) {
        let verdict = verdicts.entry(counter.verdict().name()).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(reasons) = verdict {
            reasons.insert(counter.name().to_owned(), packets.into());
        }
    }
    Value::Object(verdicts)
}

fn traffic(counts: TrafficCounts) -> [(&'static str, Value); 2] {
    [("packets", counts.packets.into()), ("bytes", counts.bytes.into())]
}

impl InterfaceReport {
    fn document(&self) -> Value {
        let egress = self.egress.map(|egress| json!({ "sent": egress.sent, "refused": egress.refused }));
        json!({
            "interface": self.name,
            "device": self.device,
            "attach": self.attach,
            "sends": self.sends,
            "problem": self.problem,
            "packets": packets(&self.counts),
            "sent_bytes": self.counts.sent_bytes,
            "egress": egress,
        })
    }
}

impl FeedReport {
    fn document(&self) -> Value {
        let receiver = |receiver: &ReceiverReport| {
            let mut document =
                Map::from_iter(traffic(receiver.counts).map(|(key, value)| (key.to_owned(), value)));
            document.insert("address".into(), receiver.address.to_string().into());
            document.insert("problem".into(), receiver.problem.clone().into());
            Value::Object(document)
        };
        let mut document = Map::from_iter(traffic(self.counts).map(|(key, value)| (key.to_owned(), value)));
        document.insert("listen".into(), self.listen.to_string().into());
        document.insert("receivers".into(), self.receivers.iter().map(receiver).collect());
        Value::Object(document)
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for interface in &self.interfaces {
            let mut line = format!("{}:", interface.name);
            for (counter, packets) in interface.counts.iter().filter(|(_, packets)| *packets > 0) {
                write!(line, " {} {packets}", counter.name())?;
            }
            if let Some(egress) = interface.egress {
                write!(line, "; sent {}, refused {}", egress.sent, egress.refused)?;
            }
            if let Some(problem) = &interface.problem {
                write!(line, "; {problem}")?;
            }
            writeln!(f, "{line}")?;
        }
        for feed in &self.feeds {
            writeln!(f, "{}: {} datagrams", feed.listen, feed.counts.packets)?;
            for receiver in &feed.receivers {
                write!(f, "  {}: {} copies", receiver.address, receiver.counts.packets)?;
                match &receiver.problem {
                    Some(problem) => writeln!(f, "; {problem}")?,
                    None => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_what_counted() {
        let interface = InterfaceReport {
            name: "eth0".into(),
            device: Some("eth0".into()),
            attach: Some("native"),
            sends: true,
            problem: None,
            counts: ForwardCounts::default(),
            egress: Some(EgressCounts { sent: 5, refused: 1, unclaimed: 0 }),
        };
        let receiver = ReceiverReport {
            address: ([192, 0, 2, 5], 5).into(),
            problem: Some("no route".into()),
            counts: TrafficCounts { packets: 3, bytes: 300 },
        };
        let feed = FeedReport {
            listen: ([239, 1, 1, 1], 5).into(),
            counts: TrafficCounts { packets: 4, bytes: 400 },
            receivers: vec![receiver],
        };
        let statistics = Statistics::new(vec![interface], ForwardCounts::default(), vec![feed]);
        let document = statistics.document();
        assert_eq!(document["interfaces"][0]["egress"]["refused"], 1);
        assert_eq!(document["interfaces"][0]["packets"], json!({}));
        assert_eq!(document["feeds"][0]["receivers"][0]["packets"], 3);
        let text = statistics.to_string();
        assert!(
            text.contains("sent 5, refused 1") && text.contains("192.0.2.5:5: 3 copies; no route"),
            "{text}"
        );
    }
}
