//! The encryption of server IDs in connection IDs (draft-ietf-quic-load-balancers, section 5.4): AES-128 in one pass if
//! server ID and nonce have 16 bytes together, otherwise a Feistel network of four passes.

use boring::error::ErrorStack;
use boring::symm::{Cipher, Crypter, Mode};

const BLOCK: usize = 16;
/// Half of the longest server ID and nonce, 19 bytes.
const HALF: usize = 10;

/// One key, ready for use.
pub(crate) struct Encryption {
    aes: Crypter,
}

impl Encryption {
    /// Expands a key.
    pub(crate) fn new(key: &[u8; 16]) -> Result<Self, ErrorStack> {
        let mut aes = Crypter::new(Cipher::aes_128_ecb(), Mode::Encrypt, key, None)?;
        aes.pad(false);
        Ok(Self { aes })
    }

    /// Encrypts server ID and nonce, 5 to 19 bytes, in place.
    pub(crate) fn encrypt(&mut self, id: &mut [u8]) -> Result<(), ErrorStack> {
        debug_assert!((5..=19).contains(&id.len()));
        if id.len() == BLOCK {
            let block = self.block(id)?;
            id.copy_from_slice(&block);
            return Ok(());
        }
        let mut halves = Halves::split(id);
        for pass in 1..=4 {
            self.pass(&mut halves, pass)?;
        }
        halves.join(id);
        Ok(())
    }

    /// Changes one half by the other: the right one in odd passes.
    fn pass(&mut self, halves: &mut Halves, pass: u8) -> Result<(), ErrorStack> {
        let is_left = pass.is_multiple_of(2);
        let (from, to) = if is_left { (1, 0) } else { (0, 1) };
        let mut input = [0; BLOCK];
        input[..HALF].copy_from_slice(&halves.bytes[from]);
        input[BLOCK - 2..].copy_from_slice(&[halves.length as u8, pass]);
        let output = self.block(&input)?;
        halves.bytes[to].iter_mut().zip(output).for_each(|(byte, other)| *byte ^= other);
        halves.clear(to);
        Ok(())
    }

    fn block(&mut self, input: &[u8]) -> Result<[u8; BLOCK], ErrorStack> {
        // `update` wants room for a block that it might have held back.
        let mut output = [0; 2 * BLOCK];
        self.aes.update(input, &mut output)?;
        let mut block = [0; BLOCK];
        block.copy_from_slice(&output[..BLOCK]);
        Ok(block)
    }
}

/// Left and right half, zero behind their end. Of an odd length the middle byte is in both: its upper four bits are the
/// left half's, its lower ones the right half's.
struct Halves {
    length: usize,
    bytes: [[u8; HALF]; 2],
}

impl Halves {
    fn split(id: &[u8]) -> Self {
        let half = id.len().div_ceil(2);
        let mut bytes = [[0; HALF]; 2];
        bytes[0][..half].copy_from_slice(&id[..half]);
        bytes[1][..half].copy_from_slice(&id[id.len() - half..]);
        let mut halves = Self { length: id.len(), bytes };
        halves.clear(0);
        halves.clear(1);
        halves
    }

    fn join(&self, id: &mut [u8]) {
        let half = self.length.div_ceil(2);
        id.fill(0);
        for (start, bytes) in [0, self.length - half].into_iter().zip(&self.bytes) {
            id[start..start + half].iter_mut().zip(bytes).for_each(|(byte, other)| *byte |= other);
        }
    }

    /// Clears what is not this half's.
    fn clear(&mut self, which: usize) {
        let half = self.length.div_ceil(2);
        let bytes = &mut self.bytes[which];
        bytes[half..].fill(0);
        if self.length % 2 == 1 {
            match which {
                0 => bytes[half - 1] &= 0xf0,
                _ => bytes[0] &= 0x0f,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Encryption {
        /// What a balancer does with an ID of four passes: the same passes backwards.
        pub(crate) fn decrypt_halves(&mut self, id: &mut [u8]) {
            let mut halves = Halves::split(id);
            for pass in (1..=4).rev() {
                self.pass(&mut halves, pass).unwrap();
            }
            halves.join(id);
        }
    }

    pub(crate) fn bytes(text: &str) -> Vec<u8> {
        data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    fn key(text: &str) -> [u8; 16] {
        bytes(text).try_into().unwrap()
    }

    /// Appendix B.2 of draft-ietf-quic-load-balancers-21.
    #[test]
    fn the_drafts_vectors_come_out() {
        let mut encryption = Encryption::new(&key("8f95f09245765f80256934e50c66207f")).unwrap();
        for (server_id, nonce, id) in [
            ("ed793a", "ee080dbf", "20b1d07b359d3c"),
            ("ed793a51d49b8f5fab65", "ee080dbf48", "cc381bc74cb4fbad2823a3d1f8fed2"),
            ("ed793a51d49b8f5f", "ee080dbf48c0d1e5", "4dd2d05a7b0de9b2b9907afb5ecf8cc3"),
            ("ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "5779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
        ] {
            let plain = bytes(&format!("{server_id}{nonce}"));
            let mut encrypted = plain.clone();
            encryption.encrypt(&mut encrypted).unwrap();
            assert_eq!(encrypted, bytes(id));
            if plain.len() != BLOCK {
                encryption.decrypt_halves(&mut encrypted);
                assert_eq!(encrypted, plain);
            }
        }
    }

    /// Section 5.4.2.4.
    #[test]
    fn the_drafts_example_comes_out() {
        let mut encryption = Encryption::new(&key("fdf726a9893ec05c0632d3956680baf0")).unwrap();
        let mut id = bytes("31441a9c69c275");
        encryption.encrypt(&mut id).unwrap();
        assert_eq!(id, bytes("67947d29be054a"));
    }

    #[test]
    fn every_length_comes_back() {
        let mut encryption = Encryption::new(&[0x5a; 16]).unwrap();
        for length in (5..=19).filter(|length| *length != BLOCK) {
            let plain: Vec<u8> = (1..=length as u8).collect();
            let mut id = plain.clone();
            encryption.encrypt(&mut id).unwrap();
            assert_ne!(id, plain);
            encryption.decrypt_halves(&mut id);
            assert_eq!(id, plain, "{length} bytes");
        }
    }
}
