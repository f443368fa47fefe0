//! SRTP without encryption, and DTLS of a peer that says and hears more than its own SCTP.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Instant;

use expressway_relay::webrtc::fuzzing::{certificate, provider};
use str0m::config::{DtlsCert, DtlsVersion};
use str0m::crypto::dtls::{DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, ProtocolVersion};
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, CryptoProvider,
    SrtpProvider, SupportedAeadAes128Gcm, SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

/// Octets of a tag, which are zeros here.
pub(super) const TAG: usize = 16;

/// What both sides of a session encrypt media by.
pub(super) fn without_srtp() -> CryptoProvider {
    CryptoProvider { srtp_provider: &Plain, ..provider().as_ref().clone() }
}

/// The same for a peer whose DTLS is [tapped](TAP).
pub(super) fn tapped() -> CryptoProvider {
    CryptoProvider { dtls_provider: &Tapped, ..without_srtp() }
}

/// What the peer of this thread says and hears within DTLS.
#[derive(Default)]
pub(super) struct Tap {
    /// To be said besides.
    pub(super) inject: VecDeque<Vec<u8>>,
    /// The tag of its association, and the number of its next DATA.
    pub(super) tag: u32,
    pub(super) next: u32,
    /// Its SCTP hears nothing more.
    pub(super) is_deaf: bool,
}

thread_local! {
    pub(super) static TAP: RefCell<Tap> = RefCell::default();
}

#[derive(Debug)]
struct Plain;

impl SrtpProvider for Plain {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Self
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Self
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Self
    }

    fn srtp_aes_128_ecb_round(&self, _: &[u8], _: &[u8], output: &mut [u8]) {
        output.fill(0);
    }

    fn srtp_aes_256_ecb_round(&self, _: &[u8], _: &[u8], output: &mut [u8]) {
        output.fill(0);
    }
}

impl SupportedAes128CmSha1_80 for Plain {
    fn create_cipher(&self, _: [u8; 16], _: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(Self)
    }
}

impl SupportedAeadAes128Gcm for Plain {
    fn create_cipher(&self, _: [u8; 16], _: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Self)
    }
}

impl SupportedAeadAes256Gcm for Plain {
    fn create_cipher(&self, _: [u8; 32], _: bool) -> Box<dyn AeadAes256GcmCipher> {
        Box::new(Self)
    }
}

impl Aes128CmSha1_80Cipher for Plain {
    fn encrypt(&mut self, _: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        output[..input.len()].copy_from_slice(input);
        Ok(())
    }

    fn decrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        Aes128CmSha1_80Cipher::encrypt(self, iv, input, output)
    }
}

fn seal(input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
    let (text, tag) = output.split_at_mut(input.len());
    text.copy_from_slice(input);
    tag[..TAG].fill(0);
    Ok(())
}

fn open(input: &[u8], output: &mut [u8]) -> Result<usize, CryptoError> {
    let length = input.len().checked_sub(TAG);
    let length = length.ok_or_else(|| CryptoError::Other("shorter than its tag".into()))?;
    output[..length].copy_from_slice(&input[..length]);
    Ok(length)
}

// The same of both key lengths.
macro_rules! plain {
    ($($cipher:ident)+) => {$(
        impl $cipher for Plain {
            fn encrypt(
                &mut self,
                _: &[u8; 12],
                _: &[u8],
                input: &[u8],
                output: &mut [u8],
            ) -> Result<(), CryptoError> {
                seal(input, output)
            }

            fn decrypt(
                &mut self,
                _: &[u8; 12],
                _: &[&[u8]],
                input: &[u8],
                output: &mut [u8],
            ) -> Result<usize, CryptoError> {
                open(input, output)
            }
        }
    )+};
}

plain! { AeadAes128GcmCipher AeadAes256GcmCipher }

#[derive(Debug)]
struct Tapped;

#[derive(Debug)]
struct TappedDtls(Box<dyn DtlsInstance>);

impl DtlsProvider for Tapped {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        certificate().ok()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let dtls = provider().dtls_provider.new_dtls(certificate, now, version, mtu)?;
        Ok(Box::new(TappedDtls(dtls)))
    }
}

impl DtlsInstance for TappedDtls {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        for data in TAP.with_borrow_mut(|tap| std::mem::take(&mut tap.inject)) {
            // A record that cannot be is not sent.
            let _ = self.0.send_application_data(&data);
        }
        let output = self.0.poll_output(buffer);
        let DtlsOutput::ApplicationData(data) = output else { return output };
        DtlsOutput::ApplicationData(if TAP.with_borrow(|tap| tap.is_deaf) { &[] } else { data })
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<(), DtlsImplError> {
        let word = |at: usize| {
            data.get(at..at + 4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        };
        TAP.with_borrow_mut(|tap| {
            tap.tag = word(4).unwrap_or(tap.tag);
            // The first chunk of a packet, and how DATA is numbered (RFC 9260, section 3.3.1).
            if data.get(12) == Some(&0) {
                tap.next = word(16).map_or(tap.next, |number| number.wrapping_add(1));
            }
        });
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}
