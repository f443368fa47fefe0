//! Obtaining one certificate: order, challenge, request, chain (RFC 8555, section 7.4).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use expressway_tls::{Identity, Issued, TlsError};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, KeyAuthorization, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};

use crate::answers::Tokens;

/// How long an authority may take to check a name, and to make a certificate.
const PATIENCE: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).timeout(Duration::from_secs(90));

/// How the authority checks that a name is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Challenge {
    /// By a TLS connection to port 443 (RFC 8737).
    #[default]
    TlsAlpn01,
    /// By a request to port 80 (RFC 8555, section 8.3).
    Http01,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    /// What the authority said, or that it cannot be reached.
    #[error("{0}")]
    Authority(#[from] Error),
    /// The name could not be checked.
    #[error("{0}")]
    Check(String),
    #[error("certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("certificate: {0}")]
    Tls(#[from] TlsError),
}

/// Where challenges are answered.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    pub(crate) challenge: Challenge,
    pub(crate) issued: Arc<Issued>,
    pub(crate) tokens: Arc<Tokens>,
}

/// An answer that is there; taken back when dropped.
enum Answer<'a> {
    Tls(&'a Responder, String),
    Http(&'a Responder, String),
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        match self {
            Self::Tls(responder, name) => {
                // Taking away does not fail.
                let _ = responder.issued.set_challenge(name, None);
            }
            Self::Http(responder, token) => responder.tokens.set(token, None),
        }
    }
}

impl Responder {
    fn answer(
        &self,
        name: &str,
        token: &str,
        authorization: &KeyAuthorization,
    ) -> Result<Answer<'_>, OrderError> {
        match self.challenge {
            Challenge::TlsAlpn01 => {
                let identity = Arc::new(proof(name, authorization.digest().as_ref())?);
                self.issued.set_challenge(name, Some(identity))?;
                Ok(Answer::Tls(self, name.to_owned()))
            }
            Challenge::Http01 => {
                self.tokens.set(token, Some(authorization.as_str().to_owned()));
                Ok(Answer::Http(self, token.to_owned()))
            }
        }
    }
}

/// The certificate that shows the authorization in TLS (RFC 8737, section 3).
fn proof(name: &str, digest: &[u8]) -> Result<Identity, OrderError> {
    let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let (chain, key) = (parameters.self_signed(&key)?.pem(), key.serialize_pem());
    let path = Path::new("challenge");
    Ok(Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path)?)
}

/// Key and chain for a name, in PEM.
pub(crate) async fn obtain(
    account: &Account,
    responder: &Responder,
    name: &str,
) -> Result<(String, String), OrderError> {
    let identifiers = [Identifier::Dns(name.to_owned())];
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    let mut answers = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let kind = match responder.challenge {
            Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Challenge::Http01 => ChallengeType::Http01,
        };
        let Some(mut challenge) = authorization.challenge(kind) else {
            return Err(OrderError::Check("the authority does not offer this challenge".into()));
        };
        answers.push(responder.answer(name, &challenge.token.clone(), &challenge.key_authorization())?);
        challenge.set_ready().await?;
    }
    if order.poll_ready(&PATIENCE).await? != OrderStatus::Ready {
        return Err(OrderError::Check(refusal(&mut order).await));
    }
    drop(answers);
    let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
    parameters.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    order.finalize_csr(parameters.serialize_request(&key)?.der()).await?;
    Ok((key.serialize_pem(), order.poll_certificate(&PATIENCE).await?))
}

/// What the authority says of the challenge that failed.
async fn refusal(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref())
        {
            return problem.to_string();
        }
    }
    "the authority refused the name and does not say why".into()
}
