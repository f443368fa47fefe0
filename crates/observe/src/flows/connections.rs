//! QUIC connections across changes of address and of connection ID.
//!
//! A conversation and a connection ID that occur together belong to one connection. A client therefore keeps its
//! connection if it moves to another address with the same ID, or uses another ID at the same address. A client that
//! changes both at once cannot be followed, which is the intention of RFC 9000 (section 9.5).

use std::collections::HashMap;

use super::conversation::Conversation;

/// Connection IDs and conversations remembered; beyond them all is forgotten and learnt again.
const LIMIT: usize = 65_536;

/// What belongs to which connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    by_cid: HashMap<String, u64>,
    by_conversation: HashMap<Conversation, u64>,
    next: u64,
}

impl Connections {
    /// Learns that the two occur together, and says which connection that is.
    pub(super) fn learn(&mut self, conversation: &Conversation, cid: &str) -> u64 {
        if self.by_cid.len() >= LIMIT || self.by_conversation.len() >= LIMIT {
            self.by_cid.clear();
            self.by_conversation.clear();
        }
        // An ID is the server's choice and unique there; a conversation may be used again by another connection.
        let known = self.by_cid.get(cid).or_else(|| self.by_conversation.get(conversation)).copied();
        let connection = known.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.by_cid.insert(cid.to_owned(), connection);
        self.by_conversation.insert(*conversation, connection);
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::super::conversation::Address;
    use super::*;

    fn from(port: u16) -> Conversation {
        let address = |last| Address::Ip([192, 0, 2, last].into());
        Conversation {
            ethertype: 0x0800,
            protocol: 17,
            local: address(1),
            local_port: 443,
            remote: address(2),
            remote_port: port,
        }
    }

    #[test]
    fn a_connection_stays_one_across_addresses_and_ids() {
        let mut connections = Connections::default();
        let first = connections.learn(&from(1000), "aa");
        assert_eq!(connections.learn(&from(1000), "bb"), first);
        assert_eq!(connections.learn(&from(2000), "bb"), first);
        assert_eq!(connections.learn(&from(2000), "cc"), first);
        assert_ne!(connections.learn(&from(3000), "dd"), first);
        // Its old port, with an ID of another one.
        assert_ne!(connections.learn(&from(1000), "dd"), first);
    }

    #[test]
    fn memory_is_bounded() {
        let mut connections = Connections::default();
        for number in 0..LIMIT + 10 {
            connections.learn(&from(number as u16), &number.to_string());
        }
        assert!(connections.by_cid.len() <= LIMIT && connections.by_conversation.len() <= LIMIT);
    }
}
