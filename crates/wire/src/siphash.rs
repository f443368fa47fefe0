//! SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein: SipHash: a fast short-input PRF, 2012): a keyed 64-bit hash that
//! XDP programs compute too (`bpf/include/siphash.h`).

/// A key of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SipKey {
    k0: u64,
    k1: u64,
}

impl core::fmt::Debug for SipKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SipKey(..)")
    }
}

impl SipKey {
    /// The key of these bytes.
    pub fn new(bytes: &[u8; 16]) -> Self {
        let all = u128::from_le_bytes(*bytes);
        Self { k0: all as u64, k1: (all >> 64) as u64 }
    }

    /// Its two words.
    pub fn words(&self) -> [u64; 2] {
        [self.k0, self.k1]
    }

    /// The hash of `text`; its bytes are those of the number, the lowest first.
    pub fn hash(&self, text: &[u8]) -> u64 {
        let mut state = [
            self.k0 ^ 0x736f_6d65_7073_6575,
            self.k1 ^ 0x646f_7261_6e64_6f6d,
            self.k0 ^ 0x6c79_6765_6e65_7261,
            self.k1 ^ 0x7465_6462_7974_6573,
        ];
        let mut compress = |word: u64| {
            state[3] ^= word;
            round(&mut state);
            round(&mut state);
            state[0] ^= word;
        };
        let (words, rest) = text.as_chunks::<8>();
        for word in words {
            compress(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        compress(u64::from_le_bytes(last) | (text.len() as u64) << 56);
        state[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key 00 01 … 0f on the texts of no byte, 00, and 00 01 … 0e: the paper's example, and its reference code's vectors.
    #[test]
    fn the_authors_vectors() {
        let bytes: [u8; 64] = core::array::from_fn(|at| at as u8);
        let key = SipKey::new(bytes[..16].try_into().unwrap());
        assert_eq!(key.hash(b"").to_le_bytes(), [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]);
        assert_eq!(key.hash(&bytes[..1]).to_le_bytes(), [0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74]);
        assert_eq!(key.hash(&bytes[..15]), 0xa129_ca61_49be_45e5);
    }

    /// The standard library's hasher of the same name is the same function.
    #[test]
    #[expect(deprecated, reason = "as an oracle")]
    fn as_the_standard_library_has_it() {
        use core::hash::{Hasher, SipHasher};
        for length in 0..200usize {
            let text: std::vec::Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            let key: [u8; 16] = core::array::from_fn(|at| (at * 31 + length) as u8);
            let [k0, k1] = SipKey::new(&key).words();
            let mut oracle = SipHasher::new_with_keys(k0, k1);
            oracle.write(&text);
            assert_eq!(SipKey::new(&key).hash(&text), oracle.finish(), "{length} bytes");
        }
    }
}
