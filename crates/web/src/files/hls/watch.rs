//! A playlist for which requests wait.
//!
//! One check serves all waiting requests. Checks are by path, as for every request, rather than by inotify: this needs
//! no rights beyond those for serving, and detects renames and changes on network file systems.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::StatusCode;
use rustix::io::{Errno, pread};

use super::holds::Watches;
use super::playlist::{Playlist, Reached};
use super::{Entered, HlsOptions, Wanted, holds::Holds};
use crate::files::FileStore;
use crate::files::lookup::{Found, Tree};
use crate::files::open::{Identity, OpenFile};
use crate::files::store::{Job, Outcome};
use crate::target::{Target, encode_path};
use crate::timer::Alarm;
use crate::{Notify, Wake};
use expressway_metrics::count;

/// From one look to the next: a fraction of the shortest parts.
const INTERVAL: Duration = Duration::from_millis(40);

/// Target durations that a request is held at most (section 6.2.5.2).
const HELD: u32 = 3;

/// Requests that are looked at without letting go of the lock: a worker that has another one may wait for it.
const BATCH: usize = 256;

/// Octets of a playlist that is waited for. A live one of a day has less.
const MAX_PLAYLIST: u64 = 4 << 20;

/// How a wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is answered like any other.
    Answer,
    /// It is refused.
    Refuse(StatusCode),
}

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    since: Instant,
    wake: Wake,
    verdict: Arc<OnceLock<Verdict>>,
    /// A playlist was seen that is to have what it wants. It is not refused when one has less for a while.
    is_admitted: bool,
}

#[derive(Default)]
struct State {
    waiters: BTreeMap<u64, Waiter>,
    next: u64,
    /// As it was read last.
    identity: Option<Identity>,
    playlist: Option<Playlist>,
    /// Paths that it hints at.
    hints: Vec<Box<[u8]>>,
    /// The playlist that these are of.
    hinting: Option<Playlist>,
    /// Since when what is read ends before that does.
    behind_since: Option<Instant>,
    /// Somebody came for whom more needs to be seen than what was read last.
    has_new: bool,
    /// A reader thread has been asked to look.
    is_looking: bool,
    /// When to look again, or to forget it.
    alarm: Option<Alarm>,
}

/// A playlist, and who waits for it.
pub(super) struct Watch {
    tree: Arc<Tree>,
    pub(super) path: Arc<[u8]>,
    options: HlsOptions,
    store: Weak<FileStore>,
    state: Mutex<State>,
}

/// A request that waits. Dropping it ends that.
pub(crate) struct Registration {
    store: Weak<FileStore>,
    watch: Arc<Watch>,
    id: u64,
    verdict: Arc<OnceLock<Verdict>>,
}

/// What a look at the file has brought.
enum Look {
    Unchanged,
    /// There is no such file, or it cannot be read.
    Missing,
    /// It is no media playlist.
    Other,
    Playlist(Identity, Playlist),
}

impl Watch {
    pub(super) fn new(
        store: &Arc<FileStore>,
        tree: &Arc<Tree>,
        path: Arc<[u8]>,
        options: HlsOptions,
    ) -> Arc<Self> {
        let (tree, store) = (Arc::clone(tree), Arc::downgrade(store));
        Arc::new(Self { tree, path, options, store, state: Mutex::default() })
    }

    pub(super) fn root(&self) -> u64 {
        self.tree.root.id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that has something to wait for, with the list of watches locked.
    pub(super) fn enter(self: Arc<Self>, holds: &Holds, wanted: Wanted, wake: &Wake) -> Entered {
        let mut state = self.lock();
        // What was seen is there, however long ago; what was not may be by now.
        let judged = state.judge(&wanted);
        if judged == Some(Verdict::Answer) {
            return Entered::AtOnce;
        }
        if holds.is_full(&self.tree, self.options) {
            return Entered::Full;
        }
        self.tree.held.fetch_add(1, Ordering::Relaxed);
        state.has_new |= judged.is_some();
        let is_admitted = state.playlist.is_some() && judged.is_none();
        state.next += 1;
        let (id, verdict) = (state.next, Arc::<OnceLock<_>>::default());
        let waiter = Waiter {
            wanted,
            since: Instant::now(),
            wake: wake.clone(),
            verdict: Arc::clone(&verdict),
            is_admitted,
        };
        let is_first = state.waiters.is_empty();
        state.waiters.insert(id, waiter);
        count(&holds.counters.hls_held);
        holds.waiting.fetch_add(1, Ordering::Relaxed);
        if is_first && !state.is_looking {
            self.look(&mut state, holds);
        }
        drop(state);
        Entered::Held(Registration { store: self.store.clone(), watch: self, id, verdict })
    }

    /// Asks a reader thread to look, now or, if there are too many jobs, later.
    fn look(self: &Arc<Self>, state: &mut State, holds: &Holds) {
        let Some(store) = self.store.upgrade() else { return };
        let key = Job::Playlist(self.root(), Arc::clone(&self.path));
        let watch = Arc::clone(self);
        state.alarm = None;
        state.is_looking = store.pool.offer(key, 0, move || {
            watch.examine();
            Outcome::Lost
        });
        if !state.is_looking {
            state.alarm = Some(holds.alarms.set(Instant::now() + INTERVAL, self.wake()));
        }
    }

    fn wake(self: &Arc<Self>) -> Wake {
        let notify: Arc<dyn Notify> = Arc::clone(self) as _;
        Wake::new(notify, 0)
    }

    /// Looks at the file, and lets go of those who have what they want. On a reader thread.
    ///
    /// Workers take the locks, so neither is held for longer than it takes to look at a batch of requests.
    fn examine(self: &Arc<Self>) {
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        let known = self.lock().identity;
        let look = self.read(&store, known);
        let mut round = Some(self.take_in(look, holds));
        while let Some(some) = round.take() {
            let (let_go, rest) = self.lock().let_go(some, holds);
            let_go.iter().for_each(Wake::wake);
            round = rest;
        }
        let mut watches = holds.lock();
        let mut state = self.lock();
        state.is_looking = false;
        self.go_on(&mut watches, &mut state, holds);
    }

    /// Takes in what a look has brought; who is to be judged by it.
    fn take_in(self: &Arc<Self>, look: Look, holds: &Holds) -> Round {
        let mut watches = holds.lock();
        let mut state = self.lock();
        let is_changed = std::mem::take(&mut state.has_new) || !matches!(look, Look::Unchanged);
        match look {
            Look::Unchanged => {}
            Look::Playlist(identity, playlist) => {
                count(&holds.counters.hls_playlists_read);
                state.identity = Some(identity);
                // One that is being written lacks its end, and so its hints; one that stays behind is a new stream.
                let is_behind = state.hinting.as_ref().is_some_and(|old| playlist.is_behind(old));
                let is_new = is_behind
                    && state.behind_since.get_or_insert_with(Instant::now).elapsed() >= playlist.target;
                if self.options.preload_hints && (!is_behind || is_new) {
                    let hints = self.hints(&playlist);
                    watches.change_hints(self, &state.hints, &hints);
                    (state.hints, state.hinting, state.behind_since) = (hints, Some(playlist.clone()), None);
                }
                state.playlist = Some(playlist);
            }
            // Somebody is writing it, if it was a playlist before.
            Look::Other if state.playlist.is_some() => state.identity = None,
            Look::Missing | Look::Other => {
                watches.change_hints(self, &state.hints, &[]);
                let waiters = std::mem::take(&mut state.waiters);
                *state = State { waiters, next: state.next, is_looking: true, ..State::default() };
            }
        }
        let max_hold = self.options.max_hold;
        let most = state.playlist.as_ref().map_or(max_hold, |playlist| max_hold.min(playlist.target * HELD));
        Round { from: 0, last: state.next, now: Instant::now(), most, is_changed }
    }

    /// Sees to it that it is looked at again if somebody waits, and forgotten after a while if nobody does: whoever has got
    /// it soon asks for the next.
    fn go_on(self: &Arc<Self>, watches: &mut Watches, state: &mut State, holds: &Holds) {
        if state.is_looking {
            return;
        }
        let target =
            state.playlist.as_ref().filter(|playlist| !playlist.is_over).map(|playlist| playlist.target);
        let time = match target {
            _ if !state.waiters.is_empty() => INTERVAL,
            Some(target) if watches.has_room() => target * HELD,
            _ => {
                let hints = std::mem::take(&mut state.hints);
                watches.remove(self, &hints);
                state.alarm = None;
                return;
            }
        };
        state.alarm = Some(holds.alarms.set(Instant::now() + time, self.wake()));
    }

    fn read(&self, store: &FileStore, known: Option<Identity>) -> Look {
        let Ok(found) = self.tree.look_up(&self.path, false) else { return Look::Missing };
        let found = Arc::new(found);
        let Found::Resource(resource) = &*found else { return Look::Missing };
        let Some(file) = resource.plain.as_ref().map(|plain| &plain.file) else { return Look::Missing };
        if known == Some(file.identity) {
            return Look::Unchanged;
        }
        // Who is let go gets this file, and not one that was opened earlier.
        store.open_files.keep(self.root(), &self.path, &found);
        match text(file) {
            Ok(Some(text)) => match Playlist::parse(&text, file.identity.age.is_kept()) {
                Some(playlist) => Look::Playlist(file.identity, playlist),
                None => Look::Other,
            },
            Ok(None) => Look::Other,
            Err(_) => Look::Missing,
        }
    }

    /// The paths of what a playlist hints at, beside it or below.
    fn hints(&self, playlist: &Playlist) -> Vec<Box<[u8]>> {
        let end = self.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let folder = encode_path(&self.path[..end]);
        let path = |uri: &str| {
            let target = match uri.starts_with('/') {
                true if uri.starts_with("//") => return None,
                true => uri.to_owned(),
                false if uri.split(['/', '?']).next().is_some_and(|first| first.contains(':')) => {
                    return None;
                }
                false => format!("{folder}{uri}"),
            };
            let path = Target::parse(&target).ok()?.path.into_owned().into_boxed_slice();
            (*path != *self.path).then_some(path)
        };
        playlist.hints.iter().filter_map(|uri| path(uri)).collect()
    }
}

impl Notify for Watch {
    /// On the timer's thread.
    fn notify(&self, _token: u64) {
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        let mut watches = holds.lock();
        let Some(watch) = watches.of(self) else { return };
        let mut state = self.lock();
        if state.is_looking {
            return;
        }
        if state.waiters.is_empty() {
            let hints = std::mem::take(&mut state.hints);
            watches.remove(&watch, &hints);
        } else {
            watch.look(&mut state, holds);
        }
    }
}

/// All of a file, if it is not too long for a playlist.
fn text(file: &OpenFile) -> Result<Option<Vec<u8>>, Errno> {
    let size = file.identity.size;
    if size > MAX_PLAYLIST {
        return Ok(None);
    }
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    let mut length = 0;
    while length < text.len() {
        match pread(&file.fd, &mut text[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(length);
    Ok(Some(text))
}

impl State {
    /// What is to be done with a request by what is known of the playlist. `None`: it waits.
    fn judge(&self, wanted: &Wanted) -> Option<Verdict> {
        let playlist = self.playlist.as_ref()?;
        match wanted {
            Wanted::Reload(reload) => match playlist.reached(*reload) {
                Reached::Yes => Some(Verdict::Answer),
                Reached::NotYet => None,
                Reached::TooFar => Some(Verdict::Refuse(StatusCode::BAD_REQUEST)),
            },
            Wanted::Hinted(path) => (!self.hints.contains(path)).then_some(Verdict::Answer),
        }
    }

    /// Takes out those of a batch who need not wait any longer, to be woken, and who is to be looked at next: if nothing has changed
    /// only those who came first.
    fn let_go(&mut self, round: Round, holds: &Holds) -> (Vec<Wake>, Option<Round>) {
        let mut seen = Vec::new();
        let mut is_cut = false;
        for (&id, waiter) in self.waiters.range(round.from..=round.last) {
            if !round.is_changed && !round.is_late(waiter) {
                break;
            }
            if seen.len() == BATCH {
                is_cut = true;
                break;
            }
            let judged = match &self.playlist {
                None => Some(Verdict::Answer),
                Some(_) => self.judge(&waiter.wanted),
            };
            seen.push((id, judged));
        }
        let rest = seen.last().filter(|_| is_cut).map(|(id, _)| Round { from: id + 1, ..round });
        // Of a file that has changed just now more may be to come.
        let is_settled = self.identity.is_some_and(|identity| identity.age.is_kept());
        let mut woken = Vec::new();
        for (id, judged) in seen {
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            waiter.is_admitted |= judged.is_none();
            if let Some(verdict) = waiter.settle(judged, round.is_late(waiter), is_settled, holds) {
                let _ = waiter.verdict.set(verdict);
                woken.push(waiter.wake.clone());
                self.waiters.remove(&id);
            }
        }
        (woken, rest)
    }
}

impl Waiter {
    /// How its wait ends, if it does, where it was `judged` so by what is known of the playlist.
    fn settle(
        &self,
        judged: Option<Verdict>,
        is_late: bool,
        is_settled: bool,
        holds: &Holds,
    ) -> Option<Verdict> {
        let is_refused = is_settled && !self.is_admitted;
        let verdict = judged.filter(|verdict| *verdict == Verdict::Answer || is_refused);
        let verdict = match (verdict, &self.wanted) {
            (None, Wanted::Reload(_)) if is_late => {
                count(&holds.counters.hls_timeouts);
                Verdict::Refuse(StatusCode::SERVICE_UNAVAILABLE)
            }
            // It may be there by now.
            (None, Wanted::Hinted(_)) if is_late => Verdict::Answer,
            (verdict, _) => verdict?,
        };
        if verdict == Verdict::Refuse(StatusCode::BAD_REQUEST) {
            count(&holds.counters.hls_refused);
        }
        Some(verdict)
    }
}

/// Requests that are to be judged by one look at the playlist, a batch at a time.
#[derive(Clone, Copy)]
struct Round {
    /// Those with numbers from here.
    from: u64,
    last: u64,
    now: Instant,
    /// How long they may have waited.
    most: Duration,
    /// What is known of the playlist has changed for some of them.
    is_changed: bool,
}

impl Round {
    fn is_late(&self, waiter: &Waiter) -> bool {
        self.now.saturating_duration_since(waiter.since) >= self.most
    }
}

impl Registration {
    /// How the wait ends, once it does.
    pub(super) fn poll(&self) -> Option<Verdict> {
        self.verdict.get().copied()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.watch.tree.held.fetch_sub(1, Ordering::Relaxed);
        let Some(store) = self.store.upgrade() else { return };
        let holds = &store.holds;
        holds.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.watch.lock();
        if state.waiters.remove(&self.id).is_none() || !state.waiters.is_empty() {
            return;
        }
        // The list of watches is locked before any of them; meanwhile somebody may have come.
        drop(state);
        let mut watches = holds.lock();
        let mut state = self.watch.lock();
        if state.waiters.is_empty() {
            self.watch.go_on(&mut watches, &mut state, holds);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("path", &self.path.escape_ascii().to_string()).finish_non_exhaustive()
    }
}
