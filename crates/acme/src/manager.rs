//! The thread that obtains and renews certificates.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use expressway_tls::{Identity, Issued};
use instant_acme::{Account, NewAccount};
use tokio::sync::watch;

use crate::answers::Tokens;
use crate::client::Client;
use crate::order::{Challenge, Responder, obtain};
use crate::schedule::{pause, renewal};
use crate::store::Store;

/// For all of one attempt.
const ATTEMPT: Duration = Duration::from_secs(300);

/// How long the thread sleeps at most: the clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names, in lower case, without wildcards; at most [`MAX_NAMES`](crate::MAX_NAMES).
    pub names: Vec<String>,
    /// Whom the authority may write to.
    pub email: Option<String>,
    /// The authority's directory.
    pub url: String,
    /// PEM file of the authorities that sign the authority's own certificate, instead of the system's.
    pub ca: Option<PathBuf>,
    /// How names are checked.
    pub challenge: Challenge,
}

/// Obtains and renews until it is dropped.
#[derive(Debug)]
pub struct Acme {
    plan: Option<watch::Sender<Plan>>,
    thread: Option<JoinHandle<()>>,
}

impl Acme {
    /// Serves what the store has, then starts the thread that gets the rest.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub fn start(
        plan: Plan,
        store: Store,
        issued: Arc<Issued>,
        tokens: Arc<Tokens>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = watch::channel(plan);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut manager =
            Manager { plan: receiver, store, issued, tokens, known: HashMap::new(), account: None };
        manager.load();
        let thread = std::thread::Builder::new()
            .name("expressway-acme".into())
            .spawn(move || runtime.block_on(manager.run()))?;
        Ok(Self { plan: Some(sender), thread: Some(thread) })
    }

    /// Follows another plan from now on.
    pub fn follow(&self, plan: Plan) {
        if let Some(sender) = &self.plan {
            sender.send_if_modified(|current| {
                let other = *current != plan;
                *current = plan;
                other
            });
        }
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        // The thread ends when nobody has a plan, also in the middle of an attempt.
        self.plan = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is known of a name.
#[derive(Default)]
struct Known {
    identity: Option<Arc<Identity>>,
    /// Not before then; `None`: now.
    due: Option<SystemTime>,
    failures: u32,
}

struct Manager {
    plan: watch::Receiver<Plan>,
    store: Store,
    issued: Arc<Issued>,
    tokens: Arc<Tokens>,
    known: HashMap<String, Known>,
    /// With what it was opened by.
    account: Option<(Account, String, Option<PathBuf>)>,
}

impl Manager {
    async fn run(mut self) {
        let mut changes = self.plan.clone();
        loop {
            let sleep = tokio::select! {
                sleep = self.turn() => sleep,
                ended = changes.changed() => match ended {
                    Ok(()) => { self.load(); continue }
                    Err(_) => return,
                },
            };
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                ended = changes.changed() => match ended {
                    Ok(()) => self.load(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Reads what there is for the names of the plan, and serves it.
    fn load(&mut self) {
        let names = self.plan.borrow().names.clone();
        self.known.retain(|name, _| names.contains(name));
        for name in &names {
            let known = self.known.entry(name.clone()).or_default();
            // A new plan may be right where the old was wrong.
            (known.due, known.failures) = (None, 0);
            if known.identity.is_none() {
                match self.store.identity(name) {
                    Ok(identity) => known.identity = identity.map(Arc::new),
                    Err(error) => tracing::warn!("{error}; it will be replaced"),
                }
            }
            match &known.identity {
                Some(identity) => known.due = Some(due(identity)),
                None => tracing::warn!(name, "no certificate yet: serving a self-signed one"),
            }
        }
        self.serve(&names);
    }

    /// The first name is for clients that name no server.
    fn serve(&self, names: &[String]) {
        let known = names.iter().filter_map(|name| self.known.get(name)?.identity.clone());
        if let Err(error) = self.issued.replace(known.collect()) {
            tracing::error!("ACME certificates: {error}");
        }
    }

    /// Obtains what is due, and says how long nothing is.
    async fn turn(&mut self) -> Duration {
        let plan = self.plan.borrow().clone();
        for name in &plan.names {
            let waits =
                self.known.get(name).and_then(|known| known.due).is_some_and(|due| due > SystemTime::now());
            if waits {
                continue;
            }
            let result = match tokio::time::timeout(ATTEMPT, self.attempt(&plan, name)).await {
                Ok(result) => result,
                Err(_) => Err("the authority is taking too long".to_owned()),
            };
            let known = self.known.entry(name.clone()).or_default();
            match result {
                Ok(identity) => {
                    let due = due(&identity);
                    tracing::info!(name, not_after = %identity.leaf().not_after(), "certificate obtained");
                    *known = Known { identity: Some(identity), due: Some(due), failures: 0 };
                    self.serve(&plan.names);
                }
                Err(error) => {
                    known.failures = known.failures.saturating_add(1);
                    let pause = pause(known.failures, random());
                    known.due = Some(SystemTime::now() + pause);
                    tracing::warn!(name, authority = plan.url, retry = ?pause, "no certificate: {error}");
                }
            }
        }
        let next = plan.names.iter().filter_map(|name| self.known.get(name)?.due).min();
        let sleep = next.map(|due| due.duration_since(SystemTime::now()).unwrap_or_default());
        sleep.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
    }

    async fn attempt(&mut self, plan: &Plan, name: &str) -> Result<Arc<Identity>, String> {
        let account = self.account(plan).await?;
        let responder =
            Responder { challenge: plan.challenge, issued: self.issued.clone(), tokens: self.tokens.clone() };
        let (key, chain) = obtain(&account, &responder, name).await.map_err(|error| error.to_string())?;
        let identity = self.store.keep(name, &key, &chain).map_err(|error| error.to_string())?;
        if !identity.names().iter().any(|has| has == name) {
            return Err(format!("the authority sent a certificate for {:?}", identity.names()));
        }
        Ok(Arc::new(identity))
    }

    /// The account at the plan's authority, made if there is none.
    async fn account(&mut self, plan: &Plan) -> Result<Account, String> {
        if let Some((account, url, ca)) = &self.account
            && (url, ca) == (&plan.url, &plan.ca)
        {
            return Ok(account.clone());
        }
        let client = Client::new(plan.ca.as_deref()).map_err(|error| error.to_string())?;
        let builder = Account::builder_with_http(Box::new(client));
        let account = match self.store.account(&plan.url).map_err(|error| error.to_string())? {
            Some(credentials) => {
                builder.from_credentials(credentials).await.map_err(|error| error.to_string())?
            }
            None => {
                let contact: Vec<String> = plan.email.iter().map(|email| format!("mailto:{email}")).collect();
                let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
                let new = NewAccount {
                    contact: &contact,
                    terms_of_service_agreed: true,
                    only_return_existing: false,
                };
                let created = builder.create(&new, plan.url.clone(), None).await;
                let (account, credentials) = created.map_err(|error| error.to_string())?;
                self.store.keep_account(&plan.url, &credentials).map_err(|error| error.to_string())?;
                account
            }
        };
        self.account = Some((account.clone(), plan.url.clone(), plan.ca.clone()));
        Ok(account)
    }
}

fn due(identity: &Identity) -> SystemTime {
    let not_before = identity.not_before();
    renewal(not_before.max(UNIX_EPOCH), identity.not_after(), random())
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    // Without random bytes renewals come at the last moment and pauses are longest.
    let _ = boring::rand::rand_bytes(&mut bytes);
    u32::from_ne_bytes(bytes)
}
